/* Shares: how many rows of every (source rank, expert) go to which of the expert's slots.
 *
 * The problem: layouts are planned on what was; where the rows really are is known only when this micro-step's counts have
 * been exchanged. The idea: the counts are the same on all ranks, so each computes the same shares from them, and no message
 * is needed: row i of (source, expert) goes to the slot whose run holds i. Any shares give the same result but for rounding;
 * they decide who waits for whom.
 *   lite: evenly over the expert's slots in the source's node, else over all of them (LAER-MoE's lite routing, made
 *         deterministic). A row leaves the node only if it must.
 *   solved: so that the last device is done as early as possible, given speeds and links (solver.h); by that
 *         measure never later than lite.
 * The trap: integers only, and an order of everything, or ranks would disagree. */
#ifndef MT_SHARES_H
#define MT_SHARES_H
#include <stdint.h>
#include "base/config.h"
#include "experts/layout.h"
#include "experts/solver.h"
#include "experts/work.h"

struct mt_shares {
  int nrank, nexpert, nnode;
  int32_t *first; /* [P E + 1]: (source s, expert e) has the runs [first[s E + e], first[s E + e + 1]) */
  int32_t *slot;  /* of a run: a slot that holds e */
  int64_t *rows;  /* of a run: > 0; the sum over (s, e)'s runs is counts[s][e] */
  int64_t slot_capacity, row_capacity; /* runs that there is room for */
  /* scratch of solved, and of layout_cost.h, owned */
  struct mt_solver *solver;
  struct mt_run *run;
  int64_t run_capacity;
  int64_t *demand, *left, *ps, *node_rows; /* [E nnode], [P], [P], [2 nnode] */
  int64_t *slot_rows, *traffic;            /* [S], [2 P + 2 nnode] */
  int32_t *rest;                           /* [2 S + 2] */
  int64_t *even;                           /* [E nnode + E] */
};

/* For layouts of nexpert experts on nslot slots in all; empty. Local. The caller frees. */
struct mt_shares *mt_shares_new(const struct mt_cluster *cluster, int nexpert, int nslot);
void mt_shares_free(struct mt_shares *shares); /* NULL allowed */
/* Fills the shares from counts [P][E]. Local and pure: equal arguments give equal shares on every rank. Allocates only where
 * runs outgrow the buffers (counted growths). lite: O(runs); at most P E + P S / nnode of them on nodes of one size that
 * hold all experts. solved: at most P E + E nnode + 2 S, or lite's; a few passes over
 * P E counts and S + E nnode arcs: `motley bench planner` has figures. */
void mt_shares_deal(struct mt_shares *shares, enum mt_dispatch_kind kind, const struct mt_cluster *cluster,
                    const struct mt_work *work, const struct mt_layout *layout, const int64_t *counts);
/* Sums of lite's shares, without dealing them: rows that each device gets, that leave each node, that enter it. Pure. */
void mt_shares_lite_sums(struct mt_shares *shares, const struct mt_cluster *cluster, const struct mt_layout *layout,
                         const int64_t *counts, int64_t *device, int64_t *out, int64_t *in);

#endif
