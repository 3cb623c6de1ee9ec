/* Predicted costs of ways between nodes; see way.h. */
#include "comm/way.h"
#include <stddef.h>
#include "base/config.h"
#include "base/memory.h"
#include "base/text.h"

struct mt_way_problem mt_way_problem(const struct mt_cluster *cluster, int from, int to,
                                     int64_t (*rows)(const void *self, int s, int d), const void *self, int64_t width)
{
  const int *first = cluster->node_first;
  struct mt_way_problem problem = {.senders = first[from + 1] - first[from], .receivers = first[to + 1] - first[to]};
  for (int s = first[from]; s < first[from + 1]; s++) {
    int64_t n = 0;
    for (int d = first[to]; d < first[to + 1]; d++) {
      int64_t some = rows(self, s, d);
      problem.bytes += some * width;
      n += some > 0;
    }
    problem.messages += n;
    problem.most_out = n > problem.most_out ? n : problem.most_out;
  }
  for (int d = first[to]; d < first[to + 1]; d++) {
    int64_t n = 0;
    for (int s = first[from]; s < first[from + 1]; s++)
      n += rows(self, s, d) > 0;
    problem.most_in = n > problem.most_in ? n : problem.most_in;
  }
  return problem;
}

struct mt_link mt_link_usual(const struct mt_cluster *cluster, enum mt_level level)
{
  /* Memory, shared memory, TCP at 10 Gbit/s. */
  static const struct mt_link usual[MT_NLEVEL] = {{0, 100, 0}, {1000, 300, 500}, {30000, 1000, 8000}};
  struct mt_link link = cluster->link[level];
  return link.beta_ps ? link : usual[level];
}

/* Nanoseconds of so many bytes. Whole kilobytes where the product would not fit. */
static int64_t transfer_ns(int64_t bytes, int64_t beta_ps)
{
  return beta_ps && bytes > INT64_MAX / beta_ps ? bytes / 1000 * beta_ps : bytes * beta_ps / 1000;
}

static int64_t larger(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

/* n messages at once, of so many bytes in all. */
static int64_t node_ns(const struct mt_link *node, int n, int64_t bytes)
{
  return n > 0 ? node->alpha_ns + node->gap_ns * (n - 1) + transfer_ns(bytes, node->beta_ps) : 0;
}

/* A way in question. */
struct candidate {
  int npiece, spread;
  int64_t messages; /* between the nodes */
  int64_t ns;       /* predicted time */
  int64_t work_ns;  /* time of all processors for messages and copies: what computing loses, hidden or not */
};

static struct candidate directly(const struct mt_cluster *cluster, const struct mt_way_problem *p)
{
  struct mt_link net = mt_link_usual(cluster, MT_LEVEL_NET);
  int64_t most = larger(p->most_out, p->most_in);
  return (struct candidate){.messages = p->messages,
                            .ns = net.alpha_ns + net.gap_ns * larger(most - 1, 0) +
                                  transfer_ns(p->bytes, net.beta_ps),
                            .work_ns = net.gap_ns * p->messages};
}

static struct candidate bridged(const struct mt_cluster *cluster, const struct mt_way_problem *p, int npiece,
                                int spread)
{
  struct mt_link self = mt_link_usual(cluster, MT_LEVEL_SELF), node = mt_link_usual(cluster, MT_LEVEL_NODE),
                 net = mt_link_usual(cluster, MT_LEVEL_NET);
  /* A bridge's own rows do not travel in its node; and pieces that are spread, as many as there are receivers or more, go
   * to nearly one receiver each, which is the bridge. */
  int64_t piece = p->bytes / npiece, gathered = piece / p->senders * (p->senders - 1);
  int64_t dealt = spread && npiece >= p->receivers ? 0 : piece / p->receivers * (p->receivers - 1);
  int64_t gather = node_ns(&node, p->senders - 1, gathered), deal = node_ns(&node, p->receivers - 1, dealt);
  gather += gather ? transfer_ns(piece, self.beta_ps) : 0;
  int64_t out = spread ? (npiece + p->senders - 1) / p->senders : npiece; /* pieces of the busiest bridge */
  int64_t in = spread ? (npiece + p->receivers - 1) / p->receivers : npiece;
  int64_t network = net.alpha_ns + net.gap_ns * (larger(out, in) - 1) + transfer_ns(p->bytes, net.beta_ps);
  int64_t copies =
      transfer_ns(gathered + dealt, node.beta_ps) + (gather ? transfer_ns(piece, self.beta_ps) : 0);
  return (struct candidate){.npiece = npiece,
                            .spread = spread,
                            .messages = npiece,
                            .ns = gather + deal + larger(network, larger(out * gather, in * deal)),
                            .work_ns = npiece *
                                       (net.gap_ns + (p->senders + p->receivers - 2) * node.gap_ns + copies)};
}

int64_t mt_way_bridged(const struct mt_cluster *cluster, const struct mt_way_problem *p, int npiece,
                       int spread)
{
  return bridged(cluster, p, npiece, spread).ns;
}

/* Of n >= 1 candidates: the fastest, but what differs by half a latency or a sixty-fourth is below what the numbers
 * know. Of those the fewest messages, as long as the work is small beside the time; if it is not, the least work. */
static struct candidate best_of(const struct mt_cluster *cluster, const struct candidate *c, int n)
{
  int64_t least = INT64_MAX, half = mt_link_usual(cluster, MT_LEVEL_NET).alpha_ns / 2;
  for (int i = 0; i < n; i++)
    least = c[i].ns < least ? c[i].ns : least;
  const struct candidate *few = NULL, *lazy = NULL;
  for (int i = 0; i < n; i++) {
    if (c[i].ns - least > least / 64 + half)
      continue;
    if (c[i].work_ns <= c[i].ns / 16 && (!few || c[i].messages < few->messages))
      few = &c[i];
    if (!lazy || c[i].work_ns < lazy->work_ns)
      lazy = &c[i];
  }
  return few ? *few : *lazy;
}

struct mt_way mt_way_choose(const struct mt_cluster *cluster, const struct mt_way_problem *problem, int kind,
                            int most)
{
  struct candidate c[1 + 2 * 32];
  int n = 0;
  c[n++] = directly(cluster, problem);
  for (int spread = 0; spread <= 1; spread++)
    for (int npiece = 1; npiece <= most; npiece *= 2)
      c[n++] = bridged(cluster, problem, npiece, spread);
  struct candidate over_bridges = best_of(cluster, c + 1, n - 1);
  struct candidate chosen = kind == MT_EXCHANGE_PAIRWISE       ? c[0]
                            : kind == MT_EXCHANGE_HIERARCHICAL ? over_bridges
                                                               : best_of(cluster, c, n);
  return (struct mt_way){chosen.npiece, chosen.spread, c[0].ns, over_bridges.ns};
}

char *mt_way_explain(const struct mt_cluster *cluster, int kind, int64_t rows, int64_t width)
{
  if (cluster->nnode == 1)
    return mt_format("exchange: pairwise, within one node");
  int direct = 0, bridged = 0, spread = 0, fewest = MT_MOST_PIECES, most = 0;
  int64_t longest[3] = {0}; /* of all nodes: chosen, directly, over bridges */
  for (int p = 0; p < cluster->nnode; p++) {
    int64_t sum[3] = {0};
    for (int q = 0; q < cluster->nnode; q++) {
      if (q == p)
        continue;
      struct mt_way_problem problem = {.senders = cluster->node_first[p + 1] - cluster->node_first[p],
                                       .receivers = cluster->node_first[q + 1] - cluster->node_first[q]};
      problem.bytes = rows * width / cluster->nplace * problem.senders * problem.receivers;
      problem.messages = (int64_t)problem.senders * problem.receivers;
      problem.most_out = problem.receivers;
      problem.most_in = problem.senders;
      struct mt_way way = mt_way_choose(cluster, &problem, kind, MT_MOST_PIECES);
      if (way.npiece) {
        bridged++;
        spread += way.spread;
        fewest = way.npiece < fewest ? way.npiece : fewest;
        most = way.npiece > most ? way.npiece : most;
      } else {
        direct++;
      }
      sum[0] += way.npiece ? way.bridged_ns : way.direct_ns;
      sum[1] += way.direct_ns;
      sum[2] += way.bridged_ns;
    }
    for (int i = 0; i < 3; i++)
      longest[i] = larger(longest[i], sum[i]);
  }
  struct mt_text_buffer text = {0};
  mt_text_add(&text, "exchange: %d node pairs directly, %d over bridges", direct, bridged);
  if (bridged) {
    mt_text_add(&text, " (in %d", fewest);
    if (most > fewest)
      mt_text_add(&text, " to %d", most);
    mt_text_add(&text, " piece%s, %d over several bridges)", most > 1 ? "s" : "", spread);
  }
  mt_text_add(&text,
              "; predicted %.0f us (all directly %.0f, all over bridges %.0f) for %lld rows of %lld bytes a "
              "rank, evenly "
              "spread; links %s",
              1e-3 * (double)longest[0], 1e-3 * (double)longest[1], 1e-3 * (double)longest[2],
              (long long)rows, (long long)width,
              cluster->link[MT_LEVEL_NET].beta_ps ? "as measured" : "not measured");
  return text.text;
}
