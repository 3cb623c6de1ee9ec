/* The MoE layers; see moe.h. */
#include "experts/moe.h"
#include "base/log.h"
#include "experts/capacity.h"
#include <string.h>

static void *device_new(struct mt_moe *moe, enum mt_tag tag, enum mt_space space, int64_t bytes)
{
  return moe->device->ops->alloc(moe->device, tag, space, bytes);
}

static void device_free(struct mt_moe *moe, enum mt_space space, void *memory)
{
  if (memory)
    moe->device->ops->free(moe->device, space, memory);
}

/* Makes a row buffer hold `bytes`; the contents are lost. Growing by half keeps growths rare. */
static void rows_reserve(struct mt_moe *moe, struct mt_rows *rows, enum mt_space space, int64_t bytes)
{
  if (rows->data && bytes <= rows->bytes)
    return;
  if (rows->data)
    mt_memory_count_growth();
  int64_t more = rows->bytes + rows->bytes / 2;
  device_free(moe, space, rows->data);
  rows->bytes = bytes > more ? bytes : more;
  rows->data = device_new(moe, MT_TAG_ROW, space, rows->bytes);
}

static int64_t row_bytes(const struct mt_moe *moe)
{
  return moe->C * mt_dtype_size(moe->wire);
}

static void layer_new(struct mt_moe *moe, struct mt_moe_layer *layer, const int *slots, int changing)
{
  int64_t N = moe->N, E = moe->E, K = moe->K, R = N * K;
  layer->layout = moe->fixed;
  if (changing)
    layer->layout = layer->own_layout = mt_layout_new(moe->comm->cluster, moe->E, slots);
  layer->p = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, N * E * 4);
  layer->lse = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, N * 4);
  layer->weight = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, R * 4);
  layer->expert = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, R * 4);
  layer->host_expert = MT_NEW(MT_TAG_ACTIVATION, int32_t, R);
  layer->first = moe->first;
  layer->kept_weight = layer->weight;
  if (moe->capacity) {
    layer->own_first = MT_NEW(MT_TAG_ACTIVATION, int32_t, N + 1);
    layer->own_kept = MT_NEW(MT_TAG_ACTIVATION, int32_t, R);
    layer->first = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, (N + 1) * 4);
    layer->kept_weight = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, R * 4);
    layer->pick = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, R * 4);
    layer->triple = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, R * 4);
  }
  layer->aux = MT_NEW(MT_TAG_ACTIVATION, float, (N / moe->T + 1) * E);
  layer->counts = MT_ZNEW(MT_TAG_PLAN, int64_t, moe->comm->size * E);
  layer->pre = moe->recompute ? &moe->pre : &layer->own_pre;
  layer->dispatch = mt_dispatch_new(moe->comm, moe->nslot);
  layer->place = device_new(moe, MT_TAG_ROW, MT_DEVICE, R * 4);
  layer->back = device_new(moe, MT_TAG_ROW, MT_WIRE, R * row_bytes(moe));
}

static void layer_free(struct mt_moe *moe, struct mt_moe_layer *layer)
{
  mt_layout_free(layer->own_layout);
  device_free(moe, MT_DEVICE, layer->p);
  device_free(moe, MT_DEVICE, layer->lse);
  device_free(moe, MT_DEVICE, layer->weight);
  device_free(moe, MT_DEVICE, layer->expert);
  mt_free(layer->host_expert);
  if (moe->capacity) {
    mt_free(layer->own_first);
    mt_free(layer->own_kept);
    device_free(moe, MT_DEVICE, layer->first);
    device_free(moe, MT_DEVICE, layer->kept_weight);
    device_free(moe, MT_DEVICE, layer->pick);
    device_free(moe, MT_DEVICE, layer->triple);
  }
  mt_free(layer->aux);
  mt_free(layer->counts);
  mt_dispatch_free(&layer->dispatch);
  device_free(moe, MT_DEVICE, layer->place);
  device_free(moe, MT_WIRE, layer->back);
  device_free(moe, MT_DEVICE, layer->gather.data);
  device_free(moe, MT_DEVICE, layer->scatter.data);
  device_free(moe, MT_DEVICE, layer->x.data);
  device_free(moe, MT_DEVICE, layer->own_pre.data);
}

/* 1 if this rank's slots of a layer are, one behind the other, experts that are whole on it, and no other slot of the layout
 * holds one of them: then nothing needs to be rebuilt or summed (one rank; owner sharding under its own layout). */
static int shards_are_slots(const struct mt_moe *moe)
{
  const struct mt_layout *layout = moe->fixed;
  int first = layout->slot_first[moe->comm->rank];
  for (int j = 0; j < moe->nslot; j++) {
    int e = layout->slot_expert[first + j];
    int64_t from;
    if (mt_shard_piece(&moe->shard, e, &from) != moe->shard.length)
      return 0;
    if (mt_shard_at(&moe->shard, e) != mt_shard_at(&moe->shard, layout->slot_expert[first]) + j * moe->stride)
      return 0;
    if (layout->expert_first[(e + 1) * layout->nnode] - layout->expert_first[e * layout->nnode] != 1)
      return 0;
  }
  return moe->nslot > 0;
}

/* Where an expert's tensors lie: rows of MoE layer 0 in the order in which the family added them. */
static void find_tensors(struct mt_moe *moe, const struct mt_params *params)
{
  moe->b_in = moe->b_out = -1;
  for (int i = 0; i < params->n; i++) {
    const struct mt_param *row = &params->param[i];
    if (row->scope != MT_SCOPE_EXPERT || row->moe != 0)
      continue;
    const char *tensor = strstr(row->name, ".experts.") + strlen(".experts.");
    if (!strcmp(tensor, "w1.weight") || !strcmp(tensor, "gate_proj.weight") || !strcmp(tensor, "c_fc.weight"))
      moe->w_in = row->offset;
    else if (!strcmp(tensor, "w2.weight") || !strcmp(tensor, "down_proj.weight") || !strcmp(tensor, "c_proj.weight"))
      moe->w_out = row->offset;
    else if (!strcmp(tensor, "c_fc.bias"))
      moe->b_in = row->offset;
    else if (!strcmp(tensor, "c_proj.bias"))
      moe->b_out = row->offset;
  }
}

enum mt_status mt_moe_new(struct mt_comm *comm, struct mt_device *device, const struct mt_config *config,
                          const struct mt_params *params, int64_t N, int64_t T, int training, struct mt_moe **result)
{
  int E = (int)config->model.num_local_experts, K = (int)config->model.num_experts_per_tok;
  int slots[comm->size];
  enum mt_status status = MT_OK;
  if (comm->rank == 0) /* a pure function: one rank decides and says */
    status = mt_layout_slots(config->parallel.slots, E, comm->size, slots);
  MT_TRY(mt_agree(comm, status));
  mt_bcast(comm, slots, sizeof slots, 0);
  MT_CHECK(N * K < INT32_MAX, "a micro-step of %lld rows on one rank", (long long)(N * K));

  struct mt_moe *moe = MT_ZNEW(MT_TAG_PLAN, struct mt_moe, 1);
  *moe = (struct mt_moe){.comm = comm, .device = device, .nmoe = params->nmoe, .E = E, .K = K,
                         .C = config->model.hidden_size, .F = config->model.intermediate_size, .N = N, .T = T,
                         .gated = config->model.family != MT_FAMILY_GPT2, .nslot = slots[comm->rank],
                         .balanced = config->moe.force_balance, .recompute = config->train.recompute || !training, .scope = config->moe.aux_scope,
                         .aux_coef = config->model.router_aux_loss_coef, .z_coef = config->moe.z_loss, .version = 1};
  if (config->moe.capacity_factor > 0) /* of the sequences trained on, also where a shorter one is computed */
    moe->capacity = mt_capacity(config->moe.capacity_factor, config->data.seq_length, K, E);
  find_tensors(moe, params);
  moe->stride = params->expert_length;
  moe->fixed = mt_layout_new(comm->cluster, E, slots);
  moe->shard = mt_shard_new(comm, (int64_t)moe->nmoe * E, params->expert_length,
                            mt_cut_experts(comm, config->parallel.sharding, params->expert_length, moe->fixed), training);
  moe->tree = mt_tree_new(comm, device, &moe->shard.cut, config->parallel.layout == MT_LAYOUT_STATIC ? 1 : moe->nmoe);
  moe->in_place = config->parallel.layout == MT_LAYOUT_STATIC && shards_are_slots(moe);
  moe->wire = config->parallel.wire == MT_WIRE_BF16 ? MT_BF16 : MT_F32;
  moe->exchange = mt_exchange_new(comm, config->parallel.exchange);
  for (int i = 0; i < 2 && !moe->in_place; i++)
    moe->slot[i] = device_new(moe, MT_TAG_SLOT, MT_WIRE, moe->nslot * moe->stride * 4);
  moe->in_slot[0][0] = moe->in_slot[1][0] = -1;
  if (training && !moe->in_place)
    moe->slot_grad = device_new(moe, MT_TAG_SLOT, MT_WIRE, moe->nslot * moe->stride * 4);
  int64_t B = N / T + 1, R = N * K;
  moe->host_first = MT_NEW(MT_TAG_PLAN, int32_t, N + 1);
  for (int64_t t = 0; t <= N; t++)
    moe->host_first[t] = (int32_t)(t * K);
  moe->first = device_new(moe, MT_TAG_PLAN, MT_DEVICE, (N + 1) * 4);
  device->ops->copy(device, MT_DEV_MATH, moe->first, moe->host_first, (N + 1) * 4);
  if (moe->capacity) {
    moe->host_pick = MT_NEW(MT_TAG_ACTIVATION, int32_t, R);
    moe->host_triple = MT_NEW(MT_TAG_ACTIVATION, int32_t, R);
    moe->host_counts = MT_NEW(MT_TAG_PLAN, int64_t, (int64_t)comm->size * 2 * E);
    moe->dkept = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, (R + 1) * 4);
  }
  moe->layer = MT_ZNEW(MT_TAG_PLAN, struct mt_moe_layer, moe->nmoe);
  for (int l = 0; l < moe->nmoe; l++)
    layer_new(moe, &moe->layer[l], slots, config->parallel.layout == MT_LAYOUT_RANDOM);

  moe->pool_p = MT_ZNEW(MT_TAG_PLAN, double, E);
  moe->pool_picks = MT_ZNEW(MT_TAG_PLAN, double, E);
  moe->sums.received = MT_ZNEW(MT_TAG_PLAN, int64_t, moe->nmoe);
  moe->sums.per_expert = MT_ZNEW(MT_TAG_PLAN, int64_t, moe->nmoe * E);
  moe->logits = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, N * E * 4);
  moe->dweight = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, R * 4);
  moe->device_aux = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, B * E * 4);
  moe->psum = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, B * (E + 1) * 8);
  moe->host_psum = MT_ZNEW(MT_TAG_ACTIVATION, double, B * (E + 1));
  moe->send_token = device_new(moe, MT_TAG_ROW, MT_DEVICE, R * 4);
  moe->send = device_new(moe, MT_TAG_ROW, MT_WIRE, R * row_bytes(moe));
  moe->dsend = device_new(moe, MT_TAG_ROW, MT_WIRE, R * row_bytes(moe));
  *result = moe;
  return MT_OK;
}

void mt_moe_free(struct mt_moe *moe)
{
  if (!moe)
    return;
  for (int l = 0; l < moe->nmoe; l++)
    layer_free(moe, &moe->layer[l]);
  mt_free(moe->layer);
  mt_shard_free(&moe->shard);
  mt_layout_free(moe->fixed);
  mt_tree_free(moe->tree);
  mt_exchange_free(moe->exchange);
  device_free(moe, MT_WIRE, moe->slot[0]);
  device_free(moe, MT_WIRE, moe->slot[1]);
  device_free(moe, MT_WIRE, moe->slot_grad);
  mt_free(moe->pool_p);
  mt_free(moe->pool_picks);
  mt_free(moe->sums.received);
  mt_free(moe->sums.per_expert);
  device_free(moe, MT_DEVICE, moe->logits);
  device_free(moe, MT_DEVICE, moe->dweight);
  device_free(moe, MT_DEVICE, moe->device_aux);
  device_free(moe, MT_DEVICE, moe->psum);
  mt_free(moe->host_psum);
  mt_free(moe->host_first);
  device_free(moe, MT_DEVICE, moe->first);
  mt_free(moe->host_pick);
  mt_free(moe->host_triple);
  mt_free(moe->host_counts);
  device_free(moe, MT_DEVICE, moe->dkept);
  device_free(moe, MT_DEVICE, moe->send_token);
  device_free(moe, MT_WIRE, moe->send);
  device_free(moe, MT_WIRE, moe->dsend);
  device_free(moe, MT_DEVICE, moe->pre.data);
  device_free(moe, MT_WIRE, moe->arrive.data);
  device_free(moe, MT_DEVICE, moe->rows.data);
  device_free(moe, MT_DEVICE, moe->h.data);
  device_free(moe, MT_DEVICE, moe->dpre.data);
  mt_free(moe);
}

void mt_moe_begin_step(struct mt_moe *moe, double tokens, double sequences)
{
  moe->step_tokens = tokens;
  moe->step_sequences = sequences;
  moe->sums.aux = moe->sums.z = 0;
  moe->sums.dropped = 0;
  memset(moe->sums.received, 0, sizeof(int64_t) * (size_t)moe->nmoe);
  memset(moe->sums.per_expert, 0, sizeof(int64_t) * (size_t)moe->nmoe * (size_t)moe->E);
}

void mt_moe_begin_micro(struct mt_moe *moe, int64_t sequences, int64_t key)
{
  moe->nsequence = sequences;
  moe->ntoken = sequences * moe->T;
  memset(moe->pool_p, 0, sizeof(double) * (size_t)moe->E);
  memset(moe->pool_picks, 0, sizeof(double) * (size_t)moe->E);
  for (int l = 0; l < moe->nmoe; l++)
    if (moe->layer[l].own_layout)
      mt_layout_random(moe->layer[l].own_layout, moe->comm->cluster, 1, (uint64_t)(key * moe->nmoe + l));
}

/* The routing: all picks, or those within the capacity. */
static void route(struct mt_moe *moe, struct mt_moe_layer *layer)
{
  struct mt_device *device = moe->device;
  const int64_t N = moe->ntoken, NK = N * moe->K;
  layer->routing = (struct mt_routing){N, NK, moe->host_first, layer->host_expert};
  if (!moe->capacity)
    return;
  int64_t R = mt_capacity_keep(moe->capacity, layer->host_expert, moe->nsequence, moe->T, moe->K, moe->E, layer->own_first,
                               layer->own_kept, moe->host_pick, moe->host_triple);
  layer->routing = (struct mt_routing){N, R, layer->own_first, layer->own_kept};
  device->ops->copy(device, MT_DEV_MATH, layer->first, layer->own_first, (N + 1) * 4);
  device->ops->copy(device, MT_DEV_MATH, layer->pick, moe->host_pick, R * 4);
  device->ops->copy(device, MT_DEV_MATH, layer->triple, moe->host_triple, NK * 4);
  device->kernels->gather(device, layer->kept_weight, MT_F32, layer->weight, MT_F32, layer->pick, R, 1);
}

void mt_moe_gate(struct mt_moe *moe, int l, const void *x, const float *wg)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  const int64_t N = moe->ntoken, B = moe->nsequence, T = moe->T, E = moe->E, K = moe->K;
  device->kernels->gate_logits(device, moe->logits, x, wg, N, moe->C, E);
  device->kernels->gate_topk(device, layer->p, layer->lse, layer->expert, layer->weight, moe->logits, N, E, K, moe->balanced);
  device->kernels->gate_sums(device, moe->psum, moe->psum + B * E, layer->p, layer->lse, B, T, E);
  device->ops->copy(device, MT_DEV_MATH, layer->host_expert, layer->expert, N * K * 4);
  device->ops->copy(device, MT_DEV_MATH, moe->host_psum, moe->psum, B * (E + 1) * 8);
  device->ops->sync(device, MT_DEV_MATH);
  route(moe, layer);

  /* The balance loss: per sequence E sum_e f_e P_e with f_e = picks / T, P_e = sum of p / T, so that its gradient with
   * respect to p is E f_e / T; a mean over the step's sequences and over layers. */
  for (int64_t b = 0; b < B; b++) {
    float *aux = layer->aux + b * E;
    double sum = 0;
    memset(aux, 0, sizeof(float) * (size_t)E);
    for (int64_t i = b * T * K; i < (b + 1) * T * K; i++)
      aux[layer->host_expert[i]]++;
    for (int64_t e = 0; e < E; e++) {
      double picks = aux[e], p = moe->host_psum[b * E + e];
      sum += picks / (double)T * (p / (double)T);
      moe->pool_p[e] += p;
      aux[e] = (float)(moe->aux_coef * (double)E * picks / ((double)T * (double)T * moe->step_sequences * moe->nmoe));
    }
    if (moe->scope == MT_AUX_SEQUENCE)
      moe->sums.aux += (double)E * sum / (moe->step_sequences * moe->nmoe);
    moe->sums.z += moe->host_psum[B * E + b] / (moe->step_tokens * moe->nmoe);
  }
}

void mt_moe_counts(struct mt_moe *moe, int l)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  struct mt_dispatch *dispatch = &layer->dispatch;
  const int64_t E = moe->E, C = moe->C, F = moe->F;
  /* With a capacity a rank tells its rows and, behind them, its picks: the balance loss counts what the router wants. */
  const int64_t wide = moe->capacity ? 2 * E : E;
  int64_t mine[2 * E + 1], *all = moe->capacity ? moe->host_counts : layer->counts;
  mt_dispatch_count(&layer->routing, moe->E, mine);
  if (moe->capacity)
    mt_dispatch_count(&(struct mt_routing){0, moe->ntoken * moe->K, NULL, layer->host_expert}, moe->E, mine + E);
  mt_allgather(moe->comm, mine, all, wide * (int64_t)sizeof(int64_t));
  for (int r = 0; r < moe->comm->size; r++)
    for (int64_t e = 0; e < E; e++) {
      int64_t rows = all[r * wide + e], picks = all[r * wide + wide - E + e];
      layer->counts[r * E + e] = rows;
      moe->pool_picks[e] += (double)picks;
      moe->sums.per_expert[l * E + e] += rows;
      moe->sums.dropped += picks - rows;
    }
  mt_dispatch_plan(dispatch, moe->comm, layer->layout, &layer->routing, layer->counts);
  moe->sums.received[l] += dispatch->received;

  int64_t Q = dispatch->received;
  rows_reserve(moe, &layer->gather, MT_DEVICE, Q * 4);
  rows_reserve(moe, &layer->scatter, MT_DEVICE, Q * 4);
  rows_reserve(moe, &layer->x, MT_DEVICE, Q * C * mt_dtype_size(device->ctype));
  rows_reserve(moe, layer->pre, MT_DEVICE, Q * F * (moe->gated ? 2 : 1) * mt_dtype_size(device->ctype));
  rows_reserve(moe, &moe->arrive, MT_WIRE, Q * row_bytes(moe));
  rows_reserve(moe, &moe->rows, MT_DEVICE, Q * C * mt_dtype_size(device->ctype));
  rows_reserve(moe, &moe->h, MT_DEVICE, Q * F * mt_dtype_size(device->ctype));
  rows_reserve(moe, &moe->dpre, MT_DEVICE, Q * F * (moe->gated ? 2 : 1) * mt_dtype_size(device->ctype));
  mt_exchange_reserve(moe->exchange, &dispatch->pattern, row_bytes(moe));
  device->ops->copy(device, MT_DEV_MATH, layer->place, dispatch->place, dispatch->sent * 4);
  device->ops->copy(device, MT_DEV_MATH, layer->gather.data, dispatch->gather, Q * 4);
  device->ops->copy(device, MT_DEV_MATH, layer->scatter.data, dispatch->scatter, Q * 4);
}

void mt_moe_end_forward(struct mt_moe *moe)
{
  if (moe->scope != MT_AUX_MICRO_BATCH || !moe->nmoe)
    return;
  /* f and P pooled over all ranks' tokens of the micro-step and over layers; micro-steps count by their tokens. */
  double rows = 0, sum = 0;
  for (int e = 0; e < moe->E; e++)
    rows += moe->pool_picks[e];
  double tokens = rows / moe->K; /* of all layers */
  if (tokens == 0)
    return;
  for (int e = 0; e < moe->E; e++)
    sum += moe->pool_picks[e] / tokens * moe->pool_p[e];
  moe->sums.aux += moe->E * sum / (moe->step_tokens * moe->nmoe);
  for (int l = 0; l < moe->nmoe; l++)
    for (int e = 0; e < moe->E; e++)
      moe->layer[l].aux[e] = (float)(moe->aux_coef * moe->E * moe->pool_picks[e] / tokens / (moe->step_tokens * moe->nmoe));
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
static float *slot_weights(const struct mt_moe *moe, int l)
{
  return moe->in_place ? slots_in_place(moe, moe->shard.master, l) : moe->slot[l % 2];
}

static float *slot_gradients(const struct mt_moe *moe, int l)
{
  return moe->in_place ? slots_in_place(moe, moe->shard.grad, l) : moe->slot_grad;
}

void mt_moe_unshard(struct mt_moe *moe, int l)
{
  const struct mt_layout *layout = moe->layer[l].layout;
  int64_t *holds = moe->in_slot[l % 2];
  if (holds[0] == l && holds[1] == layout->revision && holds[2] == moe->version)
    return;
  holds[0] = l;
  holds[1] = layout->revision;
  holds[2] = moe->version;
  mt_tree_plan(moe->tree, moe->layer[l].own_layout ? l : 0, layout);
  mt_tree_unshard_inter(moe->tree, pieces_of(moe, moe->shard.master, l), slot_weights(moe, l), moe->stride);
  mt_tree_unshard_intra(moe->tree, slot_weights(moe, l), moe->stride);
}

/* Rows out: token rows in `from` [N,C] (by send_token) to `to`, by slot. */
static void rows_out(struct mt_moe *moe, struct mt_moe_layer *layer, void *to)
{
  struct mt_device *device = moe->device;
  device->ops->sync(device, MT_DEV_MATH);
  mt_exchange_begin(moe->exchange, &layer->dispatch.pattern, MT_FORWARD, row_bytes(moe), moe->send, moe->arrive.data);
  mt_exchange_end(moe->exchange);
  device->kernels->gather(device, to, device->ctype, moe->arrive.data, moe->wire, layer->gather.data, layer->dispatch.received,
                          moe->C);
}

/* Rows home: `from` by slot to `to` (wire), in sending order. */
static void rows_home(struct mt_moe *moe, struct mt_moe_layer *layer, const void *from, void *to)
{
  struct mt_device *device = moe->device;
  device->kernels->gather(device, moe->arrive.data, moe->wire, from, device->ctype, layer->scatter.data, layer->dispatch.received,
                          moe->C);
  device->ops->sync(device, MT_DEV_MATH);
  mt_exchange_begin(moe->exchange, &layer->dispatch.pattern, MT_BACK, row_bytes(moe), moe->arrive.data, to);
  mt_exchange_end(moe->exchange);
}

void mt_moe_dispatch(struct mt_moe *moe, int l, const void *x)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  device->ops->copy(device, MT_DEV_MATH, moe->send_token, layer->dispatch.send_token, layer->dispatch.sent * 4);
  device->kernels->gather(device, moe->send, moe->wire, x, device->ctype, moe->send_token, layer->dispatch.sent, moe->C);
  rows_out(moe, layer, layer->x.data);
}

static struct mt_linear linear_of(const struct mt_moe *moe, const struct mt_moe_layer *layer, int64_t in, int64_t out)
{
  return (struct mt_linear){moe->nslot, layer->dispatch.slot_row, in, out, moe->stride, moe->stride};
}

static void activate(struct mt_moe *moe, const struct mt_moe_layer *layer)
{
  struct mt_device *device = moe->device;
  int64_t Q = layer->dispatch.received;
  if (moe->gated)
    device->kernels->swiglu(device, moe->h.data, layer->pre->data, Q, moe->F);
  else
    device->kernels->gelu(device, moe->h.data, layer->pre->data, Q * moe->F);
}

/* The experts' pre-activations; in backward again with recompute. */
static void experts_in(struct mt_moe *moe, int l)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  const float *w = slot_weights(moe, l);
  struct mt_linear in = linear_of(moe, layer, moe->C, moe->F * (moe->gated ? 2 : 1));
  device->kernels->linear(device, &in, layer->pre->data, layer->x.data, w + moe->w_in, moe->b_in < 0 ? NULL : w + moe->b_in, 0);
}

void mt_moe_experts(struct mt_moe *moe, int l)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  const float *w = slot_weights(moe, l);
  struct mt_linear out = linear_of(moe, layer, moe->F, moe->C);
  experts_in(moe, l);
  activate(moe, layer);
  device->kernels->linear(device, &out, moe->rows.data, moe->h.data, w + moe->w_out, moe->b_out < 0 ? NULL : w + moe->b_out, 0);
}

void mt_moe_combine(struct mt_moe *moe, int l, void *out)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  rows_home(moe, layer, moe->rows.data, layer->back);
  device->kernels->combine(device, out, 1, layer->back, moe->wire, layer->first, layer->place, layer->kept_weight, moe->ntoken,
                           moe->C);
}

void mt_moe_combine_back(struct mt_moe *moe, int l, const void *dout)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  device->kernels->combine_back(device, moe->send, moe->capacity ? moe->dkept : moe->dweight, dout, layer->back, moe->wire,
                                layer->first, layer->place, layer->kept_weight, moe->ntoken, moe->C);
  if (moe->capacity) { /* a dropped pick's triple is number R, and its gradient the zero there */
    device->ops->zero(device, MT_DEV_MATH, moe->dkept + layer->routing.nrow, 4);
    device->kernels->gather(device, moe->dweight, MT_F32, moe->dkept, MT_F32, layer->triple, moe->ntoken * moe->K, 1);
  }
  rows_out(moe, layer, moe->rows.data);
}

void mt_moe_experts_back(struct mt_moe *moe, int l)
{
  struct mt_device *device = moe->device;
  const struct mt_kernels *kernels = device->kernels;
  struct mt_moe_layer *layer = &moe->layer[l];
  const float *w = slot_weights(moe, l);
  float *dw = slot_gradients(moe, l);
  int64_t Q = layer->dispatch.received;
  struct mt_linear in = linear_of(moe, layer, moe->C, moe->F * (moe->gated ? 2 : 1));
  struct mt_linear out = linear_of(moe, layer, moe->F, moe->C);
  if (!moe->in_place)
    device->ops->zero(device, MT_DEV_MATH, dw, moe->nslot * moe->stride * 4);
  if (moe->recompute)
    experts_in(moe, l);
  activate(moe, layer);
  kernels->linear_dw(device, &out, dw + moe->w_out, moe->b_out < 0 ? NULL : dw + moe->b_out, moe->rows.data, moe->h.data);
  kernels->linear_dx(device, &out, moe->h.data, moe->rows.data, w + moe->w_out, 0); /* h becomes its gradient */
  if (moe->gated)
    kernels->swiglu_back(device, moe->dpre.data, moe->h.data, layer->pre->data, Q, moe->F);
  else
    kernels->gelu_back(device, moe->dpre.data, moe->h.data, layer->pre->data, Q * moe->F);
  kernels->linear_dw(device, &in, dw + moe->w_in, moe->b_in < 0 ? NULL : dw + moe->b_in, moe->dpre.data, layer->x.data);
  kernels->linear_dx(device, &in, moe->rows.data, moe->dpre.data, w + moe->w_in, 0);
}

void mt_moe_dispatch_back(struct mt_moe *moe, int l, void *dx)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  rows_home(moe, layer, moe->rows.data, moe->dsend);
  device->kernels->combine(device, dx, 0, moe->dsend, moe->wire, layer->first, layer->place, NULL, moe->ntoken, moe->C);
}

void mt_moe_reshard(struct mt_moe *moe, int l)
{
  moe->device->ops->sync(moe->device, MT_DEV_MATH);
  mt_tree_plan(moe->tree, moe->layer[l].own_layout ? l : 0, moe->layer[l].layout);
  mt_tree_reshard_intra(moe->tree, slot_gradients(moe, l), moe->stride);
  mt_tree_reshard_inter(moe->tree, pieces_of(moe, moe->shard.grad, l), slot_gradients(moe, l), moe->stride);
}

void mt_moe_gate_back(struct mt_moe *moe, int l, void *dx, const void *x, const float *wg, float *dwg)
{
  struct mt_device *device = moe->device;
  struct mt_moe_layer *layer = &moe->layer[l];
  int64_t N = moe->ntoken, one = moe->scope == MT_AUX_MICRO_BATCH;
  int64_t T = one ? (N ? N : 1) : moe->T, nrow = one ? 1 : moe->nsequence;
  float z = (float)(moe->z_coef / (moe->step_tokens * moe->nmoe));
  device->ops->copy(device, MT_DEV_MATH, moe->device_aux, layer->aux, nrow * moe->E * 4);
  device->kernels->gate_topk_back(device, moe->logits, moe->dweight, layer->p, layer->lse, layer->expert, layer->weight,
                                  moe->device_aux, z, N, T, moe->E, moe->K);
  device->kernels->gate_logits_back(device, dx, dwg, moe->logits, x, wg, N, moe->C, moe->E);
}
