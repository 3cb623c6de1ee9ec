/* `motley bench exchange`: the algorithms of comm/exchange.h, and MPI_Alltoallv, on one pattern after
 * another.
 *
 * The idea: all algorithms take turns in one run. Beside them stands what the network allows: of all nodes the
 * most bytes that one must send or get, over the bandwidth of an uplink. */
#include "train/bench_exchange.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/exchange.h"
#include "comm/flat.h"
#include "comm/measure.h"
#include "comm/part.h"
#include "comm/way.h"
#include "train/turns.h"

enum skew { UNIFORM, ZIPF, NODE, NSKEW };
static const char *const skew_name[NSKEW] = {"uniform", "zipf", "node"};

enum algorithm { FLAT, PAIRWISE, ONE_PIECE, SPREAD, BRIDGED, AUTO, NALGORITHM };
static const struct {
  const char *name;
  int kind, npiece, spread;
} algorithms[NALGORITHM] = {{"MPI_Alltoallv", 0, 0, 0},
                            {"pairwise", MT_EXCHANGE_PAIRWISE, 0, 0},
                            {"1 bridge, 1 piece", MT_EXCHANGE_HIERARCHICAL, 1, 0},
                            {"4 pieces, spread", MT_EXCHANGE_HIERARCHICAL, 4, 1},
                            {"bridges by cost", MT_EXCHANGE_HIERARCHICAL, 0, 0},
                            {"auto", MT_EXCHANGE_AUTO, 0, 0}};

/* What an algorithm sends in one exchange, all ranks, and what it should take. */
struct traffic {
  double messages[MT_NLEVEL], bytes[MT_NLEVEL];
  double predicted_s;
};

struct bench {
  struct mt_comm *comm;
  double uplink; /* bytes a second */
  double seconds;
  struct mt_exchange *exchange[NALGORITHM]; /* owned; FLAT has none */
  struct mt_exchange_plan *plan[NALGORITHM]; /* owned, likewise */
  int64_t *count;                           /* [P, P], owned: rows from each rank to each */
  /* the case */
  int64_t width, rows;
  enum skew skew;
  struct mt_pattern pattern;
  struct mt_flat *flat;
  char *send, *recv;
};

static int64_t rows_between(const struct bench *b, int s, int d)
{
  return b->count[(int64_t)s * b->comm->size + d];
}

/* ---- patterns ---- */

/* Rows from each rank to each. */
static void fill_counts(struct bench *b)
{
  struct mt_comm *comm = b->comm;
  int P = comm->size, E = 4 * P, last = comm->node_first[comm->nnode - 1], n = P - last;
  int64_t unused, *weight = MT_NEW(MT_TAG_PLAN, int64_t, E);
  for (int e = 0; e < E; e++)
    weight[e] = 1000000 / (e + 1);
  struct mt_part zipf = mt_part_weighted(b->rows, E, weight);
  memset(b->count, 0, sizeof(int64_t) * (size_t)P * (size_t)P);
  for (int s = 0; s < P; s++) {
    int64_t *to = b->count + (int64_t)s * P;
    switch (b->skew) {
    case UNIFORM:
      for (int i = 0; i < P; i++)
        to[(s + i) % P] = mt_part_range(b->rows, P, i, &unused);
      break;
    case ZIPF: /* experts dealt out to ranks like cards, the most popular one to the last */
      for (int e = 0; e < E; e++)
        to[P - 1 - e % P] += mt_part_count(&zipf, e);
      break;
    default:
      for (int i = 0; i < n; i++)
        to[last + (s + i) % n] = mt_part_range(b->rows, n, i, &unused);
    }
  }
  int first = comm->node_first[comm->node], size = comm->node_size;
  for (int i = 0; i < size; i++)
    for (int r = 0; r < P; r++) {
      b->pattern.out[(int64_t)i * P + r] = rows_between(b, first + i, r);
      b->pattern.in[(int64_t)r * size + i] = rows_between(b, r, first + i);
    }
  mt_part_free(&zipf);
  mt_free(weight);
}

/* The most bytes that leave a node, and that reach one. */
static void busiest(const struct bench *b, double *out, double *in)
{
  struct mt_comm *comm = b->comm;
  *out = *in = 0;
  for (int p = 0; p < comm->nnode; p++) {
    double leaving = 0, coming = 0;
    for (int a = comm->node_first[p]; a < comm->node_first[p + 1]; a++)
      for (int r = 0; r < comm->size; r++)
        if (comm->cluster->node_of[r] != p) {
          leaving += (double)(rows_between(b, a, r) * b->width);
          coming += (double)(rows_between(b, r, a) * b->width);
        }
    *out = fmax(*out, leaving);
    *in = fmax(*in, coming);
  }
}

static int64_t rows_of(const void *bench, int s, int d)
{
  return rows_between(bench, s, d);
}

static double predict(const struct bench *b, enum algorithm a)
{
  struct mt_comm *comm = b->comm;
  double *sum = MT_ZNEW(MT_TAG_PLAN, double, 2 * comm->nnode), longest = 0; /* out of nodes, into them */
  for (int p = 0; p < comm->nnode; p++)
    for (int q = 0; q < comm->nnode; q++) {
      struct mt_way_problem problem = mt_way_problem(comm->cluster, p, q, rows_of, b, b->width);
      if (p == q || !problem.bytes)
        continue;
      struct mt_way way = mt_way_choose(comm->cluster, &problem, algorithms[a].kind, MT_MOST_PIECES);
      int64_t ns = way.npiece ? way.bridged_ns : way.direct_ns;
      if (algorithms[a].npiece)
        ns = mt_way_bridged(comm->cluster, &problem, algorithms[a].npiece, algorithms[a].spread);
      sum[p] += 1e-9 * (double)ns;
      sum[comm->nnode + q] += 1e-9 * (double)ns;
    }
  for (int i = 0; i < 2 * comm->nnode; i++)
    longest = fmax(longest, sum[i]);
  mt_free(sum);
  return longest;
}

/* ---- timing ---- */

static void run(void *self, int a)
{
  struct bench *b = self;
  if (a == FLAT) {
    mt_flat_run(b->flat, b->send, b->recv);
    return;
  }
  mt_exchange_begin(b->exchange[a], b->plan[a], MT_FORWARD, b->send, b->recv);
  mt_exchange_end(b->exchange[a]);
}

/* Runs each algorithm once: do all deliver what MPI_Alltoallv does? Counts what they send. */
static enum mt_status try_all(struct bench *b, struct traffic traffic[NALGORITHM])
{
  struct mt_comm *comm = b->comm;
  int64_t sent = mt_pattern_sent(comm, &b->pattern) * b->width,
          received = mt_pattern_received(comm, &b->pattern) * b->width;
  for (int64_t i = 0; i < sent; i++)
    b->send[i] = (char)(i * 2654435761u >> 13 ^ comm->rank * 37);
  char *right = mt_alloc(MT_TAG_ROW, received);
  enum mt_status status = MT_OK;
  for (enum algorithm a = 0; a < NALGORITHM; a++) {
    double x[2 * MT_NLEVEL];
    memset(b->recv, 0x5a, (size_t)received);
    for (int level = 0; level < MT_NLEVEL; level++) {
      x[level] = -(double)comm->sent_messages[level];
      x[MT_NLEVEL + level] = -(double)comm->sent_bytes[level];
    }
    run(b, a);
    for (int level = 0; level < MT_NLEVEL; level++) {
      x[level] += (double)comm->sent_messages[level];
      x[MT_NLEVEL + level] += (double)comm->sent_bytes[level];
    }
    mt_sum(comm, x, 2 * MT_NLEVEL);
    memcpy(traffic[a].messages, x, sizeof traffic->messages);
    memcpy(traffic[a].bytes, x + MT_NLEVEL, sizeof traffic->bytes);
    if (a == FLAT)
      memcpy(right, b->recv, (size_t)received);
    else if (memcmp(right, b->recv, (size_t)received) && !status) {
      mt_error("%s, %lld rows of %lld bytes, %s: other bytes than MPI_Alltoallv's arrived",
               skew_name[b->skew], (long long)b->rows, (long long)b->width, algorithms[a].name);
      status = MT_FAILED;
    }
    traffic[a].predicted_s = a == FLAT ? 0 : predict(b, a);
  }
  mt_free(right);
  /* MPI's messages are not ours to count: one for each pair of ranks at least. */
  traffic[FLAT] = (struct traffic){.predicted_s = 0};
  for (int s = 0; s < comm->size; s++)
    for (int d = 0; d < comm->size; d++) {
      enum mt_level level = mt_cluster_level(comm->cluster, s, d);
      traffic[FLAT].messages[level] += rows_between(b, s, d) > 0;
      traffic[FLAT].bytes[level] += (double)(rows_between(b, s, d) * b->width);
    }
  return mt_agree(comm, status);
}

/* ---- cases ---- */

static void report(const struct bench *b, const struct traffic traffic[NALGORITHM],
                   const struct mt_spread took[NALGORITHM], int times)
{
  double out, in;
  busiest(b, &out, &in);
  double bound = b->uplink > 0 ? fmax(out, in) / b->uplink : 0;
  mt_info("%s: %lld rows of %lld bytes a rank; a node sends %.1f KiB at most and gets %.1f: bound %.0f us; "
          "%d times each",
          skew_name[b->skew], (long long)b->rows, (long long)b->width, out / 1024, in / 1024, 1e6 * bound,
          times);
  mt_info("  %-17s %17s %17s %10s %21s %8s %11s %12s", "", "between nodes, KiB", "within nodes, KiB",
          "median us", "quartiles", "x bound", "x Alltoallv", "predicted us");
  for (enum algorithm a = 0; a < NALGORITHM; a++) {
    const struct traffic *t = &traffic[a];
    double median = took[a].median;
    char versus[24] = "", predicted[24] = "";
    if (a != FLAT) {
      snprintf(versus, sizeof versus, "%.2f", took[FLAT].median / median);
      snprintf(predicted, sizeof predicted, "%.0f", 1e6 * t->predicted_s);
    }
    mt_info("  %-17s %6.0f %11.1f %6.0f %11.1f %10.*f %10.*f %10.*f %8.2f %11s %12s", algorithms[a].name,
            t->messages[MT_LEVEL_NET], t->bytes[MT_LEVEL_NET] / 1024, t->messages[MT_LEVEL_NODE],
            t->bytes[MT_LEVEL_NODE] / 1024, MT_SHOWN(1e6 * median), MT_SHOWN(1e6 * took[a].quarter),
            MT_SHOWN(1e6 * took[a].three_quarters), bound > 0 ? median / bound : 0, versus, predicted);
  }
}

static enum mt_status run_case(struct bench *b)
{
  struct mt_comm *comm = b->comm;
  struct traffic traffic[NALGORITHM];
  struct mt_spread took[NALGORITHM];
  b->pattern = mt_pattern_new(comm);
  fill_counts(b);
  b->flat = mt_flat_new(comm, &b->pattern, b->width);
  b->send = mt_alloc(MT_TAG_ROW, mt_pattern_sent(comm, &b->pattern) * b->width);
  b->recv = mt_alloc(MT_TAG_ROW, mt_pattern_received(comm, &b->pattern) * b->width);
  for (enum algorithm a = PAIRWISE; a < NALGORITHM; a++) {
    mt_exchange_plan(b->exchange[a], b->plan[a], &b->pattern, b->width);
    mt_exchange_reserve(b->exchange[a], b->plan[a]);
  }
  enum mt_status status = try_all(b, traffic);
  if (status == MT_OK) {
    int times = mt_turns(comm, b->seconds, NALGORITHM, run, b, took);
    report(b, traffic, took, times);
  }
  mt_free(b->send);
  mt_free(b->recv);
  mt_flat_free(b->flat);
  mt_pattern_free(&b->pattern);
  return status;
}

/* The next number of a list "a,b,c", which the configuration has checked; NULL at its end. */
static const char *next_number(const char *list, int64_t *number)
{
  if (!list || !*list)
    return NULL;
  char *end;
  *number = strtoll(list, &end, 10);
  return end + strspn(end, ", ");
}

double mt_bench_uplink(struct mt_comm *comm, const struct mt_config *config)
{
  mt_measure(comm, NULL);
  const struct mt_link *net = &comm->cluster->link[MT_LEVEL_NET];
  double uplink = config->bench.uplink_mbit > 0 ? config->bench.uplink_mbit * 1e6 / 8
                  : net->beta_ps > 0            ? 1e12 / (double)net->beta_ps
                                                : 0;
  char *text = mt_cluster_print(comm->cluster);
  mt_write(text, (long)strlen(text));
  mt_free(text);
  mt_info("uplink of a node, for the bound: %.0f Mbit/s, %s", uplink * 8e-6,
          config->bench.uplink_mbit > 0 ? "as given"
          : net->beta_ps > 0            ? "as measured"
                                        : "of which there is none");
  return uplink;
}

enum mt_status mt_bench_exchange(struct mt_comm *comm, const struct mt_config *config)
{
  struct bench b = {.comm = comm, .seconds = config->bench.seconds, .uplink = mt_bench_uplink(comm, config)};
  for (enum algorithm a = PAIRWISE; a < NALGORITHM; a++) {
    b.exchange[a] = mt_exchange_new(comm, algorithms[a].kind);
    mt_exchange_pieces(b.exchange[a], algorithms[a].npiece, algorithms[a].spread);
    b.plan[a] = mt_exchange_plan_new();
  }
  b.count = MT_NEW(MT_TAG_PLAN, int64_t, (int64_t)comm->size * comm->size);
  enum mt_status status = MT_OK;
  for (b.skew = 0; b.skew < NSKEW; b.skew++) {
    if (strcmp(config->bench.skew, "all") && strcmp(config->bench.skew, skew_name[b.skew]))
      continue;
    for (const char *w = config->bench.width; status == MT_OK && (w = next_number(w, &b.width));)
      for (const char *r = config->bench.rows; status == MT_OK && (r = next_number(r, &b.rows));)
        status = run_case(&b);
  }
  for (enum algorithm a = PAIRWISE; a < NALGORITHM; a++) {
    mt_exchange_plan_free(b.plan[a]);
    mt_exchange_free(b.exchange[a]);
  }
  mt_free(b.count);
  return status;
}
