/* What the files of src/comm share and nobody else sees: MPI itself. */
#ifndef MT_COMM_MPI_H
#define MT_COMM_MPI_H
#include <mpi.h>
#include "comm/comm.h"

struct mt_comm_mpi {
  MPI_Comm world;    /* all ranks in our numbering, owned */
  int started;       /* this communicator started MPI, so freeing it ends MPI */
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
/* The longest message of an exchange between nodes on a slow network, in bytes (exchange.c). Tests change it. */
extern int64_t mt_exchange_segment;

/* Processors, as bits. */
enum { MT_MAX_CPUS = 8192 };
struct mt_cpus {
  unsigned char bit[MT_MAX_CPUS / 8];
};

/* A rank's share of its host. */
struct mt_share {
  int threads;    /* compute threads, >= 1 */
  int processors; /* that its affinity mask allows, 0 = unknown */
  int crowded;    /* more threads than cores where it runs */
};

/* Threads for rank `me` of the n ranks of a host with these masks, and the processors in its own. Pure. */
int mt_share_threads(const struct mt_place *place, const struct mt_cpus *mask, int n, int me,
                     int *processors);
/* 1 if the threads of the ranks that may meet on me's processors outnumber the cores. Pure. */
int mt_share_crowded(const struct mt_place *place, const struct mt_cpus *mask, const struct mt_share *share,
                     int n, int me);
/* Agrees among the ranks of one real host (equal place[].host; [size], in launch order). Collective over all
 * ranks. */
struct mt_share mt_share_host(const struct mt_comm *comm, const struct mt_place *place);
/* One warning for the job if ranks run more threads than their binding has processors. Local; rank 0 calls.
 */
void mt_share_warn(const struct mt_place *place, const struct mt_share *share, int n);

/* Waits for one request (a collective's), like mt_wait; `what` is named if the deadline passes. Adds to
 * wait_s. */
void mt_wait_collective(struct mt_comm *comm, MPI_Request *request, const char *what);

/* Waits until some of the set's requests are complete and tells which: *done[result], numbers in the order of posting,
 * borrowed from the set until the next call for it. More may be posted between calls. 0 when all have been told; the set is
 * then empty. */
int mt_wait_some(struct mt_comm *comm, struct mt_requests *set, const int **done);

#endif
