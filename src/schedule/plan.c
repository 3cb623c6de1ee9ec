/* The builder of task lists; see plan.h. */
#include "schedule/plan.h"
#include <string.h>
#include "base/memory.h"
#include "base/status.h"
#include "schedule/simulate.h"

struct builder {
  const struct mt_shape *shape;
  const struct mt_plan *plan;
  struct mt_tasks tasks;
  int micro, layer;          /* under way */
  int last;                  /* task added last, for serial plans */
  int ready[MT_MOST_CHUNKS]; /* of each batch chunk: the task behind which its residual stream (backward: its gradient)
                                is */
  int open;                  /* layer whose chunks are not joined to the residual stream yet, -1 = none */
  int back[MT_MOST_CHUNKS];  /* of that layer: each chunk's last exchange */
  int unsharded[2];          /* by parity of the MoE layer's number: the task behind which its weights are there */
  int used[2];               /* and the last one that uses them */
  int resharded[2];          /* likewise of gradients */
  int held[2];               /* the layer whose weights a half of the pool holds, -1 = none */
  int chain[MT_NTASK_KIND];  /* the task of each kind added last: chunks of a layer are computed in their order */
  int delayed;               /* MoE layer whose gradients wait, -1 = none */
  int delayed_after;
  int gradient, sent; /* shared gradients that are ready, and that travel already; parts of MT_WHOLE */
  int gradient_after; /* task behind which they are ready */
  int reduced;
  int moved; /* the weights or gradients of experts that travel before the next ones may, if one thing does at a time */
  int unpublished; /* shared weights that do not travel yet, parts of MT_WHOLE */
  int updated[2];    /* by parity of the MoE layer's number: the task behind which its experts are up to date */
  int fresh, coming; /* tasks behind which those of this group of layers are there, and those of the next one */
  int begun; /* the micro-step's first task: its batch, and layouts */
  int ended; /* its last one: what the next one's batch overwrites */
};

/* A chunk's share, so that all together are the whole. */
static int share(int chunk, int chunks)
{
  return (int)((int64_t)MT_WHOLE * (chunk + 1) / chunks - (int64_t)MT_WHOLE * chunk / chunks);
}

static enum mt_lane level(const struct builder *b, enum mt_task_kind kind, enum mt_lane natural)
{
  if (b->plan->one_wire && natural != MT_LANE_COMPUTE)
    return b->shape->several ? MT_LANE_INTER : MT_LANE_INTRA;
  int rows = kind == MT_TASK_ROWS_GATHER || kind == MT_TASK_ROWS_SCATTER;
  if (rows && b->plan->one_queue && b->shape->several)
    return MT_LANE_INTER;
  return natural == MT_LANE_INTER && !b->shape->several ? MT_LANE_INTRA : natural;
}

static int add_task(struct builder *b, struct mt_task task)
{
  task.micro = b->micro;
  task.lane = level(b, task.kind, task.lane);
  if (task.lane == MT_LANE_COMPUTE && (task.chunk || task.stage == MT_STAGE_SECOND))
    task.dep[task.ndep++] = b->chain[task.kind]; /* sums over chunks have one order */
  if (b->plan->serial) {                         /* the one before implies all others */
    task.dep[0] = b->last;
    task.ndep = 1;
  }
  return b->last = b->chain[task.kind] = mt_tasks_add(&b->tasks, &task);
}

/* A task of a chunk. */
static int add(struct builder *b, enum mt_task_kind kind, enum mt_lane lane, int chunk, int part, int after, int and)
{
  return add_task(
      b,
      (struct mt_task){
          .kind = kind, .lane = lane, .layer = b->layer, .chunk = chunk, .part = part, .dep = {after, and}, .ndep = 2});
}

#define COMPUTE MT_LANE_COMPUTE
#define INTRA MT_LANE_INTRA
#define INTER MT_LANE_INTER

static int is_dense(const struct builder *b, int layer)
{
  return b->shape->layer && b->shape->layer[layer].dense;
}

static int gradient_of(const struct builder *b, int layer)
{
  return b->shape->layer ? b->shape->layer[layer].gradient : 0;
}

/* Number of a layer among the MoE layers: its parity chooses half of the pool of slots. */
static int moe_number(const struct builder *b, int layer)
{
  int number = 0;
  for (int l = 0; l < layer; l++)
    number += !is_dense(b, l);
  return number;
}

/* The MoE layer next to this one in direction step, or -1. */
static int moe_beside(const struct builder *b, int layer, int step)
{
  for (layer += step; layer >= 0 && layer < b->shape->nlayer; layer += step)
    if (!is_dense(b, layer))
      return layer;
  return -1;
}

/* The first of two tasks that move a layer's weights or gradients. What carries them does one thing at a time, so where one
 * thread communicates nothing may come between the two that needs it too. */
static int move(struct builder *b, enum mt_task_kind kind, enum mt_lane lane, int part, int after, int and, int too)
{
  return add_task(b, (struct mt_task){.kind = kind,
                                      .lane = lane,
                                      .layer = b->layer,
                                      .part = part,
                                      .dep = {after, and, too, b->plan->one_wire ? b->moved : -1},
                                      .ndep = 4});
}

/* The step before has summed the gradients of a layer's experts; they are updated here, while the rows of the layer before it
 * (of the first one: the first weights) travel, and before they are unsharded. */
static void update_experts(struct builder *b, int layer, int after)
{
  const struct mt_shape *shape = b->shape;
  if (layer < 0 || !shape->whole || !shape->backward || b->micro)
    return;
  b->updated[moe_number(b, layer) % 2] = add_task(b, (struct mt_task){.kind = MT_TASK_UPDATE,
                                                                      .lane = COMPUTE,
                                                                      .layer = layer,
                                                                      .part = shape->layer ? shape->layer[layer].update : 0,
                                                                      .dep = {after},
                                                                      .ndep = 1});
}

static void unshard(struct builder *b, int layer)
{
  if (!b->shape->sharded || layer < 0)
    return;
  int half = moe_number(b, layer) % 2, now = b->layer;
  b->layer = layer;
  int part = b->held[half] == layer ? 0 : MT_WHOLE; /* the last two layers are still there when backward begins */
  int task = move(b, MT_TASK_UNSHARD_INTER, INTER, part, b->used[half], b->begun, b->updated[half]);
  b->unsharded[half] = b->moved = add(b, MT_TASK_UNSHARD_INTRA, INTRA, 0, part, task, -1);
  b->held[half] = layer;
  b->layer = now;
}

static void reshard(struct builder *b, int layer, int after)
{
  if (!b->shape->sharded || layer < 0)
    return;
  int now = b->layer;
  b->layer = layer;
  int task = move(b, MT_TASK_RESHARD_INTRA, INTRA, MT_WHOLE, after, -1, -1);
  b->resharded[moe_number(b, layer) % 2] = b->moved = add(b, MT_TASK_RESHARD_INTER, INTER, 0, MT_WHOLE, task, -1);
  b->layer = now;
}

/* Sends up to `most` of the shared gradients that are ready. */
static void reduce(struct builder *b, int most)
{
  /* What the lane sends when it has nothing else to do is not cut where nothing else can come. */
  const int piece = b->plan->gradient == MT_GRADIENT_FREE && b->micro < 0 ? 0 : b->plan->piece;
  int pending = b->gradient - b->sent;
  if (b->micro >= 0 && b->micro < b->shape->nmicro - 1)
    return; /* they are summed over micro-steps first */
  most = most < pending ? most : pending;
  while (most > 0 && (!piece || most >= piece || most == MT_WHOLE - b->sent)) {
    int part = piece && piece < most ? piece : most;
    int now = b->layer;
    b->layer = -1;
    b->reduced = add(b, MT_TASK_REDUCE, INTER, 0, part, b->gradient_after, b->reduced);
    b->layer = now;
    b->tasks.task[b->reduced].from = b->sent;
    b->sent += part;
    most -= part;
  }
}

/* Shared weights travel in the reverse order of their gradients: those of the embeddings with the first group of layers, then
 * group by group, those of the head with the last. */
static int group_size(const struct builder *b)
{
  enum { GROUPS = 8 }; /* few messages, however many layers there are */
  return b->plan->serial ? b->shape->nlayer : (b->shape->nlayer + GROUPS - 1) / GROUPS;
}

static void publish(struct builder *b, int first_layer)
{
  const struct mt_shape *shape = b->shape;
  if (!shape->whole || !shape->backward || b->micro || (first_layer && first_layer >= shape->nlayer))
    return;
  const int behind = first_layer + group_size(b), now = b->layer;
  int from = behind < shape->nlayer ? shape->head_gradient : 0;
  for (int l = behind; l < shape->nlayer; l++)
    from += gradient_of(b, l);
  b->layer = -1;
  b->coming = add(b, MT_TASK_PUBLISH, INTER, 0, b->unpublished - from, -1, -1);
  b->tasks.task[b->coming].from = from;
  b->unpublished = from;
  b->layer = now;
}

/* A layer begins: its group's weights are needed. */
static void need_weights(struct builder *b, int l)
{
  if (l % group_size(b) == 0)
    b->fresh = b->coming;
}

/* The weights of the next group set out behind what the first layer of this one sends. */
static void weights_ahead(struct builder *b, int l)
{
  if (l % group_size(b) == 0)
    publish(b, l + group_size(b));
}

/* Shared gradients become ready. */
static void grow_gradient(struct builder *b, int part, int after)
{
  if (b->micro < b->shape->nmicro - 1)
    return;
  b->gradient += part;
  MT_CHECK(b->gradient <= MT_WHOLE, "layers have %d of %d parts of the shared gradients", b->gradient, MT_WHOLE);
  b->gradient_after = after;
  if (b->plan->gradient == MT_GRADIENT_FREE)
    reduce(b, MT_WHOLE);
}

static void window(struct builder *b, int most)
{
  if (b->plan->gradient == MT_GRADIENT_WINDOW)
    reduce(b, most);
}

/* Chunk c of `of` of the experts: whole, or one of two products. */
static int experts(struct builder *b, enum mt_task_kind kind, int c, int of, enum mt_stage stage, int after,
                   int weights, int gradients)
{
  int first = b->shape->gated ? 2 : 1, whole = b->shape->gated ? 3 : 2;
  int part = share(c, of);
  if (stage != MT_STAGE_BOTH) { /* backward begins with the second product */
    int of_first = (int)((int64_t)part * first / whole);
    part = (stage == MT_STAGE_FIRST) == (kind == MT_TASK_EXPERTS) ? of_first : part - of_first;
  }
  return add_task(b, (struct mt_task){.kind = kind,
                                      .lane = COMPUTE,
                                      .layer = b->layer,
                                      .chunk = c,
                                      .part = part,
                                      .stage = stage,
                                      .dep = {after, weights, gradients},
                                      .ndep = 3});
}

/* From rows that have arrived to rows that are back: the middle of an MoE layer, either way. arrived[c] becomes the
 * task behind which the chunk is back. */
static void middle(struct builder *b, int backward, int of, int *arrived)
{
  const enum mt_task_kind kind = backward ? MT_TASK_EXPERTS_BACK : MT_TASK_EXPERTS;
  const int half = moe_number(b, b->layer) % 2;
  const int weights = b->unsharded[half], gradients = backward ? b->resharded[half] : -1;
  for (int c = 0; b->plan->tiled && c < of; c++)
    experts(b, kind, c, of, MT_STAGE_FIRST, arrived[c], weights, gradients);
  for (int c = 0; c < of; c++) {
    int task = b->plan->tiled ? experts(b, kind, c, of, MT_STAGE_SECOND, -1, weights, gradients)
                              : experts(b, kind, c, of, MT_STAGE_BOTH, arrived[c], weights, gradients);
    b->used[half] = task;
    if (b->shape->grouped)
      task = add(b, MT_TASK_ROWS_SCATTER, INTRA, c, share(c, of), task, -1);
    arrived[c] = task;
  }
  for (int c = 0; c < of; c++)
    arrived[c] = add(b, backward ? MT_TASK_DISPATCH_BACK : MT_TASK_COMBINE, INTER, c, share(c, of), arrived[c], -1);
}

/* Attention of a batch chunk, either way, between the groups' gather and scatter. */
static int attention(struct builder *b, enum mt_task_kind kind, int a, int after)
{
  int part = share(a, b->plan->chunks);
  if (b->shape->grouped)
    after = add(b, MT_TASK_HEADS_GATHER, INTRA, a, part, after, -1);
  after = add(b, kind, COMPUTE, a, part, after, b->fresh);
  if (b->shape->grouped)
    after = add(b, MT_TASK_HEADS_SCATTER, INTRA, a, part, after, -1);
  return after;
}

/* Joins batch chunk a of the layer before to the residual stream (backward: to its gradient). */
static void join(struct builder *b, int a, int backward)
{
  const int chunks = b->plan->chunks, of = b->plan->degree[backward], layer = b->layer;
  if (b->open < 0)
    return;
  b->layer = b->open;
  int after = -1; /* the last one implies the others */
  for (int c = a * of / chunks; c < (a + 1) * of / chunks; c++)
    after = add(b, backward ? MT_TASK_MERGE_BACK : MT_TASK_MERGE, COMPUTE, c, share(c, of), b->back[c], -1);
  b->ready[a] = after;
  if (backward) {
    after = add(b, MT_TASK_GATE_BACK, COMPUTE, a, share(a, chunks), after, -1);
    b->ready[a] = attention(b, MT_TASK_ATTENTION_BACK, a, after);
    if (a == chunks - 1)
      grow_gradient(b, gradient_of(b, b->open), b->ready[a]);
  }
  b->layer = layer;
}

static void join_all(struct builder *b, int backward)
{
  for (int a = 0; a < b->plan->chunks; a++)
    join(b, a, backward);
  b->open = -1;
}

static void forward_layer(struct builder *b, int l)
{
  const struct mt_plan *plan = b->plan;
  const int chunks = plan->chunks, of = plan->degree[0];
  b->layer = l;
  need_weights(b, l);
  if (is_dense(b, l)) {
    for (int a = 0; a < chunks; a++) {
      join(b, a, 0);
      int after = attention(b, MT_TASK_ATTENTION, a, b->ready[a]);
      b->ready[a] = add(b, MT_TASK_MLP, COMPUTE, a, share(a, chunks), after, -1);
    }
    weights_ahead(b, l);
    b->open = -1;
    return;
  }
  if (!plan->prefetch || moe_beside(b, l, -1) < 0)
    unshard(b, l);
  int arrived[MT_MOST_CHUNKS];
  for (int a = 0; a < chunks; a++) {
    join(b, a, 0);
    int after = attention(b, MT_TASK_ATTENTION, a, b->ready[a]);
    after = add(b, MT_TASK_GATE, COMPUTE, a, share(a, chunks), after, -1);
    after = add(b, MT_TASK_COUNTS, INTER, a, share(a, chunks), after, -1);
    for (int c = a * of / chunks; c < (a + 1) * of / chunks; c++) {
      arrived[c] = add(b, MT_TASK_PACK, COMPUTE, c, share(c, of), after, -1);
      arrived[c] = add(b, MT_TASK_DISPATCH, INTER, c, share(c, of), arrived[c], -1);
      if (b->shape->grouped)
        arrived[c] = add(b, MT_TASK_ROWS_GATHER, INTRA, c, share(c, of), arrived[c], -1);
    }
  }
  weights_ahead(b, l);
  update_experts(b, moe_beside(b, l, 1), b->chain[MT_TASK_PACK]);
  if (plan->prefetch)
    unshard(b, moe_beside(b, l, 1));
  middle(b, 0, of, arrived);
  memcpy(b->back, arrived, sizeof arrived);
  b->open = l;
}

static void backward_layer(struct builder *b, int l)
{
  const struct mt_plan *plan = b->plan;
  const int chunks = plan->chunks, of = plan->degree[1];
  b->layer = l;
  const int dense = is_dense(b, l);
  if (!dense && (!plan->prefetch || moe_beside(b, l, 1) < 0))
    unshard(b, l);
  int arrived[MT_MOST_CHUNKS];
  for (int a = 0; a < chunks; a++) {
    join(b, a, 1);
    int after = b->ready[a];
    if (b->shape->recompute)
      after = attention(b, MT_TASK_ATTENTION, a, after);
    if (dense) {
      after = add(b, MT_TASK_MLP_BACK, COMPUTE, a, share(a, chunks), after, -1);
      b->ready[a] = attention(b, MT_TASK_ATTENTION_BACK, a, after);
      if (a == chunks - 1)
        grow_gradient(b, gradient_of(b, l), b->ready[a]);
      continue;
    }
    for (int c = a * of / chunks; c < (a + 1) * of / chunks; c++) {
      arrived[c] = add(b, MT_TASK_PACK_BACK, COMPUTE, c, share(c, of), after, -1);
      arrived[c] = add(b, MT_TASK_COMBINE_BACK, INTER, c, share(c, of), arrived[c], -1);
      if (b->shape->grouped)
        arrived[c] = add(b, MT_TASK_ROWS_GATHER, INTRA, c, share(c, of), arrived[c], -1);
    }
  }
  b->open = -1;
  if (dense) {
    window(b, plan->dense_window);
    return;
  }
  window(b, plan->moe_window);
  if (plan->delay && b->delayed >= 0)
    reshard(b, b->delayed, b->delayed_after);
  if (plan->prefetch)
    unshard(b, moe_beside(b, l, -1));
  middle(b, 1, of, arrived);
  b->delayed = l;
  b->delayed_after = b->used[moe_number(b, l) % 2];
  if (!plan->delay) {
    reshard(b, l, b->delayed_after);
    b->delayed = -1;
  }
  memcpy(b->back, arrived, sizeof arrived);
  b->open = l;
  window(b, plan->dense_window);
}

static void micro_step(struct builder *b, int micro)
{
  const struct mt_shape *shape = b->shape;
  b->micro = micro;
  b->layer = -1;
  int after = -1;
  if (shape->whole) {
    after = b->begun = add_task(b, (struct mt_task){.kind = MT_TASK_BATCH,
                                                    .lane = COMPUTE,
                                                    .layer = -1,
                                                    .part = MT_WHOLE,
                                                    .dep = {b->resharded[0], b->resharded[1], b->ended},
                                                    .ndep = 3});
    publish(b, 0);
    update_experts(b, moe_beside(b, -1, 1), b->begun);
    after = add(b, MT_TASK_EMBED, COMPUTE, 0, MT_WHOLE, after, b->coming);
  }
  for (int a = 0; a < b->plan->chunks; a++)
    b->ready[a] = after;
  for (int l = 0; l < shape->nlayer; l++)
    forward_layer(b, l);
  join_all(b, 0);
  b->layer = -1;
  if (shape->follows && shape->backward && micro == shape->nmicro - 1)
    add(b, MT_TASK_PLAN, COMPUTE, 0, MT_WHOLE, b->ready[b->plan->chunks - 1], -1);
  if (shape->whole) {
    after = b->ended = add(b, MT_TASK_HEAD, COMPUTE, 0, MT_WHOLE, b->ready[b->plan->chunks - 1], -1);
    for (int a = 0; a < b->plan->chunks; a++)
      b->ready[a] = after;
  }
  if (!shape->backward)
    return;
  if (shape->whole)
    grow_gradient(b, shape->head_gradient, after);
  for (int l = shape->nlayer - 1; l >= 0; l--)
    backward_layer(b, l);
  b->layer = -1;
  join_all(b, 1);
  if (b->delayed >= 0)
    reshard(b, b->delayed, b->delayed_after);
  b->delayed = -1;
  after = b->ready[b->plan->chunks - 1];
  if (shape->whole)
    after = b->ended = add(b, MT_TASK_EMBED_BACK, COMPUTE, 0, MT_WHOLE, after, -1);
  if (micro == shape->nmicro - 1) {
    b->gradient = MT_WHOLE;
    b->gradient_after = after;
  }
}

/* The gradient's norm: that of experts while the last shared gradients travel. Sums have one order. */
static int add_norm(struct builder *b, int reduced)
{
  const struct mt_shape *shape = b->shape;
  for (b->layer = moe_beside(b, shape->nlayer, -1); b->layer >= 0; b->layer = moe_beside(b, b->layer, -1))
    add_task(b, (struct mt_task){.kind = MT_TASK_NORM,
                                 .lane = COMPUTE,
                                 .layer = b->layer,
                                 .part = shape->layer ? shape->layer[b->layer].update : 0,
                                 .dep = {b->resharded[0], b->resharded[1], b->chain[MT_TASK_NORM]},
                                 .ndep = 3});
  return add(b, MT_TASK_NORM, COMPUTE, 0, shape->shared_update, reduced, b->chain[MT_TASK_NORM]);
}

struct mt_tasks mt_plan_tasks(const struct mt_shape *shape, const struct mt_plan *plan)
{
  for (int i = 0; i < 2; i++)
    MT_CHECK(plan->chunks >= 1 && plan->degree[i] >= plan->chunks && plan->degree[i] % plan->chunks == 0 &&
                 plan->degree[i] <= MT_MOST_CHUNKS,
             "a plan of %d chunks and degree %d", plan->chunks, plan->degree[i]);
  struct builder b = {.shape = shape,
                      .plan = plan,
                      .tasks = {.serial = plan->serial},
                      .last = -1,
                      .open = -1,
                      .unsharded = {-1, -1},
                      .used = {-1, -1},
                      .resharded = {-1, -1},
                      .held = {-1, -1},
                      .delayed = -1,
                      .gradient_after = -1,
                      .reduced = -1,
                      .moved = -1,
                      .unpublished = MT_WHOLE,
                      .updated = {-1, -1},
                      .fresh = -1,
                      .coming = -1,
                      .begun = -1,
                      .ended = -1};
  memset(b.chain, 0xff, sizeof b.chain); /* -1 */
  for (int m = 0; m < shape->nmicro; m++)
    micro_step(&b, m);
  if (!shape->backward)
    return b.tasks;
  b.micro = -1;
  int told = -1;
  if (shape->follows) /* whose thread waits for the planner: not before all rows have travelled, in whatever order */
    told = add(&b, MT_TASK_TELL, INTER, 0, MT_WHOLE, b.chain[MT_TASK_PLAN], b.gradient_after);
  reduce(&b, MT_WHOLE);
  if (!shape->whole)
    return b.tasks;
  int after = add_norm(&b, b.reduced);
  after = add(&b, MT_TASK_STATISTICS, INTER, 0, MT_WHOLE, after, -1);
  if (shape->follows)
    after = add(&b, MT_TASK_ADOPT, INTER, 0, MT_WHOLE, after, told);
  add(&b, MT_TASK_UPDATE, COMPUTE, 0, shape->shared_update, after, -1);
  return b.tasks;
}

struct mt_tasks mt_plan_costed(const struct mt_shape *shape, const struct mt_plan *plan, const struct mt_costs *costs)
{
  struct mt_tasks tasks = mt_plan_tasks(shape, plan);
  mt_tasks_cost(&tasks, costs);
  if (plan->order == MT_ORDER_LISTED)
    return tasks;
  int64_t *rank = MT_NEW(MT_TAG_PLAN, int64_t, tasks.n);
  for (int i = 0; i < tasks.n; i++) {
    const struct mt_task *task = &tasks.task[i];
    int of = plan->degree[task->kind >= MT_TASK_PACK_BACK];
    int chunk = task->part < MT_WHOLE && task->part > 0 && plan->order == MT_ORDER_CHUNK
                    ? task->chunk * MT_MOST_CHUNKS / of
                    : 0;
    rank[i] = task->kind == MT_TASK_REDUCE ? INT64_MAX : chunk;
  }
  mt_tasks_reorder(&tasks, costs, rank);
  mt_free(rank);
  return tasks;
}
