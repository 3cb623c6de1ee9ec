/* A step is a list of tasks with dependencies on three lanes. One list, built once per shape and plan (plan.h) and the
 * same on all ranks, is run in real time (mt_tasks_run; lanes beside each other: executor.h) or replayed in virtual
 * time (simulate.h).
 *
 * A lane runs its tasks one after the other in list order; list order is a valid order of them all, because every
 * dependency points backwards. So all ranks communicate in the same order whatever their timing. */
#ifndef MT_TASK_H
#define MT_TASK_H
#include <stdint.h>

enum mt_lane { MT_LANE_COMPUTE, MT_LANE_INTRA, MT_LANE_INTER, MT_NLANE };

/* In the order of a step. Kinds marked * exist in the simulator only: the groups in which FSMoE cuts attention heads
 * (model parallel) and each expert's width (expert-sharding parallel) over the ranks of a node. */
enum mt_task_kind {
  MT_TASK_BATCH,
  MT_TASK_PUBLISH, /* a piece of the shared parameters, that the step before has updated */
  MT_TASK_EMBED,
  MT_TASK_HEADS_GATHER, /* * sequence parts to all ranks of the node, before attention; backward too */
  MT_TASK_ATTENTION,
  MT_TASK_HEADS_SCATTER, /* * sums of the heads' outputs back to the sequence parts */
  MT_TASK_MLP,
  MT_TASK_GATE,
  MT_TASK_COUNTS,
  MT_TASK_PACK, /* plans the dispatch and puts rows in sending order */
  MT_TASK_UNSHARD_INTER,
  MT_TASK_UNSHARD_INTRA,
  MT_TASK_DISPATCH,
  MT_TASK_ROWS_GATHER, /* * rows to all ranks that share the expert; backward too */
  MT_TASK_EXPERTS,
  MT_TASK_ROWS_SCATTER, /* * sums of the parts' outputs */
  MT_TASK_COMBINE,
  MT_TASK_MERGE, /* adds what came back to the residual stream */
  MT_TASK_HEAD,
  MT_TASK_PACK_BACK,
  MT_TASK_COMBINE_BACK,
  MT_TASK_EXPERTS_BACK,
  MT_TASK_DISPATCH_BACK,
  MT_TASK_MERGE_BACK,
  MT_TASK_RESHARD_INTRA,
  MT_TASK_RESHARD_INTER,
  MT_TASK_GATE_BACK,
  MT_TASK_MLP_BACK,
  MT_TASK_ATTENTION_BACK,
  MT_TASK_EMBED_BACK,
  MT_TASK_PLAN,   /* wakes the planner of layouts; after the last micro-step's counts */
  MT_TASK_TELL,   /* its plans set out to all ranks */
  MT_TASK_REDUCE, /* a piece of the shared parameters' gradients */
  MT_TASK_NORM,   /* this rank's part of the gradient's norm */
  MT_TASK_STATISTICS,
  MT_TASK_ADOPT, /* the plans of all ranks come into force */
  MT_TASK_UPDATE,
  MT_NTASK_KIND
};

/* How much of its kind's work in a micro-step (MT_TASK_REDUCE: in a step) a task does, in parts of MT_WHOLE. */
enum { MT_WHOLE = 1 << 20 };
/* Which of the experts' two products a task computes. */
enum mt_stage { MT_STAGE_BOTH, MT_STAGE_FIRST, MT_STAGE_SECOND };

struct mt_task {
  enum mt_task_kind kind;
  enum mt_lane lane;
  int micro; /* micro-step, -1 = of the step */
  int layer; /* -1 = none */
  int chunk; /* of the micro-batch, 0 = first */
  int part;  /* of MT_WHOLE; 0 = nothing to do */
  int from;  /* MT_TASK_REDUCE: parts that others have sent before it, in the order in which gradients become ready */
  enum mt_stage stage;
  int dep[4], ndep; /* indices of tasks that must have ended, all smaller than this one's */
  int64_t cost_ns;  /* predicted, 0 = unknown */
  void (*run)(void *self, const struct mt_task *task); /* cannot fail; NULL = nothing to do */
  void *self;                                          /* borrowed */
};

struct mt_tasks {
  int n, capacity;
  struct mt_task *task; /* [capacity], owned */
  int serial;           /* one thread runs them one after the other, however they depend on each other */
};

/* Appends a task and returns its index. Of its dependencies, negative indices are left out. Local. */
int mt_tasks_add(struct mt_tasks *tasks, const struct mt_task *task);
/* Gives back the memory of tasks that might have been added. Local. */
void mt_tasks_trim(struct mt_tasks *tasks);
void mt_tasks_free(struct mt_tasks *tasks);

struct mt_span {
  int64_t start_ns, end_ns;
};

/* Seconds spent, by lane and by kind of task. */
struct mt_task_times {
  double lane_s[MT_NLANE], kind_s[MT_NTASK_KIND];
};
/* Runs one task; what it took is added to *times, when it ran (since `zero`, in seconds of mt_time) goes into *span
 * unless that is NULL. */
void mt_task_run(const struct mt_task *task, struct mt_task_times *times, double zero, struct mt_span *span);
/* Runs all tasks in order on this thread. span: [n], or NULL. Collective in effect. */
void mt_tasks_run(const struct mt_tasks *tasks, struct mt_task_times *times, struct mt_span *span);
const char *mt_task_name(enum mt_task_kind kind);
/* 1 for kinds that communicate. Pure. */
int mt_task_communicates(enum mt_task_kind kind);
const char *mt_lane_name(enum mt_lane lane);

#endif
