/* The tree between shards and slots; see tree.h.
 *
 * A plan is a set of hop lists, one per stage and direction, in an order that sender and receiver of each pair derive
 * alike (by item, or by slot), because messages of one tag between two ranks match in the order they were posted. */
#include "experts/tree.h"
#include "base/memory.h"
#include "kernels/ops.h"
#include <string.h>

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
  int64_t first, count; /* elements of the vector */
};

enum { FEW = 16 }; /* capacity that a list begins with; more is a growth */
struct hops {
  int n, capacity;
  struct hop *hop; /* [capacity], owned */
};

enum list {
  OWN_COPY,                 /* my piece of an item whose home in my node I am */
  INTER_SEND, INTER_RECV,   /* owner -> home; sent from the shard, received into the home's slot */
  INTRA_SEND, INTRA_RECV,   /* home -> the other holders, from slot to slot */
  TWIN,                     /* slots of mine with the same item */
  GATHER_SEND, GATHER_RECV, /* slots' gradients -> their homes' stage */
  ADD,                      /* in order: contributions to what I am home of */
  HOME_SEND, HOME_RECV,     /* sums -> the owners' stage2 */
  TOTAL,                    /* in order: the nodes' contributions to my pieces */
  NLIST
};

/* A stretch of neighbouring pieces with the same home. */
struct run {
  int home;             /* rank */
  int first, end;       /* owners */
  int64_t start, count; /* elements of the vector */
};

struct plan {
  const struct mt_layout *layout; /* NULL = none yet; borrowed, compared by address and revision */
  int64_t revision;
  struct hops list[NLIST];
};

struct mt_tree {
  struct mt_comm *comm;           /* borrowed */
  struct mt_device *host;         /* borrowed: adds, in the host's memory, where all of this lies */
  const struct mt_cut *cut;       /* borrowed */
  int *ordinal, *owners;          /* [npart, P], [npart], owned: number of a rank among those that own something; how many */
  int nplan;
  struct plan *plan, *now;        /* [nplan], owned; the one in use */
  struct run *run;                /* [P], owned: of one item, while planning */
  int *holder;                    /* [P], owned: of one item on one node, while planning */
  int64_t *staged;                /* owned: of each slot of one item on my node, while planning; see plan_held */
  int64_t staged_capacity;
  float *stage, *stage2;          /* owned; enough for each of the plans */
  int64_t stage_capacity, stage2_capacity;
  struct mt_requests requests;
};

struct mt_tree *mt_tree_new(struct mt_comm *comm, struct mt_device *device, const struct mt_cut *cut, int nplan)
{
  struct mt_tree *tree = MT_ZNEW(MT_TAG_PLAN, struct mt_tree, 1);
  tree->comm = comm;
  tree->host = device ? device->host : NULL;
  tree->cut = cut;
  tree->ordinal = MT_ZNEW(MT_TAG_PLAN, int, (int64_t)cut->npart * comm->size);
  tree->owners = MT_ZNEW(MT_TAG_PLAN, int, cut->npart);
  for (int i = 0; i < cut->npart; i++)
    for (int r = 0; r < comm->size; r++)
      if (mt_part_count(&cut->part[i], r) > 0)
        tree->ordinal[i * comm->size + r] = tree->owners[i]++;
  tree->run = MT_NEW(MT_TAG_PLAN, struct run, comm->size);
  tree->holder = MT_NEW(MT_TAG_PLAN, int, comm->size);
  mt_grow(MT_TAG_PLAN, (void **)&tree->staged, &tree->staged_capacity, FEW, sizeof *tree->staged);
  tree->nplan = nplan;
  tree->plan = tree->now = MT_ZNEW(MT_TAG_PLAN, struct plan, nplan);
  for (int k = 0; k < nplan; k++)
    for (int i = 0; i < NLIST; i++)
      tree->plan[k].list[i] = (struct hops){0, FEW, MT_NEW(MT_TAG_PLAN, struct hop, FEW)};
  mt_requests_reserve(&tree->requests, 2 * FEW);
  return tree;
}

void mt_tree_free(struct mt_tree *tree)
{
  if (!tree)
    return;
  for (int k = 0; k < tree->nplan; k++)
    for (int i = 0; i < NLIST; i++)
      mt_free(tree->plan[k].list[i].hop);
  mt_free(tree->plan);
  mt_free(tree->ordinal);
  mt_free(tree->owners);
  mt_free(tree->run);
  mt_free(tree->holder);
  mt_free(tree->staged);
  mt_free(tree->stage);
  mt_free(tree->stage2);
  mt_requests_free(&tree->requests);
  mt_free(tree);
}

static void push(struct mt_tree *tree, enum list list, int peer, int item, int starts, struct place place, int64_t first,
                 int64_t count)
{
  struct hops *hops = &tree->now->list[list];
  if (!count)
    return;
  if (hops->n == hops->capacity) {
    struct hop *more = MT_NEW(MT_TAG_PLAN, struct hop, 2 * hops->capacity);
    memcpy(more, hops->hop, sizeof *more * (size_t)hops->n);
    mt_memory_count_growth();
    mt_free(hops->hop);
    hops->hop = more;
    hops->capacity *= 2;
  }
  hops->hop[hops->n++] = (struct hop){peer, item, starts, place, first, count};
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

static const struct mt_part *part_of(const struct mt_tree *tree, int item)
{
  return &tree->cut->part[item % tree->cut->npart];
}

/* Which of the h holders is home of owner r's piece: r itself if it holds the item; otherwise owners are cut into h
 * consecutive blocks, rotated by the item. */
static int home_of(const struct mt_tree *tree, int item, int r, int h, const int *rank)
{
  int low = 0, high = h; /* holders ascend */
  while (low < high) {
    int middle = (low + high) / 2;
    if (rank[middle] == r)
      return r;
    if (rank[middle] < r)
      low = middle + 1;
    else
      high = middle;
  }
  int i = item % tree->cut->npart;
  return rank[(tree->ordinal[i * tree->comm->size + r] * (int64_t)h / tree->owners[i] + item) % h];
}

/* The item's vector as runs of one home each; returns how many. */
static int runs_of(const struct mt_tree *tree, int item, int h, const int *rank, struct run *run)
{
  const struct mt_part *part = part_of(tree, item);
  int n = 0;
  for (int r = 0; r < tree->comm->size; r++) {
    int64_t count = mt_part_count(part, r);
    if (!count)
      continue;
    int home = home_of(tree, item, r, h, rank);
    if (!n || run[n - 1].home != home)
      run[n++] = (struct run){home, r, r, part->first[r], 0};
    run[n - 1].end = r + 1;
    run[n - 1].count += count;
  }
  return n;
}

/* My part in item e on my node: where I hold it, its pieces into my slot and on to the other holders; the other way, slots'
 * gradients to the homes of their runs, what comes together where I am home, and where its sums go. The messages of a pair
 * of ranks are ordered by (item, slot, run) on both sides. `stage` elements of staging are in use; returns how many then. */
static int64_t plan_held(struct mt_tree *tree, int e, int h, const int *rank, int total, int64_t stage)
{
  const struct mt_layout *layout = tree->now->layout;
  const struct mt_comm *comm = tree->comm;
  const struct mt_part *part = part_of(tree, e);
  const int me = comm->rank, my_first = layout->slot_first[me];
  const int begin = layout->expert_first[e * layout->nnode + comm->node];
  const int end = layout->expert_first[e * layout->nnode + comm->node + 1];
  const struct run *run = tree->run;
  const int nrun = runs_of(tree, e, h, rank, tree->run);
  int64_t mine = 0; /* elements that I am home of */
  for (int i = 0; i < nrun; i++)
    mine += run[i].home == me ? run[i].count : 0;
  int slot = -1; /* my first one that holds it */
  mt_grow(MT_TAG_PLAN, (void **)&tree->staged, &tree->staged_capacity, end - begin, sizeof *tree->staged);
  int64_t *staged = tree->staged; /* where a slot's contribution to what I am home of begins in the staging memory */
  for (int j = begin; j < end; j++) {
    const int s = layout->by_expert[j], owner = layout->slot_rank[s];
    staged[j - begin] = stage;
    int64_t at = stage;
    for (int i = 0; i < nrun; i++)
      if (owner == me && run[i].home != me)
        push(tree, GATHER_SEND, run[i].home, e, 0, (struct place){IN_SLOT, s - my_first, run[i].start}, run[i].start,
             run[i].count);
      else if (owner != me && run[i].home == me) {
        push(tree, GATHER_RECV, owner, e, 0, (struct place){IN_STAGE, 0, at}, run[i].start, run[i].count);
        at += run[i].count;
      }
    if (owner != me)
      stage += mine;
    else if (slot < 0)
      slot = s - my_first;
    else
      push(tree, TWIN, s - my_first, e, 0, (struct place){IN_SLOT, slot, 0}, 0, part->first[comm->size]);
  }
  mine = 0;
  for (int i = 0; i < nrun; i++) {
    struct place here = {IN_SLOT, slot, run[i].start};
    if (run[i].home != me) {
      push(tree, INTRA_RECV, run[i].home, e, 0, here, run[i].start, run[i].count);
      continue;
    }
    for (int k = 0; k < h; k++)
      if (rank[k] != me)
        push(tree, INTRA_SEND, rank[k], e, 0, here, run[i].start, run[i].count);
    struct place sum = {0};
    for (int j = begin; j < end; j++) {
      int s = layout->by_expert[j];
      struct place from = {IN_SLOT, s - my_first, run[i].start};
      if (layout->slot_rank[s] != me)
        from = (struct place){IN_STAGE, 0, staged[j - begin] + mine};
      push(tree, ADD, layout->slot_rank[s], e, j == begin, from, run[i].start, run[i].count);
      if (j == begin)
        sum = from;
    }
    for (int r = run[i].first; r < run[i].end; r++) {
      struct place at = {sum.area, sum.slot, sum.offset + part->first[r] - run[i].start};
      push(tree, r == me ? OWN_COPY : INTER_RECV, r, e, 0, (struct place){IN_SLOT, slot, part->first[r]},
           part->first[r], mt_part_count(part, r));
      if (r != me)
        push(tree, HOME_SEND, r, e, 0, at, part->first[r], mt_part_count(part, r));
      else if (total >= 0)
        tree->now->list[TOTAL].hop[total].place = at;
    }
    mine += run[i].count;
  }
  return stage;
}

void mt_tree_plan(struct mt_tree *tree, int which, const struct mt_layout *layout)
{
  struct plan *plan = tree->now = &tree->plan[which];
  if (plan->layout == layout && plan->revision == layout->revision)
    return;
  plan->layout = layout;
  plan->revision = layout->revision;
  const struct mt_comm *comm = tree->comm;
  const int me = comm->rank;
  for (int i = 0; i < NLIST; i++)
    plan->list[i].n = 0;
  int64_t stage = 0, stage2 = 0;
  int *rank = tree->holder;
  for (int e = 0; e < layout->nexpert; e++) {
    const int64_t piece = mt_part_count(part_of(tree, e), me), first = part_of(tree, e)->first[me];
    int started = 0;
    for (int q = 0; q < comm->nnode; q++) {
      int h = holders(layout, e, q, rank), total = -1;
      if (h && piece) {
        /* My piece goes to this node's home, and this node's sum of it comes from there. If I am home, the sum lies where
         * it is added up: plan_held sets the place. */
        int home = home_of(tree, e, me, h, rank);
        if (home != me) {
          push(tree, INTER_SEND, home, e, 0, (struct place){0}, first, piece);
          push(tree, HOME_RECV, home, e, 0, (struct place){IN_STAGE2, 0, stage2}, first, piece);
        } else
          total = plan->list[TOTAL].n;
        push(tree, TOTAL, home, e, !started, (struct place){IN_STAGE2, 0, stage2}, first, piece);
        stage2 += home != me ? piece : 0;
        started = 1;
      }
      int held = 0;
      for (int k = 0; k < h; k++)
        held |= rank[k] == me;
      if (held)
        stage = plan_held(tree, e, h, rank, total, stage);
    }
  }
  mt_grow(MT_TAG_COMM, (void **)&tree->stage, &tree->stage_capacity, stage, sizeof(float));
  mt_grow(MT_TAG_COMM, (void **)&tree->stage2, &tree->stage2_capacity, stage2, sizeof(float));
  int most = 1;
  for (int i = 0; i < NLIST; i++)
    most = plan->list[i].n > most ? plan->list[i].n : most;
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

/* My piece of an item: they lie one behind the other, in periods of the cut. */
static int64_t piece_at(const struct mt_tree *tree, int item)
{
  const struct mt_cut *cut = tree->cut;
  return item / cut->npart * cut->before[cut->npart] + cut->before[item % cut->npart];
}

#define EACH(tree, name, hop) \
  const struct hop *hop = (tree)->now->list[name].hop; hop < (tree)->now->list[name].hop + (tree)->now->list[name].n; hop++

/* Elements [first, end), where element i of vector v counts as number v * period + i. */
struct range {
  int64_t first, end, period;
};
static const struct range all = {0, INT64_MAX, 0};

/* What of a hop is in a range: both sides of a message cut it alike, and what is empty is not sent. */
static struct hop within(struct range range, const struct hop *hop)
{
  struct hop part = *hop;
  const int64_t before = hop->item * range.period;
  int64_t end = hop->first + hop->count;
  part.first = range.first - before > hop->first ? range.first - before : hop->first;
  end = range.end - before < end ? range.end - before : end;
  part.count = end > part.first ? end - part.first : 0;
  part.place.offset += part.first - hop->first;
  return part;
}

/* Where such a part begins in this rank's pieces. */
static int64_t part_at(const struct mt_tree *tree, const struct hop *part)
{
  return piece_at(tree, part->item) + part->first - part_of(tree, part->item)->first[tree->comm->rank];
}

static void send_all(struct mt_tree *tree, enum list list, struct range range, const float *slot, int64_t stride, int tag)
{
  for (EACH(tree, list, hop)) {
    const struct hop part = within(range, hop);
    mt_post_send(tree->comm, &tree->requests, locate(tree, part.place, slot, stride), part.count * (int64_t)sizeof(float),
                 part.peer, tag);
  }
}

static void receive_all(struct mt_tree *tree, enum list list, struct range range, float *slot, int64_t stride, int tag)
{
  for (EACH(tree, list, hop)) {
    const struct hop part = within(range, hop);
    mt_post_recv(tree->comm, &tree->requests, locate(tree, part.place, slot, stride), part.count * (int64_t)sizeof(float),
                 part.peer, tag);
  }
}

static void unshard_inter(struct mt_tree *tree, struct range range, const float *piece, float *slot, int64_t stride)
{
  receive_all(tree, INTER_RECV, range, slot, stride, MT_MSG_UNSHARD);
  for (EACH(tree, INTER_SEND, hop)) {
    const struct hop part = within(range, hop);
    mt_post_send(tree->comm, &tree->requests, piece + part_at(tree, &part), part.count * (int64_t)sizeof(float), part.peer,
                 MT_MSG_UNSHARD);
  }
  for (EACH(tree, OWN_COPY, hop)) {
    const struct hop part = within(range, hop);
    float *to = locate(tree, part.place, slot, stride);
    const float *from = piece + part_at(tree, &part);
    if (part.count && to != from)
      memcpy(to, from, sizeof(float) * (size_t)part.count);
  }
  mt_wait(tree->comm, &tree->requests);
}

static void unshard_intra(struct mt_tree *tree, struct range range, float *slot, int64_t stride)
{
  receive_all(tree, INTRA_RECV, range, slot, stride, MT_MSG_FORWARD);
  send_all(tree, INTRA_SEND, range, slot, stride, MT_MSG_FORWARD);
  mt_wait(tree->comm, &tree->requests);
  for (EACH(tree, TWIN, hop)) {
    const struct hop part = within(range, hop);
    if (part.count)
      memcpy(slot + hop->peer * stride + part.first, locate(tree, part.place, slot, stride),
             sizeof(float) * (size_t)part.count);
  }
}

void mt_tree_unshard_inter(struct mt_tree *tree, const float *piece, float *slot, int64_t stride)
{
  unshard_inter(tree, all, piece, slot, stride);
}

void mt_tree_unshard_intra(struct mt_tree *tree, float *slot, int64_t stride)
{
  unshard_intra(tree, all, slot, stride);
}

void mt_tree_unshard_range(struct mt_tree *tree, int64_t first, int64_t end, int64_t period, const float *piece,
                           float *slot, int64_t stride)
{
  unshard_inter(tree, (struct range){first, end, period}, piece, slot, stride);
  unshard_intra(tree, (struct range){first, end, period}, slot, stride);
}

static void reshard_intra(struct mt_tree *tree, struct range range, float *slot, int64_t stride)
{
  receive_all(tree, GATHER_RECV, range, slot, stride, MT_MSG_GATHER);
  send_all(tree, GATHER_SEND, range, slot, stride, MT_MSG_GATHER);
  mt_wait(tree->comm, &tree->requests);
  float *sum = NULL;
  for (EACH(tree, ADD, hop)) {
    const struct hop part = within(range, hop);
    if (!part.count) /* nor of the others of its sum */
      continue;
    float *from = locate(tree, part.place, slot, stride);
    if (part.starts)
      sum = from;
    else
      tree->host->kernels->add(tree->host, sum, from, part.count);
  }
}

static void reshard_inter(struct mt_tree *tree, struct range range, float *piece, float *slot, int64_t stride)
{
  receive_all(tree, HOME_RECV, range, slot, stride, MT_MSG_RESHARD);
  send_all(tree, HOME_SEND, range, slot, stride, MT_MSG_RESHARD);
  mt_wait(tree->comm, &tree->requests);
  float *sum = NULL;
  const struct hop *end = tree->now->list[TOTAL].hop + tree->now->list[TOTAL].n;
  for (EACH(tree, TOTAL, hop)) {
    const struct hop part = within(range, hop);
    if (!part.count)
      continue;
    float *from = locate(tree, part.place, slot, stride), *to = piece + part_at(tree, &part);
    if (part.starts)
      sum = from;
    else
      tree->host->kernels->add(tree->host, sum, from, part.count);
    if ((hop + 1 == end || hop[1].starts) && sum != to)
      tree->host->kernels->add(tree->host, to, sum, part.count);
  }
}

void mt_tree_reshard_intra(struct mt_tree *tree, float *slot, int64_t stride)
{
  reshard_intra(tree, all, slot, stride);
}

void mt_tree_reshard_inter(struct mt_tree *tree, float *piece, float *slot, int64_t stride)
{
  reshard_inter(tree, all, piece, slot, stride);
}

void mt_tree_reshard_range(struct mt_tree *tree, int64_t first, int64_t end, int64_t period, float *piece, float *slot,
                           int64_t stride)
{
  reshard_intra(tree, (struct range){first, end, period}, slot, stride);
  reshard_inter(tree, (struct range){first, end, period}, piece, slot, stride);
}

int64_t mt_tree_unshard_bytes(const struct mt_tree *tree, enum mt_level level)
{
  int64_t bytes = 0;
  static const enum list sent[2] = {INTER_SEND, INTRA_SEND};
  for (int i = 0; i < 2; i++)
    for (EACH(tree, sent[i], hop))
      if (mt_cluster_level(tree->comm->cluster, tree->comm->rank, hop->peer) == level)
        bytes += hop->count * (int64_t)sizeof(float);
  return bytes;
}

int64_t mt_tree_staging_bytes(const struct mt_tree *tree)
{
  return (tree->stage_capacity + tree->stage2_capacity) * (int64_t)sizeof(float);
}
