/* The exchange between real hosts; started by test_emulated.sh.
 *
 *   emulated_exchange MBIT
 *
 * Pairwise and hierarchical exchange of random patterns, forward and back: every row must arrive where it
 * belongs with the bytes it left with (so the two agree bit for bit), and what was counted as sent between
 * nodes must be what the pattern says: the same bytes for both; a message per pair of ranks, or of nodes.
 * Then large rows: the counted bytes against the network interfaces' own counters, and the time beside the
 * bound bytes / bandwidth of the busiest host. The trap: rows are checked on all ranks and the verdict is
 * agreed before anything is concluded. */
#include "comm/comm.h"
#include "comm/comm_mpi.h"
#include "comm/exchange.h"
#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct mt_comm *comm;
static double failures; /* of this rank */

#define EXPECT(condition, ...)                                                                               \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      mt_error(__VA_ARGS__);                                                                                 \
      failures++;                                                                                            \
    }                                                                                                        \
  } while (0)

/* Rows from rank s to rank d of pattern number `seed`: many zeros, and from pattern 4 on ranks that send or
 * get nothing. */
static int64_t rows(uint64_t seed, int s, int d)
{
  uint64_t bits = mt_random_bits(seed, MT_STREAM_TEST, (uint64_t)(s * 64 + d));
  if (seed >= 4 && (s == (int)(seed % 7) || d == (int)(seed * 3 % 7)))
    return 0;
  return bits % 3 ? (int64_t)(bits >> 8) % 50 : 0;
}

static void fill(unsigned char *row, int64_t width, int s, int d, int64_t i)
{
  for (int64_t b = 0; b < width; b++)
    row[b] = (unsigned char)(s * 31 + d * 7 + i * 13 + b * 3 + 1);
}

static int wrong(const unsigned char *row, int64_t width, int s, int d, int64_t i)
{
  for (int64_t b = 0; b < width; b++)
    if (row[b] != (unsigned char)(s * 31 + d * 7 + i * 13 + b * 3 + 1))
      return 1;
  return 0;
}

static int node_of(int rank)
{
  return comm->cluster->node_of[rank];
}

/* A pattern from a function of (seed, source, destination), and what it sends between nodes. */
struct crossing {
  int64_t bytes, rank_pairs, node_pairs; /* in all */
  int64_t busiest;                       /* bytes that leave the node which sends most */
};

static struct mt_pattern make(int64_t (*count)(uint64_t, int, int), uint64_t seed, int64_t width,
                              struct crossing *crossing)
{
  struct mt_pattern pattern = mt_pattern_new(comm);
  int n = comm->node_size, P = comm->size, first = comm->node_first[comm->node];
  for (int i = 0; i < n; i++)
    for (int r = 0; r < P; r++) {
      pattern.out[i * P + r] = count(seed, first + i, r);
      pattern.in[r * n + i] = count(seed, r, first + i);
    }
  *crossing = (struct crossing){0};
  for (int p = 0; p < comm->nnode; p++) {
    int64_t leaving = 0;
    for (int q = 0; q < comm->nnode; q++) {
      int64_t sum = 0;
      for (int s = comm->node_first[p]; p != q && s < comm->node_first[p + 1]; s++)
        for (int d = comm->node_first[q]; d < comm->node_first[q + 1]; d++) {
          sum += count(seed, s, d);
          crossing->rank_pairs += count(seed, s, d) > 0;
        }
      crossing->node_pairs += sum > 0;
      leaving += sum * width;
    }
    crossing->bytes += leaving;
    if (leaving > crossing->busiest)
      crossing->busiest = leaving;
  }
  return pattern;
}

/* The rows of this rank in the order of one side of the pattern: outgoing (by destination) or incoming (by
 * source). */
static void each_row(int64_t (*count)(uint64_t, int, int), uint64_t seed, int64_t width, unsigned char *data,
                     int outgoing, int check, const char *what)
{
  int64_t at = 0, bad = 0;
  for (int r = 0; r < comm->size; r++) {
    int s = outgoing ? comm->rank : r, d = outgoing ? r : comm->rank;
    for (int64_t i = 0; i < count(seed, s, d); i++, at++) {
      if (check)
        bad += wrong(data + at * width, width, s, d, i);
      else
        fill(data + at * width, width, s, d, i);
    }
  }
  EXPECT(bad == 0, "%s, pattern %" PRIu64 ": %" PRId64 " of %" PRId64 " rows are wrong", what, seed, bad, at);
  if (check)
    for (int b = 0; b < 64; b++)
      if (data[at * width + b] != 0x5a) {
        EXPECT(0, "%s, pattern %" PRIu64 ": wrote beyond its rows", what, seed);
        break;
      }
}

/* Messages and bytes that all ranks sent between nodes since the start. */
static void counted(double *messages, double *bytes)
{
  double x[2] = {(double)comm->sent_messages[MT_LEVEL_NET], (double)comm->sent_bytes[MT_LEVEL_NET]};
  mt_sum(comm, x, 2);
  *messages = x[0];
  *bytes = x[1];
}

/* One exchange; the messages and bytes that it alone sent. */
static double run(struct mt_exchange *exchange, const struct mt_exchange_plan *plan, enum mt_direction direction,
                  const void *send, void *recv, double *messages, double *bytes)
{
  int64_t message = comm->sent_messages[MT_LEVEL_NET], byte = comm->sent_bytes[MT_LEVEL_NET];
  double start = mt_time();
  mt_exchange_begin(exchange, plan, direction, send, recv);
  mt_exchange_end(exchange);
  double x[2] = {(double)(comm->sent_messages[MT_LEVEL_NET] - message),
                 (double)(comm->sent_bytes[MT_LEVEL_NET] - byte)};
  double took = mt_time() - start;
  mt_sum(comm, x, 2);
  mt_max(comm, &took, 1);
  *messages = x[0];
  *bytes = x[1];
  return took;
}

static void test_patterns(int kind)
{
  struct mt_exchange *exchange = mt_exchange_new(comm, kind);
  struct mt_exchange_plan *plan = mt_exchange_plan_new();
  mt_exchange_pieces(exchange, 1, 0);
  const char *name = mt_exchange_name(exchange);
  double messages = 0, most = 0;
  for (uint64_t seed = 1; seed <= 12; seed++) {
    struct crossing crossing;
    int64_t width = seed % 2 ? 100 : 2048;
    struct mt_pattern pattern = make(rows, seed, width, &crossing);
    int64_t sent = mt_pattern_sent(comm, &pattern), received = mt_pattern_received(comm, &pattern);
    unsigned char *send = mt_alloc(MT_TAG_ROW, sent * width + 64),
                  *recv = mt_alloc(MT_TAG_ROW, received * width + 64);
    each_row(rows, seed, width, send, 1, 0, name);
    memset(recv, 0x5a, (size_t)(received * width + 64));
    mt_exchange_plan(exchange, plan, &pattern, width);
    mt_exchange_reserve(exchange, plan);
    for (int direction = MT_FORWARD; direction <= MT_BACK; direction++) {
      double m, b;
      if (direction == MT_BACK)
        memset(send, 0x5a, (size_t)(sent * width + 64));
      run(exchange, plan, (enum mt_direction)direction, direction == MT_FORWARD ? send : recv,
          direction == MT_FORWARD ? recv : send, &m, &b);
      each_row(rows, seed, width, direction == MT_FORWARD ? recv : send, direction == MT_BACK, 1, name);
      EXPECT(b == (double)crossing.bytes,
             "%s, pattern %" PRIu64 ": counted %.0f bytes between nodes, expected %" PRId64, name, seed, b,
             crossing.bytes);
      double pairs = (double)(kind == MT_EXCHANGE_PAIRWISE ? crossing.rank_pairs : crossing.node_pairs);
      EXPECT(m == pairs, "%s, pattern %" PRIu64 ": counted %.0f messages between nodes, expected %.0f", name,
             seed, m, pairs);
      messages += m;
      most = m > most ? m : most;
    }
    mt_free(send);
    mt_free(recv);
    mt_pattern_free(&pattern);
  }
  mt_info(
      "%-13s 12 patterns, both ways: every row right; %.0f messages between hosts, at most %.0f an exchange",
      name, messages, most);
  mt_exchange_plan_free(plan);
  mt_exchange_free(exchange);
}

/* Bytes that this host's interfaces sent, the loop-back one left out. */
static double interface_bytes(void)
{
  double sum = 0;
  char line[512];
  FILE *file = fopen("/proc/self/net/dev", "r");
  EXPECT(file != NULL, "cannot read /proc/self/net/dev");
  while (file && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    double field[9];
    if (!colon || strstr(line, " lo:"))
      continue;
    if (sscanf(colon + 1, "%lf%lf%lf%lf%lf%lf%lf%lf%lf", &field[0], &field[1], &field[2], &field[3],
               &field[4], &field[5], &field[6], &field[7], &field[8]) == 9)
      sum += field[8];
  }
  if (file)
    fclose(file);
  return sum;
}

/* The same sum on all ranks: one rank a node asks. */
static double all_interface_bytes(void)
{
  double sum = comm->node_rank == 0 ? interface_bytes() : 0;
  mt_sum(comm, &sum, 1);
  return sum;
}

static int64_t many(uint64_t seed, int s, int d)
{
  (void)seed;
  return 240 + (s * 5 + d * 3) % 32;
}

static void test_bandwidth(int kind, double mbit)
{
  const int64_t width = 4096;
  struct mt_exchange *exchange = mt_exchange_new(comm, kind);
  struct mt_exchange_plan *plan = mt_exchange_plan_new();
  struct crossing crossing;
  struct mt_pattern pattern = make(many, 0, width, &crossing);
  int64_t sent = mt_pattern_sent(comm, &pattern), received = mt_pattern_received(comm, &pattern);
  unsigned char *send = mt_alloc(MT_TAG_ROW, sent * width + 64),
                *recv = mt_alloc(MT_TAG_ROW, received * width + 64);
  each_row(many, 0, width, send, 1, 0, mt_exchange_name(exchange));
  memset(recv, 0x5a, (size_t)(received * width + 64));
  mt_exchange_plan(exchange, plan, &pattern, width);
  mt_exchange_reserve(exchange, plan);
  double before = 0, messages_before, bytes_before, messages, bytes, best = 1e9;
  for (int turn = 0; turn < 4; turn++) { /* the first opens connections and is not counted */
    double m, b;
    mt_barrier(comm);
    if (turn == 1) {
      before = all_interface_bytes();
      counted(&messages_before, &bytes_before);
    }
    double took = run(exchange, plan, MT_FORWARD, send, recv, &m, &b);
    if (turn > 0 && took < best)
      best = took;
  }
  counted(&messages, &bytes);
  mt_barrier(comm);
  double wire = all_interface_bytes() - before;
  bytes -= bytes_before;
  messages -= messages_before;
  each_row(many, 0, width, recv, 0, 1, mt_exchange_name(exchange));
  const char *name = mt_exchange_name(exchange);
  EXPECT(bytes == 3 * (double)crossing.bytes, "%s: counted %.0f bytes, expected %.0f", name, bytes,
         3 * (double)crossing.bytes);
  if (comm->rank == 0)
    EXPECT(wire > 0.9 * bytes && wire < 1.1 * bytes,
           "%s: counted %.0f bytes between hosts, their interfaces %.0f", name, bytes, wire);
  double bound = (double)crossing.busiest * 8 / (mbit * 1e6);
  mt_info("%-13s %.1f MB between hosts in %.0f messages; the interfaces counted %.1f MB (%+.1f %%)", name,
          bytes * 1e-6, messages, wire * 1e-6, 100 * (wire / bytes - 1));
  mt_info("%-13s %.3f s; the bound, %.1f MB from the busiest host at %.0f mbit: %.3f s (%.2f times)", name,
          best, (double)crossing.busiest * 1e-6, mbit, bound, best / bound);
  /* A token bucket lets a burst through, but nobody beats the wire by more: then the bytes were not where we
   * think. */
  if (comm->rank == 0)
    EXPECT(best > 0.9 * bound, "%s: %.3f s is faster than the link allows (%.3f s)", name, best, bound);
  mt_free(send);
  mt_free(recv);
  mt_pattern_free(&pattern);
  mt_exchange_plan_free(plan);
  mt_exchange_free(exchange);
}

int main(int argc, char **argv)
{
  if (argc != 2 || atof(argv[1]) <= 0)
    return MT_USAGE;
  double mbit = atof(argv[1]);
  enum mt_status status = mt_comm_new(&argc, &argv, &comm);
  if (status != MT_OK)
    return status;
  EXPECT(comm->nnode == 3 && comm->size == 7 && node_of(6) == 2, "%d ranks on %d hosts, expected 7 on 3",
         comm->size, comm->nnode);
  double wrong_cluster = failures;
  mt_max(comm, &wrong_cluster, 1);
  if (wrong_cluster == 0) {
    int64_t segment = mt_exchange_segment;
    mt_exchange_segment = INT64_MAX; /* messages are counted */
    test_patterns(MT_EXCHANGE_PAIRWISE);
    test_patterns(MT_EXCHANGE_HIERARCHICAL);
    mt_exchange_segment = segment;
    test_bandwidth(MT_EXCHANGE_PAIRWISE, mbit);
    test_bandwidth(MT_EXCHANGE_HIERARCHICAL, mbit);
  }
  mt_max(comm, &failures, 1);
  mt_comm_free(comm);
  return failures == 0 && mt_memory_report_leaks() == 0 ? MT_OK : MT_FAILED;
}
