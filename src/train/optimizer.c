/* AdamW on shards; see optimizer.h. */
#include "train/optimizer.h"
#include <math.h>
#include <stddef.h>

double mt_learning_rate(const struct mt_config *config, int64_t step)
{
  const double peak = config->train.lr, low = config->train.min_lr;
  const int64_t warmup = config->train.warmup;
  const int64_t end = config->train.decay_steps > 0 ? config->train.decay_steps : config->train.steps;
  if (step <= warmup)
    return peak * (double)step / (double)warmup;
  enum mt_decay_type type = config->train.decay_type;
  int64_t begin = warmup;
  switch (config->train.schedule) {
  case MT_SCHEDULE_CONSTANT:
    return peak;
  case MT_SCHEDULE_LINEAR:
    type = MT_DECAY_LINEAR;
    break;
  case MT_SCHEDULE_COSINE:
    type = MT_DECAY_COSINE;
    break;
  case MT_SCHEDULE_WSD:
    begin = end - (int64_t)round(config->train.decay_ratio * (double)end);
    begin = begin < warmup ? warmup : begin;
    break;
  }
  if (step <= begin)
    return peak;
  double x = end > begin ? (double)(step - begin) / (double)(end - begin) : 1;
  x = x > 1 ? 1 : x;
  double left = type == MT_DECAY_LINEAR ? 1 - x : type == MT_DECAY_SQRT ? 1 - sqrt(x) : 0.5 * (1 + cos(M_PI * x));
  return low + (peak - low) * left;
}

struct squares {
  struct mt_model *model;
  double sum;
  const char *bad;
};

static void add_squares(void *self, const struct mt_param *row, int expert, int64_t first, struct mt_shard *shard, int64_t at,
                        int64_t n)
{
  (void)expert, (void)first;
  struct squares *squares = self;
  double sum;
  struct mt_device *host = squares->model->device->host;
  host->kernels->sum_squares(host, &sum, shard->grad + at, n);
  squares->sum += sum;
  if (!isfinite(sum) && !squares->bad)
    squares->bad = row->name;
}

double mt_optimizer_sum_squares(struct mt_model *model, int moe)
{
  struct squares squares = {model, 0, NULL};
  mt_model_pieces_of(model, moe, add_squares, &squares);
  return squares.sum;
}

const char *mt_optimizer_find_nonfinite(struct mt_model *model)
{
  struct squares squares = {model, 0, NULL};
  mt_model_pieces(model, add_squares, &squares);
  return squares.bad;
}

struct mt_update mt_optimizer_begin(const struct mt_config *config, int64_t step, double lr, double grad_scale, int apply)
{
  return (struct mt_update){.adamw = {.lr = (float)lr, .beta1 = (float)config->train.beta1, .beta2 = (float)config->train.beta2,
                                      .eps = (float)config->train.eps,
                                      .correction1 = (float)(1 - pow(config->train.beta1, (double)step)),
                                      .correction2 = (float)(1 - pow(config->train.beta2, (double)step)),
                                      .grad_scale = (float)grad_scale},
                            .weight_decay = config->train.weight_decay,
                            .apply = apply};
}

struct pieces {
  struct mt_device *host;
  const struct mt_update *update;
};

static void update_piece(void *self, const struct mt_param *row, int expert, int64_t first, struct mt_shard *shard, int64_t at,
                         int64_t n)
{
  (void)expert, (void)first;
  const struct pieces *pieces = self;
  struct mt_adamw adamw = pieces->update->adamw;
  adamw.weight_decay = row->decay ? (float)pieces->update->weight_decay : 0;
  pieces->host->kernels->adamw(pieces->host, shard->master + at, shard->m + at, shard->v + at, shard->grad + at, n, &adamw);
}

void mt_optimizer_update(struct mt_model *model, const struct mt_update *update, int moe)
{
  struct mt_device *host = model->device->host;
  struct pieces pieces = {host, update};
  if (update->apply)
    mt_model_pieces_of(model, moe, update_piece, &pieces);
  const struct mt_shard *shard = moe < 0 ? &model->shared : &model->moe->shard;
  const int64_t E = model->params.nexpert, at = moe < 0 ? 0 : mt_shard_at(shard, moe * E),
                end = moe < 0 ? shard->total : mt_shard_at(shard, (moe + 1) * E);
  host->ops->zero(host, MT_DEV_MATH, shard->grad + at, (end - at) * 4);
}
