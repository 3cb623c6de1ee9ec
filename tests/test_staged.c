/* Exchanges of rows in a GPU's memory: through pinned memory in chunks of any length, and directly, by a toy of an MPI that
 * takes device memory (the wrappers below). On emulated GPUs, whose memory faults when anybody else touches it and is rubbish
 * where a copy was not waited for; every third rank is a CPU. ranks: 1 2 3 5
 *
 * What should come is a function of source, target and place, so each rank checks what it got without an oracle; what is wrong
 * is counted and summed before it is asserted. */
#include "test.h"
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include "base/config.h"
#include "comm/comm_mpi.h"
#include "comm/devices.h"
#include "comm/exchange.h"

enum { MAX_RANKS = 8 };
static struct mt_comm *comm;
static struct mt_device *device;

/* ---- an MPI that takes device memory: messages go through memory of the host, whole ---- */

enum { MOST_OPEN = 4096 };
static int toy; /* 1: this rank's messages lie in its device's memory */
static int64_t longest;
static struct {
  MPI_Request request;
  void *to, *host; /* to: NULL of a send */
  int bytes;
} open_message[MOST_OPEN];
static int nopen;

static void *bounce(void *to, int bytes)
{
  MT_CHECK(nopen < MOST_OPEN, "more messages than the test has room for");
  open_message[nopen].to = to;
  open_message[nopen].bytes = bytes;
  return open_message[nopen].host = mt_alloc(MT_TAG_MISC, bytes);
}

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm world, MPI_Request *request)
{
  longest = n > longest ? n : longest;
  if (!toy)
    return PMPI_Isend(data, n, type, to, tag, world, request);
  void *host = bounce(NULL, n);
  device->ops->copy(device, MT_DEV_MATH, host, data, n);
  device->ops->sync(device, MT_DEV_MATH);
  int code = PMPI_Isend(host, n, type, to, tag, world, request);
  open_message[nopen++].request = *request;
  return code;
}

int MPI_Irecv(void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm world, MPI_Request *request)
{
  if (!toy)
    return PMPI_Irecv(data, n, type, from, tag, world, request);
  int code = PMPI_Irecv(bounce(data, n), n, type, from, tag, world, request);
  open_message[nopen++].request = *request;
  return code;
}

/* One at a time, so that it is known which was told. */
int MPI_Testsome(int n, MPI_Request *request, int *done, int *index, MPI_Status *status)
{
  if (!toy)
    return PMPI_Testsome(n, request, done, index, status);
  *done = MPI_UNDEFINED;
  for (int i = 0; i < n; i++) {
    if (request[i] == MPI_REQUEST_NULL)
      continue;
    if (*done == MPI_UNDEFINED)
      *done = 0;
    const MPI_Request was = request[i];
    int flag = 0, k = 0;
    PMPI_Test(&request[i], &flag, MPI_STATUS_IGNORE);
    if (!flag)
      continue;
    while (open_message[k].request != was)
      k++;
    if (open_message[k].to) {
      device->ops->copy(device, MT_DEV_MATH, open_message[k].to, open_message[k].host, open_message[k].bytes);
      device->ops->sync(device, MT_DEV_MATH);
    }
    mt_free(open_message[k].host);
    open_message[k] = open_message[--nopen];
    *done = 1;
    index[0] = i;
    break;
  }
  return MPI_SUCCESS;
}

/* ---- exchanges ---- */

static int64_t rows_of(int s, int d, int round)
{
  uint32_t h = (uint32_t)(s * 31 + d * 7 + round * 101 + 1) * 2654435761u;
  return h >> 30 == 0 ? 0 : (int64_t)(h >> 8 & 63);
}

static unsigned char byte_of(int s, int d, int64_t at)
{
  return (unsigned char)((uint32_t)(s * 131 + d * 17 + 1) * 2654435761u >> 24 ^ (uint32_t)at * 40503u >> 7);
}

/* What rank `mine` sends to all (to = 1), or gets from all. Returns the bytes. */
static int64_t fill(unsigned char *x, int to, int round, int64_t width)
{
  int64_t n = 0;
  for (int r = 0; r < comm->size; r++) {
    int s = to ? comm->rank : r, d = to ? r : comm->rank;
    for (int64_t i = 0; i < rows_of(s, d, round) * width; i++)
      x[n++] = byte_of(s, d, i);
  }
  return n;
}

/* How many of n bytes are wrong in the device's memory. */
static double wrong(const void *found, const unsigned char *expected, int64_t n)
{
  unsigned char *host = mt_alloc(MT_TAG_MISC, n);
  device->ops->copy(device, MT_DEV_MATH, host, found, n);
  device->ops->sync(device, MT_DEV_MATH);
  double bad = 0;
  for (int64_t i = 0; i < n; i++)
    bad += host[i] != expected[i];
  mt_free(host);
  return bad;
}

/* Rounds of growing and shrinking exchanges, there and back, one machinery and one plan for all. */
static void check(int kind, enum mt_reach reach, int64_t chunk, int64_t width, int npiece)
{
  const int apart = device->host != device;
  struct mt_exchange *x = mt_exchange_new(comm, kind);
  struct mt_exchange_plan *plan = mt_exchange_plan_new();
  struct mt_pattern pattern = mt_pattern_new(comm);
  if (npiece)
    mt_exchange_pieces(x, npiece, 1);
  mt_exchange_of(x, device, apart ? reach : MT_REACH_HOST, chunk);
  longest = 0;
  double bad = 0;
  for (int round = 0; round < 4; round++) {
    const int n = comm->node_size, first = comm->node_first[comm->node];
    for (int i = 0; i < n; i++)
      for (int r = 0; r < comm->size; r++) {
        pattern.out[i * comm->size + r] = rows_of(first + i, r, round);
        pattern.in[r * n + i] = rows_of(r, first + i, round);
      }
    unsigned char *out = mt_alloc(MT_TAG_MISC, 64 * width * MAX_RANKS), *in = mt_alloc(MT_TAG_MISC, 64 * width * MAX_RANKS);
    const int64_t sent = fill(out, 1, round, width), received = fill(in, 0, round, width);
    const struct mt_device_ops *ops = device->ops;
    void *send = ops->alloc(device, MT_TAG_ROW, MT_DEVICE, sent), *recv = ops->alloc(device, MT_TAG_ROW, MT_DEVICE, received);
    void *back = ops->alloc(device, MT_TAG_ROW, MT_DEVICE, sent);
    ops->copy(device, MT_DEV_MATH, send, out, sent); /* the exchange waits for the math lane itself */
    mt_exchange_plan(x, plan, &pattern, width);
    mt_exchange_reserve(x, plan);
    toy = apart && reach == MT_REACH_DIRECT;
    const int64_t allocations = mt_memory_allocations();
    mt_exchange_begin(x, plan, MT_FORWARD, send, recv);
    mt_exchange_end(x);
    mt_exchange_begin(x, plan, MT_BACK, recv, back);
    mt_exchange_end(x);
    bad += !toy && mt_memory_allocations() != allocations;
    toy = 0;
    bad += wrong(recv, in, received) + wrong(back, out, sent);
    ops->free(device, MT_DEVICE, send);
    ops->free(device, MT_DEVICE, recv);
    ops->free(device, MT_DEVICE, back);
    mt_free(out);
    mt_free(in);
  }
  bad += longest > chunk;
  mt_sum(comm, &bad, 1);
  ck_assert_msg(bad == 0, "%s, reach %d, chunks of %lld, rows of %lld bytes, %d pieces: %g things are wrong", mt_exchange_name(x),
                (int)reach, (long long)chunk, (long long)width, npiece, bad);
  mt_exchange_plan_free(plan);
  mt_pattern_free(&pattern);
  mt_exchange_free(x);
}

static void on_nodes(const char *nodes, void (*test)(void))
{
  int argc = 1;
  char name[] = "test_staged", *argv[] = {name, NULL}, **args = argv, kind[32];
  setenv("MOTLEY_NODES", nodes, 1);
  ck_assert_int_eq(mt_comm_new(&argc, &args, &comm), MT_OK);
  snprintf(kind, sizeof kind, "emulated:%d", comm->rank % 3);
  ck_assert_int_eq(mt_device_open(comm->rank % 3 == 2 ? "cpu" : kind, 1, &device), MT_OK);
  test();
  device->ops->close(device);
  mt_comm_free(comm);
  unsetenv("MOTLEY_NODES");
}

static const char *const shapes[][3] = {{"1", "", ""}, {"2", "1,1", ""}, {"3", "2,1", "1,1,1"}, {"5", "2,3", "1,3,1"}};

static void on_all_nodes(void (*test)(void))
{
  int size;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 3 && atoi(shapes[i][0]) == size; k++)
      if (*shapes[i][k])
        on_nodes(shapes[i][k], test);
}

static void staged(void)
{
  static const int64_t chunk[] = {1 << 20, 1000, 64, 13, 1};
  for (int c = 0; c < 5; c++)
    for (int kind = MT_EXCHANGE_PAIRWISE; kind <= MT_EXCHANGE_HIERARCHICAL; kind++) {
      check(kind, MT_REACH_STAGED, chunk[c], chunk[c] == 1 ? 3 : 44, 0);
      check(kind, MT_REACH_STAGED, chunk[c], 7, 3);
    }
}

START_TEST(test_staged)
{
  on_all_nodes(staged);
}
END_TEST

static void direct(void)
{
  for (int kind = MT_EXCHANGE_PAIRWISE; kind <= MT_EXCHANGE_HIERARCHICAL; kind++) {
    check(kind, MT_REACH_DIRECT, INT64_MAX, 44, 0);
    check(kind, MT_REACH_DIRECT, INT64_MAX, 7, 3);
  }
}

START_TEST(test_direct)
{
  on_all_nodes(direct);
}
END_TEST

/* What is chosen: staged where a rank has a GPU and this MPI does not take its memory; all ranks agree on the longest message. */
static void reach(void)
{
  enum mt_reach reach;
  int64_t chunk, most;
  const int apart = device->host != device;
  ck_assert_int_eq(mt_devices_reach(comm, device, MT_DEVICE_MEMORY_STAGED, 0, &reach, &chunk), MT_OK);
  ck_assert_int_eq(reach, apart ? MT_REACH_STAGED : MT_REACH_HOST);
  most = chunk;
  mt_max_int(comm, &most, 1);
  ck_assert(chunk == mt_exchange_chunk && most == chunk);
  enum mt_status status = mt_devices_reach(comm, device, MT_DEVICE_MEMORY_DIRECT, 0, &reach, &chunk);
  const int can = status == MT_OK;
  ck_assert(status == MT_OK || status == MT_USAGE);
  ck_assert_int_eq(mt_devices_reach(comm, device, MT_DEVICE_MEMORY_AUTO, 0, &reach, &chunk), MT_OK);
  ck_assert_int_eq(reach, !apart ? MT_REACH_HOST : can ? MT_REACH_DIRECT : MT_REACH_STAGED);
  ck_assert_int_eq(chunk == INT64_MAX, can);
  ck_assert_int_eq(mt_devices_reach(comm, device->host, MT_DEVICE_MEMORY_DIRECT, 0, &reach, &chunk), MT_OK);
  ck_assert(reach == MT_REACH_HOST && chunk == INT64_MAX); /* no GPU anywhere */
}

START_TEST(test_reach)
{
  on_all_nodes(reach);
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  if (mt_device_open("emulated", 1, &device) != MT_OK) {
    printf("skipped: the emulation of CUDA is not there\n");
    MPI_Finalize();
    return MT_SKIPPED;
  }
  device->ops->close(device);
  Suite *suite = suite_create("staged");
  TCase *tests = tcase_create("exchanges");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, test_staged);
  tcase_add_test(tests, test_direct);
  tcase_add_test(tests, test_reach);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
