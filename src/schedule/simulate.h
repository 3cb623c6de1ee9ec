/* A task list in virtual time, and the bounds that no schedule of it can beat.
 *
 * A lane takes its next task (list order) as soon as that task's dependencies have ended. While several lanes are
 * busy, each proceeds at the rate that the costs' slow-downs give. Integers throughout: the answer is the same
 * wherever it is computed. */
#ifndef MT_SIMULATE_H
#define MT_SIMULATE_H
#include "schedule/cost.h"

struct mt_simulation {
  int64_t total_ns;
  int64_t lane_ns[MT_NLANE]; /* work of each lane: three bounds */
  int64_t latency_ns;        /* the longest chain of dependencies: the fourth */
  int64_t exposed_ns;        /* time in which nothing is computed */
};
/* The largest of the four bounds. Pure. */
int64_t mt_simulation_bound(const struct mt_simulation *simulation);

/* Replays tasks by their cost_ns, one after the other if they are serial; of `costs` the slow-downs and the hand-over count. span[n]: when each ran; may be NULL. Local. */
struct mt_simulation mt_simulate(const struct mt_tasks *tasks, const struct mt_costs *costs, struct mt_span *span);

/* What tasks come to by their cost_ns: in virtual time, or, one after the other, their sum. Local. */
int64_t mt_tasks_ns(const struct mt_tasks *tasks, const struct mt_costs *costs);

/* Puts the list into the order in which tasks start when a free lane always takes, of the tasks that are ready, the one
 * of the smallest rank[] (ties: list order): greedy list scheduling in virtual time. `rank` [n] is used up. Local. */
void mt_tasks_reorder(struct mt_tasks *tasks, const struct mt_costs *costs, int64_t *rank);

#endif
