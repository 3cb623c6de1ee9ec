/* Shares; see shares.h. */
#include "experts/shares.h"
#include <string.h>
#include "base/memory.h"

/* A part of the shares before it is in its place. */
struct mt_run {
  int32_t pair, slot;
  int64_t rows;
};

struct mt_shares *mt_shares_new(const struct mt_cluster *cluster, int nexpert, int nslot)
{
  struct mt_shares *shares = MT_ZNEW(MT_TAG_PLAN, struct mt_shares, 1);
  shares->nrank = cluster->nplace;
  shares->nexpert = nexpert;
  shares->nnode = cluster->nnode;
  shares->first = MT_ZNEW(MT_TAG_PLAN, int32_t, (int64_t)cluster->nplace * nexpert + 1);
  shares->demand = MT_NEW(MT_TAG_PLAN, int64_t, (int64_t)nexpert * cluster->nnode);
  shares->left = MT_NEW(MT_TAG_PLAN, int64_t, cluster->nplace);
  shares->ps = MT_NEW(MT_TAG_PLAN, int64_t, cluster->nplace);
  shares->node_rows = MT_NEW(MT_TAG_PLAN, int64_t, 2 * cluster->nnode);
  shares->slot_rows = MT_NEW(MT_TAG_PLAN, int64_t, nslot);
  shares->traffic = MT_NEW(MT_TAG_PLAN, int64_t, 2 * (cluster->nplace + cluster->nnode));
  shares->rest = MT_NEW(MT_TAG_PLAN, int32_t, 2 * (nslot + 1));
  shares->even = MT_NEW(MT_TAG_PLAN, int64_t, (int64_t)nexpert * (cluster->nnode + 1));
  shares->solver = mt_solver_new(cluster, nexpert, nslot);
  return shares;
}

void mt_shares_free(struct mt_shares *shares)
{
  if (!shares)
    return;
  mt_free(shares->first);
  mt_free(shares->slot);
  mt_free(shares->rows);
  mt_free(shares->run);
  mt_free(shares->demand);
  mt_free(shares->left);
  mt_free(shares->ps);
  mt_free(shares->node_rows);
  mt_free(shares->slot_rows);
  mt_free(shares->rest);
  mt_free(shares->even);
  mt_free(shares->traffic);
  mt_solver_free(shares->solver);
  mt_free(shares);
}

/* The slots over which a source on node q deals expert e evenly: by_expert[*first .. *first + result). */
static int replicas(const struct mt_layout *layout, int e, int q, int *first)
{
  int bin = e * layout->nnode + q;
  int local = layout->expert_first[bin + 1] - layout->expert_first[bin];
  *first = layout->expert_first[local ? bin : e * layout->nnode];
  return local ? local : layout->expert_first[(e + 1) * layout->nnode] - *first;
}

static void lite(struct mt_shares *shares, const struct mt_cluster *cluster, const struct mt_layout *layout,
                 const int64_t *counts)
{
  const int P = shares->nrank, E = shares->nexpert;
  int64_t n = 0;
  for (int s = 0; s < P; s++)
    for (int e = 0; e < E; e++) {
      int64_t rows = counts[(int64_t)s * E + e];
      int first, nrep = rows ? replicas(layout, e, cluster->node_of[s], &first) : 0;
      shares->first[(int64_t)s * E + e] = (int32_t)n;
      n += rows < nrep ? rows : nrep;
    }
  MT_CHECK(n <= INT32_MAX, "%lld runs of shares, at most %d are possible", (long long)n, INT32_MAX);
  shares->first[(int64_t)P * E] = (int32_t)n;
  mt_grow(MT_TAG_PLAN, (void **)&shares->slot, &shares->slot_capacity, n, sizeof *shares->slot);
  mt_grow(MT_TAG_PLAN, (void **)&shares->rows, &shares->row_capacity, n, sizeof *shares->rows);
  for (int s = 0; s < P; s++)
    for (int e = 0; e < E; e++) {
      int64_t at = shares->first[(int64_t)s * E + e], rows = counts[(int64_t)s * E + e];
      int first, nrep = rows ? replicas(layout, e, cluster->node_of[s], &first) : 0;
      for (int i = 0; i < nrep && i < rows; i++, at++) {
        shares->slot[at] = layout->by_expert[first + i];
        shares->rows[at] = rows / nrep + (i < rows % nrep);
      }
    }
}

/* Adds a run; its pair's number of runs is counted in the entry behind the pair's. */
static int add(struct mt_shares *shares, int n, int s, int e, int slot, int64_t rows)
{
  int32_t pair = (int32_t)((int64_t)s * shares->nexpert + e);
  shares->run[n] = (struct mt_run){pair, slot, rows};
  shares->first[pair + 1]++;
  return n + 1;
}

/* Nothing is written out. Of t rows over n slots each gets t / n, and the first t mod n one more: it is enough to sum the
 * former over the sources that share their slots, and to count for each slot how many remainders end before it. */
void mt_shares_lite_sums(struct mt_shares *shares, const struct mt_cluster *cluster, const struct mt_layout *layout,
                         const int64_t *counts, int64_t *device, int64_t *out, int64_t *in)
{
  const int P = shares->nrank, E = shares->nexpert, nnode = cluster->nnode, S = layout->slot_first[P];
  const int *first = layout->expert_first;
  int32_t *rest = shares->rest, *rest_abroad = rest + S + 1;
  int64_t *even = shares->even, *even_abroad = even + (int64_t)E * nnode;
  memset(even, 0, sizeof *even * (size_t)E * (size_t)(nnode + 1));
  memset(rest, 0, sizeof *rest * 2 * (size_t)(S + 1));
  memset(device, 0, sizeof *device * (size_t)P);
  memset(out, 0, sizeof *out * (size_t)nnode);
  memset(in, 0, sizeof *in * (size_t)nnode);
  for (int s = 0; s < P; s++)
    for (int e = 0, q = cluster->node_of[s]; e < E; e++) {
      const int64_t rows = counts[(int64_t)s * E + e];
      const int local = first[e * nnode + q + 1] - first[e * nnode + q];
      const int n = local ? local : first[(e + 1) * nnode] - first[e * nnode];
      if (local) {
        even[e * nnode + q] += rows / n;
        rest[first[e * nnode + q] + rows % n]++;
      } else {
        even_abroad[e] += rows / n;
        rest_abroad[first[e * nnode] + rows % n]++;
        out[q] += rows;
      }
    }
  for (int e = 0; e < E; e++) {
    int64_t abroad = 0; /* remainders that reach beyond the slot at hand */
    for (int i = first[e * nnode] + 1; i < first[(e + 1) * nnode]; i++)
      abroad += rest_abroad[i];
    for (int q = 0; q < nnode; q++) {
      const int from = first[e * nnode + q], to = first[e * nnode + q + 1];
      int64_t home = 0;
      for (int i = from + 1; i < to; i++)
        home += rest[i];
      for (int i = from; i < to; i++) {
        device[layout->slot_rank[layout->by_expert[i]]] += even[e * nnode + q] + even_abroad[e] + home + abroad;
        in[q] += even_abroad[e] + abroad;
        home -= rest[i + 1];
        abroad -= rest_abroad[i + 1];
      }
    }
  }
}

/* What lite would cost by the solver's measure: the last device's time, and the rows over the busiest uplink. */
static int64_t lite_ps(struct mt_shares *shares, const struct mt_cluster *cluster, const struct mt_layout *layout,
                       const int64_t *counts, int64_t net_ps)
{
  const int P = shares->nrank, nnode = cluster->nnode;
  int64_t *device = shares->left, *out = shares->node_rows, *in = out + nnode, last = 0, most = 0;
  mt_shares_lite_sums(shares, cluster, layout, counts, device, out, in);
  for (int p = 0; p < P; p++)
    last = device[p] * shares->ps[p] > last ? device[p] * shares->ps[p] : last;
  for (int i = 0; i < 2 * nnode; i++)
    most = out[i] > most ? out[i] : most;
  return last + net_ps * most;
}

/* Deals what the solver says of each (expert, node) to the node's ranks: first to a rank its own slots, then both sides
 * from the lowest up, each taking what is left of the other's, so that a run ends with either a rank or a slot. */
static void solved(struct mt_shares *shares, const struct mt_cluster *cluster, const struct mt_work *work,
                   const struct mt_layout *layout, const int64_t *counts)
{
  const int P = shares->nrank, E = shares->nexpert, nnode = cluster->nnode;
  memset(shares->demand, 0, sizeof *shares->demand * (size_t)E * (size_t)nnode);
  for (int s = 0; s < P; s++)
    for (int e = 0; e < E; e++)
      shares->demand[e * nnode + cluster->node_of[s]] += counts[(int64_t)s * E + e];
  mt_work_row_ps(work, cluster, shares->ps);
  const int64_t net_ps = mt_work_link_ps(work, cluster, MT_LEVEL_NET);
  const struct mt_flow *flow = mt_solver_solve(shares->solver, cluster, layout, shares->demand, shares->ps, net_ps);
  /* Within a node nothing is better than the flow. Between nodes it does not weigh which node's uplink rows come in on. */
  const int64_t cost = flow->last_ps + net_ps * flow->most_rows;
  if (flow->most_rows > 0 && cost > flow->at_home_ps && lite_ps(shares, cluster, layout, counts, net_ps) < cost) {
    lite(shares, cluster, layout, counts);
    return;
  }
  const int64_t most = (int64_t)P * E + flow->first[E * nnode];
  mt_grow(MT_TAG_PLAN, (void **)&shares->run, &shares->run_capacity, most, sizeof *shares->run);
  memset(shares->first, 0, sizeof *shares->first * ((size_t)P * (size_t)E + 1));
  int n = 0;
  for (int q = 0; q < nnode; q++)
    for (int e = 0; e < E; e++) {
      const int from = flow->first[e * nnode + q], to = flow->first[e * nnode + q + 1];
      const int low = cluster->node_first[q], high = cluster->node_first[q + 1];
      if (from == to)
        continue;
      for (int s = low; s < high; s++)
        shares->left[s] = counts[(int64_t)s * E + e];
      for (int i = from; i < to; i++) {
        int s = layout->slot_rank[flow->slot[i]];
        if (s < low || s >= high || !shares->left[s])
          continue;
        int64_t rows = shares->left[s] < flow->rows[i] ? shares->left[s] : flow->rows[i];
        n = add(shares, n, s, e, flow->slot[i], rows);
        shares->left[s] -= rows;
        flow->rows[i] -= rows;
      }
      for (int i = from, s = low; i < to; i++)
        while (flow->rows[i] > 0) {
          while (!shares->left[s])
            s++;
          int64_t rows = shares->left[s] < flow->rows[i] ? shares->left[s] : flow->rows[i];
          n = add(shares, n, s, e, flow->slot[i], rows);
          shares->left[s] -= rows;
          flow->rows[i] -= rows;
        }
    }
  mt_grow(MT_TAG_PLAN, (void **)&shares->slot, &shares->slot_capacity, n, sizeof *shares->slot);
  mt_grow(MT_TAG_PLAN, (void **)&shares->rows, &shares->row_capacity, n, sizeof *shares->rows);
  for (int64_t pair = 0; pair < (int64_t)P * E; pair++)
    shares->first[pair + 1] += shares->first[pair];
  for (int i = n - 1; i >= 0; i--) { /* backwards, so that the ends become beginnings and the order stays */
    int32_t at = --shares->first[shares->run[i].pair + 1];
    shares->slot[at] = shares->run[i].slot;
    shares->rows[at] = shares->run[i].rows;
  }
  for (int64_t pair = 0; pair < (int64_t)P * E; pair++)
    shares->first[pair] = shares->first[pair + 1];
  shares->first[(int64_t)P * E] = n;
}

void mt_shares_deal(struct mt_shares *shares, enum mt_dispatch_kind kind, const struct mt_cluster *cluster,
                    const struct mt_work *work, const struct mt_layout *layout, const int64_t *counts)
{
  if (kind == MT_DISPATCH_LITE)
    lite(shares, cluster, layout, counts);
  else
    solved(shares, cluster, work, layout, counts);
}
