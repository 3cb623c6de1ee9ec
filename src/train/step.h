/* A training step: the global batch cut over ranks and micro-steps, as one list of tasks.
 *
 * The problem: every rank must run the same sequence of collective work although shares of the batch differ and may be
 * empty, and no split may change a result. The idea: the list is built once; a rank whose range of a micro-step is empty
 * runs the same tasks on zero sequences. Losses are sums over the step's global token count (never means of means).
 * The trap: everything that is not a sum over tokens (balance loss, batch hash) is defined per sequence, in sequence order. */
#ifndef MT_STEP_H
#define MT_STEP_H
#include "model/model.h"
#include "schedule/executor.h"
#include "schedule/observe.h"
#include "schedule/scheme.h"
#include "schedule/trace.h"
#include "train/batch.h"
#include "train/optimizer.h"
#include "train/replan.h"

/* Gives the tokens of sequence number `position` (over the whole run): token[T + 1]. A failure is the source's to say and
 * to remember; the step goes on with zeros, and the loop agrees afterwards. Local. */
struct mt_source {
  enum mt_status (*read)(void *self, int64_t position, int32_t *token);
  void *self;
};

/* That another plan is in force from the next step on. */
struct mt_schedule_report {
  const char *why;
  int settled;     /* 0: it is being tried */
  double before_s; /* measured, of the step before */
};

/* What a step came to; equal on all ranks. */
struct mt_step_result {
  double loss;          /* token mean + coefficients times balance and z loss */
  double ce, aux, z;    /* the parts, without coefficients */
  double grad_norm;     /* before clipping */
  double lr;
  int64_t tokens;       /* of the step */
  int updated;          /* 0: skipped because something was not finite, or the data could not be read */
  uint32_t batch_hash;  /* CRC-32C of the token ids (int32, T + 1 a sequence) in sequence order */
  double lane_s[MT_NLANE], wait_s, step_s; /* of the slowest rank */
  int64_t mem_bytes;    /* largest */
  int64_t growths;      /* buffers that grew in this step, all ranks */
  double *load;         /* [nmoe], owned by the step: largest over mean of rows per rank */
  int64_t *per_expert;  /* [nmoe, E], borrowed from the model: rows of each expert */
  double experts_s;     /* of step_s: the MoE layers behind the gate and back, of the slowest rank */
  double exposed_s;     /* of step_s: in which nothing was computed, waiting for communication; of the slowest rank */
  double predicted_s;   /* what step_s should have been */
  const struct mt_schedule_report *schedule; /* owned by the step; NULL = it stays */
  const struct mt_relayout_report *relayout; /* what was adopted for the next step, borrowed; NULL = nothing was planned */
  int64_t dropped;      /* picks beyond moe.capacity_factor, all layers */
  enum mt_status source; /* agreed status of reading */
};

struct mt_step {
  struct mt_comm *comm;    /* borrowed */
  struct mt_model *model;  /* borrowed */
  const struct mt_config *config;
  struct mt_source source;
  struct mt_batch batch;   /* owned */
  struct mt_course course; /* how its tasks are cut, ordered and run */
  struct mt_costs costs;   /* by what is known */
  double predicted_s;      /* what the next one comes to by them */
  struct mt_executor *executor; /* owned; NULL: tasks run one after the other here */
  int lanes;                    /* 1: not so on all ranks; equal on all, as what is tried and measured of plans must be */
  struct mt_replan replan;
  struct mt_course tried[MT_ROUNDS], before; /* of a trial; what was in force before it */
  struct mt_observed *observed;              /* owned; in a trial */
  double fit_error;        /* of what a trial taught, rank 0's */
  struct mt_schedule_report report;
  struct mt_tasks tasks;   /* the whole step */
  struct mt_span *span;    /* [tasks.n], owned: when each ran on this rank in the last step, since its begin */
  struct mt_tasks forward; /* one micro-step without backward, for evaluation */
  struct mt_trace *trace;  /* borrowed; gets the lanes of steps, as measured on this rank and as predicted; NULL = none */
  int64_t first;           /* position of the step's first sequence in the run */
  int64_t number;          /* of the step, from 1 */
  int32_t *sample;         /* [T + 1] */
  uint32_t hash;           /* of this rank's sequences so far */
  enum mt_status status;   /* this rank's, of reading */
  int64_t updates;         /* updates made so far: skipped steps do not count; part of the checkpoint */
  const char *bad;         /* what was not finite first on this rank in this step, NULL = nothing */
  int bad_layer, bad_micro;
  int64_t *most_rows;      /* [nmoe], owned scratch */
  double sum_squares;      /* of this rank's gradients */
  struct mt_update update; /* the last step's */
  double settled_s;        /* what mt_step_settle took since: of the step under way, whose work it was */
  unsigned char *due;      /* [nmoe], owned: 1 = it has not come to this MoE layer's experts yet */
  struct mt_task_times times; /* this rank's, of the last step */
  struct mt_step_result result;
};

/* Chooses a plan and builds the tasks. Collective. `source` is copied. */
struct mt_step *mt_step_new(struct mt_comm *comm, struct mt_model *model, const struct mt_config *config,
                            struct mt_source source);
void mt_step_free(struct mt_step *step);
/* Makes the task lists of the plan in force (step_plan.c), instead of those before. Local. */
void mt_step_build(struct mt_step *step);
/* Runs step `number` (from 1) whose first sequence is number `first` of the run: forward, backward, update; experts are updated
 * when the next step begins, or by mt_step_settle. Collective. The result is borrowed until the next call. */
const struct mt_step_result *mt_step_run(struct mt_step *step, int64_t number, int64_t first);
/* Does what the last step has left to the next one: updates experts, publishes shared weights. Before shards are saved or
 * looked at. Collective. */
void mt_step_settle(struct mt_step *step);
/* Mean token loss of the first n sequences of `source`, dealt over the ranks like a batch. Collective; *loss is agreed. */
enum mt_status mt_step_evaluate(struct mt_step *step, struct mt_source source, int64_t n, double *loss);

#endif
