/* The exchange of rows: every rank has some rows for every rank.
 *
 * The problem: tokens go to experts on other ranks and come back, four times a layer and micro-step, in numbers that
 * change each time and are often zero. Nodes hold different numbers of ranks. Between nodes a message costs much more
 * than within. The idea: one pattern (how many rows from whom to whom), computed once from the exchanged counts, used in
 * both directions; two algorithms for it: pairwise (a message per pair of ranks), and hierarchical (a message per pair of
 * nodes: rows for node q go to the rank of p that is the bridge to q, one message crosses, the bridge on the other side
 * deals out; rows within a node go directly, at the same time). Both deliver the same bytes to the same places.
 * (Cf. FFTW's mpi/transpose-recurse.c; Tutel's 2DH needs equal nodes, this does not.)
 * The trap: a bridge handles rows of pairs it is no part of, so it must know their counts too. */
#ifndef MT_EXCHANGE_H
#define MT_EXCHANGE_H
#include <stdint.h>
#include "comm/comm.h"

/* How many rows travel between the ranks of my node and all ranks. n = node_size, P = size. Owned by its maker; the
 * arrays are filled by whoever knows the counts (experts/dispatch.c); equal entries on all ranks that hold them. */
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
  MT_FORWARD, /* send[sent rows], ordered by destination rank -> recv[received rows], ordered by source rank */
  MT_BACK,    /* send[received rows], ordered by source rank -> recv[sent rows], ordered by destination rank */
};

struct mt_exchange; /* the machinery: algorithm, staging, requests; one exchange at a time */

/* kind: pairwise or hierarchical (MT_EXCHANGE_AUTO chooses hierarchical with more than one node). Local. */
struct mt_exchange *mt_exchange_new(struct mt_comm *comm, int kind);
void mt_exchange_free(struct mt_exchange *exchange);
const char *mt_exchange_name(const struct mt_exchange *exchange); /* "pairwise", "hierarchical" */

/* Makes room in staging and requests for this pattern at `width` bytes a row, both directions. Local; grows by half when
 * too small. Call after the counts are known and before begin, which does not allocate. */
void mt_exchange_reserve(struct mt_exchange *exchange, const struct mt_pattern *pattern, int64_t width);
/* Starts the exchange; send and recv (wire memory, not overlapping) must stay untouched until end. Collective in effect:
 * every rank calls with the same direction and width and its part of the same pattern; zero rows anywhere are fine. */
void mt_exchange_begin(struct mt_exchange *exchange, const struct mt_pattern *pattern, enum mt_direction direction,
                       int64_t width, const void *send, void *recv);
/* Completes it. Rows to oneself are copied too. */
void mt_exchange_end(struct mt_exchange *exchange);

#endif
