/* Running summaries of spans, and what they teach; see observe.h. */
#include "schedule/observe.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "comm/measure.h"
#include "schedule/simulate.h"

enum { MOST_SLOW = 4000 }; /* thousandths of a slow-down that is believed */

/* ---- summaries ---- */

static void push(struct mt_recent *recent, double value)
{
  recent->value[recent->n++ % MT_RECENT] = value;
}

/* fallback if there is none. */
static double median(const struct mt_recent *recent, double fallback)
{
  double x[MT_RECENT];
  int n = recent->n < MT_RECENT ? (int)recent->n : MT_RECENT;
  if (!n)
    return fallback;
  memcpy(x, recent->value, sizeof *x * (size_t)n);
  return mt_median(x, n);
}

/* The amount that a task counts to, -1 = none. */
static int find(const struct mt_amount amount[MT_AMOUNTS], int part)
{
  for (int a = 0; a < MT_AMOUNTS; a++)
    if (amount[a].part && abs(amount[a].part - part) <= part / 16)
      return a;
  return -1;
}

/* Likewise; a free one becomes its, or the last. */
static int find_or_begin(struct mt_amount amount[MT_AMOUNTS], int part)
{
  int a = find(amount, part);
  if (a >= 0)
    return a;
  for (a = 0; a < MT_AMOUNTS - 1 && amount[a].part; a++)
    ;
  amount[a] = (struct mt_amount){.part = part};
  return a;
}

/* Time in which both sides are busy. Either side's tasks run in list order. */
static int64_t overlap(const struct mt_tasks *tasks, const struct mt_span *span)
{
  int64_t sum = 0, until[2] = {0}; /* of each side's task seen last: [from, until) */
  int64_t from[2] = {0};
  int next[2] = {0, 0};
  for (;;) {
    for (int side = 0; side < 2; side++)
      while (next[side] < tasks->n && (tasks->task[next[side]].lane == MT_LANE_COMPUTE) != side)
        next[side]++;
    if (next[0] == tasks->n || next[1] == tasks->n)
      return sum;
    for (int side = 0; side < 2; side++) {
      from[side] = span[next[side]].start_ns;
      until[side] = span[next[side]].end_ns;
    }
    int64_t begin = from[0] > from[1] ? from[0] : from[1], end = until[0] < until[1] ? until[0] : until[1];
    sum += end > begin ? end - begin : 0;
    next[until[0] <= until[1] ? 0 : 1]++;
  }
}

/* Mean time from the end of what a task waited for, on the other side, to its beginning; -1 if none had to wait. */
static double hand_over(const struct mt_tasks *tasks, const struct mt_span *span)
{
  int64_t sum = 0, n = 0, idle[2] = {0}; /* since when a side has nothing to do */
  for (int i = 0; i < tasks->n; i++) {
    const struct mt_task *task = &tasks->task[i];
    int side = task->lane == MT_LANE_COMPUTE;
    int64_t latest = -1;
    for (int d = 0; d < task->ndep; d++)
      if ((tasks->task[task->dep[d]].lane == MT_LANE_COMPUTE) != side && span[task->dep[d]].end_ns > latest)
        latest = span[task->dep[d]].end_ns;
    if (latest > idle[side]) {
      sum += span[i].start_ns - latest;
      n++;
    }
    idle[side] = span[i].end_ns;
  }
  return n ? (double)sum / (double)n : -1;
}

void mt_observe(struct mt_observed *observed, const struct mt_tasks *tasks, const struct mt_span *span, int beside)
{
  double sum[MT_NTASK_KIND][MT_AMOUNTS] = {{0}};
  int n[MT_NTASK_KIND][MT_AMOUNTS] = {{0}}, part[MT_NTASK_KIND][MT_AMOUNTS] = {{0}};
  for (int i = 0; i < tasks->n; i++) {
    const struct mt_task *task = &tasks->task[i];
    if (!task->part)
      continue;
    int a = find_or_begin(observed->amount[beside][task->kind], task->part);
    if (part[task->kind][a] != observed->amount[beside][task->kind][a].part) { /* the last one becomes another's */
      part[task->kind][a] = observed->amount[beside][task->kind][a].part;
      sum[task->kind][a] = n[task->kind][a] = 0;
    }
    sum[task->kind][a] += (double)(span[i].end_ns - span[i].start_ns);
    n[task->kind][a]++;
  }
  for (int kind = 0; kind < MT_NTASK_KIND; kind++)
    for (int a = 0; a < MT_AMOUNTS; a++)
      if (n[kind][a])
        push(&observed->amount[beside][kind][a].ns, sum[kind][a] / n[kind][a]);
  if (!beside)
    return;
  push(&observed->overlap_ns, (double)overlap(tasks, span));
  double hand = hand_over(tasks, span);
  if (hand >= 0)
    push(&observed->hand_ns, hand);
}

struct mt_figures mt_observe_figures(const struct mt_observed *observed)
{
  struct mt_figures figures;
  for (int beside = 0; beside < 2; beside++)
    for (int kind = 0; kind < MT_NTASK_KIND; kind++)
      for (int a = 0; a < MT_AMOUNTS; a++) {
        const struct mt_recent *ns = &observed->amount[beside][kind][a].ns;
        double x = median(ns, MT_UNSEEN);
        figures.ns[beside][kind][a] = ns->n && mt_task_communicates(kind) ? -x : x;
      }
  figures.overlap_ns = -median(&observed->overlap_ns, 0);
  figures.hand_ns = median(&observed->hand_ns, 0);
  return figures;
}

/* ---- what they teach ---- */

/* 1 if a kind sends anything: what is predicted to take nothing does not, but for three that are never predicted. */
static int sends(const struct mt_costs *predicted, enum mt_task_kind kind)
{
  return mt_task_communicates(kind) && (predicted->kind[kind].alpha_ns || predicted->kind[kind].rest_ns ||
                                        kind == MT_TASK_TELL || kind == MT_TASK_ADOPT || kind == MT_TASK_STATISTICS);
}

/* Agreed nanoseconds of an amount; 0 = not seen. */
static double seen(const struct mt_figures *figures, int beside, enum mt_task_kind kind, int a)
{
  double x = figures->ns[beside][kind][a];
  return x == MT_UNSEEN ? 0 : fabs(x);
}

/* Agreed nanoseconds of a task of this part, run one way; 0 = not seen. */
static double seen_part(const struct mt_figures *figures, const struct mt_observed *parts, int beside, enum mt_task_kind kind,
                        int part)
{
  int a = find(parts->amount[beside][kind], part);
  return a < 0 ? 0 : seen(figures, beside, kind, a);
}

/* Sums over a step's tasks of computing [0] and of communication [1], run one way; 0 if some of it was not seen. */
static int totals(const struct mt_figures *figures, const struct mt_observed *parts, const struct mt_tasks *tasks, int beside,
                  double sum[2])
{
  int whole = tasks->n > 0;
  sum[0] = sum[1] = 0;
  for (int i = 0; i < tasks->n; i++) {
    const struct mt_task *task = &tasks->task[i];
    if (!task->part)
      continue;
    whole &= find(parts->amount[beside][task->kind], task->part) >= 0;
    sum[mt_task_communicates(task->kind)] += seen_part(figures, parts, beside, task->kind, task->part);
  }
  return whole;
}

/* Thousandths by which work is slowed in the `overlap` in which it took `more` than alone. */
static int64_t slow_down(double overlap, double more)
{
  double slow = more <= 0 ? 1 : more < overlap ? overlap / (overlap - more) : MOST_SLOW;
  return slow * 1000 < MOST_SLOW ? (int64_t)(slow * 1000 + 0.5) : MOST_SLOW;
}

static int64_t whole(double x)
{
  return x > 0 ? x < 1e12 ? (int64_t)(x + 0.5) : 1000000000000 : 0;
}

/* What of a kind's costs was learnt before. */
static int known(const struct mt_learnt *learnt, const char *name)
{
  for (int i = 0; i < learnt->n; i++)
    if (!strcmp(learnt->task[i].name, name))
      return i;
  return -1;
}

static void teach(struct mt_learnt *learnt, enum mt_task_kind kind, double extra_ns, double factor)
{
  const char *name = mt_task_name(kind);
  int i = known(learnt, name);
  if (i < 0 && learnt->n < MT_MOST_LEARNT)
    i = (int)learnt->n++;
  if (i < 0)
    return;
  memset(&learnt->task[i], 0, sizeof learnt->task[i]);
  strncpy(learnt->task[i].name, name, sizeof learnt->task[i].name - 1);
  learnt->task[i].extra_ns = whole(extra_ns);
  learnt->task[i].thousandths = whole(factor * 1000) < 1 ? 1 : whole(factor * 1000) < 1000000 ? whole(factor * 1000) : 1000000;
}

/* The line of a kind over its predictions. What was seen both ways counts by the shorter; what was seen beside others alone,
 * by as much as is left (`left`) without the slow-down. With one amount, the part that does not grow stays as it was learnt
 * before, or none, so that a factor is what carries over. Adds squares of relative errors. */
static void learn_kind(const struct mt_figures *figures, const struct mt_observed *parts, enum mt_task_kind kind, double left,
                       const struct mt_costs *predicted, struct mt_learnt *learnt, double *squares, int *n)
{
  double x[2 * MT_AMOUNTS], y[2 * MT_AMOUNTS];
  int points = 0, most = 0;
  for (int i = 0; i < 2 * MT_AMOUNTS; i++) {
    const int beside = i / MT_AMOUNTS, part = parts->amount[beside][kind][i % MT_AMOUNTS].part;
    const double ns = seen(figures, beside, kind, i % MT_AMOUNTS),
                 other = part ? seen_part(figures, parts, !beside, kind, part) : 0;
    if (ns <= 0 || (beside && other > 0))
      continue;
    y[points] = beside ? left * ns : other > 0 ? fmin(ns, other) : ns;
    x[points] = (double)mt_task_cost(predicted, &(struct mt_task){.kind = kind, .part = part});
    most = x[points] > x[most] ? points : most;
    points++;
  }
  if (!points)
    return;
  struct mt_fit fit = mt_cost_fit(x, y, points);
  if (x[most] <= 0) {
    fit = (struct mt_fit){fit.alpha_ns, 1, fit.error}; /* nothing was predicted: all of it is extra */
  } else if (points == 1 || fit.per_unit_ns <= 0) {
    int i = known(learnt, mt_task_name(kind));
    double extra = i >= 0 ? fmin((double)learnt->task[i].extra_ns, y[most] / 2) : 0;
    fit = (struct mt_fit){extra, (y[most] - extra) / x[most], points == 1 ? 0 : fit.error};
  }
  teach(learnt, kind, fit.alpha_ns, fit.per_unit_ns);
  *squares += fit.error * fit.error * points;
  *n += points;
}

int64_t mt_observe_late(const struct mt_tasks *tasks, const struct mt_costs *predicted, const struct mt_learnt *learnt, int beside,
                        double step_s)
{
  struct mt_tasks copy = {.n = tasks->n, .task = MT_NEW(MT_TAG_PLAN, struct mt_task, tasks->n), .serial = !beside};
  struct mt_costs costs = *predicted;
  memcpy(copy.task, tasks->task, sizeof *tasks->task * (size_t)tasks->n);
  mt_costs_learn(&costs, learnt, 0);
  int64_t low = 0, high = whole(1e9 * step_s);
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    costs.late_ns[beside] = middle;
    mt_tasks_cost(&copy, &costs);
    if ((double)mt_tasks_ns(&copy, &costs) < 1e9 * step_s)
      low = middle + 1;
    else
      high = middle;
  }
  mt_free(copy.task);
  return low;
}

double mt_observe_learn(const struct mt_figures *figures, const struct mt_observed *parts, const struct mt_tasks *tasks,
                        const struct mt_costs *predicted, const double step_s[2], struct mt_learnt *learnt)
{
  double alone[2], beside[2], left[2] = {1, 1}, squares = 0;
  int n = 0, meet = 0;
  const int seen_alone = totals(figures, parts, tasks, 0, alone), seen_beside = totals(figures, parts, tasks, 1, beside);
  const double overlap = -figures->overlap_ns;
  int64_t *slow[2] = {&learnt->slow_compute, &learnt->slow_comm};
  for (int side = 0; side < 2 && seen_beside && overlap > 0; side++) {
    if (seen_alone)
      *slow[side] = slow_down(overlap, beside[side] - alone[side]);
    if (*slow[side] > 1000)
      left[side] = 1 - fmin(1, overlap / beside[side]) * (1 - 1000.0 / (double)*slow[side]);
  }
  for (enum mt_task_kind kind = 0; kind < MT_NTASK_KIND; kind++)
    learn_kind(figures, parts, kind, left[mt_task_communicates(kind)], predicted, learnt, &squares, &n);
  if (figures->hand_ns > 0)
    learnt->hand_ns = whole(figures->hand_ns);
  for (int i = 0; i < tasks->n; i++)
    meet |= tasks->task[i].part && sends(predicted, tasks->task[i].kind);
  for (int way = 0; way < 2 && meet; way++)
    if (step_s[way] > 0)
      learnt->late_ns[way] = mt_observe_late(tasks, predicted, learnt, way, step_s[way]);
  return n ? sqrt(squares / n) : 0;
}

void mt_costs_learn(struct mt_costs *costs, const struct mt_learnt *learnt, int alone)
{
  for (enum mt_task_kind kind = 0; kind < MT_NTASK_KIND; kind++) {
    struct mt_cost *cost = &costs->kind[kind];
    int i = known(learnt, mt_task_name(kind));
    if (mt_task_communicates(kind) && (alone || !sends(costs, kind)))
      continue;
    if (i >= 0) {
      cost->alpha_ns = learnt->task[i].extra_ns + cost->alpha_ns * learnt->task[i].thousandths / 1000;
      cost->rest_ns = (int64_t)((double)cost->rest_ns * (double)learnt->task[i].thousandths / 1000);
    }
  }
  costs->slow_compute = (int)learnt->slow_compute;
  costs->slow_comm = (int)learnt->slow_comm;
  costs->hand_ns = learnt->hand_ns;
  memcpy(costs->late_ns, learnt->late_ns, sizeof costs->late_ns);
}
