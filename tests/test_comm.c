/* Starting, numbering, collectives, messages, threads of a host. ranks: 1 2 3 4 7
 *
 * This program brings its own mt_discover: launch ranks alternate between two made-up hosts, so that the
 * numbering of ranks differs from the launcher's. What a rank finds wrong is counted, and the sum over ranks
 * is asserted. */
#include "test.h"
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "comm/comm_mpi.h"
#include "comm/threads.h"
#include "topology/discover.h"

static int launch_rank, world_size;

void mt_discover(struct mt_place *place)
{
  *place = (struct mt_place){.device = -1, .cores = 4, .node_cores = 4, .packages = 1, .numas = 1};
  snprintf(place->host, sizeof place->host, "%s", launch_rank % 2 ? "odd" : "even");
}

static void assert_none(int64_t mine, const char *what)
{
  int64_t all;
  MPI_Allreduce(&mine, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  ck_assert_msg(all == 0, "%s: %lld faults on %d ranks", what, (long long)all, world_size);
}

static struct mt_comm *comm_on(const char *nodes)
{
  if (nodes)
    setenv("MOTLEY_NODES", nodes, 1);
  struct mt_comm *comm;
  enum mt_status status = mt_comm_new(NULL, NULL, &comm);
  unsetenv("MOTLEY_NODES");
  assert_none(status != MT_OK, "status of mt_comm_new");
  return comm;
}

/* Even launch ranks are node 0 and come first. */
START_TEST(test_numbering)
{
  struct mt_comm *comm = comm_on(NULL);
  int even = (world_size + 1) / 2;
  int expected = launch_rank % 2 ? even + launch_rank / 2 : launch_rank / 2;
  int64_t faults = comm->rank != expected;
  faults += comm->size != world_size;
  faults += comm->nnode != (world_size > 1 ? 2 : 1);
  faults += comm->node != launch_rank % 2;
  faults += comm->node_rank != launch_rank / 2;
  faults += comm->node_size != (launch_rank % 2 ? world_size - even : even);
  faults += comm->node_first[comm->node] + comm->node_rank != comm->rank;
  for (int r = 0; r < comm->size; r++) {
    const struct mt_place *place = &comm->cluster->place[r];
    faults += place->launch_rank != (r < even ? 2 * r : 2 * (r - even) + 1);
    faults += place->threads < 1;
  }
  /* The communicator itself is in this order. */
  int *rank = MT_NEW(MT_TAG_MISC, int, comm->size);
  mt_allgather(comm, &comm->rank, rank, sizeof *rank);
  for (int r = 0; r < comm->size; r++)
    faults += rank[r] != r;
  mt_free(rank);
  assert_none(faults, "numbering");
  mt_comm_free(comm);
}
END_TEST

START_TEST(test_pretended_nodes)
{
  char sizes[16] = "1";
  if (world_size > 1)
    snprintf(sizes, sizeof sizes, "1,%d", world_size - 1);
  struct mt_comm *comm = comm_on(sizes);
  int64_t faults = comm->nnode != (world_size > 1 ? 2 : 1);
  faults += comm->rank != launch_rank;
  faults += comm->node != (launch_rank > 0);
  faults += comm->node_size != (launch_rank > 0 ? world_size - 1 : 1);
  assert_none(faults, "pretended nodes");
  mt_comm_free(comm);
}
END_TEST

/* Bad values are refused on all ranks alike, though only rank 0's environment counts. */
START_TEST(test_refused_environment)
{
  const char *const value[][2] = {
      {"MOTLEY_NODES", "99"}, {"MOTLEY_NODES", "1,x"}, {"MOTLEY_TIMEOUT", "soon"}, {"MOTLEY_TIMEOUT", "-1"},
      {"MOTLEY_SLOW", "2"},   {"MOTLEY_SLOW", "99:2"}, {"MOTLEY_SLOW", "0:0.5"},    {"MOTLEY_SLOW", ":2"},
      {"MOTLEY_SLOW", "0:2;0:3"}, {"MOTLEY_SLOW", "*:2,x:2"}, {"MOTLEY_SLOW", "**:2"}};
  for (size_t i = 0; i < sizeof value / sizeof *value; i++) {
    if (launch_rank == 0)
      setenv(value[i][0], value[i][1], 1);
    struct mt_comm *comm = (void *)1;
    enum mt_status status = mt_comm_new(NULL, NULL, &comm);
    unsetenv(value[i][0]);
    assert_none((status != MT_USAGE) + (comm != NULL), value[i][1]);
  }
  if (launch_rank != 0)
    setenv("MOTLEY_NODES", "99", 1);
  struct mt_comm *comm;
  enum mt_status status = mt_comm_new(NULL, NULL, &comm);
  unsetenv("MOTLEY_NODES");
  assert_none(status != MT_OK, "another rank's environment");
  mt_comm_free(comm);
}
END_TEST

/* Computes for so long; returns how long it took. */
static double compute(double seconds)
{
  struct mt_pace pace = mt_pace_begin();
  struct timespec t;
  double from = -1, used = 0;
  while (from < 0 || used - from < seconds) {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    used = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    from = from < 0 ? used : from;
  }
  mt_pace_end(pace);
  return mt_time() - pace.began;
}

/* Rank 0's environment names the slow ranks, the last word counts; what those compute takes FACTOR times the processor's time. */
START_TEST(test_slow)
{
  char text[64];
  snprintf(text, sizeof text, "*:4,%d:2.5", world_size - 1);
  setenv("MOTLEY_SLOW", launch_rank == 0 ? text : "0:9", 1);
  struct mt_comm *comm;
  enum mt_status status = mt_comm_new(NULL, NULL, &comm);
  unsetenv("MOTLEY_SLOW");
  assert_none(status != MT_OK, "MOTLEY_SLOW");
  const double factor = comm->rank == comm->size - 1 ? 2.5 : 4;
  assert_none(compute(0.02) < factor * 0.02, "too quick");
  mt_comm_free(comm);
  comm = comm_on(NULL); /* it does not last */
  const struct mt_pace ago = {mt_time() - 1, -1000};
  mt_pace_end(ago);
  assert_none(mt_time() - ago.began > 500, "slow still");
  mt_comm_free(comm);
}
END_TEST

START_TEST(test_agree)
{
  struct mt_comm *comm = comm_on(NULL);
  const enum mt_status worse[] = {MT_OK, MT_SKIPPED, MT_STOPPED, MT_FAILED, MT_USAGE, MT_CORRUPT};
  int64_t faults = 0;
  for (int a = 0; a < 6; a++)
    for (int who = 0; who < comm->size; who++)
      for (int b = 0; b <= a; b++) {
        enum mt_status verdict = mt_agree(comm, comm->rank == who ? worse[a] : worse[b]);
        faults += verdict != worse[a];
      }
  assert_none(faults, "agreement");
  mt_comm_free(comm);
}
END_TEST

static unsigned char byte_of(int rank, int64_t at)
{
  return (unsigned char)(rank * 37 + at * 11 + (at >> 8) + 1);
}

static int64_t count_wrong(const unsigned char *data, int64_t bytes, int rank)
{
  int64_t wrong = 0;
  for (int64_t i = 0; i < bytes; i++)
    wrong += data[i] != byte_of(rank, i);
  return wrong;
}

static void fill(unsigned char *data, int64_t bytes, int rank)
{
  for (int64_t i = 0; i < bytes; i++)
    data[i] = byte_of(rank, i);
}

/* Runs a body at MPI's limit and at a limit of 7 bytes, where everything travels in pieces. */
#define AT_BOTH_LIMITS                                                                                       \
  for (int64_t normal_ = mt_comm_piece, once_ = 0; once_ < 2;                                                \
       mt_comm_piece = once_ == 0 ? 7 : normal_, once_++)

START_TEST(test_bcast)
{
  struct mt_comm *comm = comm_on(NULL);
  AT_BOTH_LIMITS
  {
    for (int root = 0; root < comm->size; root++)
      for (int64_t bytes = 0; bytes <= 64; bytes += bytes < 8 ? 1 : 7) {
        unsigned char data[66] = {0};
        if (comm->rank == root)
          fill(data, bytes, root);
        data[bytes] = 0x5a;
        mt_bcast(comm, data, bytes, root);
        assert_none(count_wrong(data, bytes, root) + (data[bytes] != 0x5a), "broadcast");
      }
    const char *const text[] = {NULL, "", "x", "a longer text, of more than one piece"};
    for (int i = 0; i < 4; i++) {
      int root = i % comm->size;
      char *copy = mt_bcast_text(comm, comm->rank == root ? text[i] : NULL, root);
      assert_none(text[i] ? !copy || copy == text[i] || strcmp(copy, text[i]) : copy != NULL, "text");
      mt_free(copy);
    }
  }
  mt_barrier(comm);
  mt_comm_free(comm);
}
END_TEST

START_TEST(test_gather)
{
  struct mt_comm *comm = comm_on(NULL);
  int P = comm->size;
  AT_BOTH_LIMITS
  {
    for (int64_t bytes = 0; bytes <= 20; bytes += 1 + bytes / 3)
      for (int in_place = 0; in_place < 2; in_place++) {
        unsigned char *out = mt_zalloc(MT_TAG_MISC, P * bytes + 1), mine[32];
        unsigned char *in = in_place ? out + comm->rank * bytes : mine;
        fill(in, bytes, comm->rank);
        mt_allgather(comm, in, out, bytes);
        int64_t faults = out[P * bytes] != 0;
        for (int r = 0; r < P; r++)
          faults += count_wrong(out + r * bytes, bytes, r);
        mt_free(out);
        assert_none(faults, "gather");
      }
    for (int trial = 0; trial < 5; trial++) {
      int64_t bytes[16], total = 0, before = 0; /* the first trial gathers nothing */
      for (int r = 0; r < P; r++) {
        bytes[r] = trial * ((r * 5 + trial) % 4);
        before += r < comm->rank ? bytes[r] : 0;
        total += bytes[r];
      }
      for (int in_place = 0; in_place < 2; in_place++) {
        unsigned char *out = mt_zalloc(MT_TAG_MISC, total + 1), mine[32];
        unsigned char *in = in_place ? out + before : mine;
        fill(in, bytes[comm->rank], comm->rank);
        mt_allgatherv(comm, in, out, bytes);
        int64_t faults = out[total] != 0, at = 0;
        for (int r = 0; r < P; at += bytes[r++])
          faults += count_wrong(out + at, bytes[r], r);
        mt_free(out);
        assert_none(faults, "ragged gather");
      }
      /* the same, with other collectives while it is under way, twice */
      struct mt_gather gather = mt_gather_new(comm);
      unsigned char *out = mt_zalloc(MT_TAG_MISC, total + 1), mine[32];
      for (int again = 0; again < 2; again++) {
        memset(out, 0, (size_t)total + 1);
        fill(mine, bytes[comm->rank], comm->rank);
        mt_gather_begin(comm, &gather, mine, out, bytes);
        double one = 1;
        mt_sum(comm, &one, 1);
        mt_barrier(comm);
        mt_gather_end(comm, &gather);
        int64_t faults = out[total] != 0, at = 0;
        for (int r = 0; r < P; at += bytes[r++])
          faults += count_wrong(out + at, bytes[r], r);
        assert_none(faults + (one != P), "gather under way");
      }
      mt_free(out);
      mt_gather_free(&gather);
    }
  }
  mt_comm_free(comm);
}
END_TEST

/* Numbers whose sum depends on the order: only the documented one gives the same bits. */
START_TEST(test_sum)
{
  struct mt_comm *comm = comm_on(NULL);
  enum { N = 50 };
  double x[N], expected[N];
  for (int i = 0; i < N; i++) {
    x[i] = sin(comm->rank * 7 + i) * pow(10, (comm->rank * 5 + i) % 13);
    expected[i] = 0;
    for (int node = 0; node < comm->nnode; node++) {
      double part = 0;
      for (int r = comm->node_first[node]; r < comm->node_first[node + 1]; r++)
        part += sin(r * 7 + i) * pow(10, (r * 5 + i) % 13);
      expected[i] += part;
    }
  }
  mt_sum(comm, x, N);
  assert_none(memcmp(x, expected, sizeof x) != 0, "sum");
  int64_t allocations = mt_memory_allocations();
  mt_sum(comm, x, N);
  mt_max(comm, x, N);
  mt_sum(comm, x, 0);
  assert_none(mt_memory_allocations() - allocations, "allocations of a second sum");
  mt_comm_free(comm);
}
END_TEST

START_TEST(test_max)
{
  struct mt_comm *comm = comm_on(NULL);
  int last = comm->size - 1;
  double x[4] = {comm->rank, -comm->rank - 1.0, -INFINITY, comm->rank == last / 2 ? NAN : comm->rank};
  mt_max(comm, x, 4);
  assert_none((x[0] != last) + (x[1] != -1) + (x[2] != -INFINITY) + !isnan(x[3]), "maximum");
  const int64_t big = (int64_t)1 << 62;
  int64_t y[3] = {big + comm->rank, -comm->rank, INT64_MIN};
  mt_max_int(comm, y, 3);
  mt_max_int(comm, NULL, 0);
  const uint64_t P = (uint64_t)comm->size, r = (uint64_t)comm->rank;
  uint64_t sum[2] = {r, UINT64_MAX - r}; /* the second wraps round */
  mt_sum_int(comm, sum, 2);
  ck_assert_uint_eq(sum[0], P * (P - 1) / 2);
  ck_assert_uint_eq(sum[1], UINT64_C(0) - P - P * (P - 1) / 2);
  uint32_t bits[2] = {UINT32_C(1) << comm->rank, UINT32_C(0x80000001)};
  mt_xor_int(comm, bits, 2);
  ck_assert_uint_eq(bits[0], (UINT32_C(1) << comm->size) - 1);
  ck_assert_uint_eq(bits[1], comm->size % 2 ? UINT32_C(0x80000001) : 0);
  assert_none((y[0] != big + last) + (y[1] != 0) + (y[2] != INT64_MIN), "maximum of integers");
  mt_comm_free(comm);
}
END_TEST

START_TEST(test_same)
{
  struct mt_comm *comm = comm_on(NULL);
  unsigned char data[100];
  fill(data, sizeof data, 3);
  int64_t faults = !mt_same(comm, data, sizeof data) + !mt_same(comm, data, 0);
  for (int who = 0; who < comm->size && comm->size > 1; who++) {
    data[57] ^= comm->rank == who;
    faults += mt_same(comm, data, sizeof data);
    data[57] ^= comm->rank == who;
    faults += mt_same(comm, data, comm->rank == who ? 99 : 100);
  }
  assert_none(faults, "sameness");
  mt_comm_free(comm);
}
END_TEST

/* All to all, of lengths from nothing to several pieces, posted without a reserve; counts by what is crossed.
 */
START_TEST(test_messages)
{
  struct mt_comm *comm = comm_on(NULL);
  int P = comm->size;
  AT_BOTH_LIMITS
  {
    struct mt_requests set = {0};
    unsigned char *in = mt_zalloc(MT_TAG_MISC, P * 64), *out = mt_alloc(MT_TAG_MISC, P * 64);
    int64_t bytes[MT_NLEVEL] = {0}, messages[MT_NLEVEL] = {0}, faults = 0;
    for (int level = 0; level < MT_NLEVEL; level++) {
      bytes[level] = comm->sent_bytes[level];
      messages[level] = comm->sent_messages[level];
    }
    mt_wait(comm, &set);
    for (int i = 1; i < P; i++) {
      int to = (comm->rank + i) % P, from = (comm->rank + P - i) % P;
      int64_t n_out = (comm->rank * 3 + to) * 5 % 60, n_in = (from * 3 + comm->rank) * 5 % 60;
      fill(out + to * 64, n_out, comm->rank + to);
      mt_post_recv(comm, &set, in + from * 64, n_in, from, MT_MSG_TEST);
      mt_post_send(comm, &set, out + to * 64, n_out, to, MT_MSG_TEST);
      enum mt_level level = comm->cluster->node_of[to] == comm->node ? MT_LEVEL_NODE : MT_LEVEL_NET;
      bytes[level] += n_out;
      messages[level] += (n_out + mt_comm_piece - 1) / mt_comm_piece;
    }
    mt_wait(comm, &set);
    faults += set.n != 0;
    for (int from = 0; from < P; from++) {
      int64_t n = from == comm->rank ? 0 : (from * 3 + comm->rank) * 5 % 60;
      faults += count_wrong(in + from * 64, n, from + comm->rank);
      for (int64_t i = n; i < 64; i++)
        faults += in[from * 64 + i] != 0;
    }
    for (int level = 0; level < MT_NLEVEL; level++)
      faults += (comm->sent_bytes[level] != bytes[level]) + (comm->sent_messages[level] != messages[level]);
    mt_requests_free(&set);
    mt_free(in);
    mt_free(out);
    assert_none(faults, "messages");
  }
  mt_comm_free(comm);
}
END_TEST

/* A reserve of less than what is there keeps it, a reserve while messages are under way keeps them. */
START_TEST(test_reserve)
{
  struct mt_comm *comm = comm_on(NULL);
  struct mt_requests set = {0};
  mt_requests_reserve(&set, 4);
  mt_requests_reserve(&set, 2);
  int64_t faults = set.capacity != 4, allocations = mt_memory_allocations();
  int value[2] = {0, 0};
  if (comm->size > 1) {
    int next = (comm->rank + 1) % comm->size, previous = (comm->rank + comm->size - 1) % comm->size;
    mt_post_recv(comm, &set, &value[0], sizeof value[0], previous, MT_MSG_TEST);
    mt_post_send(comm, &set, &comm->rank, sizeof comm->rank, next, MT_MSG_TEST);
    faults += mt_memory_allocations() != allocations;
    mt_requests_reserve(&set, 100);
    faults += set.n != 2;
    mt_wait(comm, &set);
    faults += value[0] != previous;
  }
  mt_requests_free(&set);
  assert_none(faults, "reserve");
  mt_comm_free(comm);
}
END_TEST

/* A rank that comes late is waited for, and the waiting is accounted. */
START_TEST(test_waiting_is_accounted)
{
  struct mt_comm *comm = comm_on(NULL);
  if (comm->size > 1) {
    struct mt_requests set = {0};
    int token = 0;
    mt_barrier(comm);
    double before = comm->wait_s;
    if (comm->rank == 0) {
      for (double end = mt_time() + 0.05; mt_time() < end;)
        ;
      for (int r = 1; r < comm->size; r++)
        mt_post_send(comm, &set, &token, sizeof token, r, MT_MSG_TEST);
    } else {
      mt_post_recv(comm, &set, &token, sizeof token, 0, MT_MSG_TEST);
    }
    double began = mt_time();
    mt_wait(comm, &set);
    double waited = comm->wait_s - before;
    assert_none(waited < 0 || waited > mt_time() - began + 1e-3, "time waited");
    assert_none(comm->rank == 1 && waited <= 0, "no time waited");
    mt_requests_free(&set);
  }
  mt_comm_free(comm);
}
END_TEST

/* ---- threads of a host: pure ---- */

static struct mt_cpus cpus(int first, int n)
{
  struct mt_cpus mask = {0};
  for (int cpu = first; cpu < first + n; cpu++)
    mask.bit[cpu / 8] |= (unsigned char)(1 << cpu % 8);
  return mask;
}

static int threads(int cores, const struct mt_cpus *mask, int n, int me)
{
  struct mt_place place = {.cores = cores, .node_cores = cores};
  int processors;
  return mt_threads_count(&place, mask, n, me, &processors);
}

START_TEST(test_threads)
{
  struct mt_cpus same[3] = {cpus(0, 8), cpus(0, 8), cpus(0, 8)};
  ck_assert_int_eq(threads(8, same, 1, 0), 8);
  ck_assert_int_eq(threads(8, same, 2, 1), 4);
  ck_assert_int_eq(threads(8, same, 3, 1), 2);
  struct mt_cpus two[3] = {cpus(3, 3), cpus(3, 3), cpus(3, 3)}; /* three thirds are one */
  ck_assert_int_eq(threads(3, two, 3, 2), 1);
  struct mt_cpus disjoint[2] = {cpus(0, 4), cpus(4, 12)};
  ck_assert_int_eq(threads(4, disjoint, 2, 0), 4);
  ck_assert_int_eq(threads(12, disjoint, 2, 1), 12);
  struct mt_cpus partly[2] = {cpus(0, 4), cpus(2, 6)}; /* 2 alone and 2 shared; 4 alone and 2 shared */
  ck_assert_int_eq(threads(4, partly, 2, 0), 3);
  ck_assert_int_eq(threads(6, partly, 2, 1), 5);
  struct mt_cpus one[7];
  for (int i = 0; i < 7; i++)
    one[i] = cpus(0, 2);
  ck_assert_int_eq(threads(2, one, 7, 6), 1);
  ck_assert_int_eq(threads(4, same, 2, 0), 2);  /* 8 processors are 4 cores with two threads each */
  ck_assert_int_eq(threads(64, same, 2, 0), 4); /* a made-up machine larger than the mask */
  struct mt_cpus unknown[2] = {{{0}}, {{0}}};
  ck_assert_int_eq(threads(6, unknown, 2, 0), 3);
  ck_assert_int_eq(threads(1, unknown, 2, 0), 1);
  struct mt_cpus far = cpus(8000, 64);
  ck_assert_int_eq(threads(64, &far, 1, 0), 64);
}
END_TEST

/* Of four threads or more one communicates, if nobody has said how many compute. */
START_TEST(test_beside)
{
  static const int beside[][3] = {{1, 0, 1}, {3, 0, 3}, {4, 0, 3}, {16, 0, 15}, {16, 1, 16}};
  for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
    ck_assert_int_eq(mt_threads_beside(beside[i][0], beside[i][1]), beside[i][2]);
  for (int given = 0; given < 2; given++) {
    if (given)
      setenv("OMP_NUM_THREADS", "6", 1);
    else
      unsetenv("OMP_NUM_THREADS");
    struct mt_comm *comm = comm_on(NULL);
    struct mt_place *place = comm->cluster->place;
    for (int r = 0; r < comm->size; r++)
      place[r].threads = r % 2 ? 3 : 6;
    mt_comm_beside(comm);
    int faults = 0;
    for (int r = 0; r < comm->size; r++)
      faults += place[r].threads != (r % 2 ? 3 : !given && comm->threaded && comm->size > 1 ? 5 : 6);
    assert_none(faults, "threads beside one that communicates");
    mt_comm_free(comm);
  }
  setenv("OMP_NUM_THREADS", "1", 1);
}
END_TEST

START_TEST(test_crowded)
{
  struct mt_place place = {.cores = 4, .node_cores = 8};
  struct mt_cpus mask[3] = {cpus(0, 4), cpus(0, 4), cpus(4, 4)};
  struct mt_threads fits[3] = {{2, 4, 0}, {2, 4, 0}, {9, 4, 0}}, over[3] = {{3, 4, 0}, {2, 4, 0}, {1, 4, 0}};
  ck_assert_int_eq(mt_threads_crowded(&place, mask, fits, 3, 0), 0);
  ck_assert_int_eq(mt_threads_crowded(&place, mask, fits, 3, 2), 1);
  ck_assert_int_eq(mt_threads_crowded(&place, mask, over, 3, 0), 1);
  ck_assert_int_eq(mt_threads_crowded(&place, mask, over, 3, 2), 0);
}
END_TEST

int main(int argc, char **argv)
{
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &(int){0});
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  MPI_Comm_rank(MPI_COMM_WORLD, &launch_rank);
  Suite *suite = suite_create("comm");
  TCase *tests = tcase_create("comm");
  tcase_add_test(tests, test_numbering);
  tcase_add_test(tests, test_pretended_nodes);
  tcase_add_test(tests, test_refused_environment);
  tcase_add_test(tests, test_slow);
  tcase_add_test(tests, test_agree);
  tcase_add_test(tests, test_bcast);
  tcase_add_test(tests, test_gather);
  tcase_add_test(tests, test_sum);
  tcase_add_test(tests, test_max);
  tcase_add_test(tests, test_same);
  tcase_add_test(tests, test_messages);
  tcase_add_test(tests, test_reserve);
  tcase_add_test(tests, test_waiting_is_accounted);
  tcase_add_test(tests, test_threads);
  tcase_add_test(tests, test_crowded);
  tcase_add_test(tests, test_beside);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
