/* One MPI_Alltoallv; see flat.h. Rows are MPI's elements, so that counts fit its ints for longer. */
#include "comm/flat.h"
#include <limits.h>
#include "base/memory.h"
#include "comm/comm_mpi.h"

struct mt_flat {
  struct mt_comm *comm; /* borrowed */
  MPI_Datatype row;     /* owned */
  int *count;           /* [4][P], owned: sent, their displacements, received, theirs */
};

struct mt_flat *mt_flat_new(struct mt_comm *comm, const struct mt_pattern *pattern, int64_t width)
{
  int P = comm->size, n = comm->node_size;
  struct mt_flat *flat = MT_ZNEW(MT_TAG_COMM, struct mt_flat, 1);
  flat->comm = comm;
  flat->count = MT_NEW(MT_TAG_COMM, int, 4 * (int64_t)P);
  MT_CHECK(width > 0 && width < INT_MAX && mt_pattern_sent(comm, pattern) < INT_MAX &&
               mt_pattern_received(comm, pattern) < INT_MAX,
           "rows of %lld bytes, or their number, are too many for MPI's int", (long long)width);
  MT_MPI(MPI_Type_contiguous((int)width, MPI_BYTE, &flat->row));
  MT_MPI(MPI_Type_commit(&flat->row));
  int sent = 0, received = 0;
  for (int r = 0; r < P; r++) {
    flat->count[r] = (int)pattern->out[(int64_t)comm->node_rank * P + r];
    flat->count[P + r] = sent;
    flat->count[2 * P + r] = (int)pattern->in[(int64_t)r * n + comm->node_rank];
    flat->count[3 * P + r] = received;
    sent += flat->count[r];
    received += flat->count[2 * P + r];
  }
  return flat;
}

void mt_flat_free(struct mt_flat *flat)
{
  if (!flat)
    return;
  MT_MPI(MPI_Type_free(&flat->row));
  mt_free(flat->count);
  mt_free(flat);
}

void mt_flat_run(struct mt_flat *flat, const void *send, void *recv)
{
  int P = flat->comm->size, *n = flat->count;
  MT_MPI(MPI_Alltoallv(send, n, n + P, flat->row, recv, n + 2 * P, n + 3 * P, flat->row,
                       flat->comm->mpi->world));
}
