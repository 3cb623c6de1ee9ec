/* Costs of tasks, and lines through measurements; see cost.h. */
#include "schedule/cost.h"
#include <math.h>

int64_t mt_task_cost(const struct mt_costs *costs, const struct mt_task *task)
{
  const struct mt_cost *cost = &costs->kind[task->kind];
  if (!task->part)
    return 0;
  int64_t alpha = task->stage == MT_STAGE_BOTH ? cost->alpha_ns : cost->alpha_ns / 2;
  return alpha + (int64_t)((double)cost->rest_ns * task->part / MT_WHOLE + 0.5);
}

void mt_tasks_cost(struct mt_tasks *tasks, const struct mt_costs *costs)
{
  for (int i = 0; i < tasks->n; i++) {
    struct mt_task *task = &tasks->task[i];
    task->cost_ns = mt_task_cost(costs, task);
    if (task->cost_ns && mt_task_communicates(task->kind))
      task->cost_ns += costs->late_ns[!tasks->serial];
  }
}

struct mt_fit mt_cost_fit(const double *work, const double *ns, int n)
{
  /* Weights 1 / ns^2 make the errors relative. */
  double w = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (int i = 0; i < n; i++) {
    double weight = ns[i] > 0 ? 1 / (ns[i] * ns[i]) : 1;
    w += weight;
    x += weight * work[i];
    y += weight * ns[i];
    xx += weight * work[i] * work[i];
    xy += weight * work[i] * ns[i];
  }
  double determinant = w * xx - x * x;
  struct mt_fit fit = {0, xx > 0 ? xy / xx : 0, 0};
  if (determinant > 1e-9 * w * xx) {
    double slope = (w * xy - x * y) / determinant, alpha = (y - slope * x) / w;
    if (slope < 0)
      fit = (struct mt_fit){y / w, 0, 0};
    else if (alpha >= 0)
      fit = (struct mt_fit){alpha, slope, 0};
  } else if (xx <= 0) {
    fit = (struct mt_fit){y / w, 0, 0};
  }
  for (int i = 0; i < n; i++) {
    double line = fit.alpha_ns + fit.per_unit_ns * work[i], off = ns[i] > 0 ? (ns[i] - line) / ns[i] : line;
    fit.error += off * off;
  }
  fit.error = sqrt(fit.error / n);
  return fit;
}
