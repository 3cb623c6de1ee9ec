/* The MoE layers; see moe.h. */
#include "experts/moe.h"
#include "base/log.h"
#include "experts/capacity.h"
#include <math.h>
#include <string.h>

void mt_moe_begin_step(struct mt_moe *moe, int64_t number, double tokens, double sequences)
{
  moe->number = number;
  moe->step_tokens = tokens;
  moe->step_sequences = sequences;
  moe->sums.aux = moe->sums.z = 0;
  moe->sums.dropped = 0;
  memset(moe->sums.received, 0, sizeof(int64_t) * (size_t)moe->nmoe);
  memset(moe->sums.per_expert, 0, sizeof(int64_t) * (size_t)moe->nmoe * (size_t)moe->E);
  if (moe->relayout && number)
    mt_relayout_begin(moe->relayout, number);
}

void mt_moe_begin_micro(struct mt_moe *moe, int64_t first, int64_t sequences, int64_t key)
{
  moe->first_token = first * moe->T;
  moe->nsequence = sequences;
  moe->ntoken = sequences * moe->T;
  memset(moe->pool_picks, 0, sizeof(double) * (size_t)moe->E);
  for (int l = 0; l < moe->nmoe; l++) {
    moe->layer[l].aux_sum = moe->layer[l].z_sum = 0;
    memset(moe->layer[l].pool_p, 0, sizeof(double) * (size_t)moe->E);
  }
  if (moe->relayout)
    mt_relayout_shuffle(moe->relayout, key);
}

/* Chunks that a batch chunk's tokens are cut into. */
static int chunks_each(const struct mt_moe *moe)
{
  return moe->nchunk / moe->nbatch;
}

/* A batch chunk: what of the micro-step's sequences and tokens it has. */
struct part {
  int chunk;
  int64_t sequence, nsequence; /* [sequence, sequence + nsequence) */
  int64_t token, ntoken;
};

static struct part part_of(const struct mt_moe *moe, int a)
{
  struct part part = {.chunk = a};
  part.nsequence = mt_part_range(moe->nsequence, moe->nbatch, a, &part.sequence);
  part.token = part.sequence * moe->T;
  part.ntoken = part.nsequence * moe->T;
  return part;
}

/* The chunks of a batch chunk's tokens, and what other ranks must know of them: rows for each and expert; with a capacity,
 * behind them the picks, as the balance loss counts what the router wants. */
static void cut(struct mt_moe *moe, struct mt_moe_layer *layer, struct part part)
{
  const int n = chunks_each(moe);
  const int32_t *first = moe->capacity ? layer->own_first + part.chunk : moe->host_first;
  const int32_t *expert = moe->capacity ? layer->own_kept : layer->host_expert;
  int64_t *counts = moe->my_counts + part.chunk * moe->wide;
  for (int c = 0; c < n; c++) {
    struct mt_moe_chunk *chunk = &layer->chunk[part.chunk * n + c];
    chunk->ntoken = mt_part_range(part.ntoken, n, c, &chunk->token);
    chunk->token += part.token;
    chunk->at = chunk->token + (moe->capacity ? part.chunk : 0);
    chunk->row = first[chunk->token];
    chunk->routing = (struct mt_routing){chunk->ntoken, first[chunk->token + chunk->ntoken] - chunk->row,
                                         first + chunk->token, expert + chunk->row};
    mt_dispatch_count(&chunk->routing, moe->E, counts + c * moe->E);
  }
  if (moe->capacity)
    mt_dispatch_count(&(struct mt_routing){0, part.ntoken * moe->K, NULL, layer->host_expert + part.token * moe->K}, moe->E,
                      counts + n * moe->E);
}

/* The picks within the capacity. */
static void keep(struct mt_moe *moe, struct mt_moe_layer *layer, struct part part)
{
  struct mt_device *device = moe->device;
  const int64_t at = part.token + part.chunk, base = part.token * moe->K;
  int64_t R = mt_capacity_keep(moe->capacity, layer->host_expert + base, part.nsequence, moe->T, moe->K, moe->E, base,
                               layer->own_first + at, layer->own_kept + base, moe->host_pick, moe->host_triple);
  device->ops->copy(device, MT_DEV_MATH, layer->first + at, layer->own_first + at, (part.ntoken + 1) * 4);
  device->ops->copy(device, MT_DEV_MATH, layer->pick + base, moe->host_pick, R * 4);
  device->ops->copy(device, MT_DEV_MATH, layer->triple + base, moe->host_triple, part.ntoken * moe->K * 4);
  device->kernels->gather(device, layer->kept_weight + base, MT_F32, layer->weight + base, MT_F32, layer->pick + base, R, 1);
}

/* Made-up picks in place of the router's, with the weights that the router gives them. */
static void force(struct mt_moe *moe, int l, struct part part)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  const int64_t N = part.ntoken, E = moe->E, K = moe->K, base = part.token * K;
  int32_t *picks = layer->host_expert + base;
  mt_forced_picks(moe->forced, moe->number, l, (int64_t)moe->step_tokens, moe->first_token + part.token, N, picks);
  device->ops->copy(device, MT_DEV_MATH, moe->host_logits, moe->logits, N * E * 4);
  device->ops->sync(device, MT_DEV_MATH);
  for (int64_t t = 0; t < N; t++) {
    const float *logit = moe->host_logits + t * E;
    const int32_t *pick = picks + t * K;
    double largest = -INFINITY, sum = 0;
    for (int64_t k = 0; k < K; k++)
      largest = fmax(largest, logit[pick[k]]);
    for (int64_t k = 0; k < K; k++)
      sum += exp(logit[pick[k]] - largest);
    for (int64_t k = 0; k < K; k++)
      moe->host_weight[t * K + k] = (float)(exp(logit[pick[k]] - largest) / sum);
  }
  device->ops->copy(device, MT_DEV_MATH, layer->expert + base, picks, N * K * 4);
  device->ops->copy(device, MT_DEV_MATH, layer->weight + base, moe->host_weight, N * K * 4);
}

/* The balance loss: per sequence E sum_e f_e P_e with f_e = picks / T, P_e = sum of p / T, so that its gradient with
 * respect to p is E f_e / T; a mean over the step's sequences and over layers. Sums are kept by layer: which layer's gate
 * comes first must not show. */
static void balance(struct mt_moe *moe, struct mt_moe_layer *layer, struct part part)
{
  const int64_t E = moe->E, picks_each = moe->T * moe->K;
  const double T = (double)moe->T;
  for (int64_t b = 0; b < part.nsequence; b++) {
    float *aux = layer->aux + (part.sequence + b) * E;
    const int32_t *pick = layer->host_expert + (part.sequence + b) * picks_each;
    double sum = 0;
    memset(aux, 0, sizeof(float) * (size_t)E);
    for (int64_t i = 0; i < picks_each; i++)
      aux[pick[i]]++;
    for (int64_t e = 0; e < E; e++) {
      double picks = aux[e], p = moe->host_psum[b * E + e];
      sum += picks / T * (p / T);
      layer->pool_p[e] += p;
      aux[e] = (float)(moe->aux_coef * (double)E * picks / (T * T * moe->step_sequences * moe->nmoe));
    }
    layer->aux_sum += (double)E * sum / (moe->step_sequences * moe->nmoe);
    layer->z_sum += moe->host_psum[part.nsequence * E + b] / (moe->step_tokens * moe->nmoe);
  }
}

void mt_moe_gate(struct mt_moe *moe, int l, int a, const void *x, const float *wg)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  const struct part part = part_of(moe, a);
  const int64_t N = part.ntoken, B = part.nsequence, E = moe->E, K = moe->K, base = part.token * K;
  float *p = layer->p + part.token * E, *lse = layer->lse + part.token;
  int32_t *expert = layer->expert + base;
  device->kernels->gate_logits(device, moe->logits, mt_at(device, x, part.token * moe->C), wg, N, moe->C, E);
  device->kernels->gate_topk(device, p, lse, expert, layer->weight + base, moe->logits, N, E, K,
                             moe->balanced ? (int)part.token + 1 : 0);
  if (moe->forced)
    force(moe, l, part);
  device->kernels->gate_sums(device, moe->psum, moe->psum + B * E, p, lse, B, moe->T, E);
  device->ops->copy(device, MT_DEV_MATH, layer->host_expert + base, expert, N * K * 4);
  device->ops->copy(device, MT_DEV_MATH, moe->host_psum, moe->psum, B * (E + 1) * 8);
  device->ops->sync(device, MT_DEV_MATH);
  if (moe->capacity)
    keep(moe, layer, part);
  cut(moe, layer, part);
  balance(moe, layer, part);
}

void mt_moe_counts(struct mt_moe *moe, int l, int a)
{
  (void)l;
  mt_allgather(moe->comm, moe->my_counts + a * moe->wide, moe->host_counts + a * moe->wide * moe->comm->size,
               moe->wide * (int64_t)sizeof(int64_t));
}

/* f and P pooled over all ranks' tokens of the micro-step and over layers; micro-steps count by their tokens. */
static void pool(struct mt_moe *moe)
{
  double rows = 0, sum = 0;
  for (int e = 0; e < moe->E; e++)
    rows += moe->pool_picks[e];
  double tokens = rows / moe->K; /* of all layers */
  if (tokens == 0)
    return;
  for (int e = 0; e < moe->E; e++) {
    double p = 0;
    for (int l = 0; l < moe->nmoe; l++)
      p += moe->layer[l].pool_p[e];
    sum += moe->pool_picks[e] / tokens * p;
  }
  moe->sums.aux += moe->E * sum / (moe->step_tokens * moe->nmoe);
  for (int l = 0; l < moe->nmoe; l++)
    for (int e = 0; e < moe->E; e++)
      moe->layer[l].aux[e] = (float)(moe->aux_coef * moe->E * moe->pool_picks[e] / tokens / (moe->step_tokens * moe->nmoe));
}

/* After the last layer's counts: what needs all layers. */
static void end_forward(struct mt_moe *moe)
{
  for (int l = 0; l < moe->nmoe; l++) {
    moe->sums.aux += moe->scope == MT_AUX_SEQUENCE ? moe->layer[l].aux_sum : 0;
    moe->sums.z += moe->layer[l].z_sum;
  }
  if (moe->scope == MT_AUX_MICRO_BATCH)
    pool(moe);
}

/* Adds up what all ranks have told of a layer's batch chunk. */
static void account(struct mt_moe *moe, int l, int a)
{
  struct mt_moe_layer *layer = &moe->layer[l];
  const int64_t P = moe->comm->size, E = moe->E;
  const int n = chunks_each(moe);
  if (!a)
    memset(layer->counts, 0, sizeof(int64_t) * (size_t)(P * E));
  for (int64_t r = 0; r < P; r++) {
    const int64_t *told = moe->host_counts + (a * P + r) * moe->wide;
    for (int64_t e = 0; e < E; e++) {
      int64_t rows = 0;
      for (int c = 0; c < n; c++)
        rows += told[c * E + e];
      int64_t picks = moe->capacity ? told[n * E + e] : rows;
      layer->counts[r * E + e] += rows;
      moe->pool_picks[e] += (double)picks;
      moe->sums.per_expert[l * E + e] += rows;
      moe->sums.dropped += picks - rows;
    }
  }
  if (a < moe->nbatch - 1)
    return;
  if (moe->relayout && moe->number)
    mt_relayout_count(moe->relayout, l, layer->counts);
  if (l == moe->nmoe - 1) /* whose last gate implies all others */
    end_forward(moe);
}

/* The rows of a chunk in send, dsend or back. */
static void *rows_of(const struct mt_moe *moe, const struct mt_moe_chunk *chunk, void *rows)
{
  return (char *)rows + chunk->row * mt_moe_row_bytes(moe);
}

/* The tokens of a chunk in an array [N,C] of the device. */
static void *tokens_of(const struct mt_moe *moe, const struct mt_moe_chunk *chunk, const void *tokens)
{
  return (char *)(uintptr_t)tokens + chunk->token * moe->C * mt_dtype_size(moe->device->ctype);
}

void mt_moe_pack(struct mt_moe *moe, int l, int c, const void *x)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  struct mt_moe_chunk *chunk = &layer->chunk[c];
  struct mt_dispatch *dispatch = &chunk->dispatch;
  const int n = chunks_each(moe), a = c / n;
  if (c % n == 0)
    account(moe, l, a);
  for (int64_t r = 0, P = moe->comm->size; r < P; r++)
    memcpy(moe->chunk_counts + r * moe->E, moe->host_counts + (a * P + r) * moe->wide + c % n * moe->E,
           sizeof(int64_t) * (size_t)moe->E);
  mt_shares_deal(moe->shares, moe->kind, moe->comm->cluster, &moe->work, layer->layout, moe->chunk_counts);
  mt_dispatch_plan(&moe->dispatcher, dispatch, layer->layout, moe->shares, &chunk->routing);
  moe->sums.received[l] += dispatch->received;
  mt_moe_reserve(moe, l, c);
  device->ops->copy(device, MT_DEV_MATH, layer->place + chunk->row, dispatch->place, dispatch->sent * 4);
  device->ops->copy(device, MT_DEV_MATH, chunk->gather.data, dispatch->gather, dispatch->received * 4);
  device->ops->copy(device, MT_DEV_MATH, chunk->scatter.data, dispatch->scatter, dispatch->received * 4);
  device->ops->copy(device, MT_DEV_MATH, moe->send_token, dispatch->send_token, dispatch->sent * 4);
  device->kernels->gather(device, rows_of(moe, chunk, moe->send), moe->wire, tokens_of(moe, chunk, x), device->ctype,
                          moe->send_token, dispatch->sent, moe->C);
  device->ops->sync(device, MT_DEV_MATH);
}

/* This rank's pieces of layer l in one of the shard's arrays. */
static float *pieces_of(const struct mt_moe *moe, float *array, int l)
{
  return array + mt_shard_at(&moe->shard, (int64_t)l * moe->E);
}

/* The same, from the first slot's expert on. */
static float *slots_in_place(const struct mt_moe *moe, float *array, int l)
{
  int e = moe->fixed->slot_expert[moe->fixed->slot_first[moe->comm->rank]];
  return array + mt_shard_at(&moe->shard, (int64_t)l * moe->E + e);
}

/* The pool keeps two layers' weights; a layer that it still holds (the last one when backward begins) is not fetched. */
static const void *slot_weights(const struct mt_moe *moe, int l)
{
  return moe->in_place ? slots_in_place(moe, moe->shard.master, l) : moe->matrix[l % 2];
}

static float *slot_gradients(const struct mt_moe *moe, int l)
{
  return moe->in_place ? slots_in_place(moe, moe->shard.grad, l) : moe->slot_grad[l % moe->ngrad];
}

/* Where weights come to and gradients leave from: memory of the wire. */
static float *slots_as_they_come(const struct mt_moe *moe, int l)
{
  return moe->in_place ? slots_in_place(moe, moe->shard.master, l) : moe->slot[l % 2];
}

static float *gradients_as_they_leave(const struct mt_moe *moe, int l)
{
  return moe->wire_grad ? moe->wire_grad : slot_gradients(moe, l);
}

void mt_moe_unshard_inter(struct mt_moe *moe, int l)
{
  const struct mt_layout *layout = moe->layer[l].layout;
  int64_t *holds = moe->in_slot[l % 2];
  moe->fetching = holds[0] != l || holds[1] != layout->revision || holds[2] != moe->version;
  if (!moe->fetching)
    return;
  holds[0] = l;
  holds[1] = layout->revision;
  holds[2] = moe->version;
  mt_tree_plan(moe->tree, moe->relayout ? l : 0, layout);
  float *slot = slots_as_they_come(moe, l);
  moe->device->ops->sync(moe->device, MT_DEV_MATH); /* what came before is no longer read */
  mt_tree_unshard_inter(moe->tree, pieces_of(moe, moe->shard.master, l), slot, moe->stride);
}

void mt_moe_unshard_intra(struct mt_moe *moe, int l)
{
  struct mt_device *device = moe->device;
  float *slot = slots_as_they_come(moe, l);
  void *matrix = moe->matrix[l % 2];
  const int64_t n = moe->nslot * moe->stride;
  if (!moe->fetching)
    return;
  mt_tree_unshard_intra(moe->tree, slot, moe->stride);
  if (moe->rounded) {
    device->kernels->convert(device, moe->rounded, MT_BF16, slot, MT_F32, n);
    device->kernels->convert(device, matrix, MT_F32, moe->rounded, MT_BF16, n);
  } else if (!moe->in_place && matrix != slot)
    device->kernels->convert(device, matrix, device->ctype, slot, MT_F32, n);
}

/* A tensor of the first slot's expert; NULL if there is none. */
static const void *tensor(const struct mt_moe *moe, int l, int64_t offset)
{
  return offset < 0 ? NULL : mt_at(moe->device, slot_weights(moe, l), offset);
}

static void exchange(struct mt_moe *moe, const struct mt_moe_chunk *chunk, enum mt_direction direction, const void *send,
                     void *receive)
{
  mt_exchange_begin(moe->exchange, chunk->plan, direction, send, receive);
  mt_exchange_end(moe->exchange);
}

void mt_moe_dispatch(struct mt_moe *moe, int l, int c)
{
  struct mt_moe_chunk *chunk = &moe->layer[l].chunk[c];
  mt_exchange_reserve(moe->exchange, chunk->plan); /* for all four ways */
  exchange(moe, chunk, MT_FORWARD, rows_of(moe, chunk, moe->send), moe->arrive[c].data);
}

void mt_moe_combine_back(struct mt_moe *moe, int l, int c)
{
  struct mt_moe_chunk *chunk = &moe->layer[l].chunk[c];
  exchange(moe, chunk, MT_FORWARD, rows_of(moe, chunk, moe->send), moe->arrive[c].data);
}

void mt_moe_combine(struct mt_moe *moe, int l, int c)
{
  struct mt_moe_chunk *chunk = &moe->layer[l].chunk[c];
  exchange(moe, chunk, MT_BACK, moe->arrive[c].data, rows_of(moe, chunk, moe->layer[l].back));
}

void mt_moe_dispatch_back(struct mt_moe *moe, int l, int c)
{
  struct mt_moe_chunk *chunk = &moe->layer[l].chunk[c];
  exchange(moe, chunk, MT_BACK, moe->arrive[c].data, rows_of(moe, chunk, moe->dsend));
}

/* Rows that arrived, by slot. */
static void by_slot(struct mt_moe *moe, const struct mt_moe_chunk *chunk, int c, void *to)
{
  struct mt_device *device = moe->device;
  device->kernels->gather(device, to, device->ctype, moe->arrive[c].data, moe->wire, chunk->gather.data,
                          chunk->dispatch.received, moe->C);
}

/* And back, into the order in which they leave. */
static void by_arrival(struct mt_moe *moe, const struct mt_moe_chunk *chunk, int c)
{
  struct mt_device *device = moe->device;
  device->kernels->gather(device, moe->arrive[c].data, moe->wire, moe->rows.data, device->ctype, chunk->scatter.data,
                          chunk->dispatch.received, moe->C);
  device->ops->sync(device, MT_DEV_MATH);
}

static struct mt_linear linear_of(const struct mt_moe *moe, const struct mt_moe_chunk *chunk, int64_t in, int64_t out)
{
  return (struct mt_linear){moe->nslot, chunk->dispatch.slot_row, in, out, moe->stride, moe->stride};
}

static void activate(struct mt_moe *moe, const struct mt_moe_chunk *chunk, void *h)
{
  struct mt_device *device = moe->device;
  int64_t Q = chunk->dispatch.received;
  if (moe->gated)
    device->kernels->swiglu(device, h, chunk->pre->data, Q, moe->F);
  else
    device->kernels->gelu(device, h, chunk->pre->data, Q * moe->F);
}

/* The experts' pre-activations; in backward again with recompute. */
static void experts_in(struct mt_moe *moe, int l, struct mt_moe_chunk *chunk)
{
  struct mt_device *device = moe->device;
  struct mt_linear in = linear_of(moe, chunk, moe->C, moe->F * (moe->gated ? 2 : 1));
  device->kernels->linear(device, &in, chunk->pre->data, chunk->x.data, tensor(moe, l, moe->w_in), tensor(moe, l, moe->b_in), 0);
}

void mt_moe_experts(struct mt_moe *moe, int l, int c, enum mt_stage stage)
{
  struct mt_device *device = moe->device;
  struct mt_moe_chunk *chunk = &moe->layer[l].chunk[c];
  struct mt_linear out = linear_of(moe, chunk, moe->F, moe->C);
  void *h = moe->h[moe->tiled ? c : 0].data;
  if (stage != MT_STAGE_SECOND) {
    by_slot(moe, chunk, c, chunk->x.data);
    experts_in(moe, l, chunk);
    activate(moe, chunk, h);
  }
  if (stage == MT_STAGE_FIRST)
    return;
  device->kernels->linear(device, &out, moe->rows.data, h, tensor(moe, l, moe->w_out), tensor(moe, l, moe->b_out), 0);
  by_arrival(moe, chunk, c);
}

void mt_moe_merge(struct mt_moe *moe, int l, int c, void *out)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  const struct mt_moe_chunk *chunk = &layer->chunk[c];
  device->kernels->combine(device, tokens_of(moe, chunk, out), 1, rows_of(moe, chunk, layer->back), moe->wire,
                           layer->first + chunk->at, layer->place, layer->kept_weight, chunk->ntoken, moe->C);
}

void mt_moe_pack_back(struct mt_moe *moe, int l, int c, const void *dout)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  const struct mt_moe_chunk *chunk = &layer->chunk[c];
  float *dweight = moe->capacity ? moe->dkept + c / chunks_each(moe) : moe->dweight;
  device->kernels->combine_back(device, rows_of(moe, chunk, moe->send), dweight, tokens_of(moe, chunk, dout),
                                rows_of(moe, chunk, layer->back), moe->wire, layer->first + chunk->at, layer->place, layer->kept_weight, chunk->ntoken, moe->C);
  device->ops->sync(device, MT_DEV_MATH);
}

void mt_moe_experts_back(struct mt_moe *moe, int l, int c, enum mt_stage stage)
{
  struct mt_device *device = moe->device;
  const struct mt_kernels *kernels = device->kernels;
  struct mt_moe_chunk *chunk = &moe->layer[l].chunk[c];
  float *dw = slot_gradients(moe, l);
  int64_t Q = chunk->dispatch.received;
  struct mt_linear in = linear_of(moe, chunk, moe->C, moe->F * (moe->gated ? 2 : 1));
  struct mt_linear out = linear_of(moe, chunk, moe->F, moe->C);
  void *h = moe->h[moe->tiled ? c : 0].data, *dpre = moe->dpre[moe->tiled ? c : 0].data;
  if (stage != MT_STAGE_SECOND) {
    by_slot(moe, chunk, c, moe->rows.data);
    if (!moe->in_place && !c)
      device->ops->zero(device, MT_DEV_MATH, dw, moe->nslot * moe->stride * 4);
    if (moe->recompute)
      experts_in(moe, l, chunk);
    activate(moe, chunk, h);
    kernels->linear_dw(device, &out, dw + moe->w_out, moe->b_out < 0 ? NULL : dw + moe->b_out, moe->rows.data, h);
    kernels->linear_dx(device, &out, h, moe->rows.data, tensor(moe, l, moe->w_out), 0); /* h becomes its gradient */
    if (moe->gated)
      kernels->swiglu_back(device, dpre, h, chunk->pre->data, Q, moe->F);
    else
      kernels->gelu_back(device, dpre, h, chunk->pre->data, Q * moe->F);
  }
  if (stage == MT_STAGE_FIRST)
    return;
  kernels->linear_dw(device, &in, dw + moe->w_in, moe->b_in < 0 ? NULL : dw + moe->b_in, dpre, chunk->x.data);
  kernels->linear_dx(device, &in, moe->rows.data, dpre, tensor(moe, l, moe->w_in), 0);
  by_arrival(moe, chunk, c);
}

void mt_moe_merge_back(struct mt_moe *moe, int l, int c, void *dx)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  const struct mt_moe_chunk *chunk = &layer->chunk[c];
  device->kernels->combine(device, tokens_of(moe, chunk, dx), 0, rows_of(moe, chunk, moe->dsend), moe->wire,
                           layer->first + chunk->at, layer->place, NULL, chunk->ntoken, moe->C);
}

void mt_moe_reshard_intra(struct mt_moe *moe, int l)
{
  struct mt_device *device = moe->device;
  float *slot = gradients_as_they_leave(moe, l);
  if (slot != slot_gradients(moe, l))
    device->ops->copy(device, MT_DEV_MATH, slot, slot_gradients(moe, l), moe->nslot * moe->stride * 4);
  device->ops->sync(device, MT_DEV_MATH);
  mt_tree_plan(moe->tree, moe->relayout ? l : 0, moe->layer[l].layout);
  mt_tree_reshard_intra(moe->tree, slot, moe->stride);
}

void mt_moe_reshard_inter(struct mt_moe *moe, int l)
{
  mt_tree_reshard_inter(moe->tree, pieces_of(moe, moe->shard.grad, l), gradients_as_they_leave(moe, l), moe->stride);
}

void mt_moe_gate_back(struct mt_moe *moe, int l, int a, void *dx, const void *x, const float *wg, float *dwg)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  const struct part part = part_of(moe, a);
  const int64_t N = part.ntoken, E = moe->E, base = part.token * moe->K, row = part.token * moe->C;
  const int64_t one = moe->scope == MT_AUX_MICRO_BATCH, T = one ? (N ? N : 1) : moe->T, nrow = one ? 1 : part.nsequence;
  float z = (float)(moe->z_coef / (moe->step_tokens * moe->nmoe));
  if (moe->capacity) { /* a dropped pick's triple is the number behind the last, and its gradient the zero there */
    float *dkept = moe->dkept + base + a;
    device->ops->zero(device, MT_DEV_MATH, dkept + layer->own_first[part.token + N + a] - base, 4);
    device->kernels->gather(device, moe->dweight + base, MT_F32, dkept, MT_F32, layer->triple + base, N * moe->K, 1);
  }
  device->ops->copy(device, MT_DEV_MATH, moe->device_aux, layer->aux + (one ? 0 : part.sequence * E), nrow * E * 4);
  device->kernels->gate_topk_back(device, moe->logits, moe->dweight + base, layer->p + part.token * E, layer->lse + part.token,
                                  layer->expert + base, layer->weight + base, moe->device_aux, z, N, T, E, moe->K);
  device->kernels->gate_logits_back(device, mt_at(device, dx, row), dwg, moe->logits, mt_at(device, x, row), wg, N, moe->C, E);
}
