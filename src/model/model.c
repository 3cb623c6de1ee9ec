/* Making, filling and reducing a model; its forward and backward pieces are in block.c. See model.h. */
#include "model/model.h"
#include "base/memory.h"
#include "base/random.h"
#include "experts/sizes.h"
#include <math.h>
#include <string.h>

static void *act(struct mt_model *model, int64_t elements)
{
  return model->device->ops->alloc(model->device, MT_TAG_ACTIVATION, MT_DEVICE, elements * mt_dtype_size(model->device->ctype));
}

static void *words(struct mt_model *model, int64_t elements)
{
  return model->device->ops->alloc(model->device, MT_TAG_ACTIVATION, MT_DEVICE, elements * 4);
}

static void drop(struct mt_model *model, enum mt_space space, void *memory)
{
  if (memory)
    model->device->ops->free(model->device, space, memory);
}

static float *rope_table(struct mt_model *model)
{
  const struct mt_arch *arch = &model->arch;
  int64_t half = arch->D / 2, n = arch->Tmax * half * 2;
  float *host = MT_NEW(MT_TAG_MISC, float, n);
  for (int64_t t = 0; t < arch->Tmax; t++)
    for (int64_t i = 0; i < half; i++) {
      double angle = (double)t * pow((double)arch->rope_theta, -2.0 * (double)i / (double)arch->D);
      host[(t * half + i) * 2] = (float)cos(angle);
      host[(t * half + i) * 2 + 1] = (float)sin(angle);
    }
  float *table = words(model, n);
  model->device->ops->copy(model->device, MT_DEV_MATH, table, host, n * 4);
  model->device->ops->sync(model->device, MT_DEV_MATH);
  mt_free(host);
  return table;
}

static void layer_new(struct mt_model *model, struct mt_layer_state *layer, const struct mt_block *block, int64_t N)
{
  const struct mt_arch *arch = &model->arch;
  layer->x1 = act(model, N * arch->C);
  layer->y1 = act(model, N * arch->C);
  layer->y2 = act(model, N * arch->C);
  layer->mean1 = words(model, N);
  layer->rstd1 = words(model, N);
  layer->mean2 = words(model, N);
  layer->rstd2 = words(model, N);
  layer->qkv = act(model, N * (arch->H + 2 * arch->KV) * arch->D);
  layer->att = act(model, N * arch->H * arch->D);
  layer->lse = words(model, N * arch->H);
  if (block->moe < 0)
    layer->pre = act(model, N * arch->F * (arch->gated ? 2 : 1));
}

static void layer_free(struct mt_model *model, struct mt_layer_state *layer)
{
  void *all[] = {layer->x1,    layer->y1,    layer->y2,  layer->mean1, layer->rstd1, layer->mean2,
                 layer->rstd2, layer->qkv,   layer->att, layer->lse,   layer->pre};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    drop(model, MT_DEVICE, all[i]);
}

/* What travels is f32 in memory that MPI reaches; what kernels read lies on the device. If any rank computes in bf16, all
 * round what linear layers and embeddings read. */
static void weights_new(struct mt_model *model, int training)
{
  struct mt_device *device = model->device;
  const int apart = device->host != device;
  const int64_t n = model->params.shared_length;
  int64_t round = device->ctype != MT_F32;
  mt_max_int(model->comm, &round, 1);
  model->wire_weight = device->ops->alloc(device, MT_TAG_PARAM, MT_WIRE, n * 4);
  model->weight = apart ? device->ops->alloc(device, MT_TAG_PARAM, MT_DEVICE, n * 4) : model->wire_weight;
  model->matrix = model->weight;
  if (round)
    model->matrix = model->rounded = device->ops->alloc(device, MT_TAG_PARAM, MT_DEVICE, n * 2);
  if (round && device->ctype == MT_F32)
    model->matrix = device->ops->alloc(device, MT_TAG_PARAM, MT_DEVICE, n * 4);
  if (!training)
    return;
  model->wire_grad = device->ops->alloc(device, MT_TAG_PARAM, MT_WIRE, n * 4);
  model->grad = apart ? device->ops->alloc(device, MT_TAG_PARAM, MT_DEVICE, n * 4) : model->wire_grad;
  device->ops->zero(device, MT_DEV_MATH, model->grad, n * 4);
}

static void weights_free(struct mt_model *model)
{
  if (model->matrix != model->rounded && model->matrix != model->weight)
    drop(model, MT_DEVICE, model->matrix);
  drop(model, MT_DEVICE, model->rounded);
  if (model->weight != model->wire_weight)
    drop(model, MT_DEVICE, model->weight);
  if (model->grad != model->wire_grad)
    drop(model, MT_DEVICE, model->grad);
  drop(model, MT_WIRE, model->wire_weight);
  drop(model, MT_WIRE, model->wire_grad);
}

/* Layers need their state only while they run, without a backward pass or if that computes it again: all share one. */
static int states(const struct mt_model *model, int training)
{
  return training && !model->config->train.recompute ? (int)model->arch.L : model->arch.L > 0;
}

enum mt_status mt_model_new(struct mt_comm *comm, struct mt_device *device, const struct mt_config *config, int64_t max_B,
                            int64_t T, int training, struct mt_model **result)
{
  struct mt_model *model = MT_ZNEW(MT_TAG_PLAN, struct mt_model, 1);
  model->comm = comm;
  model->device = device;
  model->config = config;
  model->max_B = max_B;
  model->T = T;
  model->nbatch = 1;
  mt_family_build(config, &model->arch, &model->params);
  const struct mt_arch *arch = &model->arch;
  const int64_t N = max_B * T;
  if (model->params.nmoe) {
    enum mt_status status = mt_moe_new(comm, device, config, &model->params, N, T, training, &model->moe);
    if (status != MT_OK) {
      mt_params_free(&model->params);
      mt_free(model->arch.block);
      mt_free(model);
      return status;
    }
  }
  const int blocks = mt_sizes_blocks(&model->params, comm);
  model->everywhere = mt_layout_everywhere(comm->cluster, blocks);
  model->shared = mt_shard_new(comm, blocks, model->params.shared_length / blocks, mt_sizes_shared(config, &model->params, comm),
                               training);
  model->tree = mt_tree_new(comm, device, &model->shared.cut, 1);
  mt_tree_plan(model->tree, 0, model->everywhere);
  weights_new(model, training);

  const int64_t C = arch->C, QKV = (arch->H + 2 * arch->KV) * arch->D, wide = arch->F * (arch->gated ? 2 : 1);
  model->layer = MT_ZNEW(MT_TAG_PLAN, struct mt_layer_state, arch->L);
  model->x = MT_NEW(MT_TAG_PLAN, void *, arch->L + 1);
  int dense = -1;
  for (int l = 0; l < arch->L; l++)
    dense = arch->block[l].moe < 0 ? l : dense;
  for (int l = 0; l < states(model, training); l++)
    layer_new(model, &model->layer[l], &arch->block[states(model, training) == arch->L || dense < 0 ? l : dense], N);
  for (int l = states(model, training); l < arch->L; l++)
    model->layer[l] = model->layer[0];
  for (int l = 0; l <= arch->L; l++)
    model->x[l] = training || l < 2 ? act(model, N * C) : model->x[l % 2];
  model->y = act(model, N * C);
  model->dx = act(model, N * C);
  model->dy = act(model, N * C);
  model->dqkv = act(model, N * QKV);
  model->datt = act(model, N * arch->H * arch->D);
  if (dense >= 0) {
    model->h = act(model, N * arch->F);
    model->dpre = act(model, N * wide);
  }
  model->mean = words(model, N);
  model->rstd = words(model, N);
  if (arch->rope)
    model->rope_table = rope_table(model);
  model->token = words(model, N);
  model->position = words(model, N);
  model->target = words(model, N);
  model->scale = words(model, N);
  model->loss = words(model, N);
  model->host_token = MT_ZNEW(MT_TAG_ACTIVATION, int32_t, N);
  model->host_target = MT_ZNEW(MT_TAG_ACTIVATION, int32_t, N);
  if (config->data.document != MT_DOCUMENT_NONE) {
    model->segment = words(model, N);
    model->host_segment = MT_ZNEW(MT_TAG_ACTIVATION, int32_t, N);
  }
  model->host_scale = MT_ZNEW(MT_TAG_ACTIVATION, float, N);
  model->host_loss = MT_ZNEW(MT_TAG_ACTIVATION, float, N);
  model->head_rows = mt_model_head_rows(arch->V, N);
  model->logits = act(model, model->head_rows * arch->V);
  model->wide_logits = device->ctype == MT_F32 ? model->logits : words(model, model->head_rows * arch->V);
  struct mt_attention attention = {.B = max_B, .T = T, .H = arch->H, .KV = arch->KV, .D = arch->D, .causal = 1,
                                   .window = arch->window};
  mt_device_reserve(device, device->kernels->attention_work(device, &attention));

  int32_t *position = MT_NEW(MT_TAG_MISC, int32_t, N);
  for (int64_t i = 0; i < N; i++)
    position[i] = (int32_t)(i % T);
  device->ops->copy(device, MT_DEV_MATH, model->position, position, N * 4);
  device->ops->sync(device, MT_DEV_MATH);
  mt_free(position);
  *result = model;
  return MT_OK;
}

void mt_model_cut(struct mt_model *model, const struct mt_plan *plan, int ahead)
{
  model->nbatch = plan->chunks;
  if (model->moe)
    mt_moe_cut(model->moe, plan, ahead);
}

void mt_model_free(struct mt_model *model)
{
  if (!model)
    return;
  int64_t L = model->arch.L;
  int shared_state = L > 1 && model->layer[0].x1 == model->layer[1].x1;
  for (int l = 0; l < (shared_state ? 1 : L); l++)
    layer_free(model, &model->layer[l]);
  for (int l = 0; l <= L; l++)
    if (l < 2 || model->x[l] != model->x[l % 2])
      drop(model, MT_DEVICE, model->x[l]);
  void *all[] = {model->y,     model->dx,    model->dy,         model->dqkv,  model->datt,     model->h,      model->dpre,
                 model->mean,  model->rstd,  model->rope_table, model->token, model->position, model->target, model->scale,
                 model->loss,  model->logits, model->segment};
  if (model->wide_logits != model->logits)
    drop(model, MT_DEVICE, model->wide_logits);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    drop(model, MT_DEVICE, all[i]);
  weights_free(model);
  mt_free(model->layer);
  mt_free(model->x);
  mt_free(model->host_token);
  mt_free(model->host_target);
  mt_free(model->host_segment);
  mt_free(model->host_scale);
  mt_free(model->host_loss);
  mt_moe_free(model->moe);
  mt_tree_free(model->tree);
  mt_layout_free(model->everywhere);
  mt_shard_free(&model->shared);
  mt_params_free(&model->params);
  mt_free(model->arch.block);
  mt_free(model);
}

static void row_pieces(struct mt_model *model, const struct mt_param *row, mt_piece *f, void *self)
{
  const int shared = row->scope == MT_SCOPE_SHARED;
  struct mt_shard *shard = shared ? &model->shared : &model->moe->shard;
  const int copies = shared ? (int)shard->nitem : model->params.nexpert; /* blocks of one vector; vectors */
  for (int e = 0; e < copies; e++) {
    int64_t item = shared ? e : (int64_t)row->moe * copies + e, first, count = mt_shard_piece(shard, item, &first);
    first += shared ? item * shard->length : 0;
    int64_t from = row->offset > first ? row->offset : first;
    int64_t end = row->offset + row->count < first + count ? row->offset + row->count : first + count;
    if (end > from)
      f(self, row, shared ? 0 : e, from - row->offset, shard, mt_shard_at(shard, item) + from - first, end - from);
  }
}

void mt_model_pieces(struct mt_model *model, mt_piece *f, void *self)
{
  for (int i = 0; i < model->params.n; i++)
    row_pieces(model, &model->params.param[i], f, self);
}

void mt_model_pieces_of(struct mt_model *model, int moe, mt_piece *f, void *self)
{
  for (int i = 0; i < model->params.n; i++)
    if (model->params.param[i].moe == moe)
      row_pieces(model, &model->params.param[i], f, self);
}

struct initial {
  struct mt_model *model;
  uint64_t seed;
};

static void initial_piece(void *self, const struct mt_param *row, int expert, int64_t first, struct mt_shard *shard, int64_t at,
                          int64_t n)
{
  struct initial *initial = self;
  uint64_t stream = MT_STREAM_INIT + 256 * (uint64_t)(row - initial->model->params.param);
  float *to = shard->master + at;
  if (row->deviation > 0)
    mt_random_fill_normal(to, n, initial->seed, stream, (uint64_t)(expert * row->count + first), row->deviation);
  for (int64_t k = 0; k < n; k++)
    to[k] = row->deviation > 0 ? to[k] + row->fill : row->fill;
}

void mt_model_init(struct mt_model *model, uint64_t seed)
{
  struct initial initial = {model, seed};
  mt_model_pieces(model, initial_piece, &initial);
}

void mt_model_publish_range(struct mt_model *model, int64_t first, int64_t end)
{
  struct mt_device *device = model->device;
  const int64_t n = end - first;
  float *weight = model->weight + first;
  device->ops->sync(device, MT_DEV_MATH);
  mt_tree_unshard_range(model->tree, first, end, model->shared.length, model->shared.master, model->wire_weight,
                        model->shared.length);
  if (model->weight != model->wire_weight)
    device->ops->copy(device, MT_DEV_MATH, weight, model->wire_weight + first, n * 4);
  if (!model->rounded)
    return;
  void *rounded = (char *)model->rounded + first * mt_dtype_size(MT_BF16);
  device->kernels->convert(device, rounded, MT_BF16, weight, MT_F32, n);
  if (model->rounded != model->matrix)
    device->kernels->convert(device, (float *)model->matrix + first, MT_F32, rounded, MT_BF16, n);
}

void mt_model_publish(struct mt_model *model)
{
  mt_model_publish_range(model, 0, model->params.shared_length);
  model->stale = 0;
  if (model->moe)
    model->moe->version++;
}

void mt_model_updated(struct mt_model *model)
{
  model->stale = 1;
  if (model->moe)
    model->moe->version++;
}

void mt_model_reduce(struct mt_model *model, int64_t first, int64_t end)
{
  struct mt_device *device = model->device;
  float *grad = model->grad + first;
  const int64_t bytes = (end - first) * (int64_t)sizeof *grad;
  if (model->grad != model->wire_grad)
    device->ops->copy(device, MT_DEV_MATH, model->wire_grad + first, grad, bytes);
  device->ops->sync(device, MT_DEV_MATH);
  mt_tree_reshard_range(model->tree, first, end, model->shared.length, model->shared.grad, model->wire_grad,
                        model->shared.length);
  device->ops->zero(device, MT_DEV_MATH, grad, bytes);
}
