/* The memory of the MoE layers: made once for the largest micro-step; only what follows the routing grows. See moe.h. */
#include "experts/moe.h"
#include "base/log.h"
#include "comm/devices.h"
#include "experts/capacity.h"
#include "experts/sizes.h"

static void *device_new(struct mt_moe *moe, enum mt_tag tag, enum mt_space space, int64_t bytes)
{
  return moe->device->ops->alloc(moe->device, tag, space, bytes);
}

static void device_free(struct mt_moe *moe, enum mt_space space, void *memory)
{
  if (memory)
    moe->device->ops->free(moe->device, space, memory);
}

static void rows_reserve(struct mt_moe *moe, struct mt_rows *rows, int64_t bytes)
{
  mt_device_grow(moe->device, MT_TAG_ROW, MT_DEVICE, &rows->data, &rows->bytes, bytes);
}

void mt_moe_reserve(struct mt_moe *moe, int l, int c)
{
  struct mt_device *device = moe->device;
  struct mt_moe_chunk *chunk = &moe->layer[l].chunk[c];
  const int64_t C = moe->C, F = moe->F;
  int64_t Q = chunk->dispatch.received;
  rows_reserve(moe, &chunk->gather, Q * 4);
  rows_reserve(moe, &chunk->scatter, Q * 4);
  rows_reserve(moe, &chunk->x, Q * C * mt_dtype_size(device->ctype));
  rows_reserve(moe, chunk->pre, Q * F * (moe->gated ? 2 : 1) * mt_dtype_size(device->ctype));
  rows_reserve(moe, &moe->arrive[c], Q * mt_moe_row_bytes(moe));
  rows_reserve(moe, &moe->rows, Q * C * mt_dtype_size(device->ctype));
  const int between = moe->tiled ? c : 0;
  rows_reserve(moe, &moe->h[between], Q * F * mt_dtype_size(device->ctype));
  rows_reserve(moe, &moe->dpre[between], Q * F * (moe->gated ? 2 : 1) * mt_dtype_size(device->ctype));
  mt_exchange_plan(moe->exchange, chunk->plan, &moe->dispatcher.pattern, mt_moe_row_bytes(moe));
}

static void chunks_free(struct mt_moe *moe, struct mt_moe_layer *layer)
{
  for (int c = 0; c < moe->nchunk; c++) {
    struct mt_moe_chunk *chunk = &layer->chunk[c];
    mt_dispatch_free(&chunk->dispatch);
    mt_exchange_plan_free(chunk->plan);
    device_free(moe, MT_DEVICE, chunk->gather.data);
    device_free(moe, MT_DEVICE, chunk->scatter.data);
    device_free(moe, MT_DEVICE, chunk->x.data);
    device_free(moe, MT_DEVICE, chunk->own_pre.data);
  }
  mt_free(layer->chunk);
}

/* Gradients travel from where they are computed, or over wire_grad. */
static enum mt_space grad_space(const struct mt_moe *moe)
{
  return moe->device->host != moe->device ? MT_DEVICE : MT_WIRE;
}

void mt_moe_cut(struct mt_moe *moe, const struct mt_plan *plan, int ahead)
{
  const int nbatch = plan->chunks, nchunk = plan->degree[0];
  MT_CHECK(nbatch >= 1 && nchunk % nbatch == 0 && nchunk <= MT_MOST_CHUNKS && plan->degree[1] == nchunk,
           "a micro-step in %d chunks, a layer's tokens in %d and %d", nbatch, nchunk, plan->degree[1]);
  for (int l = 0; l < moe->nmoe; l++) {
    struct mt_moe_layer *layer = &moe->layer[l];
    if (layer->chunk)
      chunks_free(moe, layer);
    layer->chunk = MT_ZNEW(MT_TAG_PLAN, struct mt_moe_chunk, nchunk);
    for (int c = 0; c < nchunk; c++) {
      layer->chunk[c].pre = moe->recompute ? &moe->pre : &layer->chunk[c].own_pre;
      layer->chunk[c].dispatch = mt_dispatch_new(moe->nslot);
      layer->chunk[c].plan = mt_exchange_plan_new();
    }
  }
  moe->nbatch = nbatch;
  moe->nchunk = nchunk;
  moe->tiled = plan->tiled;
  moe->wide = (nchunk / nbatch + (moe->capacity ? 1 : 0)) * moe->E;
  mt_free(moe->my_counts);
  mt_free(moe->host_counts);
  moe->my_counts = MT_ZNEW(MT_TAG_PLAN, int64_t, nbatch * moe->wide);
  moe->host_counts = MT_NEW(MT_TAG_PLAN, int64_t, nbatch * moe->wide * moe->comm->size);
  moe->ngrad = 1 + ahead;
  if (moe->slot_grad[0] && ahead && !moe->slot_grad[1])
    moe->slot_grad[1] = device_new(moe, MT_TAG_SLOT, grad_space(moe), moe->nslot * moe->stride * 4);
}

static void layer_new(struct mt_moe *moe, int l)
{
  struct mt_moe_layer *layer = &moe->layer[l];
  int64_t N = moe->N, E = moe->E, K = moe->K, R = N * K;
  layer->layout = moe->relayout ? mt_relayout_layout(moe->relayout, l) : moe->fixed;
  layer->p = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, N * E * 4);
  layer->lse = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, N * 4);
  layer->weight = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, R * 4);
  layer->expert = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, R * 4);
  layer->host_expert = MT_NEW(MT_TAG_ACTIVATION, int32_t, R);
  layer->first = moe->first;
  layer->kept_weight = layer->weight;
  if (moe->capacity) {
    layer->own_first = MT_NEW(MT_TAG_ACTIVATION, int32_t, N + MT_MOST_CHUNKS);
    layer->own_kept = MT_NEW(MT_TAG_ACTIVATION, int32_t, R);
    layer->first = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, (N + MT_MOST_CHUNKS) * 4);
    layer->kept_weight = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, R * 4);
    layer->pick = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, R * 4);
    layer->triple = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, R * 4);
  }
  layer->aux = MT_NEW(MT_TAG_ACTIVATION, float, (N / moe->T + 1) * E);
  layer->pool_p = MT_ZNEW(MT_TAG_PLAN, double, E);
  layer->counts = MT_ZNEW(MT_TAG_PLAN, int64_t, moe->comm->size * E);
  layer->place = device_new(moe, MT_TAG_ROW, MT_DEVICE, R * 4);
  layer->back = device_new(moe, MT_TAG_ROW, MT_DEVICE, R * mt_moe_row_bytes(moe));
}

static void layer_free(struct mt_moe *moe, struct mt_moe_layer *layer)
{
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
  mt_free(layer->pool_p);
  mt_free(layer->counts);
  device_free(moe, MT_DEVICE, layer->place);
  device_free(moe, MT_DEVICE, layer->back);
  chunks_free(moe, layer);
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

/* Routing that is made up, where moe.router says so; else NULL. Rank 0 goes first, so that a mistake is said once. */
static enum mt_status make_up(struct mt_comm *comm, const struct mt_config *config, struct mt_forced **forced)
{
  const int wanted = config->moe.router == MT_ROUTER_ZIPF || config->moe.router == MT_ROUTER_REPLAY;
  enum mt_status status = MT_OK;
  *forced = NULL;
  for (int turn = 0; turn < 2 && wanted && status == MT_OK; turn++)
    status = mt_agree(comm, (comm->rank == 0) == (turn == 0) ? mt_forced_new(config, forced) : MT_OK);
  if (status == MT_OK)
    return MT_OK;
  mt_forced_free(*forced);
  return status;
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
  enum mt_reach reach;
  int64_t chunk;
  MT_TRY(mt_devices_reach(comm, device, config->parallel.device_memory, training, &reach, &chunk));
  MT_CHECK(config->parallel.sharding != MT_SHARDING_AUTO, "parallel.sharding is not chosen yet");
  MT_CHECK(N * K < INT32_MAX, "a micro-step of %lld rows on one rank", (long long)(N * K));

  struct mt_forced *forced;
  MT_TRY(make_up(comm, config, &forced));
  struct mt_moe *moe = MT_ZNEW(MT_TAG_PLAN, struct mt_moe, 1);
  *moe = (struct mt_moe){.comm = comm, .device = device, .nmoe = params->nmoe, .E = E, .K = K,
                         .C = config->model.hidden_size, .F = config->model.intermediate_size, .N = N, .T = T,
                         .gated = config->model.family != MT_FAMILY_GPT2, .nslot = slots[comm->rank],
                         .balanced = config->moe.router == MT_ROUTER_BALANCED,
                         .recompute = config->train.recompute || !training, .scope = config->moe.aux_scope,
                         .aux_coef = config->model.router_aux_loss_coef, .z_coef = config->moe.z_loss, .version = 1};
  if (config->moe.capacity_factor > 0) /* of the sequences trained on, also where a shorter one is computed */
    moe->capacity = mt_capacity(config->moe.capacity_factor, config->data.seq_length, K, E);
  moe->forced = forced;
  moe->w_in = params->in_w;
  moe->b_in = params->in_b;
  moe->w_out = params->out_w;
  moe->b_out = params->out_b;
  moe->stride = params->expert_length;
  moe->fixed = mt_layout_new(comm->cluster, E, slots);
  moe->shard = mt_shard_new(comm, (int64_t)moe->nmoe * E, params->expert_length,
                            mt_sizes_experts(config, params, comm, moe->fixed), training);
  moe->wire = config->parallel.wire == MT_WIRE_BF16 ? MT_BF16 : MT_F32;
  moe->kind = config->parallel.dispatch;
  /* As if nothing were recomputed: how rows are dealt and experts placed decides the bits, which train.recompute must not. */
  moe->work = mt_work_of(moe->C, moe->F, moe->gated, (int)mt_dtype_size(moe->wire), 0, config->parallel.sharding);
  const int nslot = moe->fixed->slot_first[comm->size];
  const enum mt_layout_policy policy = mt_relayout_policy(config, comm->size, nslot, training);
  moe->shares = mt_shares_new(comm->cluster, E, nslot);
  moe->dispatcher = mt_dispatcher_new(comm, moe->fixed);
  if (policy != MT_LAYOUT_STATIC)
    moe->relayout = mt_relayout_new(comm, config, policy, moe->nmoe, slots, &moe->work);
  moe->tree = mt_tree_new(comm, device, &moe->shard.cut, moe->relayout ? moe->nmoe : 1);
  const int apart = device->host != device;
  int64_t round = device->ctype != MT_F32;
  mt_max_int(comm, &round, 1);
  moe->round = (int)round;
  moe->in_place = !apart && !moe->round && !moe->relayout && shards_are_slots(moe);
  moe->exchange = mt_exchange_new(comm, config->parallel.exchange);
  mt_exchange_of(moe->exchange, device, reach, chunk);
  const int64_t elements = moe->nslot * moe->stride;
  for (int i = 0; i < 2 && !moe->in_place; i++) {
    moe->slot[i] = i > 0 && apart ? moe->slot[0] : device_new(moe, MT_TAG_SLOT, MT_WIRE, elements * 4);
    moe->matrix[i] = moe->slot[i];
    if (apart || moe->round)
      moe->matrix[i] = device_new(moe, MT_TAG_SLOT, MT_DEVICE, elements * mt_dtype_size(device->ctype));
  }
  if (moe->round && device->ctype == MT_F32)
    moe->rounded = device_new(moe, MT_TAG_SLOT, MT_DEVICE, elements * 2);
  moe->in_slot[0][0] = moe->in_slot[1][0] = -1;
  if (training && !moe->in_place)
    moe->slot_grad[0] = device_new(moe, MT_TAG_SLOT, grad_space(moe), elements * 4);
  if (training && apart)
    moe->wire_grad = device_new(moe, MT_TAG_SLOT, MT_WIRE, elements * 4);
  int64_t B = N / T + 1, R = N * K;
  moe->host_first = MT_NEW(MT_TAG_PLAN, int32_t, N + 1);
  for (int64_t t = 0; t <= N; t++)
    moe->host_first[t] = (int32_t)(t * K);
  moe->first = device_new(moe, MT_TAG_PLAN, MT_DEVICE, (N + 1) * 4);
  device->ops->copy(device, MT_DEV_MATH, moe->first, moe->host_first, (N + 1) * 4);
  if (moe->capacity) {
    moe->host_pick = MT_NEW(MT_TAG_ACTIVATION, int32_t, R);
    moe->host_triple = MT_NEW(MT_TAG_ACTIVATION, int32_t, R);
    moe->dkept = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, (R + MT_MOST_CHUNKS) * 4);
  }
  moe->layer = MT_ZNEW(MT_TAG_PLAN, struct mt_moe_layer, moe->nmoe);
  for (int l = 0; l < moe->nmoe; l++)
    layer_new(moe, l);
  moe->chunk_counts = MT_NEW(MT_TAG_PLAN, int64_t, (int64_t)comm->size * E);
  mt_moe_cut(moe, &(struct mt_plan){.chunks = 1, .degree = {1, 1}}, 0);

  moe->pool_picks = MT_ZNEW(MT_TAG_PLAN, double, E);
  moe->sums.received = MT_ZNEW(MT_TAG_PLAN, int64_t, moe->nmoe);
  moe->sums.per_expert = MT_ZNEW(MT_TAG_PLAN, int64_t, moe->nmoe * E);
  moe->logits = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, N * E * 4);
  moe->dweight = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, R * 4);
  moe->device_aux = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, B * E * 4);
  moe->psum = device_new(moe, MT_TAG_ACTIVATION, MT_DEVICE, B * (E + 1) * 8);
  moe->host_psum = MT_ZNEW(MT_TAG_ACTIVATION, double, B * (E + 1));
  if (moe->forced) {
    moe->host_logits = MT_NEW(MT_TAG_ACTIVATION, float, N * E);
    moe->host_weight = MT_NEW(MT_TAG_ACTIVATION, float, R);
  }
  moe->send_token = device_new(moe, MT_TAG_ROW, MT_DEVICE, R * 4);
  moe->send = device_new(moe, MT_TAG_ROW, MT_DEVICE, R * mt_moe_row_bytes(moe));
  moe->dsend = device_new(moe, MT_TAG_ROW, MT_DEVICE, R * mt_moe_row_bytes(moe));
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
  mt_relayout_free(moe->relayout);
  mt_shares_free(moe->shares);
  mt_dispatcher_free(&moe->dispatcher);
  mt_tree_free(moe->tree);
  mt_exchange_free(moe->exchange);
  for (int i = 0; i < 2; i++)
    if (moe->matrix[i] != moe->slot[i])
      device_free(moe, MT_DEVICE, moe->matrix[i]);
  device_free(moe, MT_DEVICE, moe->rounded);
  device_free(moe, MT_WIRE, moe->slot[0]);
  if (moe->slot[1] != moe->slot[0])
    device_free(moe, MT_WIRE, moe->slot[1]);
  for (int i = 0; i < 2; i++)
    device_free(moe, grad_space(moe), moe->slot_grad[i]);
  device_free(moe, MT_WIRE, moe->wire_grad);
  mt_forced_free(moe->forced);
  mt_free(moe->pool_picks);
  mt_free(moe->sums.received);
  mt_free(moe->sums.per_expert);
  device_free(moe, MT_DEVICE, moe->logits);
  device_free(moe, MT_DEVICE, moe->dweight);
  device_free(moe, MT_DEVICE, moe->device_aux);
  device_free(moe, MT_DEVICE, moe->psum);
  mt_free(moe->host_psum);
  mt_free(moe->host_logits);
  mt_free(moe->host_weight);
  mt_free(moe->host_first);
  device_free(moe, MT_DEVICE, moe->first);
  mt_free(moe->host_pick);
  mt_free(moe->host_triple);
  mt_free(moe->my_counts);
  mt_free(moe->host_counts);
  mt_free(moe->chunk_counts);
  device_free(moe, MT_DEVICE, moe->dkept);
  device_free(moe, MT_DEVICE, moe->send_token);
  device_free(moe, MT_DEVICE, moe->send);
  device_free(moe, MT_DEVICE, moe->dsend);
  device_free(moe, MT_DEVICE, moe->pre.data);
  for (int c = 0; c < MT_MOST_CHUNKS; c++) {
    device_free(moe, MT_DEVICE, moe->arrive[c].data);
    device_free(moe, MT_DEVICE, moe->h[c].data);
    device_free(moe, MT_DEVICE, moe->dpre[c].data);
  }
  device_free(moe, MT_DEVICE, moe->rows.data);
  mt_free(moe);
}
