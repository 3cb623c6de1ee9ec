/* Layouts that follow the load.
 *
 * The problem: experts are rebuilt from shards at every use, so any layout may be the next one, and the best depends on
 * where tokens go now; but planning takes time, and ranks must never disagree. The idea: the counts that every micro-step
 * exchanges anyway are summed over each step and kept for the last `window` steps, each with twice the weight of the one
 * before it (loads drift: in LAER-MoE's published ones the last step alone foretells the next best; but few tokens are
 * noisy). As soon as a step's last counts are known, a thread of rank l mod P plans layer l, while the backward pass goes on;
 * the plans travel in one gather, while gradients are reduced; at the end of the step all ranks adopt them together. So a
 * layout lags one step behind the load, and serves whole steps, forward and backward; and between steps nothing is pending:
 * what a checkpoint must hold is the layouts in force and the windows. If planning takes longer than the backward pass,
 * training waits for it: the same layouts are in force in the same steps however long anything took.
 * The trap: only training steps count. Evaluation and generation route tokens too; they use the layouts and leave no trace. */
#ifndef MT_RELAYOUT_H
#define MT_RELAYOUT_H
#include "base/config.h"
#include "base/json.h"
#include "comm/comm.h"
#include "experts/layout.h"
#include "experts/work.h"

/* What planning came to; equal on all ranks. Times are of a step, predicted by layout_cost.h from the window's mean. */
struct mt_relayout_report {
  int nlayer, *layer;          /* MoE layers whose layout changed: [nlayer], owned by the relayout */
  double before_s, after_s;    /* predicted for the layouts before and now, all layers */
  double planner_ms, waited_ms; /* of the slowest rank: planning; training waiting for it */
  int64_t bytes[MT_NLEVEL];    /* that rows and weights send in a step under the layouts now, by what they cross */
};

struct mt_relayout;

/* Why layouts are static though parallel.layout is not: nothing to gain (one rank; whole experts on their owners and no slot
 * to spare, so that following the load would only move weights). NULL: they follow, or were asked to be static. Pure. */
const char *mt_relayout_why_static(const struct mt_config *config, int nrank, int nslot);
/* The policy that parallel.layout comes to: static for such a reason, or where there is nothing to follow (no training). Pure. */
enum mt_layout_policy mt_relayout_policy(const struct mt_config *config, int nrank, int nslot, int training);
/* Layouts of nmoe layers, static at first, with `slots` per rank, [P]; a policy that plans has its thread where this rank has
 * layers to plan. Local. The caller frees. */
struct mt_relayout *mt_relayout_new(struct mt_comm *comm, const struct mt_config *config, enum mt_layout_policy policy,
                                    int nmoe, const int *slots, const struct mt_work *work);
void mt_relayout_free(struct mt_relayout *relayout); /* NULL allowed */
/* The layout in force of MoE layer l; borrowed. Pure. */
const struct mt_layout *mt_relayout_layout(const struct mt_relayout *relayout, int l);
/* Random layouts of all layers, a function of `key` (policy random only). Local. */
void mt_relayout_shuffle(struct mt_relayout *relayout, int64_t key);

/* In each training step, in this order: begin; count for each layer and micro-step, counts[P][E] as all ranks know them; plan,
 * after the last of them; tell; adopt. They do nothing where the policy plans nothing. No allocation when warm. */
void mt_relayout_begin(struct mt_relayout *relayout, int64_t step); /* local */
void mt_relayout_count(struct mt_relayout *relayout, int l, const int64_t *counts); /* local */
void mt_relayout_plan(struct mt_relayout *relayout);  /* local: wakes the thread if it is this step's turn */
void mt_relayout_tell(struct mt_relayout *relayout);  /* collective in effect: waits for the thread, begins the gather */
/* Collective in effect. NULL if nothing was planned in this step; borrowed until the next call. */
const struct mt_relayout_report *mt_relayout_adopt(struct mt_relayout *relayout);

/* Layouts and windows for a checkpoint: arrays that may be large, and beside them, as text, what they are for. */
struct mt_relayout_state {
  int nlayer, nslot, nstep; /* nstep: steps in the windows */
  int nown;                 /* layers whose windows this rank keeps: rank, rank + P, ... */
  int64_t ncount;           /* P E */
  int64_t *revision;        /* [nlayer], owned like the others */
  int64_t *micro;           /* [nstep] micro-steps of each step, oldest first */
  int32_t *expert;          /* [nlayer, nslot]: rank 0's counts */
  int64_t *loads;           /* [nown, nstep, ncount] */
};
void mt_relayout_state_free(struct mt_relayout_state *state);
/* What is now, between steps. Local. The caller frees both. */
struct mt_relayout_state mt_relayout_save(const struct mt_relayout *relayout, mt_json **what_for);
/* 1 if a state is for these ranks, experts and slots; then *state has room for it, to be filled. Local and pure. */
int mt_relayout_expect(const struct mt_relayout *relayout, const mt_json *what_for, struct mt_relayout_state *state);
/* Takes a state over. Collective, the same result on all ranks. 0, and nothing is changed, if it cannot be one. */
int mt_relayout_restore(struct mt_relayout *relayout, struct mt_relayout_state *state);

#endif
