/* The exchange of rows: every rank has some rows for every rank.
 *
 * The problem: tokens go to experts on other ranks and come back, four times a layer and micro-step, in numbers that change
 * each time and are often zero. Nodes hold different numbers of ranks. Between nodes a message costs much more than within.
 * The idea: one pattern (how many rows from whom to whom), computed once from the exchanged counts, becomes one plan
 * (exchange_plan.c), which is then carried out as often as wanted in both directions (exchange.c). Two ways for it: pairwise
 * (a message per pair of ranks), and hierarchical (a few messages per pair of nodes: rows for node q go to ranks of p that
 * are bridges to q, cross from there, and the bridges on the other side deal them out; rows within a node go directly, at
 * the same time). Which way, and in how many pieces, each pair of nodes chooses by predicted cost (way.h), or it is forced.
 * All deliver the same bytes to the same places. Rows may lie in a GPU's memory: then they go through memory of the host, in
 * chunks, so that one is copied while another travels, unless MPI takes them where they are. (Cf. FFTW's mpi/transpose-recurse.c; Tutel's 2DH needs equal nodes, this
 * does not.) The trap: a bridge handles rows of pairs it is no part of, so it must know their counts too. */
#ifndef MT_EXCHANGE_H
#define MT_EXCHANGE_H
#include <stdint.h>
#include "comm/comm.h"
#include "kernels/device.h"

/* How many rows travel between the ranks of my node and all ranks. n = node_size, P = size. Owned by its
 * maker; the arrays are filled by whoever knows the counts (experts/dispatch.c); equal entries on all ranks
 * that hold them. */
struct mt_pattern {
  int64_t *out; /* [n][P]: rows from rank (node_first[node] + i) to each rank */
  int64_t *in;  /* [P][n]: rows from each rank to rank (node_first[node] + i) */
};
struct mt_pattern mt_pattern_new(const struct mt_comm *comm); /* zeros; Local */
void mt_pattern_free(struct mt_pattern *pattern);
/* Rows this rank sends (sum of its row of out) and receives (sum of its column of in). Pure. */
int64_t mt_pattern_sent(const struct mt_comm *comm, const struct mt_pattern *pattern);
int64_t mt_pattern_received(const struct mt_comm *comm, const struct mt_pattern *pattern);

enum mt_direction {
  MT_FORWARD, /* send[sent rows], ordered by destination rank -> recv[received rows], ordered by source rank
               */
  MT_BACK, /* send[received rows], ordered by source rank -> recv[sent rows], ordered by destination rank */
};

struct mt_exchange;      /* the machinery: algorithm, staging, requests; one exchange at a time */
struct mt_exchange_plan; /* what this rank sends, receives and passes on, in both directions */

/* kind: pairwise, hierarchical, or MT_EXCHANGE_AUTO: each pair of nodes by cost, from comm->cluster's links
 * as they are when a plan is made; they must be equal on all ranks. Local. */
struct mt_exchange *mt_exchange_new(struct mt_comm *comm, int kind);
/* Cuts what goes over bridges into so many pieces between two nodes, over one bridge on each side or (spread = 1)
 * over several; 0 = by cost. The same on all ranks, before plans are made. Local. */
void mt_exchange_pieces(struct mt_exchange *exchange, int npiece, int spread);
/* How MPI gets at rows. */
enum mt_reach {
  MT_REACH_HOST,   /* they are in the host's memory */
  MT_REACH_DIRECT, /* in a device's, which this MPI takes as any other */
  MT_REACH_STAGED, /* in a device's, and through pinned memory beside it */
};
/* From here on send and recv lie as `reach` says, in memory of `device` (borrowed). chunk: the longest message, in bytes, the
 * same on all ranks, whatever their reach (INT64_MAX: any). Before plans are made. Local. See mt_devices_reach. */
void mt_exchange_of(struct mt_exchange *exchange, struct mt_device *device, enum mt_reach reach, int64_t chunk);
void mt_exchange_free(struct mt_exchange *exchange);
const char *mt_exchange_name(
    const struct mt_exchange *exchange); /* "pairwise" (always within one node), "hierarchical", "auto" */

/* An empty plan, for mt_exchange_plan. Local. */
struct mt_exchange_plan *mt_exchange_plan_new(void);
void mt_exchange_plan_free(struct mt_exchange_plan *plan); /* NULL allowed */
/* Makes the plan that of this pattern at `width` bytes a row; the pattern is not needed after that. The plan stays good until
 * it is made anew, whatever other plans the exchange carries out. Local (comm may be made up), from equal patterns on all
 * ranks; grows by half what is too small in the plan. Touches nothing of an exchange under way, so another thread may plan
 * meanwhile. */
void mt_exchange_plan(struct mt_exchange *exchange, struct mt_exchange_plan *plan, const struct mt_pattern *pattern,
                      int64_t width);
/* Makes room in staging and requests to carry out the plan, both directions. Local; grows by half when too small. Before
 * begin, which does not allocate, and not while an exchange is under way. */
void mt_exchange_reserve(struct mt_exchange *exchange, const struct mt_exchange_plan *plan);
/* Bytes of staging that this rank holds for its plans so far (forecasts). */
int64_t mt_exchange_staging(const struct mt_exchange *exchange);
/* Starts the exchange of what the device's math lane has written by now; send and recv (not overlapping) must stay untouched
 * until end, the plan too. Collective
 * in effect: every rank calls with the same direction and its plan of the same pattern; zero rows anywhere are fine. Does not
 * allocate. */
void mt_exchange_begin(struct mt_exchange *exchange, const struct mt_exchange_plan *plan, enum mt_direction direction,
                       const void *send, void *recv);
/* Completes it: recv can be read by any lane. Rows to oneself are copied too. */
void mt_exchange_end(struct mt_exchange *exchange);

#endif
