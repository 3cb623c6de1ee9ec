/* The exchange of rows against MPI_Alltoallv, on nodes of many shapes. ranks: 1 2 3 4 7
 *
 * Each rank computes the whole matrix of counts from a seed. What a rank finds wrong is counted and the count
 * summed over ranks before it is asserted, so that all ranks fail together. */
#include "test.h"
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include "base/config.h"
#include "comm/comm_mpi.h"
#include "comm/exchange.h"

enum { MAX_RANKS = 16, GUARD = 64 };
static int world_size;

static uint32_t random_state;
static uint32_t random_next(void)
{
  random_state = random_state * 1664525u + 1013904223u;
  return random_state >> 8;
}

/* ---- matrices of counts ---- */

enum matrix { DENSE, SPARSE, EMPTY_RANKS, ALL_TO_ONE, ONE_TO_ALL, NOTHING, SELF_ONLY, NEXT_ONLY, NMATRIX };
static const char *const matrix_name[] = {"dense",      "sparse",  "empty ranks", "all to one",
                                          "one to all", "nothing", "self only",   "next only"};

static void fill_matrix(enum matrix kind, int64_t count[MAX_RANKS][MAX_RANKS], int most)
{
  int one = (int)(random_next() % (uint32_t)world_size);
  for (int s = 0; s < world_size; s++)
    for (int d = 0; d < world_size; d++) {
      int64_t n = 1 + random_next() % (uint32_t)most;
      int keep = kind == DENSE || (kind == SPARSE && random_next() % 3 == 0) ||
                 (kind == EMPTY_RANKS && s % 2 == one % 2 && d % 3 != one % 3) ||
                 (kind == ALL_TO_ONE && d == one) || (kind == ONE_TO_ALL && s == one) ||
                 (kind == SELF_ONLY && s == d) || (kind == NEXT_ONLY && d == (s + 1) % world_size);
      count[s][d] = keep ? n : 0;
    }
}

static void fill_pattern(const struct mt_comm *comm, struct mt_pattern *pattern,
                         int64_t count[MAX_RANKS][MAX_RANKS])
{
  int first = comm->node_first[comm->node], n = comm->node_size;
  for (int i = 0; i < n; i++)
    for (int r = 0; r < comm->size; r++) {
      pattern->out[i * comm->size + r] = count[first + i][r];
      pattern->in[r * n + i] = count[r][first + i];
    }
}

/* ---- one exchange ---- */

static unsigned char byte_of(int s, int d, int64_t at)
{
  return (unsigned char)((uint32_t)(s * 131 + d * 17 + 1) * 2654435761u >> 24 ^ (uint32_t)at * 40503u >> 7);
}

static unsigned char *guarded(int64_t bytes)
{
  unsigned char *block = mt_alloc(MT_TAG_ROW, bytes + 2 * GUARD);
  memset(block, 0xa5, (size_t)bytes + 2 * GUARD);
  return block + GUARD;
}

static int guards_broken(const unsigned char *data, int64_t bytes)
{
  int broken = 0;
  for (int i = 1; i <= GUARD; i++)
    broken += data[-i] != 0xa5 || data[bytes + i - 1] != 0xa5;
  return broken;
}

static void free_guarded(unsigned char *data)
{
  mt_free(data - GUARD);
}

/* What should have crossed between nodes, summed over all ranks. */
static void expect_traffic(const struct mt_comm *comm, int64_t count[MAX_RANKS][MAX_RANKS], int64_t width,
                           int npiece, int64_t *messages, int64_t *bytes)
{
  const int *first = comm->node_first;
  *messages = *bytes = 0;
  for (int p = 0; p < comm->nnode; p++)
    for (int q = 0; q < comm->nnode; q++) {
      int64_t rows = 0, pairs = 0;
      for (int s = first[p]; s < first[p + 1] && p != q; s++)
        for (int d = first[q]; d < first[q + 1]; d++) {
          rows += count[s][d];
          pairs += count[s][d] > 0;
        }
      *bytes += rows * width;
      *messages += npiece == 0 ? pairs : rows < npiece ? rows : npiece;
    }
}

struct faults {
  int64_t forward, back, guard, allocated, messages, bytes, sums, input;
};

/* Forward and back with one algorithm; adds what is wrong on this rank to *faults. `ordered` is a
 * communicator of MPI in our numbering, for the oracle. npiece: in how many pieces a node pair's rows should
 * cross, 0 = directly, -1 = the messages are not checked. */
static void try_exchange(struct mt_comm *comm, MPI_Comm ordered, struct mt_exchange *exchange,
                         int64_t count[MAX_RANKS][MAX_RANKS], int64_t width, int npiece,
                         struct faults *faults)
{
  struct mt_pattern pattern = mt_pattern_new(comm);
  fill_pattern(comm, &pattern, count);
  int send_n[MAX_RANKS], send_at[MAX_RANKS], recv_n[MAX_RANKS], recv_at[MAX_RANKS];
  int sent = 0, received = 0;
  for (int r = 0; r < comm->size; r++) {
    send_at[r] = sent, recv_at[r] = received;
    send_n[r] = (int)(count[comm->rank][r] * width), recv_n[r] = (int)(count[r][comm->rank] * width);
    sent += send_n[r], received += recv_n[r];
  }
  faults->sums += mt_pattern_sent(comm, &pattern) * width != sent;
  faults->sums += mt_pattern_received(comm, &pattern) * width != received;

  unsigned char *x = guarded(sent), *there = guarded(received), *again = guarded(sent),
                *oracle = guarded(received);
  for (int r = 0; r < comm->size; r++)
    for (int i = 0; i < send_n[r]; i++)
      x[send_at[r] + i] = byte_of(comm->rank, r, i);
  MPI_Alltoallv(x, send_n, send_at, MPI_BYTE, oracle, recv_n, recv_at, MPI_BYTE, ordered);

  struct mt_exchange_plan *plan = mt_exchange_plan_new(), *other = mt_exchange_plan_new();
  mt_exchange_plan(exchange, plan, &pattern, width);
  mt_exchange_plan(exchange, other, &pattern, width);
  mt_exchange_reserve(exchange, plan);
  int64_t messages, bytes;
  expect_traffic(comm, count, width, npiece, &messages, &bytes);
  for (enum mt_direction direction = MT_FORWARD; direction <= MT_BACK; direction++) {
    int64_t allocations = mt_memory_allocations();
    double traffic[2] = {(double)-comm->sent_messages[MT_LEVEL_NET], (double)-comm->sent_bytes[MT_LEVEL_NET]};
    int forward = direction == MT_FORWARD;
    mt_exchange_begin(exchange, plan, direction, forward ? x : there, forward ? there : again);
    mt_exchange_plan(exchange, other, &pattern, width); /* another one, meanwhile */
    mt_exchange_end(exchange);
    faults->allocated += mt_memory_allocations() != allocations;
    traffic[0] += (double)comm->sent_messages[MT_LEVEL_NET];
    traffic[1] += (double)comm->sent_bytes[MT_LEVEL_NET];
    mt_sum(comm, traffic, 2);
    faults->messages += npiece >= 0 && traffic[0] != (double)messages;
    faults->bytes += traffic[1] != (double)bytes;
  }
  faults->forward += memcmp(there, oracle, (size_t)received) != 0;
  faults->back += memcmp(again, x, (size_t)sent) != 0;
  for (int r = 0; r < comm->size; r++)
    for (int i = 0; i < recv_n[r]; i++)
      faults->input += there[recv_at[r] + i] != byte_of(r, comm->rank, i);
  faults->guard += guards_broken(there, received) + guards_broken(again, sent) + guards_broken(x, sent);
  free_guarded(x);
  free_guarded(there);
  free_guarded(again);
  free_guarded(oracle);
  mt_exchange_plan_free(plan);
  mt_exchange_plan_free(other);
  mt_pattern_free(&pattern);
}

/* Asserts on all ranks that no rank found a fault. */
static void check_faults(const struct mt_comm *comm, const struct faults *faults, const char *what,
                         const char *way)
{
  const char *name[] = {"forward", "back", "guard", "allocated", "messages", "bytes", "sums", "input"};
  int64_t all[8];
  MPI_Allreduce(faults, all, 8, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < 8; i++)
    ck_assert_msg(all[i] == 0, "%s, %s on %d nodes of %d ranks: %lld faults in %s", way, what, comm->nnode,
                  comm->size, (long long)all[i], name[i]);
}

static struct mt_comm *comm_on(const char *nodes)
{
  if (nodes)
    setenv("MOTLEY_NODES", nodes, 1);
  else
    unsetenv("MOTLEY_NODES");
  struct mt_comm *comm;
  ck_assert_int_eq(mt_comm_new(NULL, NULL, &comm), MT_OK);
  unsetenv("MOTLEY_NODES");
  return comm;
}

/* Ways to exchange: directly; over bridges in so many pieces, more than there are rows too; by cost. */
static const struct way {
  int kind, npiece, spread;
  const char *name;
} ways[] = {{MT_EXCHANGE_PAIRWISE, 0, 0, "pairwise"},
            {MT_EXCHANGE_HIERARCHICAL, 1, 0, "1 piece"},
            {MT_EXCHANGE_HIERARCHICAL, 3, 0, "3 pieces"},
            {MT_EXCHANGE_HIERARCHICAL, 2, 1, "2 pieces, spread"},
            {MT_EXCHANGE_HIERARCHICAL, 5, 1, "5 pieces, spread"},
            {MT_EXCHANGE_HIERARCHICAL, 64, 1, "64 pieces, spread"},
            {MT_EXCHANGE_HIERARCHICAL, -1, 0, "hierarchical"},
            {MT_EXCHANGE_AUTO, -1, 0, "auto"}};
enum { NWAY = sizeof ways / sizeof *ways };

static void try_nodes(const char *nodes)
{
  struct mt_comm *comm = comm_on(nodes);
  MPI_Comm ordered;
  MPI_Comm_split(MPI_COMM_WORLD, 0, comm->rank, &ordered);
  struct mt_exchange *exchange[NWAY];
  for (int k = 0; k < NWAY; k++) {
    exchange[k] = mt_exchange_new(comm, ways[k].kind);
    if (ways[k].npiece > 0)
      mt_exchange_pieces(exchange[k], ways[k].npiece, ways[k].spread);
  }
  /* Links on which some node pairs go directly, and some in several pieces. */
  comm->cluster->link[MT_LEVEL_SELF] = (struct mt_link){0, 100, 0};
  comm->cluster->link[MT_LEVEL_NODE] = (struct mt_link){10000, 10000, 1000};
  comm->cluster->link[MT_LEVEL_NET] = (struct mt_link){9000, 12000, 9000};
  random_state = 2024;
  const int64_t width[] = {1, 4, 12, 4096};
  for (int w = 0; w < 4; w++)
    for (enum matrix kind = 0; kind < NMATRIX; kind++) {
      int64_t count[MAX_RANKS][MAX_RANKS];
      fill_matrix(kind, count, width[w] > 1000 ? 5 : 300);
      mt_exchange_segment = INT64_MAX;
      for (int k = 0; k < NWAY; k++) {
        struct faults faults = {0};
        try_exchange(comm, ordered, exchange[k], count, width[w], ways[k].npiece, &faults);
        check_faults(comm, &faults, matrix_name[kind], ways[k].name);
      }
    }
  /* Messages longer than MPI counts travel in parts: here the limit is 100 bytes. */
  for (int k = 0; k < NWAY; k++) {
    int64_t count[MAX_RANKS][MAX_RANKS], limit = mt_comm_piece;
    fill_matrix(SPARSE, count, 60);
    struct faults faults = {0};
    mt_comm_piece = 100;
    mt_exchange_segment = 130;
    try_exchange(comm, ordered, exchange[k], count, 12, -1, &faults);
    mt_comm_piece = limit;
    check_faults(comm, &faults, "long messages", ways[k].name);
  }
  for (int k = 0; k < NWAY; k++)
    mt_exchange_free(exchange[k]);
  MPI_Comm_free(&ordered);
  mt_comm_free(comm);
}

START_TEST(test_one_node)
{
  try_nodes(NULL);
}
END_TEST

/* All nodes of one rank; one rank beside all others, first and last. */
START_TEST(test_extreme_nodes)
{
  char text[64] = "1";
  for (int r = 1; r < world_size; r++)
    strcat(text, ",1");
  try_nodes(text);
  if (world_size < 3)
    return;
  snprintf(text, sizeof text, "1,%d", world_size - 1);
  try_nodes(text);
  snprintf(text, sizeof text, "%d,1", world_size - 1);
  try_nodes(text);
}
END_TEST

START_TEST(test_uneven_nodes)
{
  static const char *const shapes[] = {"1,2,1", "2,2", "2,1,4", "3,2,2", "1,3,1,2"};
  static const int total[] = {4, 4, 7, 7, 7};
  for (int i = 0; i < 5; i++)
    if (total[i] == world_size)
      try_nodes(shapes[i]);
}
END_TEST

START_TEST(test_choice)
{
  struct mt_comm *comm = comm_on(NULL);
  struct mt_exchange *x = mt_exchange_new(comm, MT_EXCHANGE_AUTO);
  ck_assert_str_eq(mt_exchange_name(x), "pairwise");
  mt_exchange_free(x);
  x = mt_exchange_new(comm, MT_EXCHANGE_HIERARCHICAL);
  ck_assert_str_eq(mt_exchange_name(x), "pairwise");
  mt_exchange_free(x);
  mt_comm_free(comm);
  if (world_size < 2)
    return;
  char text[16];
  snprintf(text, sizeof text, "1,%d", world_size - 1);
  comm = comm_on(text);
  x = mt_exchange_new(comm, MT_EXCHANGE_AUTO);
  ck_assert_str_eq(mt_exchange_name(x), "auto");
  mt_exchange_free(x);
  x = mt_exchange_new(comm, MT_EXCHANGE_PAIRWISE);
  ck_assert_str_eq(mt_exchange_name(x), "pairwise");
  mt_exchange_free(x);
  mt_comm_free(comm);
}
END_TEST

int main(int argc, char **argv)
{
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &(int){0});
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  Suite *suite = suite_create("exchange");
  TCase *tests = tcase_create("exchange");
  tcase_add_test(tests, test_one_node);
  tcase_add_test(tests, test_extreme_nodes);
  tcase_add_test(tests, test_uneven_nodes);
  tcase_add_test(tests, test_choice);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
