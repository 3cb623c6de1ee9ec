/* The predicted cost of a layout; see layout_cost.h. */
#include "experts/layout_cost.h"
#include <string.h>
#include "comm/way.h"

static int64_t larger(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

void mt_layout_rows(const struct mt_layout *layout, const struct mt_shares *shares, int64_t *rows)
{
  memset(rows, 0, sizeof *rows * (size_t)layout->slot_first[layout->nrank]);
  const int64_t n = shares->first[(int64_t)shares->nrank * shares->nexpert];
  for (int64_t i = 0; i < n; i++)
    rows[shares->slot[i]] += shares->rows[i];
}

/* What devices and nodes send and receive. */
struct traffic {
  int64_t *out, *in;           /* [P] within the node */
  int64_t *node_out, *node_in; /* [nnode] over the uplink */
};

static struct traffic traffic_in(const struct mt_shares *shares)
{
  int64_t *in = shares->traffic + shares->nrank, *out = in + shares->nrank;
  return (struct traffic){shares->traffic, in, out, out + shares->nnode};
}

static void clear(struct traffic *t, const struct mt_cluster *cluster)
{
  memset(t->out, 0, sizeof *t->out * 2 * (size_t)(cluster->nplace + cluster->nnode));
}

static int64_t link_ps(struct mt_link link, int64_t units, int64_t bytes, int shift)
{
  return units ? (int64_t)((__int128)units * bytes * link.beta_ps >> shift) + link.alpha_ns * 1000 : 0;
}

/* The longest transfer of all, bytes / 2^shift for each unit of traffic: of a device within its node, then of a node's
 * uplink. */
static int64_t transfer_ps(const struct traffic *t, const struct mt_cluster *cluster, int64_t bytes, int shift,
                           int trips)
{
  struct mt_link node = mt_link_usual(cluster, MT_LEVEL_NODE), net = mt_link_usual(cluster, MT_LEVEL_NET);
  int64_t inside = 0, across = 0;
  for (int p = 0; p < cluster->nplace; p++)
    inside = larger(inside, larger(t->out[p], t->in[p]));
  for (int q = 0; q < cluster->nnode; q++)
    across = larger(across, larger(t->node_out[q], t->node_in[q]));
  return trips * (link_ps(node, inside, bytes, shift) + link_ps(net, across, bytes, shift));
}

static void add_rows(struct mt_layout_cost *cost, struct traffic *t, const struct mt_cluster *cluster,
                     const struct mt_work *work, const struct mt_layout *layout, const struct mt_shares *shares)
{
  int64_t rows[MT_NLEVEL] = {0};
  const int P = layout->nrank, E = layout->nexpert;
  for (int s = 0; s < P; s++)
    for (int64_t i = shares->first[(int64_t)s * E]; i < shares->first[(int64_t)(s + 1) * E]; i++) {
      int d = layout->slot_rank[shares->slot[i]];
      enum mt_level level = mt_cluster_level(cluster, s, d);
      rows[level] += shares->rows[i];
      if (level == MT_LEVEL_NODE) {
        t->out[s] += shares->rows[i];
        t->in[d] += shares->rows[i];
      } else if (level == MT_LEVEL_NET) {
        t->node_out[cluster->node_of[s]] += shares->rows[i];
        t->node_in[cluster->node_of[d]] += shares->rows[i];
      }
    }
  for (int level = 0; level < MT_NLEVEL; level++)
    cost->row_bytes[level] = rows[level] * work->row_bytes * work->row_trips;
  cost->exchange_ps = transfer_ps(t, cluster, work->row_bytes, 0, work->row_trips);
}

/* Weights, in 2^-SHIFT experts: where a distinct expert comes from and which ranks get it. */
static void add_weights(struct mt_layout_cost *cost, struct traffic *t, const struct mt_cluster *cluster,
                        const struct mt_work *work, const struct mt_layout *layout)
{
  const int P = layout->nrank, E = layout->nexpert, nnode = layout->nnode;
  enum { SHIFT = 24, WHOLE = 1 << SHIFT };
  int64_t units[MT_NLEVEL] = {0}, fetches = 0;
  for (int e = 0; e < E; e++)
    for (int q = 0; q < nnode; q++) {
      const int *at = &layout->expert_first[e * nnode + q];
      int holders = 0, last = -1; /* ranks of q that hold e */
      for (int i = at[0]; i < at[1]; i++) {
        int d = layout->slot_rank[layout->by_expert[i]];
        holders += d != last;
        last = d;
      }
      if (!holders)
        continue;
      /* What of e lies in q itself, and on a holder itself. */
      int n = cluster->node_first[q + 1] - cluster->node_first[q], owner = -1;
      int64_t here = 0, own = 0;
      switch (work->sharding) {
      case MT_SHARDING_FULL:
        here = (int64_t)WHOLE * n / P;
        own = (int64_t)WHOLE / P;
        break;
      case MT_SHARDING_NODE:
        here = e % nnode == q ? WHOLE : 0;
        own = here / n;
        break;
      case MT_SHARDING_AUTO: /* was chosen before anything is planned */
      case MT_SHARDING_OWNER:
        /* the rank of its first slot in the static layout, see shard.h */
        owner = layout->slot_rank[((int64_t)e * layout->slot_first[P] + E - 1) / E];
        here = cluster->node_of[owner] == q ? WHOLE : 0;
        break;
      }
      int64_t missing = WHOLE - here;
      t->node_in[q] += missing;
      units[MT_LEVEL_NET] += missing;
      fetches++;
      if (work->sharding == MT_SHARDING_FULL)
        t->node_out[q] -= here; /* all nodes send to all others: to q itself it does not */
      else if (missing)
        t->node_out[work->sharding == MT_SHARDING_NODE ? e % nnode : cluster->node_of[owner]] += missing;
      /* Holders get what is neither theirs nor came from outside to them; they pass on in equal parts. */
      last = -1;
      for (int i = at[0]; i < at[1]; i++) {
        int d = layout->slot_rank[layout->by_expert[i]];
        if (d == last)
          continue;
        last = d;
        int64_t get = d == owner ? 0 : WHOLE - own - missing / holders;
        t->in[d] += get;
        units[MT_LEVEL_NODE] += get;
        t->out[owner >= 0 && here ? owner : d] += get;
      }
    }
  for (int q = 0; work->sharding == MT_SHARDING_FULL && q < nnode; q++)
    t->node_out[q] += fetches * ((int64_t)WHOLE * (cluster->node_first[q + 1] - cluster->node_first[q]) / P);
  for (int level = 0; level < MT_NLEVEL; level++)
    cost->weight_bytes[level] = (int64_t)((__int128)units[level] * work->expert_bytes >> SHIFT) * work->expert_trips;
  cost->weights_ps = transfer_ps(t, cluster, work->expert_bytes, SHIFT, work->expert_trips);
}

void mt_layout_cost_total(struct mt_layout_cost *cost, const struct mt_work *work)
{
  int64_t exposed = work->hidden ? larger(0, cost->weights_ps - cost->compute_ps) : cost->weights_ps;
  cost->total_ps = cost->compute_ps + cost->exchange_ps + exposed;
}

int64_t mt_layout_weights(const struct mt_cluster *cluster, const struct mt_work *work, const struct mt_layout *layout,
                          struct mt_shares *shares)
{
  struct mt_layout_cost cost = {0};
  struct traffic t = traffic_in(shares);
  clear(&t, cluster);
  add_weights(&cost, &t, cluster, work, layout);
  return cost.weights_ps;
}

struct mt_layout_cost mt_layout_cost(const struct mt_cluster *cluster, const struct mt_work *work,
                                     const struct mt_layout *layout, struct mt_shares *shares)
{
  struct mt_layout_cost cost = {0};
  const int P = layout->nrank;
  int64_t *slot_rows = shares->slot_rows, *ps = shares->ps;
  struct traffic t = traffic_in(shares);
  mt_work_row_ps(work, cluster, ps);
  mt_layout_rows(layout, shares, slot_rows);
  double speed = 0, all = 0; /* of a report only: nothing is decided on them */
  for (int p = 0; p < P; p++) {
    int64_t rows = 0;
    for (int s = layout->slot_first[p]; s < layout->slot_first[p + 1]; s++)
      rows += slot_rows[s];
    cost.compute_ps = larger(cost.compute_ps, rows * ps[p]);
    speed += 1.0 / (double)ps[p];
    all += (double)rows;
  }
  cost.imbalance_ppm = all > 0 ? (int64_t)(1e6 * (double)cost.compute_ps * speed / all + 0.5) : 1000000;
  clear(&t, cluster);
  add_rows(&cost, &t, cluster, work, layout, shares);
  clear(&t, cluster);
  add_weights(&cost, &t, cluster, work, layout);
  mt_layout_cost_total(&cost, work);
  return cost;
}
