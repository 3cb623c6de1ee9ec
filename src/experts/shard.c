/* Sharded vectors; see shard.h.
 *
 * A plan is a set of hop lists, one per stage and direction, in an order that sender and receiver of each pair derive
 * alike (by item, or by slot), because messages of one tag between two ranks match in the order they were posted. Lists
 * have the largest size that the slots allow, so planning another layout allocates nothing; only staging may grow. */
#include "experts/shard.h"
#include "base/memory.h"
#include "kernels/ops.h"
#include <string.h>

struct mt_shard mt_shard_new(const struct mt_comm *comm, int64_t nitem, int64_t length, int training)
{
  struct mt_shard shard = {.nitem = nitem, .length = length, .part = mt_part_even(length, comm->size)};
  shard.first = shard.part.first[comm->rank];
  shard.count = mt_part_count(&shard.part, comm->rank);
  int64_t n = nitem * shard.count;
  shard.master = MT_ZNEW(MT_TAG_PARAM, float, n);
  shard.m = MT_ZNEW(MT_TAG_OPTIMIZER, float, training ? n : 0);
  shard.v = MT_ZNEW(MT_TAG_OPTIMIZER, float, training ? n : 0);
  shard.grad = MT_ZNEW(MT_TAG_OPTIMIZER, float, training ? n : 0);
  return shard;
}

void mt_shard_free(struct mt_shard *shard)
{
  mt_part_free(&shard->part);
  mt_free(shard->master);
  mt_free(shard->m);
  mt_free(shard->v);
  mt_free(shard->grad);
  memset(shard, 0, sizeof *shard);
}

/* Where some elements are. */
enum area { IN_SLOT, IN_STAGE, IN_STAGE2 };
struct place {
  enum area area;
  int slot;       /* of mine, for IN_SLOT */
  int64_t offset; /* from the start of the slot or of the staging memory */
};

struct hop {
  int peer;   /* a rank; of a twin, the slot to copy to */
  int item;
  int starts; /* of a contribution: 1 = the first of its sum, whose memory becomes the sum */
  struct place place;
  int64_t count;
};

struct hops {
  int n, capacity;
  struct hop *hop; /* [capacity], owned */
};

struct mt_tree {
  struct mt_comm *comm;     /* borrowed */
  struct mt_device *device; /* borrowed */
  struct mt_part part;      /* owned copy */
  const struct mt_layout *layout; /* planned last; borrowed, compared by address and revision */
  int64_t revision;
  struct hops own_copy;                 /* my piece of an item whose home in my node I am */
  struct hops inter_send, inter_recv;   /* owner -> home; sent from the shard, received into the home's slot */
  struct hops intra_send, intra_recv;   /* home -> the other holders: blocks of slots */
  struct hops twin;                     /* slots of mine with the same item */
  struct hops gather_send, gather_recv; /* slots' blocks -> their homes' stage */
  struct hops add;                      /* in order: contributions to my blocks */
  struct hops home_send, home_recv;     /* sums -> the owners' stage2 */
  struct hops total;                    /* in order: the nodes' contributions to my pieces */
  float *stage, *stage2;                /* owned */
  int64_t stage_capacity, stage2_capacity;
  struct mt_requests requests;
};

struct mt_tree *mt_tree_new(struct mt_comm *comm, struct mt_device *device, const struct mt_part *part)
{
  struct mt_tree *tree = MT_ZNEW(MT_TAG_PLAN, struct mt_tree, 1);
  tree->comm = comm;
  tree->device = device;
  tree->part.nrank = part->nrank;
  tree->part.first = MT_NEW(MT_TAG_PLAN, int64_t, part->nrank + 1);
  memcpy(tree->part.first, part->first, sizeof(int64_t) * (size_t)(part->nrank + 1));
  return tree;
}

static struct hops *const *all_hops(struct mt_tree *tree, struct hops *list[12])
{
  struct hops *all[12] = {&tree->own_copy,   &tree->inter_send,  &tree->inter_recv, &tree->intra_send,
                          &tree->intra_recv, &tree->twin,        &tree->gather_send, &tree->gather_recv,
                          &tree->add,        &tree->home_send,   &tree->home_recv,  &tree->total};
  memcpy(list, all, sizeof all);
  return list;
}

void mt_tree_free(struct mt_tree *tree)
{
  if (!tree)
    return;
  struct hops *list[12];
  all_hops(tree, list);
  for (int i = 0; i < 12; i++)
    mt_free(list[i]->hop);
  mt_free(tree->stage);
  mt_free(tree->stage2);
  mt_requests_free(&tree->requests);
  mt_part_free(&tree->part);
  mt_free(tree);
}

static void reserve(struct hops *hops, int64_t n)
{
  MT_CHECK(n < INT32_MAX, "a plan of %lld messages", (long long)n);
  if (hops->hop && n <= hops->capacity)
    return;
  mt_free(hops->hop);
  hops->hop = MT_NEW(MT_TAG_PLAN, struct hop, n);
  hops->capacity = (int)n;
}

static void push(struct hops *hops, int peer, int item, int starts, struct place place, int64_t count)
{
  if (!count)
    return;
  MT_CHECK(hops->n < hops->capacity, "a plan with more messages than reserved (%d)", hops->capacity);
  hops->hop[hops->n++] = (struct hop){peer, item, starts, place, count};
}

/* The holders of an item on a node: distinct ranks, ascending, into rank[]; returns how many. */
static int holders(const struct mt_layout *layout, int item, int node, int *rank)
{
  int bin = item * layout->nnode + node, n = 0;
  for (int i = layout->expert_first[bin]; i < layout->expert_first[bin + 1]; i++) {
    int r = layout->slot_rank[layout->by_expert[i]];
    if (!n || rank[n - 1] != r)
      rank[n++] = r;
  }
  return n;
}

/* Which of h holders is home of the piece of owner r: owners are cut into h consecutive blocks, rotated by the item. */
static int home_of(int r, int nrank, int h, int item)
{
  return (int)(((int64_t)r * h / nrank + item) % h);
}

/* The elements whose home is holder k of h. */
static int64_t block_of(const struct mt_part *part, int k, int h, int item, int *first_owner, int *end_owner)
{
  int j = ((k - item) % h + h) % h, P = part->nrank;
  *first_owner = (int)(((int64_t)j * P + h - 1) / h);
  *end_owner = (int)(((int64_t)(j + 1) * P + h - 1) / h);
  return part->first[*end_owner] - part->first[*first_owner];
}

void mt_tree_plan(struct mt_tree *tree, const struct mt_layout *layout)
{
  if (tree->layout == layout && tree->revision == layout->revision)
    return;
  tree->layout = layout;
  tree->revision = layout->revision;
  const struct mt_comm *comm = tree->comm;
  const struct mt_part *part = &tree->part;
  const int me = comm->rank, P = comm->size, E = layout->nexpert;
  const int my_first = layout->slot_first[me], mine = layout->slot_first[me + 1] - my_first;
  const int node_slots = layout->slot_first[comm->node_first[comm->node + 1]] - layout->slot_first[comm->node_first[comm->node]];
  struct hops *list[12];
  all_hops(tree, list);
  for (int i = 0; i < 12; i++)
    list[i]->n = 0;
  reserve(&tree->own_copy, mine);
  reserve(&tree->inter_send, (int64_t)E * comm->nnode);
  reserve(&tree->inter_recv, (int64_t)mine * P);
  reserve(&tree->intra_send, (int64_t)mine * comm->node_size);
  reserve(&tree->intra_recv, (int64_t)mine * comm->node_size);
  reserve(&tree->twin, mine);
  reserve(&tree->gather_send, (int64_t)mine * comm->node_size);
  reserve(&tree->gather_recv, node_slots);
  reserve(&tree->add, node_slots);
  reserve(&tree->home_send, (int64_t)mine * P);
  reserve(&tree->home_recv, (int64_t)E * comm->nnode);
  reserve(&tree->total, (int64_t)E * comm->nnode);

  const int64_t piece = part->first[me + 1] - part->first[me];
  const int node_first_slot = layout->slot_first[comm->node_first[comm->node]];
  int64_t stage = 0, stage2 = 0;
  int rank[comm->size];                 /* holders of one item on one node */
  int64_t stage_of[node_slots + 1];     /* where a slot's contribution to my block is staged, -1 = nowhere */
  int64_t stage_count[node_slots + 1];
  for (int i = 0; i < node_slots; i++)
    stage_of[i] = -1;
  for (int e = 0; e < E; e++) {
    int started = 0;
    for (int q = 0; q < comm->nnode; q++) {
      int h = holders(layout, e, q, rank);
      if (!h)
        continue;
      /* My piece goes to this node's home, and this node's sum of it comes from there. If I am home, the sum lies where
       * my block is added up, which is known below. */
      int home = rank[home_of(me, P, h, e)];
      if (home != me) {
        push(&tree->inter_send, home, e, 0, (struct place){0}, piece);
        push(&tree->home_recv, home, e, 0, (struct place){IN_STAGE2, 0, stage2}, piece);
      }
      push(&tree->total, home, e, !started, (struct place){IN_STAGE2, 0, stage2}, piece);
      stage2 += home != me ? piece : 0;
      started = 1;
      int k = 0;
      while (k < h && rank[k] != me)
        k++;
      if (q != comm->node || k == h)
        continue; /* not held by me */
      int bin = e * layout->nnode + q, slot = -1, owner0, owner1;
      for (int i = layout->expert_first[bin]; i < layout->expert_first[bin + 1]; i++) {
        int s = layout->by_expert[i];
        if (layout->slot_rank[s] != me)
          continue;
        if (slot < 0)
          slot = s - my_first;
        else
          push(&tree->twin, s - my_first, e, 0, (struct place){IN_SLOT, slot, 0}, part->first[P]);
      }
      int64_t block = block_of(part, k, h, e, &owner0, &owner1), start = part->first[owner0];
      for (int r = owner0; r < owner1; r++)
        push(r == me ? &tree->own_copy : &tree->inter_recv, r, e, 0, (struct place){IN_SLOT, slot, part->first[r]},
             part->first[r + 1] - part->first[r]);
      for (int other = 0; other < h; other++) {
        int first_owner, end_owner;
        int64_t theirs = block_of(part, other, h, e, &first_owner, &end_owner);
        if (other == k)
          continue;
        push(&tree->intra_send, rank[other], e, 0, (struct place){IN_SLOT, slot, start}, block);
        push(&tree->intra_recv, rank[other], e, 0, (struct place){IN_SLOT, slot, part->first[first_owner]}, theirs);
      }
      struct place sum = {0};
      for (int i = layout->expert_first[bin]; i < layout->expert_first[bin + 1]; i++) {
        int s = layout->by_expert[i], first = i == layout->expert_first[bin];
        struct place from = {IN_SLOT, s - my_first, start};
        if (layout->slot_rank[s] != me) {
          from = (struct place){IN_STAGE, 0, stage};
          stage_of[s - node_first_slot] = stage;
          stage_count[s - node_first_slot] = block;
          stage += block;
        }
        push(&tree->add, layout->slot_rank[s], e, first, from, block);
        if (first)
          sum = from;
      }
      for (int r = owner0; r < owner1; r++) {
        struct place at = {sum.area, sum.slot, sum.offset + part->first[r] - start};
        if (r != me)
          push(&tree->home_send, r, e, 0, at, part->first[r + 1] - part->first[r]);
        else if (piece)
          tree->total.hop[tree->total.n - 1].place = at;
      }
    }
  }
  /* Slots' blocks to their homes: both sides go through the node's slots in ascending order. */
  for (int s = node_first_slot; s < node_first_slot + node_slots; s++) {
    int e = layout->slot_expert[s], h = holders(layout, e, comm->node, rank), first_owner, end_owner;
    if (stage_of[s - node_first_slot] >= 0)
      push(&tree->gather_recv, layout->slot_rank[s], e, 0, (struct place){IN_STAGE, 0, stage_of[s - node_first_slot]},
           stage_count[s - node_first_slot]);
    for (int k = 0; k < h && layout->slot_rank[s] == me; k++) {
      int64_t block = block_of(part, k, h, e, &first_owner, &end_owner);
      if (rank[k] != me)
        push(&tree->gather_send, rank[k], e, 0, (struct place){IN_SLOT, s - my_first, part->first[first_owner]}, block);
    }
  }
  mt_grow(MT_TAG_COMM, (void **)&tree->stage, &tree->stage_capacity, stage, sizeof(float));
  mt_grow(MT_TAG_COMM, (void **)&tree->stage2, &tree->stage2_capacity, stage2, sizeof(float));
  int most = 1;
  for (int i = 0; i < 12; i++)
    most = list[i]->capacity > most ? list[i]->capacity : most;
  mt_requests_reserve(&tree->requests, 2 * most);
}

static float *locate(const struct mt_tree *tree, struct place place, const float *slot, int64_t stride)
{
  switch (place.area) {
  case IN_STAGE:
    return tree->stage + place.offset;
  case IN_STAGE2:
    return tree->stage2 + place.offset;
  default:
    return (float *)slot + place.slot * stride + place.offset;
  }
}

static void send_all(struct mt_tree *tree, const struct hops *hops, const float *slot, int64_t stride, int tag)
{
  for (const struct hop *hop = hops->hop; hop < hops->hop + hops->n; hop++)
    mt_post_send(tree->comm, &tree->requests, locate(tree, hop->place, slot, stride), hop->count * (int64_t)sizeof(float),
                 hop->peer, tag);
}

static void receive_all(struct mt_tree *tree, const struct hops *hops, float *slot, int64_t stride, int tag)
{
  for (const struct hop *hop = hops->hop; hop < hops->hop + hops->n; hop++)
    mt_post_recv(tree->comm, &tree->requests, locate(tree, hop->place, slot, stride), hop->count * (int64_t)sizeof(float),
                 hop->peer, tag);
}

void mt_tree_unshard_inter(struct mt_tree *tree, const float *piece, float *slot, int64_t stride)
{
  const int64_t mine = mt_part_count(&tree->part, tree->comm->rank);
  receive_all(tree, &tree->inter_recv, slot, stride, MT_MSG_UNSHARD);
  for (const struct hop *hop = tree->inter_send.hop; hop < tree->inter_send.hop + tree->inter_send.n; hop++)
    mt_post_send(tree->comm, &tree->requests, piece + hop->item * mine, hop->count * (int64_t)sizeof(float), hop->peer,
                 MT_MSG_UNSHARD);
  for (const struct hop *hop = tree->own_copy.hop; hop < tree->own_copy.hop + tree->own_copy.n; hop++)
    memcpy(locate(tree, hop->place, slot, stride), piece + hop->item * mine, sizeof(float) * (size_t)hop->count);
  mt_wait(tree->comm, &tree->requests);
}

void mt_tree_unshard_intra(struct mt_tree *tree, float *slot, int64_t stride)
{
  receive_all(tree, &tree->intra_recv, slot, stride, MT_MSG_FORWARD);
  send_all(tree, &tree->intra_send, slot, stride, MT_MSG_FORWARD);
  mt_wait(tree->comm, &tree->requests);
  for (const struct hop *hop = tree->twin.hop; hop < tree->twin.hop + tree->twin.n; hop++)
    memcpy(slot + hop->peer * stride, locate(tree, hop->place, slot, stride), sizeof(float) * (size_t)hop->count);
}

void mt_tree_reshard_intra(struct mt_tree *tree, float *slot, int64_t stride)
{
  receive_all(tree, &tree->gather_recv, slot, stride, MT_MSG_GATHER);
  send_all(tree, &tree->gather_send, slot, stride, MT_MSG_GATHER);
  mt_wait(tree->comm, &tree->requests);
  float *sum = NULL;
  for (const struct hop *hop = tree->add.hop; hop < tree->add.hop + tree->add.n; hop++) {
    float *from = locate(tree, hop->place, slot, stride);
    if (hop->starts)
      sum = from;
    else
      tree->device->kernels->add(tree->device, sum, from, hop->count);
  }
}

void mt_tree_reshard_inter(struct mt_tree *tree, float *piece, float *slot, int64_t stride)
{
  const int64_t mine = mt_part_count(&tree->part, tree->comm->rank);
  receive_all(tree, &tree->home_recv, slot, stride, MT_MSG_RESHARD);
  send_all(tree, &tree->home_send, slot, stride, MT_MSG_RESHARD);
  mt_wait(tree->comm, &tree->requests);
  float *sum = NULL;
  const struct hop *end = tree->total.hop + tree->total.n;
  for (const struct hop *hop = tree->total.hop; hop < end; hop++) {
    float *from = locate(tree, hop->place, slot, stride);
    if (hop->starts)
      sum = from;
    else
      tree->device->kernels->add(tree->device, sum, from, hop->count);
    if (hop + 1 == end || hop[1].starts)
      tree->device->kernels->add(tree->device, piece + hop->item * mine, sum, hop->count);
  }
}

int64_t mt_tree_unshard_bytes(const struct mt_tree *tree, enum mt_level level)
{
  int64_t bytes = 0;
  const struct hops *stage[2] = {&tree->inter_send, &tree->intra_send};
  for (int i = 0; i < 2; i++)
    for (const struct hop *hop = stage[i]->hop; hop < stage[i]->hop + stage[i]->n; hop++)
      if (mt_cluster_level(tree->comm->cluster, tree->comm->rank, hop->peer) == level)
        bytes += hop->count * (int64_t)sizeof(float);
  return bytes;
}
