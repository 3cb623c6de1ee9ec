/* Ranks, nodes and messages: the only maker of communicators and, with exchange.c, the only caller of MPI.
 *
 * Ranks are renumbered so that a node's are consecutive (topology/cluster.h); everything above uses these numbers and
 * never sees MPI_COMM_WORLD's. Launcher rank 0 stays rank 0. Messages are posted (mt_post_*) into a set of requests and
 * waited for (mt_wait), which backs off instead of spinning where cores are shared.
 * MPI errors and exhausted memory end the job (mt_die); nothing here returns an error but agreement. */
#ifndef MT_COMM_H
#define MT_COMM_H
#include <stdint.h>
#include "base/status.h"
#include "topology/cluster.h"

struct mt_comm_mpi; /* communicators; src/comm only */

struct mt_comm {
  int rank, size;
  int node, nnode;           /* my node, number of nodes */
  int node_rank, node_size;  /* my number within the node, ranks in it */
  const int *node_first;     /* [nnode + 1], borrowed from cluster */
  struct mt_cluster *cluster; /* owned; the same on all ranks, threads filled in */
  struct mt_comm_mpi *mpi;   /* owned */
  /* Counted since the start: payload of the messages that this rank posted (mt_post_send; pieces of a long one count
   * singly, collectives and copies to itself not at all), by what they crossed: */
  int64_t sent_bytes[MT_NLEVEL], sent_messages[MT_NLEVEL];
  int threaded;  /* MPI takes calls from other threads than the main one too, one at a time */
  int beside;    /* 1: this rank computes while another of its threads waits for messages, which then sleeps early */
  double wait_s; /* seconds this rank spent in mt_wait and in the collectives below */
};

/* Starts MPI (unless it is up), discovers this rank's place, exchanges places, renumbers and makes the communicators.
 * Collective over all processes. MOTLEY_NODES=2,1,4 pretends node sizes (MT_USAGE, agreed, said once, if they do not
 * fit). MOTLEY_SLOW likewise. Compute threads per rank = max(1, allowed cores / ranks sharing them) unless OMP_NUM_THREADS
 * is set; a binding narrower than the threads is one warning. Of these and MOTLEY_TIMEOUT launcher rank 0's environment counts.
 * Sets mt_log_identity and mt_die_hook. *comm is freed by mt_comm_free, which is collective and ends MPI if this call
 * started it. */
enum mt_status mt_comm_new(int *argc, char ***argv, struct mt_comm **comm);
/* From now on a thread of each rank communicates while others compute, so that ranks which were dealt four threads or more compute
 * with one less (cluster->place[].threads). Once, before devices are opened. Collective. */
void mt_comm_beside(struct mt_comm *comm);
void mt_comm_free(struct mt_comm *comm);

/* ---- agreement and small collectives: all ranks call, in the same order ---- */

/* The worst status of any rank: corrupt, usage, failed, stopped, skipped, ok, from the worst to the best. Prints nothing:
 * who decided its own has said it. Collective. */
enum mt_status mt_agree(struct mt_comm *comm, enum mt_status mine);
void mt_barrier(struct mt_comm *comm);
/* `bytes` bytes from root to all; any length (split below MPI's int limit). Collective. */
void mt_bcast(struct mt_comm *comm, void *data, int64_t bytes, int root);
/* A string from root (others pass NULL, and get a copy that they free with mt_free; root gets its own copy too).
 * NULL at root gives NULL everywhere. Collective. */
char *mt_bcast_text(struct mt_comm *comm, const char *text, int root);
/* out[P][bytes] in rank order from in[bytes] of each rank, which may be its place in out, but no other. Collective. */
void mt_allgather(struct mt_comm *comm, const void *in, void *out, int64_t bytes);
/* Ragged: rank r gives bytes[r] (an array all ranks know); out is their concatenation in rank order; in
 * may be this rank's place in out. Collective. */
void mt_allgatherv(struct mt_comm *comm, const void *in, void *out, const int64_t *bytes);
/* The same, going on while this rank does something else: begin posts it, end waits for it. in and out must stay untouched
 * until then. One at a time in each mt_gather. Collective, each of the two in the same order among other collectives. */
struct mt_gather {
  void *mpi;     /* owned: request, counts and displacements */
  int under_way;
};
struct mt_gather mt_gather_new(const struct mt_comm *comm); /* Local */
void mt_gather_free(struct mt_gather *gather);
void mt_gather_begin(struct mt_comm *comm, struct mt_gather *gather, const void *in, void *out, const int64_t *bytes);
void mt_gather_end(struct mt_comm *comm, struct mt_gather *gather);
/* x[n] := its sum over ranks, left to right by rank within a node, then left to right over nodes: the same bits on all
 * ranks and for any algorithm. Collective. For a few numbers: P n are gathered, in memory kept for the next time. */
void mt_sum(struct mt_comm *comm, double *x, int n);
/* x[n] := the maximum over ranks; a NaN anywhere is the maximum. Collective. */
void mt_max(struct mt_comm *comm, double *x, int n);
void mt_max_int(struct mt_comm *comm, int64_t *x, int n);
/* x[n] := its sum over ranks modulo 2^64; bit by bit its exclusive or over ranks. Collective. */
void mt_sum_int(struct mt_comm *comm, uint64_t *x, int n);
void mt_xor_int(struct mt_comm *comm, uint32_t *x, int n);
/* 1 on all ranks if every rank passed equal bytes (CRC-32C compared); for checks in debug builds and tests. Collective. */
int mt_same(struct mt_comm *comm, const void *data, int64_t bytes);

/* ---- messages ---- */

/* A set of requests in flight. Zero-initialised is empty; grows when posted beyond its capacity (reserve first in hot
 * code), which is a counted growth; free with mt_requests_free. */
struct mt_requests {
  int n, capacity;
  void *mpi;    /* MPI_Request[capacity] and more behind it, owned */
  int *partner; /* [capacity], in mpi's memory: rank | (1 << 30) for sends; for mt_wait to name who is missing */
};
void mt_requests_reserve(struct mt_requests *set, int capacity);
void mt_requests_free(struct mt_requests *set);

/* Tags: one per purpose; between two ranks messages of one tag arrive in the order they were posted. */
enum mt_message_tag { MT_MSG_ROWS = 1, MT_MSG_BRIDGE, MT_MSG_DEAL, MT_MSG_UNSHARD, MT_MSG_FORWARD, MT_MSG_GATHER,
                      MT_MSG_RESHARD, MT_MSG_MEASURE, MT_MSG_TEST };

/* Posts a message of `bytes` (64-bit; zero posts nothing on either side; above 1 GiB it travels in pieces) from/to host or
 * wire memory, which must stay untouched until mt_wait. A message to oneself is not allowed (copy instead). Local;
 * counted in sent_bytes and sent_messages. */
void mt_post_send(struct mt_comm *comm, struct mt_requests *set, const void *data, int64_t bytes, int to, int tag);
void mt_post_recv(struct mt_comm *comm, struct mt_requests *set, void *data, int64_t bytes, int from, int tag);
/* Waits for all posted requests of the set and empties it. Tests in a loop; after 20 ms without progress it sleeps between
 * tests, 20 us at first and 200 us at most. Where the node's threads exceed its cores it yields the core between tests, and
 * sleeps after 0.2 ms. After MOTLEY_TIMEOUT seconds (default 1800, 0 = never) it dies naming the partners that are missing.
 * Local (but needs the partners). */
void mt_wait(struct mt_comm *comm, struct mt_requests *set);

/* The time in seconds from some fixed point in the past. */
double mt_time(void);
/* For tests: MOTLEY_SLOW=RANK:FACTOR,... (*: all) makes ranks compute FACTOR times as long as what they do needs of a processor,
 * asleep for the rest: so several ranks, and their threads that communicate, can share a core and each has the speed that it
 * would have alone. Around each piece of computing; of this thread. Local; no more than a look at the clock on other ranks. */
struct mt_pace {
  double began, used; /* as mt_time tells it; of the processor */
};
struct mt_pace mt_pace_begin(void);
void mt_pace_end(struct mt_pace pace);

#endif
