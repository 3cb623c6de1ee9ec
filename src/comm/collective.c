/* Small collectives.
 *
 * The problem: everybody must get the same answer, bit for bit, and nobody may burn the core of a rank that
 * is late. The idea: MPI's non-blocking collectives, waited for like messages; floating-point results are
 * computed by each rank from gathered values in one fixed order, so they depend on no algorithm of MPI's. The
 * trap: counts and displacements of MPI are int; what may be longer goes in pieces. */
#include <string.h>
#include "base/crc32c.h"
#include "base/memory.h"
#include "comm/comm_mpi.h"

static int64_t smaller(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

/* The order of badness. Exit codes are not in it: a rank that failed outweighs one that stopped in good
 * order. */
static int severity(enum mt_status status)
{
  switch (status) {
  case MT_OK:
    return 0;
  case MT_SKIPPED:
    return 1;
  case MT_STOPPED:
    return 2;
  case MT_FAILED:
    return 3;
  case MT_USAGE:
    return 4;
  case MT_CORRUPT:
    return 5;
  }
  return 3;
}

enum mt_status mt_agree(struct mt_comm *comm, enum mt_status mine)
{
  static const enum mt_status status[] = {MT_OK, MT_SKIPPED, MT_STOPPED, MT_FAILED, MT_USAGE, MT_CORRUPT};
  int64_t worst = severity(mine);
  mt_max_int(comm, &worst, 1);
  return status[worst];
}

void mt_barrier(struct mt_comm *comm)
{
  MPI_Request request;
  MT_MPI(MPI_Ibarrier(comm->mpi->world, &request));
  mt_wait_collective(comm, &request, "barrier");
}

void mt_bcast(struct mt_comm *comm, void *data, int64_t bytes, int root)
{
  for (int64_t at = 0; at < bytes; at += mt_comm_piece) {
    int count = (int)smaller(bytes - at, mt_comm_piece);
    MPI_Request request;
    MT_MPI(MPI_Ibcast((char *)data + at, count, MPI_BYTE, root, comm->mpi->world, &request));
    mt_wait_collective(comm, &request, "broadcast");
  }
}

char *mt_bcast_text(struct mt_comm *comm, const char *text, int root)
{
  int64_t bytes = comm->rank == root && text ? (int64_t)strlen(text) + 1 : 0;
  mt_bcast(comm, &bytes, sizeof bytes, root);
  if (!bytes)
    return NULL;
  char *copy = mt_alloc(MT_TAG_MISC, bytes);
  if (comm->rank == root)
    memcpy(copy, text, (size_t)bytes);
  mt_bcast(comm, copy, bytes, root);
  return copy;
}

/* Gathers what is too long for MPI's displacements: each rank's part is broadcast, in pieces. */
static void gather_long(struct mt_comm *comm, const void *in, char *out, const int64_t *bytes, int64_t each)
{
  for (int r = 0; r < comm->size; r++) {
    int64_t n = bytes ? bytes[r] : each;
    if (r == comm->rank && n && in != out)
      memmove(out, in, (size_t)n);
    mt_bcast(comm, out, n, r);
    out += n;
  }
}

void mt_allgather(struct mt_comm *comm, const void *in, void *out, int64_t bytes)
{
  if (bytes > mt_comm_piece / comm->size) {
    gather_long(comm, in, out, NULL, bytes);
    return;
  }
  if (!bytes)
    return;
  MPI_Request request;
  const void *mine = (char *)out + comm->rank * bytes == in ? MPI_IN_PLACE : in;
  MT_MPI(MPI_Iallgather(mine, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, comm->mpi->world, &request));
  mt_wait_collective(comm, &request, "gather");
}

/* Posts a ragged gather; counts [2 P] must stay until it has ended. */
static void post_ragged(struct mt_comm *comm, const void *in, void *out, const int64_t *bytes, int *counts,
                        MPI_Request *request)
{
  int *at = counts + comm->size;
  int64_t total = 0;
  for (int r = 0; r < comm->size; r++) {
    counts[r] = (int)bytes[r];
    at[r] = (int)total;
    total += bytes[r];
  }
  const void *mine = (char *)out + at[comm->rank] == in ? MPI_IN_PLACE : in;
  MT_MPI(MPI_Iallgatherv(mine, counts[comm->rank], MPI_BYTE, out, counts, at, MPI_BYTE, comm->mpi->world, request));
}

static int64_t sum_of(const struct mt_comm *comm, const int64_t *bytes)
{
  int64_t total = 0;
  for (int r = 0; r < comm->size; r++)
    total += bytes[r];
  return total;
}

void mt_allgatherv(struct mt_comm *comm, const void *in, void *out, const int64_t *bytes)
{
  int64_t total = sum_of(comm, bytes);
  if (total > mt_comm_piece) {
    gather_long(comm, in, out, bytes, 0);
    return;
  }
  if (!total)
    return;
  MPI_Request request;
  post_ragged(comm, in, out, bytes, comm->mpi->counts, &request);
  mt_wait_collective(comm, &request, "ragged gather");
}

struct pending {
  MPI_Request request;
  int counts[]; /* [2 * size]: MPI reads counts and displacements until the end */
};

struct mt_gather mt_gather_new(const struct mt_comm *comm)
{
  return (struct mt_gather){mt_alloc(MT_TAG_COMM, (int64_t)sizeof(struct pending) + 2 * comm->size * (int64_t)sizeof(int)), 0};
}

void mt_gather_free(struct mt_gather *gather)
{
  MT_CHECK(!gather->under_way, "a gather was begun and not ended");
  mt_free(gather->mpi);
  *gather = (struct mt_gather){0};
}

void mt_gather_begin(struct mt_comm *comm, struct mt_gather *gather, const void *in, void *out, const int64_t *bytes)
{
  struct pending *pending = gather->mpi;
  int64_t total = sum_of(comm, bytes);
  MT_CHECK(!gather->under_way, "a gather is begun before the last one is ended");
  MT_CHECK(total <= INT32_MAX, "a gather of %lld bytes, at most %d", (long long)total, INT32_MAX);
  gather->under_way = 1;
  post_ragged(comm, in, out, bytes, pending->counts, &pending->request);
}

void mt_gather_end(struct mt_comm *comm, struct mt_gather *gather)
{
  struct pending *pending = gather->mpi;
  mt_wait_collective(comm, &pending->request, "gather");
  gather->under_way = 0;
}

/* All ranks' x[n], as [P][n], in the communicator's scratch memory. */
static const double *gather_numbers(struct mt_comm *comm, const double *x, int n)
{
  struct mt_comm_mpi *mpi = comm->mpi;
  int64_t bytes = n * (int64_t)sizeof *x;
  mt_grow(MT_TAG_COMM, &mpi->scratch, &mpi->ncapacity, comm->size * bytes, 1);
  mt_allgather(comm, x, mpi->scratch, bytes);
  return mpi->scratch;
}

void mt_sum(struct mt_comm *comm, double *x, int n)
{
  const double *all = gather_numbers(comm, x, n);
  for (int i = 0; i < n; i++) {
    double sum = 0;
    for (int node = 0; node < comm->nnode; node++) {
      double part = all[(int64_t)comm->node_first[node] * n + i];
      for (int r = comm->node_first[node] + 1; r < comm->node_first[node + 1]; r++)
        part += all[(int64_t)r * n + i];
      sum = node ? sum + part : part;
    }
    x[i] = sum;
  }
}

/* Not MPI_MAX: what it makes of a NaN depends on the order; here a NaN anywhere is a NaN everywhere. */
void mt_max(struct mt_comm *comm, double *x, int n)
{
  const double *all = gather_numbers(comm, x, n);
  for (int i = 0; i < n; i++) {
    double max = all[i];
    for (int r = 1; r < comm->size; r++) {
      double other = all[(int64_t)r * n + i];
      if (other > max || other != other)
        max = other;
    }
    x[i] = max;
  }
}

static void reduce(struct mt_comm *comm, void *x, int n, MPI_Datatype type, MPI_Op op, const char *what)
{
  if (n <= 0)
    return;
  MPI_Request request;
  MT_MPI(MPI_Iallreduce(MPI_IN_PLACE, x, n, type, op, comm->mpi->world, &request));
  mt_wait_collective(comm, &request, what);
}

void mt_max_int(struct mt_comm *comm, int64_t *x, int n)
{
  reduce(comm, x, n, MPI_INT64_T, MPI_MAX, "maximum");
}

void mt_sum_int(struct mt_comm *comm, uint64_t *x, int n)
{
  reduce(comm, x, n, MPI_UINT64_T, MPI_SUM, "sum");
}

void mt_xor_int(struct mt_comm *comm, uint32_t *x, int n)
{
  reduce(comm, x, n, MPI_UINT32_T, MPI_BXOR, "sum of bits");
}

int mt_same(struct mt_comm *comm, const void *data, int64_t bytes)
{
  int64_t crc = mt_crc32c(0, data, bytes);
  int64_t x[4] = {crc, -crc, bytes, -bytes};
  mt_max_int(comm, x, 4);
  return x[0] == -x[1] && x[2] == -x[3];
}
