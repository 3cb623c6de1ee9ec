/* A training step as a list of tasks; see step.h. */
#include "train/step.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "train/pass.h"
#include "train/predict.h"
#include "train/step_plan.h"
#include <math.h>
#include <string.h>

/* ---- what the tasks call ---- */

/* Reads B sequences from `position` on into the model's host arrays; a failed source gives zeros and is remembered. */
static void read_batch(struct mt_step *step, struct mt_source source, int64_t position, int64_t B, double tokens)
{
  struct mt_model *model = step->model;
  const int64_t T = model->T;
  for (int64_t b = 0; b < B; b++) {
    if (step->status == MT_OK)
      step->status = source.read(source.self, position + b, step->sample);
    if (step->status != MT_OK)
      memset(step->sample, 0, sizeof(int32_t) * (size_t)(T + 1));
    step->hash = mt_crc32c(step->hash, step->sample, (T + 1) * (int64_t)sizeof(int32_t));
    memcpy(model->host_token + b * T, step->sample, sizeof(int32_t) * (size_t)T);
    memcpy(model->host_target + b * T, step->sample + 1, sizeof(int32_t) * (size_t)T);
  }
  for (int64_t i = 0; i < B * T; i++)
    model->host_scale[i] = (float)(1.0 / tokens);
  mt_model_batch(model, B);
}

static void do_batch(void *self, const struct mt_task *task)
{
  struct mt_step *step = self;
  int64_t from, mine = mt_part_count(&step->batch.share, step->comm->rank);
  int64_t B = mt_part_range(mine, step->batch.nmicro, task->micro, &from);
  double tokens = (double)step->config->train.global_batch * (double)step->model->T;
  read_batch(step, step->source, step->first + step->batch.share.first[step->comm->rank] + from, B, tokens);
  if (step->model->moe)
    mt_moe_begin_micro(step->model->moe, step->batch.share.first[step->comm->rank] + from, B, step->number * step->batch.nmicro + task->micro);
}

/* The first thing in this micro-step's activations that is not finite, said where the step will say so: see statistics. */
static void note_nonfinite(struct mt_step *step, int micro)
{
  if (isfinite(step->model->loss_sum) || step->bad)
    return;
  step->bad = mt_model_find_nonfinite(step->model, &step->bad_layer);
  step->bad = step->bad ? step->bad : "loss";
  step->bad_micro = micro;
}

static void do_embed_back(void *self, const struct mt_task *task)
{
  struct mt_step *step = self;
  mt_model_embed_back(step->model);
  note_nonfinite(step, task->micro);
}

/* Layouts for the next step: planned during the last backward pass, told while gradients are reduced, then adopted. */
static void do_plan(void *self, const struct mt_task *task)
{
  (void)task;
  mt_relayout_plan(((struct mt_step *)self)->model->moe->relayout);
}

static void do_tell(void *self, const struct mt_task *task)
{
  (void)task;
  mt_relayout_tell(((struct mt_step *)self)->model->moe->relayout);
}

static void do_adopt(void *self, const struct mt_task *task)
{
  (void)task;
  struct mt_step *step = self;
  step->result.relayout = mt_relayout_adopt(step->model->moe->relayout);
}

/* One rank says what was not finite: the first that saw it in an activation, else the first that has it in a gradient, else
 * rank 0. */
static void say_nonfinite(struct mt_step *step)
{
  const char *gradient = mt_optimizer_find_nonfinite(step->model);
  const int64_t P = step->comm->size, rank = step->comm->rank;
  int64_t claim = (step->bad ? 2 * P : gradient ? P : 0) + P - rank, best = claim;
  mt_max_int(step->comm, &best, 1);
  if (claim != best)
    return;
  char *where = mt_format("step %lld", (long long)step->number), *what;
  if (step->bad && step->bad_layer >= 0 && step->bad_layer < step->model->arch.L)
    what = mt_format("%s, micro-step %d: found NaN or Inf in %s of layer %d on rank %d", where, step->bad_micro, step->bad,
                     step->bad_layer, step->comm->rank);
  else if (step->bad)
    what = mt_format("%s, micro-step %d: found NaN or Inf in %s on rank %d", where, step->bad_micro, step->bad, step->comm->rank);
  else if (gradient)
    what = mt_format("%s: found NaN or Inf in the gradient of %s on rank %d", where, gradient, step->comm->rank);
  else
    what = mt_format("%s: found NaN or Inf in the loss or the norm of the gradient", where);
  if (step->config->train.nonfinite == MT_NONFINITE_ABORT)
    mt_error("%s, expected finite numbers; train.nonfinite = abort", what);
  else
    mt_warn("%s, expected finite numbers; the step's update is skipped", what);
  mt_free(what);
  mt_free(where);
}

/* CRC-32C of the global batch: shares are consecutive, and checksums of parts with zeros in place of the others' add up. */
static uint32_t batch_hash(struct mt_step *step)
{
  const int64_t behind = step->config->train.global_batch - step->batch.share.first[step->comm->rank + 1];
  uint32_t hash = mt_crc32c_combine(step->hash, 0, behind * (step->model->T + 1) * (int64_t)sizeof(int32_t));
  mt_xor_int(step->comm, &hash, 1);
  return hash;
}

static void rank_loads(struct mt_step *step)
{
  struct mt_moe *moe = step->model->moe;
  if (!moe)
    return;
  memcpy(step->most_rows, moe->sums.received, sizeof *step->most_rows * (size_t)moe->nmoe);
  mt_max_int(step->comm, step->most_rows, moe->nmoe);
  for (int l = 0; l < moe->nmoe; l++) {
    int64_t sum = 0;
    for (int e = 0; e < moe->E; e++)
      sum += moe->sums.per_expert[l * moe->E + e];
    step->result.load[l] = sum ? (double)step->most_rows[l] * step->comm->size / (double)sum : 1;
  }
}

/* Of a task's layer among the MoE layers; -1: it is about the shared parameters. */
static int number_of(const struct mt_step *step, const struct mt_task *task)
{
  return task->layer < 0 ? -1 : step->model->arch.block[task->layer].moe;
}

static void do_norm(void *self, const struct mt_task *task)
{
  struct mt_step *step = self;
  step->sum_squares += mt_optimizer_sum_squares(step->model, number_of(step, task));
}

static void do_statistics(void *self, const struct mt_task *task)
{
  (void)task;
  struct mt_step *step = self;
  struct mt_model *model = step->model;
  struct mt_step_result *result = &step->result;
  /* a step whose data could not be read must not be trained on */
  double sum[5] = {model->loss_sum, model->moe ? model->moe->sums.aux : 0, model->moe ? model->moe->sums.z : 0,
                   step->sum_squares, step->status != MT_OK};
  mt_sum(step->comm, sum, 5);
  result->ce = sum[0];
  result->aux = sum[1];
  result->z = sum[2];
  result->loss = sum[0] + step->config->model.router_aux_loss_coef * sum[1] + step->config->moe.z_loss * sum[2];
  result->grad_norm = sqrt(sum[3]);
  int finite = isfinite(result->loss) && isfinite(result->grad_norm);
  result->updated = finite && sum[4] == 0;
  result->dropped = model->moe ? model->moe->sums.dropped : 0;
  result->batch_hash = batch_hash(step);
  rank_loads(step);
  if (!finite)
    say_nonfinite(step);
}

static void update_experts(struct mt_step *step, int moe)
{
  if (step->due[moe])
    mt_optimizer_update(step->model, &step->update, moe);
  step->due[moe] = 0;
}

/* A step ends with the update of the shared parameters, which all ranks wait for; that of experts is due in the next one. */
static void do_update(void *self, const struct mt_task *task)
{
  struct mt_step *step = self;
  const struct mt_step_result *result = &step->result;
  const int moe = number_of(step, task);
  if (moe >= 0) {
    update_experts(step, moe);
    return;
  }
  double clip = step->config->train.clip, scale = clip > 0 ? clip / (result->grad_norm + 1e-6) : 1;
  step->updates += result->updated;
  step->update = mt_optimizer_begin(step->config, step->updates, result->lr, scale < 1 ? scale : 1, result->updated);
  for (int i = 0; i < step->model->params.nmoe; i++)
    step->due[i] = 1;
  mt_optimizer_update(step->model, &step->update, -1);
  mt_model_updated(step->model);
}

void mt_step_settle(struct mt_step *step)
{
  const double start = mt_time();
  for (int moe = 0; moe < step->model->params.nmoe; moe++)
    update_experts(step, moe);
  if (step->model->stale)
    mt_model_publish(step->model);
  step->settled_s += mt_time() - start;
}

/* ---- the lists ---- */

/* What a step does around the passes over the model. */
static void (*const run_of[MT_NTASK_KIND])(void *, const struct mt_task *) = {
    [MT_TASK_BATCH] = do_batch,   [MT_TASK_EMBED_BACK] = do_embed_back, [MT_TASK_PLAN] = do_plan,
    [MT_TASK_TELL] = do_tell,     [MT_TASK_NORM] = do_norm,             [MT_TASK_STATISTICS] = do_statistics,
    [MT_TASK_ADOPT] = do_adopt,   [MT_TASK_UPDATE] = do_update,
};

void mt_step_build(struct mt_step *step)
{
  struct mt_model *model = step->model;
  mt_tasks_free(&step->tasks);
  mt_tasks_free(&step->forward);
  mt_free(step->span);
  step->forward = mt_pass_tasks(model, &step->course.plan, &step->costs, 1, 0);
  step->tasks = mt_pass_tasks(model, &step->course.plan, &step->costs, (int)step->batch.nmicro, 1);
  for (int i = 0; i < step->tasks.n; i++) {
    struct mt_task *task = &step->tasks.task[i];
    if (!run_of[task->kind])
      continue;
    task->run = run_of[task->kind];
    task->self = step;
  }
  step->span = MT_ZNEW(MT_TAG_PLAN, struct mt_span, step->tasks.n);
}

/* Returns the seconds in which this rank's computing waited for communication. */
static double run_tasks(struct mt_step *step, const struct mt_tasks *tasks, struct mt_task_times *times, struct mt_span *span)
{
  if (!step->course.beside || !step->executor) {
    mt_tasks_run(tasks, times, span);
    return times->lane_s[MT_LANE_INTRA] + times->lane_s[MT_LANE_INTER];
  }
  step->comm->beside = 1;
  double waited = mt_executor_run(step->executor, tasks, times, span);
  step->comm->beside = 0;
  return waited;
}

struct mt_step *mt_step_new(struct mt_comm *comm, struct mt_model *model, const struct mt_config *config,
                            struct mt_source source)
{
  struct mt_step *step = MT_ZNEW(MT_TAG_PLAN, struct mt_step, 1);
  step->comm = comm;
  step->model = model;
  step->config = config;
  step->source = source;
  step->batch = mt_batch_cut(config, comm->cluster, config->train.global_batch);
  MT_CHECK(mt_batch_most(&step->batch, comm->rank) <= model->max_B, "a micro-step of %lld sequences, the model holds %lld",
           (long long)mt_batch_most(&step->batch, comm->rank), (long long)model->max_B);
  step->sample = MT_ZNEW(MT_TAG_IO, int32_t, model->T + 1);
  int nmoe = model->params.nmoe;
  step->result.load = MT_ZNEW(MT_TAG_PLAN, double, nmoe);
  step->most_rows = MT_ZNEW(MT_TAG_PLAN, int64_t, nmoe);
  step->due = MT_ZNEW(MT_TAG_PLAN, unsigned char, nmoe);
  step->result.per_expert = model->moe ? model->moe->sums.per_expert : NULL;
  if (mt_predict_overlaps(config, comm->cluster) && comm->threaded)
    step->executor = mt_executor_new();
  int64_t lanes = step->executor != NULL;
  mt_max_int(comm, &lanes, 1);
  step->lanes = (int)lanes;
  mt_step_plan_begin(step);
  return step;
}

void mt_step_free(struct mt_step *step)
{
  if (!step)
    return;
  mt_executor_free(step->executor);
  mt_free(step->span);
  mt_free(step->observed);
  mt_tasks_free(&step->tasks);
  mt_tasks_free(&step->forward);
  mt_part_free(&step->batch.share);
  mt_free(step->sample);
  mt_free(step->most_rows);
  mt_free(step->due);
  mt_free(step->result.load);
  mt_free(step);
}

/* The lanes of the step that has just run, as measured on this rank and as predicted. */
static void add_lanes(struct mt_step *step)
{
  char *name = mt_format("step %lld, rank %d", (long long)step->number, step->comm->rank);
  mt_trace_add(step->trace, name, &step->tasks, step->span);
  mt_free(name);
  struct mt_span *span = MT_NEW(MT_TAG_PLAN, struct mt_span, step->tasks.n);
  mt_simulate(&step->tasks, &step->costs, span);
  name = mt_format("step %lld, predicted", (long long)step->number);
  mt_trace_add(step->trace, name, &step->tasks, span);
  mt_free(name);
  mt_free(span);
}

const struct mt_step_result *mt_step_run(struct mt_step *step, int64_t number, int64_t first)
{
  struct mt_step_result *result = &step->result;
  const double start = mt_time(), waited = step->comm->wait_s;
  const int64_t grown = mt_memory_growths();
  const int64_t batch = step->config->train.global_batch, T = step->model->T;
  step->number = number;
  step->first = first;
  step->status = MT_OK;
  step->hash = 0;
  step->bad = NULL;
  step->model->loss_sum = step->sum_squares = 0;
  result->lr = mt_learning_rate(step->config, number);
  result->tokens = batch * T;
  if (step->model->moe)
    mt_moe_begin_step(step->model->moe, number, (double)batch * (double)T, (double)batch);
  step->times = (struct mt_task_times){0};
  const double exposed = run_tasks(step, &step->tasks, &step->times, step->span);

  double most[MT_NLANE + 4];
  memcpy(most, step->times.lane_s, sizeof step->times.lane_s);
  most[MT_NLANE] = step->comm->wait_s - waited;
  most[MT_NLANE + 1] = mt_time() - start + step->settled_s;
  most[MT_NLANE + 2] = 0;
  for (int k = MT_TASK_PACK; k <= MT_TASK_RESHARD_INTER; k++)
    if (k <= MT_TASK_MERGE || k >= MT_TASK_PACK_BACK)
      most[MT_NLANE + 2] += step->times.kind_s[k];
  most[MT_NLANE + 3] = exposed;
  mt_max(step->comm, most, MT_NLANE + 4);
  memcpy(result->lane_s, most, sizeof result->lane_s);
  result->wait_s = most[MT_NLANE];
  result->step_s = most[MT_NLANE + 1];
  result->experts_s = most[MT_NLANE + 2];
  result->exposed_s = most[MT_NLANE + 3];
  int64_t counts[3] = {mt_memory_bytes(), mt_memory_growths() - grown, step->status};
  mt_max_int(step->comm, counts, 3);
  result->mem_bytes = counts[0];
  result->growths = counts[1];
  result->source = (enum mt_status)counts[2];
  result->predicted_s = step->predicted_s;
  result->schedule = NULL;
  if (step->trace)
    add_lanes(step);
  mt_step_plan_turn(step);
  step->settled_s = 0;
  return result;
}

enum mt_status mt_step_evaluate(struct mt_step *step, struct mt_source source, int64_t n, double *loss)
{
  struct mt_model *model = step->model;
  struct mt_batch batch = mt_batch_cut(step->config, step->comm->cluster, n);
  const int64_t mine = mt_part_count(&batch.share, step->comm->rank), begin = batch.share.first[step->comm->rank];
  int64_t nmicro = (mine + model->max_B - 1) / model->max_B;
  mt_part_free(&batch.share);
  mt_max_int(step->comm, &nmicro, 1);
  const double tokens = (double)n * (double)model->T;
  mt_step_settle(step);
  step->status = MT_OK;
  model->loss_sum = 0;
  if (model->moe)
    mt_moe_begin_step(model->moe, 0, tokens, (double)n);
  struct mt_task_times times = {0};
  for (int64_t m = 0; m < nmicro; m++) {
    int64_t from, B = mt_part_range(mine, nmicro, m, &from);
    read_batch(step, source, begin + from, B, tokens);
    if (model->moe) /* keys of their own, so that layouts of training steps are no function of evaluations */
      mt_moe_begin_micro(model->moe, begin + from, B, ((int64_t)1 << 40) + m);
    run_tasks(step, &step->forward, &times, NULL);
  }
  *loss = model->loss_sum;
  mt_sum(step->comm, loss, 1);
  return mt_agree(step->comm, step->status);
}
