/* The task list and its in-order executor; see task.h. */
#include "schedule/task.h"
#include <string.h>
#include "base/memory.h"
#include "base/status.h"
#include "comm/comm.h"

static void set_capacity(struct mt_tasks *tasks, int capacity)
{
  struct mt_task *task = MT_NEW(MT_TAG_PLAN, struct mt_task, capacity);
  if (tasks->n)
    memcpy(task, tasks->task, (size_t)tasks->n * sizeof *task);
  mt_free(tasks->task);
  tasks->task = task;
  tasks->capacity = capacity;
}

void mt_tasks_trim(struct mt_tasks *tasks)
{
  set_capacity(tasks, tasks->n);
}

int mt_tasks_add(struct mt_tasks *tasks, const struct mt_task *task)
{
  if (tasks->n == tasks->capacity)
    set_capacity(tasks, tasks->capacity ? 2 * tasks->capacity : 256);
  int index = tasks->n++;
  struct mt_task *added = &tasks->task[index];
  *added = *task;
  added->ndep = 0;
  for (int i = 0; i < task->ndep; i++) {
    int dep = task->dep[i];
    MT_CHECK(dep < index, "task %d (%s) would depend on task %d, which is not before it", index,
             mt_task_name(task->kind), dep);
    if (dep >= 0)
      added->dep[added->ndep++] = dep;
  }
  return index;
}

void mt_tasks_free(struct mt_tasks *tasks)
{
  mt_free(tasks->task);
  *tasks = (struct mt_tasks){0};
}

void mt_task_run(const struct mt_task *task, struct mt_task_times *times, double zero, struct mt_span *span)
{
  const struct mt_pace pace = mt_pace_begin();
  if (task->run)
    task->run(task->self, task);
  if (task->run && task->lane == MT_LANE_COMPUTE)
    mt_pace_end(pace);
  const double before = pace.began, now = mt_time();
  times->lane_s[task->lane] += now - before;
  times->kind_s[task->kind] += now - before;
  if (span)
    *span = (struct mt_span){(int64_t)(1e9 * (before - zero)), (int64_t)(1e9 * (now - zero))};
}

void mt_tasks_run(const struct mt_tasks *tasks, struct mt_task_times *times, struct mt_span *span)
{
  const double zero = mt_time();
  for (int i = 0; i < tasks->n; i++)
    mt_task_run(&tasks->task[i], times, zero, span ? &span[i] : NULL);
}

const char *mt_task_name(enum mt_task_kind kind)
{
  static const char *const names[MT_NTASK_KIND] = {
      [MT_TASK_BATCH] = "batch",
      [MT_TASK_EMBED] = "embed",
      [MT_TASK_HEADS_GATHER] = "heads gather",
      [MT_TASK_ATTENTION] = "attention",
      [MT_TASK_HEADS_SCATTER] = "heads scatter",
      [MT_TASK_MLP] = "mlp",
      [MT_TASK_GATE] = "gate",
      [MT_TASK_COUNTS] = "counts",
      [MT_TASK_PACK] = "pack",
      [MT_TASK_UNSHARD_INTER] = "unshard inter",
      [MT_TASK_UNSHARD_INTRA] = "unshard intra",
      [MT_TASK_DISPATCH] = "dispatch",
      [MT_TASK_ROWS_GATHER] = "rows gather",
      [MT_TASK_EXPERTS] = "experts",
      [MT_TASK_ROWS_SCATTER] = "rows scatter",
      [MT_TASK_COMBINE] = "combine",
      [MT_TASK_MERGE] = "merge",
      [MT_TASK_HEAD] = "head",
      [MT_TASK_PACK_BACK] = "pack back",
      [MT_TASK_COMBINE_BACK] = "combine back",
      [MT_TASK_EXPERTS_BACK] = "experts back",
      [MT_TASK_DISPATCH_BACK] = "dispatch back",
      [MT_TASK_MERGE_BACK] = "merge back",
      [MT_TASK_RESHARD_INTRA] = "reshard intra",
      [MT_TASK_RESHARD_INTER] = "reshard inter",
      [MT_TASK_GATE_BACK] = "gate back",
      [MT_TASK_MLP_BACK] = "mlp back",
      [MT_TASK_ATTENTION_BACK] = "attention back",
      [MT_TASK_EMBED_BACK] = "embed back",
      [MT_TASK_PLAN] = "plan",
      [MT_TASK_TELL] = "tell",
      [MT_TASK_REDUCE] = "reduce",
      [MT_TASK_NORM] = "norm",
      [MT_TASK_STATISTICS] = "statistics",
      [MT_TASK_ADOPT] = "adopt",
      [MT_TASK_UPDATE] = "update",
      [MT_TASK_PUBLISH] = "publish",
  };
  return (unsigned)kind < MT_NTASK_KIND ? names[kind] : "unknown";
}

int mt_task_communicates(enum mt_task_kind kind)
{
  switch (kind) {
  case MT_TASK_HEADS_GATHER:
  case MT_TASK_HEADS_SCATTER:
  case MT_TASK_COUNTS:
  case MT_TASK_UNSHARD_INTER:
  case MT_TASK_UNSHARD_INTRA:
  case MT_TASK_DISPATCH:
  case MT_TASK_ROWS_GATHER:
  case MT_TASK_ROWS_SCATTER:
  case MT_TASK_COMBINE:
  case MT_TASK_COMBINE_BACK:
  case MT_TASK_DISPATCH_BACK:
  case MT_TASK_RESHARD_INTRA:
  case MT_TASK_RESHARD_INTER:
  case MT_TASK_TELL:
  case MT_TASK_REDUCE:
  case MT_TASK_STATISTICS:
  case MT_TASK_ADOPT:
  case MT_TASK_PUBLISH:
    return 1;
  default:
    return 0;
  }
}

const char *mt_lane_name(enum mt_lane lane)
{
  static const char *const names[MT_NLANE] = {"compute", "intra", "inter"};
  return (unsigned)lane < MT_NLANE ? names[lane] : "unknown";
}
