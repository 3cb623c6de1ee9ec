/* The pieces of forward and backward; see model.h for their order and what they leave where. */
#include "model/model.h"
#include <math.h>
#include <stddef.h>

static const float *weight(const struct mt_model *model, int64_t offset)
{
  return offset < 0 ? NULL : model->weight + offset;
}

static const void *matrix(const struct mt_model *model, int64_t offset)
{
  return offset < 0 ? NULL : mt_at(model->device, model->matrix, offset);
}

static float *gradient(const struct mt_model *model, int64_t offset)
{
  return offset < 0 ? NULL : model->grad + offset;
}

/* A dense layer: one group of n rows. first[] lives in the caller's frame. */
#define DENSE(name, n, in, out)                                                                                        \
  const int64_t name##_rows[2] = {0, (n)};                                                                             \
  const struct mt_linear name = {1, name##_rows, (in), (out), 0, 0}

/* The rows of a batch chunk, [at, at + n) of N. */
struct rows {
  int64_t at, n;
};

static struct rows rows_of(const struct mt_model *model, int a)
{
  int64_t first, count = mt_part_range(model->B, model->nbatch, a, &first);
  return (struct rows){first * model->T, count * model->T};
}

static struct mt_attention attention_of(const struct mt_model *model, struct rows rows)
{
  const struct mt_arch *arch = &model->arch;
  return (struct mt_attention){.B = rows.n / model->T, .T = model->T, .H = arch->H, .KV = arch->KV, .D = arch->D, .causal = 1,
                               .window = arch->window, .segment = model->segment ? model->segment + rows.at : NULL,
                               .scale = 1.0f / sqrtf((float)arch->D)};
}

void mt_model_segments(enum mt_document document, int64_t id, const int32_t *token, int64_t T, int32_t *segment)
{
  int32_t number = 0;
  for (int64_t t = 0; t < T; t++) {
    number += document == MT_DOCUMENT_START && token[t] == id && t > 0;
    segment[t] = number;
    number += document == MT_DOCUMENT_END && token[t] == id;
  }
}

void mt_model_batch(struct mt_model *model, int64_t B)
{
  struct mt_device *device = model->device;
  model->B = B;
  model->N = B * model->T;
  device->ops->copy(device, MT_DEV_MATH, model->token, model->host_token, model->N * 4);
  device->ops->copy(device, MT_DEV_MATH, model->target, model->host_target, model->N * 4);
  device->ops->copy(device, MT_DEV_MATH, model->scale, model->host_scale, model->N * 4);
  if (!model->segment)
    return;
  for (int64_t b = 0; b < B; b++)
    mt_model_segments(model->config->data.document, model->config->data.document_id, model->host_token + b * model->T, model->T,
                      model->host_segment + b * model->T);
  device->ops->copy(device, MT_DEV_MATH, model->segment, model->host_segment, model->N * 4);
}

void mt_model_embed(struct mt_model *model)
{
  const struct mt_arch *arch = &model->arch;
  model->device->kernels->embed(model->device, model->x[0], model->token, model->position, matrix(model, arch->wte),
                                matrix(model, arch->wpe), model->N, arch->C);
}

void mt_model_attention(struct mt_model *model, int l, int a)
{
  struct mt_device *device = model->device;
  const struct mt_kernels *kernels = device->kernels;
  const struct mt_arch *arch = &model->arch;
  const struct mt_block *block = &arch->block[l];
  struct mt_layer_state *layer = &model->layer[l];
  const struct rows rows = rows_of(model, a);
  const int64_t n = rows.n, C = arch->C, HD = arch->H * arch->D, QKV = HD + 2 * arch->KV * arch->D;
  DENSE(qkv, n, C, QKV);
  DENSE(o, n, HD, C);
  const struct mt_attention attention = attention_of(model, rows);
  const void *x = mt_at(device, model->x[l], rows.at * C);
  void *y1 = mt_at(device, layer->y1, rows.at * C), *projected = mt_at(device, layer->qkv, rows.at * QKV),
       *attended = mt_at(device, layer->att, rows.at * HD), *x1 = mt_at(device, layer->x1, rows.at * C);
  kernels->norm(device, arch->norm, y1, layer->mean1 + rows.at, layer->rstd1 + rows.at, x, weight(model, block->norm1_w),
                weight(model, block->norm1_b), n, C, arch->eps);
  kernels->linear(device, &qkv, projected, y1, matrix(model, block->qkv_w), matrix(model, block->qkv_b), 0);
  if (arch->rope) /* q and k heads lie side by side at the start of a row */
    kernels->rope(device, projected, n, QKV, arch->H + arch->KV, arch->D, model->position + rows.at, model->rope_table, 0);
  kernels->attention(device, &attention, attended, layer->lse + rows.at * arch->H, projected);
  device->ops->copy(device, MT_DEV_MATH, x1, x, n * C * mt_dtype_size(device->ctype));
  kernels->linear(device, &o, x1, attended, matrix(model, block->o_w), matrix(model, block->o_b), 1);
  kernels->norm(device, arch->norm, mt_at(device, layer->y2, rows.at * C), layer->mean2 + rows.at, layer->rstd2 + rows.at, x1,
                weight(model, block->norm2_w), weight(model, block->norm2_b), n, C, arch->eps);
  device->ops->copy(device, MT_DEV_MATH, mt_at(device, model->x[l + 1], rows.at * C), x1, n * C * mt_dtype_size(device->ctype));
}

/* A dense layer's pre-activations of these rows. */
static void *pre_of(const struct mt_model *model, int l, struct rows rows)
{
  return mt_at(model->device, model->layer[l].pre, rows.at * model->arch.F * (model->arch.gated ? 2 : 1));
}

static void activate(struct mt_model *model, const void *pre, int64_t n)
{
  const struct mt_kernels *kernels = model->device->kernels;
  if (model->arch.gated)
    kernels->swiglu(model->device, model->h, pre, n, model->arch.F);
  else
    kernels->gelu(model->device, model->h, pre, n * model->arch.F);
}

void mt_model_mlp(struct mt_model *model, int l, int a)
{
  struct mt_device *device = model->device;
  const struct mt_arch *arch = &model->arch;
  const struct mt_block *block = &arch->block[l];
  const struct rows rows = rows_of(model, a);
  const void *y2 = mt_at(device, model->layer[l].y2, rows.at * arch->C);
  void *pre = pre_of(model, l, rows), *x = mt_at(device, model->x[l + 1], rows.at * arch->C);
  DENSE(in, rows.n, arch->C, arch->F * (arch->gated ? 2 : 1));
  DENSE(out, rows.n, arch->F, arch->C);
  device->kernels->linear(device, &in, pre, y2, matrix(model, block->in_w), matrix(model, block->in_b), 0);
  activate(model, pre, rows.n);
  device->kernels->linear(device, &out, x, model->h, matrix(model, block->out_w), matrix(model, block->out_b), 1);
}

void mt_model_head(struct mt_model *model, int back)
{
  struct mt_device *device = model->device;
  const struct mt_kernels *kernels = device->kernels;
  const struct mt_arch *arch = &model->arch;
  const int64_t N = model->N, C = arch->C, V = arch->V;
  kernels->norm(device, arch->norm, model->y, model->mean, model->rstd, model->x[arch->L], weight(model, arch->norm_w),
                weight(model, arch->norm_b), N, C, arch->eps);
  for (int64_t at = 0; at < N; at += model->head_rows) {
    const int64_t n = N - at < model->head_rows ? N - at : model->head_rows;
    const void *y = mt_at(device, model->y, at * C);
    DENSE(head, n, C, V);
    kernels->linear(device, &head, model->logits, y, matrix(model, arch->head), NULL, 0);
    kernels->cross_entropy(device, model->loss + at, model->logits, model->target + at, model->scale + at, n, V, back);
    if (!back)
      continue;
    kernels->linear_dw(device, &head, gradient(model, arch->head), NULL, model->logits, y);
    kernels->linear_dx(device, &head, mt_at(device, model->dy, at * C), model->logits, matrix(model, arch->head), 0);
  }
  device->ops->copy(device, MT_DEV_MATH, model->host_loss, model->loss, N * 4);
  device->ops->sync(device, MT_DEV_MATH);
  for (int64_t i = 0; i < N; i++)
    model->loss_sum += (double)model->host_scale[i] * (double)model->host_loss[i];
  if (back)
    kernels->norm_back(device, arch->norm, model->dx, 0, gradient(model, arch->norm_w), gradient(model, arch->norm_b), model->dy,
                       model->x[arch->L], model->mean, model->rstd, weight(model, arch->norm_w), N, C);
}

void mt_model_logits(struct mt_model *model, int64_t first, int64_t n, float *logits)
{
  struct mt_device *device = model->device;
  const struct mt_arch *arch = &model->arch;
  device->kernels->norm(device, arch->norm, model->y, model->mean, model->rstd, model->x[arch->L], weight(model, arch->norm_w),
                        weight(model, arch->norm_b), model->N, arch->C, arch->eps);
  for (int64_t at = 0; at < n; at += model->head_rows) {
    const int64_t rows = n - at < model->head_rows ? n - at : model->head_rows;
    DENSE(head, rows, arch->C, arch->V);
    device->kernels->linear(device, &head, model->logits, mt_at(device, model->y, (first + at) * arch->C),
                            matrix(model, arch->head), NULL, 0);
    if (device->ctype != MT_F32)
      device->kernels->convert(device, model->wide_logits, MT_F32, model->logits, device->ctype, rows * arch->V);
    device->ops->copy(device, MT_DEV_MATH, logits + at * arch->V, model->wide_logits, rows * arch->V * 4);
    device->ops->sync(device, MT_DEV_MATH);
  }
}

void mt_model_mlp_back(struct mt_model *model, int l, int a)
{
  struct mt_device *device = model->device;
  const struct mt_kernels *kernels = device->kernels;
  const struct mt_arch *arch = &model->arch;
  const struct mt_block *block = &arch->block[l];
  const struct rows rows = rows_of(model, a);
  const void *y2 = mt_at(device, model->layer[l].y2, rows.at * arch->C), *dx = mt_at(device, model->dx, rows.at * arch->C);
  void *pre = pre_of(model, l, rows);
  DENSE(in, rows.n, arch->C, arch->F * (arch->gated ? 2 : 1));
  DENSE(out, rows.n, arch->F, arch->C);
  if (model->config->train.recompute)
    kernels->linear(device, &in, pre, y2, matrix(model, block->in_w), matrix(model, block->in_b), 0);
  activate(model, pre, rows.n);
  kernels->linear_dw(device, &out, gradient(model, block->out_w), gradient(model, block->out_b), dx, model->h);
  kernels->linear_dx(device, &out, model->h, dx, matrix(model, block->out_w), 0);
  if (arch->gated)
    kernels->swiglu_back(device, model->dpre, model->h, pre, rows.n, arch->F);
  else
    kernels->gelu_back(device, model->dpre, model->h, pre, rows.n * arch->F);
  kernels->linear_dw(device, &in, gradient(model, block->in_w), gradient(model, block->in_b), model->dpre, y2);
  kernels->linear_dx(device, &in, mt_at(device, model->dy, rows.at * arch->C), model->dpre, matrix(model, block->in_w), 0);
}

void mt_model_attention_back(struct mt_model *model, int l, int a)
{
  struct mt_device *device = model->device;
  const struct mt_kernels *kernels = device->kernels;
  const struct mt_arch *arch = &model->arch;
  const struct mt_block *block = &arch->block[l];
  struct mt_layer_state *layer = &model->layer[l];
  const struct rows rows = rows_of(model, a);
  const int64_t n = rows.n, C = arch->C, HD = arch->H * arch->D, QKV = HD + 2 * arch->KV * arch->D;
  DENSE(qkv, n, C, QKV);
  DENSE(o, n, HD, C);
  const struct mt_attention attention = attention_of(model, rows);
  const void *projected = mt_at(device, layer->qkv, rows.at * QKV), *attended = mt_at(device, layer->att, rows.at * HD);
  void *dx = mt_at(device, model->dx, rows.at * C), *dy = mt_at(device, model->dy, rows.at * C);
  kernels->norm_back(device, arch->norm, dx, 1, gradient(model, block->norm2_w), gradient(model, block->norm2_b), dy,
                     mt_at(device, layer->x1, rows.at * C), layer->mean2 + rows.at, layer->rstd2 + rows.at,
                     weight(model, block->norm2_w), n, C);
  kernels->linear_dw(device, &o, gradient(model, block->o_w), gradient(model, block->o_b), dx, attended);
  kernels->linear_dx(device, &o, model->datt, dx, matrix(model, block->o_w), 0);
  kernels->attention_back(device, &attention, model->dqkv, model->datt, projected, attended,
                          layer->lse + rows.at * arch->H);
  if (arch->rope)
    kernels->rope(device, model->dqkv, n, QKV, arch->H + arch->KV, arch->D, model->position + rows.at, model->rope_table, 1);
  kernels->linear_dw(device, &qkv, gradient(model, block->qkv_w), gradient(model, block->qkv_b), model->dqkv,
                     mt_at(device, layer->y1, rows.at * C));
  kernels->linear_dx(device, &qkv, dy, model->dqkv, matrix(model, block->qkv_w), 0);
  kernels->norm_back(device, arch->norm, dx, 1, gradient(model, block->norm1_w), gradient(model, block->norm1_b), dy,
                     mt_at(device, model->x[l], rows.at * C), layer->mean1 + rows.at, layer->rstd1 + rows.at,
                     weight(model, block->norm1_w), n, C);
}

void mt_model_embed_back(struct mt_model *model)
{
  const struct mt_arch *arch = &model->arch;
  model->device->kernels->embed_back(model->device, gradient(model, arch->wte), gradient(model, arch->wpe), model->dx,
                                     model->token, model->position, model->N, arch->C);
}

static int all_finite(struct mt_model *model, const void *data, int64_t n)
{
  struct mt_device *device = model->device;
  double sum;
  if (device->ctype != MT_F32)
    return 1; /* located by the gradients instead */
  device->kernels->sum_squares(device, &sum, data, n);
  return isfinite(sum);
}

const char *mt_model_find_nonfinite(struct mt_model *model, int *layer)
{
  const struct mt_arch *arch = &model->arch;
  const int64_t N = model->N;
  *layer = -1;
  if (!all_finite(model, model->x[0], N * arch->C))
    return "embedding";
  for (int l = 0; l < arch->L; l++) {
    *layer = l;
    struct mt_layer_state *state = &model->layer[l];
    int kept = l == arch->L - 1 || state->x1 != model->layer[l + 1].x1; /* else another layer's by now */
    if (kept && !all_finite(model, state->y1, N * arch->C))
      return "input norm";
    if (kept && !all_finite(model, state->qkv, N * (arch->H + 2 * arch->KV) * arch->D))
      return "q, k, v";
    if (kept && !all_finite(model, state->att, N * arch->H * arch->D))
      return "attention";
    if (kept && !all_finite(model, state->y2, N * arch->C))
      return "post-attention norm";
    if (arch->block[l].moe >= 0) {
      if (!all_finite(model, model->moe->layer[arch->block[l].moe].p, N * arch->E))
        return "router";
      const struct mt_moe_layer *experts = &model->moe->layer[arch->block[l].moe];
      for (int c = 0; c < model->moe->nchunk && model->moe->wire == MT_F32; c++)
        if (!all_finite(model, (float *)experts->back + experts->chunk[c].row * arch->C,
                        experts->chunk[c].routing.nrow * arch->C))
          return "experts";
    }
    if (!all_finite(model, model->x[l + 1], N * arch->C))
      return "output";
  }
  *layer = (int)arch->L;
  return all_finite(model, model->y, N * arch->C) ? NULL : "final norm";
}
