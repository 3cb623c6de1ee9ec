/* Virtual time; see simulate.h. */
#include "schedule/simulate.h"
#include <string.h>
#include "base/memory.h"
#include "base/status.h"

enum { EVEN = 1000 }; /* thousandths */

/* What both replays share: the clock, and what each lane is doing. */
struct clock {
  const struct mt_tasks *tasks;
  int64_t now;
  int task[MT_NLANE];                      /* under way, -1 = none */
  int64_t left[MT_NLANE];                  /* of its work */
  int slow_compute, slow_comm, slow_wires; /* as in mt_costs */
  int64_t alone_ns;                        /* time so far in which nothing was computed */
};

static struct clock new_clock(const struct mt_tasks *tasks, const struct mt_costs *costs)
{
  return (struct clock){.tasks = tasks,
                        .task = {-1, -1, -1},
                        .slow_compute = costs->slow_compute > EVEN ? costs->slow_compute : EVEN,
                        .slow_comm = costs->slow_comm > EVEN ? costs->slow_comm : EVEN,
                        .slow_wires = costs->slow_wires > EVEN ? costs->slow_wires : EVEN};
}

/* How much longer a lane's task takes as things are, in thousandths. */
static int slowness(const struct clock *clock, int lane)
{
  const int *task = clock->task;
  int wires = (task[MT_LANE_INTRA] >= 0) + (task[MT_LANE_INTER] >= 0);
  if (lane == MT_LANE_COMPUTE)
    return wires ? clock->slow_compute : EVEN;
  int slow = task[MT_LANE_COMPUTE] >= 0 ? clock->slow_comm : EVEN;
  return wires == 2 ? slow * clock->slow_wires / EVEN : slow;
}

static void take(struct clock *clock, enum mt_lane lane, int task)
{
  clock->task[lane] = task;
  clock->left[lane] = clock->tasks->task[task].cost_ns;
}

/* Goes on to the next moment at which a task ends, and returns a lane whose task has (its task stays named there), or
 * -1 if all lanes are idle. */
static int advance(struct clock *clock)
{
  int first = -1, slow[MT_NLANE];
  int64_t least = 0, need[MT_NLANE];
  for (int lane = 0; lane < MT_NLANE; lane++) {
    if (clock->task[lane] < 0)
      continue;
    slow[lane] = slowness(clock, lane);
    need[lane] = (clock->left[lane] * slow[lane] + EVEN - 1) / EVEN;
    if (first < 0 || need[lane] < least) {
      first = lane;
      least = need[lane];
    }
  }
  if (first < 0)
    return -1;
  for (int lane = 0; lane < MT_NLANE; lane++) {
    if (clock->task[lane] < 0)
      continue;
    clock->left[lane] = need[lane] == least ? 0 : clock->left[lane] - least * EVEN / slow[lane];
  }
  clock->now += least;
  clock->alone_ns += clock->task[MT_LANE_COMPUTE] < 0 ? least : 0;
  return first;
}

static int64_t latest(const struct mt_task *task, const int64_t *end)
{
  int64_t latest = 0;
  for (int i = 0; i < task->ndep; i++)
    latest = end[task->dep[i]] > latest ? end[task->dep[i]] : latest;
  return latest;
}

int64_t mt_simulation_bound(const struct mt_simulation *simulation)
{
  int64_t bound = simulation->latency_ns;
  for (int lane = 0; lane < MT_NLANE; lane++)
    bound = simulation->lane_ns[lane] > bound ? simulation->lane_ns[lane] : bound;
  return bound;
}

struct mt_simulation mt_simulate(const struct mt_tasks *tasks, const struct mt_costs *costs, struct mt_span *span)
{
  struct mt_simulation result = {0};
  const int n = tasks->n;
  int64_t *end = MT_NEW(MT_TAG_PLAN, int64_t, n); /* -1 = not ended; first used for the longest chain */
  for (int i = 0; i < n; i++) {
    const struct mt_task *task = &tasks->task[i];
    result.lane_ns[task->lane] += task->cost_ns;
    end[i] = latest(task, end) + task->cost_ns;
    result.latency_ns = end[i] > result.latency_ns ? end[i] : result.latency_ns;
  }
  memset(end, 0xff, sizeof *end * (size_t)n);

  struct clock clock = new_clock(tasks, costs);
  int64_t idle[MT_NLANE] = {0}; /* since when */
  int next[MT_NLANE] = {0}, ended = 0;
  for (int lane; ended < n;) {
    for (lane = 0; lane < MT_NLANE; lane++) {
      while (next[lane] < n && tasks->task[next[lane]].lane != (enum mt_lane)lane)
        next[lane]++;
      if (clock.task[lane] >= 0 || next[lane] == n)
        continue;
      const struct mt_task *task = &tasks->task[next[lane]];
      int ready = !tasks->serial || next[lane] == ended, woken = 0;
      for (int i = 0; i < task->ndep; i++) {
        const struct mt_task *dep = &tasks->task[task->dep[i]];
        ready &= end[task->dep[i]] >= 0;
        woken |= end[task->dep[i]] == clock.now && (dep->lane == MT_LANE_COMPUTE) != (lane == MT_LANE_COMPUTE);
      }
      if (!ready)
        continue;
      if (span)
        span[next[lane]].start_ns = clock.now;
      take(&clock, (enum mt_lane)lane, next[lane]++);
      if (woken && idle[lane] < clock.now && !tasks->serial)
        clock.left[lane] += costs->hand_ns;
    }
    lane = advance(&clock);
    MT_CHECK(lane >= 0, "%d of %d tasks wait for each other", n - ended, n);
    end[clock.task[lane]] = clock.now;
    if (span)
      span[clock.task[lane]].end_ns = clock.now;
    clock.task[lane] = -1;
    idle[lane] = clock.now;
    ended++;
  }
  result.total_ns = clock.now;
  result.exposed_ns = clock.alone_ns;
  mt_free(end);
  return result;
}

int64_t mt_tasks_ns(const struct mt_tasks *tasks, const struct mt_costs *costs)
{
  int64_t sum = 0;
  if (!tasks->serial)
    return mt_simulate(tasks, costs, NULL).total_ns;
  for (int i = 0; i < tasks->n; i++)
    sum += tasks->task[i].cost_ns;
  return sum;
}

/* Of each task, how many of its dependencies are open, and which tasks depend on it: list[first[t]] up to list[first[t
 * + 1]]. */
struct followers {
  int *open, *first, *list;
};

static struct followers new_followers(const struct mt_tasks *tasks)
{
  int n = tasks->n, total = 0;
  for (int i = 0; i < n; i++)
    total += tasks->task[i].ndep;
  struct followers f = {MT_NEW(MT_TAG_PLAN, int, n), MT_ZNEW(MT_TAG_PLAN, int, n + 2), MT_NEW(MT_TAG_PLAN, int, total)};
  for (int i = 0; i < n; i++) {
    f.open[i] = tasks->task[i].ndep;
    for (int d = 0; d < tasks->task[i].ndep; d++)
      f.first[tasks->task[i].dep[d] + 2]++;
  }
  for (int i = 2; i < n + 2; i++)
    f.first[i] += f.first[i - 1];
  for (int i = 0; i < n; i++)
    for (int d = 0; d < tasks->task[i].ndep; d++)
      f.list[f.first[tasks->task[i].dep[d] + 1]++] = i;
  return f;
}

void mt_tasks_reorder(struct mt_tasks *tasks, const struct mt_costs *costs, int64_t *rank)
{
  const int n = tasks->n;
  struct followers follow = new_followers(tasks);
  int *ready[MT_NLANE], nready[MT_NLANE] = {0}, *place = MT_NEW(MT_TAG_PLAN, int, n);
  struct mt_task *order = MT_NEW(MT_TAG_PLAN, struct mt_task, tasks->capacity);
  for (int lane = 0; lane < MT_NLANE; lane++)
    ready[lane] = MT_NEW(MT_TAG_PLAN, int, n);
  for (int i = 0; i < n; i++)
    if (!follow.open[i])
      ready[tasks->task[i].lane][nready[tasks->task[i].lane]++] = i;
  struct clock clock = new_clock(tasks, costs);
  int started = 0;
  for (int ended = 0; ended < n; ended++) {
    for (int lane = 0; lane < MT_NLANE; lane++) {
      if (clock.task[lane] >= 0 || !nready[lane])
        continue;
      int best = 0;
      for (int i = 1; i < nready[lane]; i++) {
        int a = ready[lane][i], b = ready[lane][best];
        if (rank[a] < rank[b] || (rank[a] == rank[b] && a < b))
          best = i;
      }
      int task = ready[lane][best];
      ready[lane][best] = ready[lane][--nready[lane]];
      place[task] = started;
      order[started++] = tasks->task[task];
      take(&clock, (enum mt_lane)lane, task);
    }
    int lane = advance(&clock);
    MT_CHECK(lane >= 0, "%d of %d tasks wait for each other", n - ended, n);
    int task = clock.task[lane];
    clock.task[lane] = -1;
    for (int i = follow.first[task]; i < follow.first[task + 1]; i++) {
      int other = follow.list[i], of = tasks->task[other].lane;
      if (!--follow.open[other])
        ready[of][nready[of]++] = other;
    }
  }
  for (int i = 0; i < n; i++)
    for (int d = 0; d < order[i].ndep; d++)
      order[i].dep[d] = place[order[i].dep[d]];
  mt_free(tasks->task);
  tasks->task = order;
  for (int lane = 0; lane < MT_NLANE; lane++)
    mt_free(ready[lane]);
  mt_free(place);
  mt_free(follow.open);
  mt_free(follow.first);
  mt_free(follow.list);
}
