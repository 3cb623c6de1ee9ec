/* From a routing to slots: which row goes where, for one layer in one micro-step.
 *
 * The problem: every rank must send each (token, expert) row to one slot that holds the expert, and every rank must know
 * how many rows come from whom, without a second exchange. The idea: all ranks know all counts (source, expert) and compute
 * the same shares of the expert's slots in them (shares.h); row i of (source, expert) goes to the slot whose run holds i.
 * Orders: rows are sent by (destination slot, source position), so by destination rank; they arrive by (source rank, slot,
 * position); experts compute on them by (slot, source rank, position), which no exchange algorithm changes. */
#ifndef MT_DISPATCH_H
#define MT_DISPATCH_H
#include "comm/comm.h"
#include "comm/exchange.h"
#include "experts/layout.h"
#include "experts/shares.h"

/* (token, expert, weight) triples in token order: those of token t are [first[t], first[t + 1]) less first[0] (a range of
 * tokens of a longer list keeps its numbers). 0 to E a token. */
struct mt_routing {
  int64_t ntoken, nrow;
  const int32_t *first;  /* host [ntoken + 1] */
  const int32_t *expert; /* host [nrow] */
};

struct mt_dispatch {
  int64_t sent, received; /* rows R that this rank sends, Q that it receives */
  int32_t *send_token;    /* host [R]: token of a row, in sending order */
  int32_t *place;         /* host [R]: sending order of a triple */
  int32_t *gather;        /* host [Q]: arrival order of a row that is in slot order */
  int32_t *scatter;       /* host [Q]: slot order of a row that is in arrival order */
  int64_t *slot_row;      /* host [my slots + 1]: slot j has rows [slot_row[j], slot_row[j + 1]) */
  /* owned memory behind the above */
  int64_t sent_capacity, received_capacity;
};

struct mt_dispatch mt_dispatch_new(int nslot); /* of this rank's slots. Local */
void mt_dispatch_free(struct mt_dispatch *dispatch);

/* Plans a rank's dispatches, one at a time. */
struct mt_dispatcher {
  const struct mt_comm *comm; /* borrowed */
  struct mt_pattern pattern;  /* of the dispatch planned last */
  /* scratch, owned; mine = this rank's slots */
  int64_t *next;          /* [S + 1] */
  int64_t *arrive;        /* [P, mine] */
  int64_t *slot_next;     /* [mine] */
  int64_t *left;          /* [E] */
  int32_t *at;            /* [E] */
};
/* For layouts with the slots and experts of this one. Local. */
struct mt_dispatcher mt_dispatcher_new(const struct mt_comm *comm, const struct mt_layout *layout);
void mt_dispatcher_free(struct mt_dispatcher *dispatcher);
/* counts[E] of this rank's rows. Local. */
void mt_dispatch_count(const struct mt_routing *routing, int nexpert, int64_t *counts);
/* Fills the dispatch, and the dispatcher's pattern, from the shares of the counts of all ranks ([P][E], this rank's row as
 * mt_dispatch_count gives it). Local, the same numbers on all ranks; allocates only where rows outgrow the dispatch's buffers
 * (a counted growth). O(runs of my node's ranks, and of all ranks to experts that my node holds, + P slots of this rank). */
void mt_dispatch_plan(struct mt_dispatcher *dispatcher, struct mt_dispatch *dispatch, const struct mt_layout *layout,
                      const struct mt_shares *shares, const struct mt_routing *routing);

#endif
