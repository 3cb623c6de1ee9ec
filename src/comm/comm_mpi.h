/* What the files of src/comm share and nobody else sees: MPI itself. */
#ifndef MT_COMM_MPI_H
#define MT_COMM_MPI_H
#include <mpi.h>
#include "comm/comm.h"

struct mt_comm_mpi {
  MPI_Comm world;    /* all ranks in our numbering, owned */
  int started;       /* this communicator started MPI, so freeing it ends MPI */
  int given;         /* OMP_NUM_THREADS said how many threads compute here */
  int crowded;       /* more compute threads than cores where this rank runs: sleep instead of spinning */
  int tag_limit;     /* largest tag */
  double timeout_s;  /* MOTLEY_TIMEOUT, 0 = none */
  void *scratch;     /* owned; for collectives that gather before they compute */
  int64_t ncapacity; /* bytes in scratch */
  int *counts;       /* [2 * size], owned: counts and displacements of a ragged gather */
};

/* Runs an MPI call; its failure ends the job with MPI's own words. */
#define MT_MPI(call)                                                                                         \
  do {                                                                                                       \
    int mt_mpi_code_ = (call);                                                                               \
    if (mt_mpi_code_ != MPI_SUCCESS)                                                                         \
      mt_mpi_failed(__FILE__, __LINE__, #call, mt_mpi_code_);                                                \
  } while (0)
_Noreturn void mt_mpi_failed(const char *file, int line, const char *call, int code);

/* The longest message handed to MPI as one, in bytes: MPI counts in int. Tests make it small. */
extern int64_t mt_comm_piece;
/* The longest message of an exchange between nodes on a slow network, in bytes (exchange_plan.c). Tests change it. */
extern int64_t mt_exchange_segment;
/* The longest message of an exchange that goes through pinned memory, in bytes (devices.c). Tests change it. */
extern int64_t mt_exchange_chunk;

/* Waits for one request (a collective's), like mt_wait; `what` is named if the deadline passes. Adds to
 * wait_s. */
void mt_wait_collective(struct mt_comm *comm, MPI_Request *request, const char *what);

/* Waits until some of the set's requests are complete and tells which: *done[result], numbers in the order of posting,
 * borrowed from the set until the next call for it. More may be posted between calls. 0 when all have been told; the set is
 * then empty. */
int mt_wait_some(struct mt_comm *comm, struct mt_requests *set, const int **done);
/* The same without waiting: 0 also while none is. */
int mt_test_some(struct mt_requests *set, const int **done);

#endif
