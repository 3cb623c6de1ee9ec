/* A step is a list of tasks with dependencies on three lanes; the executor runs them in list order (for now), a simulator
 * can replay the same list in virtual time. The list is built once per shape and is the same on all ranks, so every rank
 * communicates in the same order. */
#ifndef MT_TASK_H
#define MT_TASK_H
#include <stdint.h>

enum mt_lane { MT_LANE_COMPUTE, MT_LANE_INTRA, MT_LANE_INTER, MT_NLANE };

enum mt_task_kind {
  MT_TASK_BATCH, MT_TASK_EMBED, MT_TASK_ATTENTION, MT_TASK_MLP, MT_TASK_GATE, MT_TASK_COUNTS, MT_TASK_UNSHARD,
  MT_TASK_DISPATCH, MT_TASK_EXPERTS, MT_TASK_COMBINE, MT_TASK_HEAD,
  MT_TASK_COMBINE_BACK, MT_TASK_EXPERTS_BACK, MT_TASK_DISPATCH_BACK, MT_TASK_RESHARD, MT_TASK_GATE_BACK, MT_TASK_MLP_BACK,
  MT_TASK_ATTENTION_BACK, MT_TASK_EMBED_BACK, MT_TASK_REDUCE, MT_TASK_STATISTICS, MT_TASK_UPDATE, MT_TASK_PUBLISH, MT_NTASK_KIND
};

struct mt_task {
  enum mt_task_kind kind;
  enum mt_lane lane;
  int micro;           /* micro-step, -1 = of the step */
  int layer;           /* -1 = none */
  int chunk;           /* of the micro-batch, 0 = first */
  int dep[4], ndep;    /* indices of tasks that must have ended, all smaller than this one's */
  int64_t cost_ns;     /* predicted, 0 = unknown */
  void (*run)(void *self, const struct mt_task *task); /* cannot fail */
  void *self;          /* borrowed */
};

struct mt_tasks {
  int n, capacity;
  struct mt_task *task; /* [capacity], owned */
};

/* Appends a task that depends on ndep earlier ones (negative indices are skipped) and returns its index. Local. */
int mt_tasks_add(struct mt_tasks *tasks, enum mt_task_kind kind, enum mt_lane lane, int micro, int layer, int chunk,
                 void (*run)(void *, const struct mt_task *), void *self, int ndep, const int *dep);
void mt_tasks_free(struct mt_tasks *tasks);
/* Seconds spent, by lane and by kind of task. */
struct mt_task_times {
  double lane_s[MT_NLANE], kind_s[MT_NTASK_KIND];
};
/* Runs all tasks in order; what they took is added to *times. Collective in effect. */
void mt_tasks_run(const struct mt_tasks *tasks, struct mt_task_times *times);
const char *mt_task_name(enum mt_task_kind kind);

#endif
