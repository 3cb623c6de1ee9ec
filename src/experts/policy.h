/* Policies: which expert gets which slots, from what was routed before.
 *
 * A policy is a pure integer function: equal problems give equal layouts, on any machine, in any thread. No MPI, no clock.
 *   static   slot i of S holds expert floor(i E / S): what was, is, and will be
 *   random   another random layout every time (tests); a function of `key`
 *   laer     LAER-MoE's tuner: replicas by a priority queue or evenly, greedy placement, the cheaper under lite dispatch
 *   eplb     DeepSeek's expert-parallel load balancer: hierarchical where nodes are alike, else global
 *   flexmoe  FlexMoE: hot experts take slots from cold ones, starting from the layout before
 *   motley   planned for solved shares, unlike devices and links; never worse than static or laer by layout_cost.h
 * Sources are named in policy_*.c. */
#ifndef MT_POLICY_H
#define MT_POLICY_H
#include <stdint.h>
#include "base/config.h"
#include "experts/layout.h"
#include "experts/work.h"

struct mt_policy_problem {
  const struct mt_cluster *cluster; /* speeds and links count */
  struct mt_work work;
  enum mt_dispatch_kind dispatch; /* what the layout will be used with */
  int64_t nstep;                  /* micro-steps that the counts are a sum of; >= 1 */
  const int64_t *counts;          /* [P][E] rows; all zero is allowed */
  const struct mt_layout *before; /* in force now: same cluster, experts and slots */
  uint64_t key;                   /* of random */
};

enum { MT_MOST_WINDOW = 16 }; /* steps that a window may hold */
/* What a plan sees of the last steps: sum[n] := the weighted sum of the counts[i][n] of nstep <= MT_MOST_WINDOW steps, newest
 * first, each step with twice the weight of the one before it. Returns the micro-steps that it is a sum of, micros[i] a step
 * (NULL: one each). Pure. */
int64_t mt_policy_window(int64_t *sum, int64_t n, const int64_t *const *counts, const int64_t *micros, int nstep);
/* Scratch for planning, reused; one thread at a time. `slots` per rank, [P], must hold every expert. The caller frees. */
struct mt_policy *mt_policy_new(const struct mt_cluster *cluster, int nexpert, const int *slots);
void mt_policy_free(struct mt_policy *policy); /* NULL allowed */
/* Plans a layout of the slots that the policy was made for into *layout (made by mt_layout_new with them; not `before`): its
 * contents, derived arrays and revision (before's, or one more if the contents differ). Local and pure; no allocation beyond
 * growths of the scratch. */
void mt_policy_plan(struct mt_policy *policy, enum mt_layout_policy kind, const struct mt_policy_problem *problem,
                    struct mt_layout *layout);
/* "static", "random", ... Pure. */
const char *mt_policy_name(enum mt_layout_policy kind);

#endif
