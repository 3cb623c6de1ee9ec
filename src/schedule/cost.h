/* What tasks cost: a latency and a time in proportion to their share of the work, by kind; straight lines fitted to
 * measurements.
 *
 * A shape's costs are one line a kind, because all layers of a model are alike; which level and which device it is that
 * counts (the slowest rank, the busiest uplink) has been settled when they are made. */
#ifndef MT_COST_H
#define MT_COST_H
#include "schedule/task.h"

struct mt_cost {
  int64_t alpha_ns; /* of each task */
  int64_t rest_ns;  /* of the whole work */
};

struct mt_costs {
  struct mt_cost kind[MT_NTASK_KIND];
  /* How much longer things take, in thousandths (0 counts as 1000 = no longer): computing while there is communication,
   * communication while something is computed, and both kinds of communication while both go on. */
  int slow_compute, slow_comm, slow_wires;
  int64_t hand_ns;    /* until a task begins that waited for one on another thread */
  int64_t late_ns[2]; /* what each transfer waits for ranks that are late by chance: run one after the other; lanes beside each
                         other */
};

/* The cost of a task: 0 if its part is 0. Half of the experts' products start half as many kernels. Pure. */
int64_t mt_task_cost(const struct mt_costs *costs, const struct mt_task *task);
/* Writes cost_ns of all tasks, late ranks included. Local. */
void mt_tasks_cost(struct mt_tasks *tasks, const struct mt_costs *costs);

/* A straight line through measurements. */
struct mt_fit {
  double alpha_ns, per_unit_ns; /* both >= 0 */
  double error;                 /* root of the mean square of (measured - line) / measured */
};
/* The line through n >= 1 points (work, nanoseconds), by least squares of the relative errors, so that short tasks
 * count as much as long ones. A negative alpha is refused: it becomes 0 and the slope is fitted again; likewise a
 * negative slope (alpha is then the mean). One amount of work alone gives a line through the origin. Pure. */
struct mt_fit mt_cost_fit(const double *work, const double *ns, int n);

#endif
