/* Sharded vectors: to the slots and back. ranks: 1 2 3 4 7
 *
 * Every element of every vector, and of every slot's gradient, is a function of its place, so each rank knows
 * what it and all others must get, and in which order sums are formed, without asking. What is wrong is
 * counted, and agreed before anyone asserts. */
#include "experts/tree.h"
#include "made_up.h"
#include "test.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"

enum { MAX_RANK = 8, MAX_SLOT = 64 };
static const float GAP = -12345.5F;

static int size(void)
{
  int n;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}

/* Pretend nodes: one, unequal ones, one per rank. */
enum { NODES = 3 };
static const char *nodes(int which)
{
  static const char *const ragged[MAX_RANK] = {NULL, "1", "1,1", "1,2", "1,3", "2,3", "3,1,2", "2,1,4"};
  static const char alone[] = "1,1,1,1,1,1,1";
  return which == 0 ? NULL : which == 1 ? ragged[size()] : alone + sizeof alone - 2 * (size_t)size();
}

/* Element i of a vector. */
static float value(int version, int e, int64_t i)
{
  return (float)(version * 16 + e) + (float)(i % 8191) / 8192;
}

/* Element i of the gradient in slot s: magnitudes from 2^-12 to 2^12 and both signs, so that every order of a
 * sum of three or more has its own rounding. */
static float gradient(int version, int s, int64_t i)
{
  uint32_t c[4] = {(uint32_t)version, (uint32_t)s, (uint32_t)i, 0}, k[2] = {77, 1}, out[4];
  mt_philox(c, k, out);
  float x = 1 + (float)(out[0] >> 8) / (1 << 24);
  int power = (int)(out[1] % 25) - 12;
  x = power < 0 ? x / (float)(1 << -power) : x * (float)(1 << power);
  return out[2] & 1 ? -x : x;
}

/* What a shard holds before gradients are added. */
static float before(int e, int64_t i)
{
  return gradient(999, e, i);
}

/* Ways to cut: what the program makes, then others, with ranks that own nothing. */
enum cut { FULL, BY_NODE, BY_OWNER, UNEVEN, EACH_ITS_OWN, IN_PERIODS, NCUT };

struct bench {
  struct mt_comm *comm; /* borrowed */
  struct mt_device *device;
  struct mt_cut cut;
  struct mt_tree *tree;
  int64_t length, stride, mine; /* mine: elements of all vectors here */
  int E, nslot;
};

static struct mt_comm *open_comm(int which)
{
  struct mt_comm *comm;
  if (nodes(which))
    setenv("MOTLEY_NODES", nodes(which), 1);
  else
    unsetenv("MOTLEY_NODES");
  ck_assert_int_eq(mt_comm_new(NULL, NULL, &comm), MT_OK);
  return comm;
}

static int64_t count_of(const struct bench *b, int e, int rank)
{
  return mt_part_count(&b->cut.part[e % b->cut.npart], rank);
}

static int64_t first_of(const struct bench *b, int e)
{
  return b->cut.part[e % b->cut.npart].first[b->comm->rank];
}

/* Where this rank's piece of vector e begins among its pieces. */
static int64_t piece_at(const struct bench *b, int e)
{
  int64_t at = 0;
  for (int i = 0; i < e; i++)
    at += count_of(b, i, b->comm->rank);
  return at;
}

/* npart cuts by weights of 0 to 2. */
static struct mt_cut made_up_cut(const struct mt_comm *comm, struct dice *dice, int64_t length, int npart)
{
  struct mt_cut cut = {npart, MT_NEW(MT_TAG_PLAN, struct mt_part, npart),
                       MT_ZNEW(MT_TAG_PLAN, int64_t, npart + 1)};
  for (int i = 0; i < npart; i++) {
    int64_t weight[MAX_RANK];
    for (int r = 0; r < comm->size; r++)
      weight[r] = roll(dice, 3);
    weight[roll(dice, comm->size)]++;
    cut.part[i] = mt_part_weighted(length, comm->size, weight);
    cut.before[i + 1] = cut.before[i] + mt_part_count(&cut.part[i], comm->rank);
  }
  return cut;
}

static void open_bench(struct bench *b, struct mt_comm *comm, enum cut kind, int64_t length,
                       const struct mt_layout *layout)
{
  static const enum mt_sharding sharding[] = {MT_SHARDING_FULL, MT_SHARDING_NODE, MT_SHARDING_OWNER};
  struct dice dice = {(uint64_t)length + 17 * (uint64_t)kind, 0};
  *b = (struct bench){.comm = comm, .length = length, .stride = length + 3, .E = layout->nexpert};
  ck_assert_int_eq(mt_device_open("cpu", 1, &b->device), MT_OK);
  b->nslot = layout->slot_first[comm->rank + 1] - layout->slot_first[comm->rank];
  b->cut = kind <= BY_OWNER ? mt_cut_experts(comm, sharding[kind], length, layout, NULL)
                            : made_up_cut(comm, &dice, length,
                                          kind == UNEVEN         ? 1
                                          : kind == EACH_ITS_OWN ? b->E
                                                                 : 2);
  b->tree = mt_tree_new(comm, b->device, &b->cut, 2);
  b->mine = piece_at(b, b->E);
}

static void close_bench(struct bench *b)
{
  mt_tree_free(b->tree);
  mt_cut_free(&b->cut);
  b->device->ops->close(b->device);
}

/* Asserts on all ranks alike. */
static void agree(struct bench *b, int64_t wrong, const char *what, int version)
{
  mt_max_int(b->comm, &wrong, 1);
  ck_assert_msg(wrong == 0,
                "%s: %lld wrong on some rank (%d ranks, nodes %s, %d experts, length %lld, case %d)", what,
                (long long)wrong, b->comm->size, getenv("MOTLEY_NODES") ? getenv("MOTLEY_NODES") : "one",
                b->E, (long long)b->length, version);
}

static int held_on(const struct mt_layout *layout, const struct mt_comm *comm, int e, int q)
{
  for (int s = layout->slot_first[comm->node_first[q]]; s < layout->slot_first[comm->node_first[q + 1]]; s++)
    if (layout->slot_expert[s] == e)
      return 1;
  return 0;
}

/* Bytes and messages that must cross between nodes, one way: every node that holds an expert needs (or sends
 * a sum of) each piece that is owned outside. */
static void between_nodes(const struct bench *b, const struct mt_layout *layout, int64_t *bytes,
                          int64_t *messages)
{
  *bytes = *messages = 0;
  for (int e = 0; e < b->E; e++)
    for (int q = 0; q < b->comm->nnode; q++)
      for (int r = 0; r < b->comm->size && held_on(layout, b->comm, e, q); r++)
        if (b->comm->cluster->node_of[r] != q) {
          *bytes += 4 * count_of(b, e, r);
          *messages += count_of(b, e, r) > 0;
        }
}

/* What travels inside nodes. To the slots: pieces of owners that do not hold the expert go to their homes,
 * and each holder but the home gets the whole vector once. Back: at most so, but each slot gives its gradient
 * by itself, since sums have one order. */
static int64_t within_nodes(const struct bench *b, const struct mt_layout *layout, int back)
{
  int64_t bytes = 0;
  for (int e = 0; e < b->E; e++)
    for (int q = 0; q < b->comm->nnode; q++) {
      int holders = 0;
      int64_t owned = 0;
      for (int r = b->comm->node_first[q]; r < b->comm->node_first[q + 1]; r++) {
        int holds = 0;
        for (int s = layout->slot_first[r]; s < layout->slot_first[r + 1]; s++)
          holds += layout->slot_expert[s] == e;
        holders += back ? holds : holds > 0;
        owned += holds ? 0 : count_of(b, e, r);
      }
      if (holders)
        bytes += 4 * ((holders - 1) * b->length + owned);
    }
  return bytes;
}

/* What was sent since the last call, all ranks together. */
static void sent(struct bench *b, int64_t *bytes, int64_t *messages)
{
  static int64_t seen[2][MT_NLEVEL];
  double sum[2 * MT_NLEVEL];
  for (int i = 0; i < MT_NLEVEL; i++) {
    sum[i] = (double)(b->comm->sent_bytes[i] - seen[0][i]);
    sum[MT_NLEVEL + i] = (double)(b->comm->sent_messages[i] - seen[1][i]);
    seen[0][i] = b->comm->sent_bytes[i];
    seen[1][i] = b->comm->sent_messages[i];
  }
  mt_sum(b->comm, sum, 2 * MT_NLEVEL);
  for (int i = 0; i < MT_NLEVEL; i++) {
    if (bytes)
      bytes[i] = (int64_t)sum[i];
    if (messages)
      messages[i] = (int64_t)sum[MT_NLEVEL + i];
  }
}

static void check_unshard(struct bench *b, const struct mt_layout *layout, int version)
{
  const int me = b->comm->rank;
  float *piece = MT_NEW(MT_TAG_MISC, float, b->mine + 1),
        *slot = MT_NEW(MT_TAG_MISC, float, b->nslot * b->stride + 1);
  for (int e = 0; e < b->E; e++)
    for (int64_t i = 0; i < count_of(b, e, me); i++)
      piece[piece_at(b, e) + i] = value(version, e, first_of(b, e) + i);
  for (int64_t i = 0; i <= b->nslot * b->stride; i++)
    slot[i] = GAP;
  int64_t bytes[MT_NLEVEL], messages[MT_NLEVEL], expected, count, allocated;
  sent(b, NULL, NULL);
  allocated = mt_memory_allocations();
  mt_tree_unshard_inter(b->tree, piece, slot, b->stride);
  mt_tree_unshard_intra(b->tree, slot, b->stride);
  agree(b, mt_memory_allocations() - allocated, "unshard: allocations", version);

  int64_t wrong = 0, gaps = 0, changed = 0;
  for (int j = 0; j < b->nslot; j++)
    for (int64_t i = 0; i < b->stride; i++) {
      float found = slot[j * b->stride + i];
      if (i < b->length)
        wrong += found != value(version, layout->slot_expert[layout->slot_first[me] + j], i);
      else
        gaps += found != GAP;
    }
  gaps += slot[b->nslot * b->stride] != GAP;
  for (int e = 0; e < b->E; e++)
    for (int64_t i = 0; i < count_of(b, e, me); i++)
      changed += piece[piece_at(b, e) + i] != value(version, e, first_of(b, e) + i);
  agree(b, wrong, "unshard: elements", version);
  agree(b, gaps, "unshard: gaps", version);
  agree(b, changed, "unshard: the shard itself", version);

  sent(b, bytes, messages);
  /* in ranges, one after the other: the same, and nothing outside */
  enum { RANGES = 4 };
  struct dice dice = {(uint64_t)(version + 17 * b->length), 0};
  for (int64_t i = 0; i < b->nslot * b->stride; i++)
    slot[i] = GAP;
  allocated = mt_memory_allocations();
  wrong = 0;
  for (int64_t k = 0, first = 0, end; k < RANGES; k++, first = end) {
    end = k == RANGES - 1 ? b->length : first + (int64_t)roll(&dice, (int)(b->length - first) + 1); /* some are empty */
    mt_tree_unshard_range(b->tree, first, end, 0, piece, slot, b->stride);
    for (int j = 0; j < b->nslot; j++)
      for (int64_t i = 0; i < b->stride; i++)
        wrong += slot[j * b->stride + i] !=
                 (i < end ? value(version, layout->slot_expert[layout->slot_first[me] + j], i) : GAP);
  }
  agree(b, mt_memory_allocations() - allocated, "unshard in ranges: allocations", version);
  agree(b, wrong, "unshard in ranges: elements", version);

  int64_t foreseen[MT_NLEVEL];
  for (int i = 0; i < MT_NLEVEL; i++) {
    double sum = (double)mt_tree_unshard_bytes(b->tree, (enum mt_level)i);
    mt_sum(b->comm, &sum, 1);
    foreseen[i] = (int64_t)sum;
    ck_assert_int_eq(foreseen[i], bytes[i]);
  }
  between_nodes(b, layout, &expected, &count);
  ck_assert_int_eq(bytes[MT_LEVEL_NET], expected);
  ck_assert_int_eq(messages[MT_LEVEL_NET], count);
  ck_assert_int_eq(bytes[MT_LEVEL_SELF], 0);
  ck_assert_int_eq(bytes[MT_LEVEL_NODE], within_nodes(b, layout, 0));
  mt_free(piece);
  mt_free(slot);
}

/* Element i of the sum for expert e by definition. */
static float summed(const struct bench *b, const struct mt_layout *layout, int version, int e, int64_t i)
{
  float total = 0;
  int nodes_before = 0;
  for (int q = 0; q < b->comm->nnode; q++) {
    float sum = 0;
    int slots_before = 0;
    for (int s = layout->slot_first[b->comm->node_first[q]];
         s < layout->slot_first[b->comm->node_first[q + 1]]; s++)
      if (layout->slot_expert[s] == e) {
        sum = slots_before++ ? sum + gradient(version, s, i) : gradient(version, s, i);
      }
    if (slots_before)
      total = nodes_before++ ? total + sum : sum;
  }
  return before(e, i) + total;
}

static void check_reshard(struct bench *b, const struct mt_layout *layout, int version)
{
  const int me = b->comm->rank;
  float *piece = MT_NEW(MT_TAG_MISC, float, b->mine + 1),
        *slot = MT_NEW(MT_TAG_MISC, float, b->nslot * b->stride + 1);
  for (int e = 0; e < b->E; e++)
    for (int64_t i = 0; i < count_of(b, e, me); i++)
      piece[piece_at(b, e) + i] = before(e, first_of(b, e) + i);
  piece[b->mine] = GAP;
  for (int j = 0; j < b->nslot; j++)
    for (int64_t i = 0; i < b->stride; i++)
      slot[j * b->stride + i] = i < b->length ? gradient(version, layout->slot_first[me] + j, i) : GAP;
  slot[b->nslot * b->stride] = GAP;
  int64_t bytes[MT_NLEVEL], messages[MT_NLEVEL], expected, count, allocated;
  sent(b, NULL, NULL);
  allocated = mt_memory_allocations();
  mt_tree_reshard_intra(b->tree, slot, b->stride);
  mt_tree_reshard_inter(b->tree, piece, slot, b->stride);
  agree(b, mt_memory_allocations() - allocated, "reshard: allocations", version);

  int64_t wrong = 0, gaps = piece[b->mine] != GAP;
  for (int e = 0; e < b->E; e++)
    for (int64_t i = 0; i < count_of(b, e, me); i++) {
      float want = summed(b, layout, version, e, first_of(b, e) + i);
      wrong += memcmp(&piece[piece_at(b, e) + i], &want, sizeof want) != 0;
    }
  for (int j = 0; j < b->nslot; j++)
    for (int64_t i = b->length; i < b->stride; i++)
      gaps += slot[j * b->stride + i] != GAP;
  gaps += slot[b->nslot * b->stride] != GAP;
  agree(b, wrong, "reshard: elements", version);
  agree(b, gaps, "reshard: gaps", version);
  sent(b, bytes, messages);
  between_nodes(b, layout, &expected, &count);
  ck_assert_int_eq(bytes[MT_LEVEL_NET], expected);
  ck_assert_int_eq(messages[MT_LEVEL_NET], count);
  ck_assert_int_eq(bytes[MT_LEVEL_SELF], 0);
  ck_assert_int_le(bytes[MT_LEVEL_NODE], within_nodes(b, layout, 1));
  mt_free(piece);
  mt_free(slot);
}

/* The same sums, whatever ranges they are formed in. A range's gradients come just before it is summed and go just after,
 * as in a step, so what a call reads or writes besides would show. */
static void check_ranges(struct bench *b, const struct mt_layout *layout, int version)
{
  enum { RANGES = 5 };
  const int me = b->comm->rank;
  struct dice dice = {(uint64_t)(version + 31 * b->length), 0};
  float *piece = MT_NEW(MT_TAG_MISC, float, b->mine + 1),
        *slot = MT_NEW(MT_TAG_MISC, float, b->nslot * b->stride + 1);
  for (int e = 0; e < b->E; e++)
    for (int64_t i = 0; i < count_of(b, e, me); i++)
      piece[piece_at(b, e) + i] = before(e, first_of(b, e) + i);
  piece[b->mine] = GAP;
  for (int64_t i = 0; i <= b->nslot * b->stride; i++)
    slot[i] = GAP;
  int64_t bytes[MT_NLEVEL], expected, count, written = 0, allocated = mt_memory_allocations(), wrong = 0;
  sent(b, NULL, NULL);
  for (int64_t k = 0, end = b->length, first; k < RANGES; k++, end = first) {
    first = k == RANGES - 1 ? 0 : (int64_t)roll(&dice, (int)end + 1); /* some are empty */
    for (int j = 0; j < b->nslot; j++)
      for (int64_t i = first; i < end; i++)
        slot[j * b->stride + i] = gradient(version, layout->slot_first[me] + j, i);
    mt_tree_reshard_range(b->tree, first, end, 0, piece, slot, b->stride);
    for (int j = 0; j < b->nslot; j++)
      for (int64_t i = first; i < end; i++)
        slot[j * b->stride + i] = GAP;
    for (int64_t i = 0; i <= b->nslot * b->stride; i++)
      written += slot[i] != GAP;
  }
  agree(b, mt_memory_allocations() - allocated, "ranges: allocations", version);
  for (int e = 0; e < b->E; e++)
    for (int64_t i = 0; i < count_of(b, e, me); i++) {
      float want = summed(b, layout, version, e, first_of(b, e) + i);
      wrong += memcmp(&piece[piece_at(b, e) + i], &want, sizeof want) != 0;
    }
  agree(b, wrong + (piece[b->mine] != GAP), "ranges: elements", version);
  agree(b, written, "ranges: slots outside", version);
  sent(b, bytes, NULL);
  between_nodes(b, layout, &expected, &count);
  ck_assert_int_eq(bytes[MT_LEVEL_NET], expected);
  mt_free(piece);
  mt_free(slot);
}

/* Plans, both ways. again = 1: memory is there but for staging, whose growths are counted. */
static void check_layout(struct bench *b, const struct mt_layout *layout, int version, int again)
{
  int64_t allocations = mt_memory_allocations(), growths = mt_memory_growths();
  mt_tree_plan(b->tree, version % 2, layout);
  allocations = mt_memory_allocations() - allocations;
  growths = mt_memory_growths() - growths;
  agree(b, again ? allocations - growths : 0, "planning: allocations besides growths", version);
  allocations = mt_memory_allocations();
  mt_tree_plan(b->tree, version % 2, layout);
  agree(b, mt_memory_allocations() - allocations, "planning the same: allocations", version);
  check_unshard(b, layout, version);
  check_reshard(b, layout, version);
  check_ranges(b, layout, version);
}

static const int64_t lengths[] = {0, 1, 5, 1000, 4097};
enum { NLENGTH = sizeof lengths / sizeof *lengths };

/* Slots 0..4 on each rank, any layout, then others of the same slots, then the first again. */
START_TEST(test_layouts)
{
  struct mt_comm *comm = open_comm(_i);
  for (int kind = 0; kind < NCUT; kind++)
    for (int l = 0; l < NLENGTH; l++)
      for (uint64_t seed = 0; seed < (kind == FULL ? 2 : 1); seed++) {
        struct dice dice = {seed * 100 + (uint64_t)(kind * 10 + l), 0};
        struct bench b;
        int slots[MAX_RANK], E = seed && l == 3 ? 1 : 1 + roll(&dice, 6);
        made_up_slots(&dice, comm->size, 4, E, slots);
        struct mt_layout *layout = mt_layout_new(comm->cluster, E, slots);
        struct mt_layout *other = mt_layout_new(comm->cluster, E, slots);
        mt_layout_random(other, comm->cluster, seed, 1);
        open_bench(&b, comm, (enum cut)kind, lengths[l], l % 2 ? other : layout);
        check_layout(&b, layout, 0, 0);
        check_layout(&b, other, 1, 1);
        mt_layout_random(other, comm->cluster, seed, 2); /* in place: another revision */
        check_layout(&b, other, 2, 1);
        check_layout(&b, layout, 3, 1);
        mt_layout_index(other, comm->cluster, layout->revision); /* another layout of the same revision */
        check_layout(&b, other, 4, 1);
        int64_t allocations = mt_memory_allocations();
        mt_tree_plan(b.tree, 1, layout); /* both plans are kept */
        mt_tree_plan(b.tree, 0, other);
        agree(&b, mt_memory_allocations() - allocations, "planning what was planned before: allocations", 5);
        mt_layout_free(layout);
        mt_layout_free(other);
        close_bench(&b);
      }
  mt_comm_free(comm);
}
END_TEST

/* One expert everywhere, many times: twins, holders and nodes all at once; and one expert in a single slot.
 */
START_TEST(test_replicas)
{
  struct mt_comm *comm = open_comm(_i);
  const int P = size();
  for (int single = 0; single < 2; single++)
    for (int r = 0; r < (single ? P : 1); r++) {
      struct bench b;
      int slots[MAX_RANK] = {0};
      for (int k = 0; k < P && !single; k++)
        slots[k] = 3;
      slots[r] += single;
      struct mt_layout *layout = mt_layout_new(comm->cluster, 1, slots);
      open_bench(&b, comm, FULL, 1000, layout);
      check_layout(&b, layout, 5 + r, 0);
      mt_layout_free(layout);
      close_bench(&b);
    }
  mt_comm_free(comm);
}
END_TEST

/* Homes share the work: with every expert on every rank of all nodes but the first, whose ranks own
 * everything, no rank receives, or sends back, more than its part and one piece of each expert that does not
 * divide evenly. */
static void check_homes(struct mt_comm *comm, int E)
{
  enum { LENGTH = 840 };
  struct bench b;
  int slots[MAX_RANK], outside = comm->node_first[1];
  for (int r = 0; r < comm->size; r++)
    slots[r] = E * (comm->nnode == 1 || r >= outside);
  struct mt_layout *layout = mt_layout_new(comm->cluster, E, slots);
  for (int s = 0; s < layout->slot_first[comm->size]; s++)
    layout->slot_expert[s] = s % E;
  mt_layout_index(layout, comm->cluster, 2);
  open_bench(&b, comm, FULL, LENGTH, layout);
  mt_tree_free(b.tree);
  mt_cut_free(&b.cut);
  int64_t weight[MAX_RANK] = {0};
  for (int r = 0; r < outside; r++)
    weight[r] = 1;
  b.cut = (struct mt_cut){1, MT_NEW(MT_TAG_PLAN, struct mt_part, 1), MT_ZNEW(MT_TAG_PLAN, int64_t, 2)};
  b.cut.part[0] = mt_part_weighted(LENGTH, comm->size, weight);
  b.cut.before[1] = mt_part_count(&b.cut.part[0], comm->rank);
  b.tree = mt_tree_new(comm, b.device, &b.cut, 1);
  b.mine = piece_at(&b, E);
  check_layout(&b, layout, 6, 0);
  float *slot = MT_ZNEW(MT_TAG_MISC, float, b.nslot *b.stride), *piece = MT_ZNEW(MT_TAG_MISC, float, b.mine);
  int64_t net = comm->sent_bytes[MT_LEVEL_NET];
  mt_tree_reshard_intra(b.tree, slot, b.stride);
  mt_tree_reshard_inter(b.tree, piece, slot, b.stride);
  net = comm->sent_bytes[MT_LEVEL_NET] - net;
  int64_t fair = E * LENGTH / comm->node_size + (E % comm->node_size ? E * (LENGTH / outside + 1) : 0);
  agree(&b, net > 4 * fair, "bytes between nodes beyond a fair part", 7);
  mt_free(slot);
  mt_free(piece);
  mt_layout_free(layout);
  close_bench(&b);
}

START_TEST(test_homes)
{
  struct mt_comm *comm = open_comm(_i);
  check_homes(comm, 12);
  check_homes(comm, 1);
  mt_comm_free(comm);
}
END_TEST

/* Owner sharding where slots are the owners' memory: nothing is copied, nothing added, nothing sent, but for
 * an expert with another slot, which goes the usual way while the other ranks' slots stay in place. */
START_TEST(test_in_place)
{
  struct mt_comm *comm = open_comm(_i);
  const int P = comm->size, me = comm->rank, E = P + 2;
  for (int replica = 0; replica < (P > 1 ? 2 : 1); replica++) {
    struct bench b;
    int slots[MAX_RANK];
    for (int r = 0; r < P; r++)
      slots[r] = 1;
    slots[P - 1] += 2;
    slots[0] += replica;
    struct mt_layout *layout = mt_layout_new(comm->cluster, E, slots);
    for (int s = 0; s < E + replica; s++)
      layout->slot_expert[s] = !replica || s == 0 ? s
                               : s == 1           ? E - 1
                                                  : s - 1; /* the last expert on rank 0 too */
    mt_layout_index(layout, comm->cluster, 2);
    open_bench(&b, comm, BY_OWNER, 1000, layout);
    b.stride = b.length;
    const int in_place = !replica || (me != 0 && me != P - 1), first = layout->slot_first[me];
    float *piece = MT_NEW(MT_TAG_MISC, float, b.mine + 1),
          *own = MT_NEW(MT_TAG_MISC, float, b.nslot *b.stride);
    float *slot = in_place ? piece + piece_at(&b, layout->slot_expert[first]) : own;
    mt_tree_plan(b.tree, 0, layout);
    sent(&b, NULL, NULL);
    for (int e = 0; e < E; e++)
      for (int64_t i = 0; i < count_of(&b, e, me); i++)
        piece[piece_at(&b, e) + i] = value(8, e, first_of(&b, e) + i);
    mt_tree_unshard_inter(b.tree, piece, slot, b.stride);
    mt_tree_unshard_intra(b.tree, slot, b.stride);
    int64_t wrong = 0, bytes[MT_NLEVEL];
    for (int j = 0; j < b.nslot; j++)
      for (int64_t i = 0; i < b.length; i++)
        wrong += slot[j * b.stride + i] != value(8, layout->slot_expert[first + j], i);
    agree(&b, wrong, "unshard in place", replica);

    for (int e = 0; e < E; e++)
      for (int64_t i = 0; i < count_of(&b, e, me); i++)
        piece[piece_at(&b, e) + i] = before(e, first_of(&b, e) + i);
    for (int j = 0; j < b.nslot; j++)
      for (int64_t i = 0; i < b.length; i++)
        slot[j * b.stride + i] = gradient(8, first + j, i);
    mt_tree_reshard_intra(b.tree, slot, b.stride);
    mt_tree_reshard_inter(b.tree, piece, slot, b.stride);
    wrong = 0;
    for (int e = 0; e < E; e++)
      for (int64_t i = 0; i < count_of(&b, e, me); i++) {
        int s = layout->by_expert[layout->expert_first[e * layout->nnode]];
        float want = in_place ? gradient(8, s, i) : summed(&b, layout, 8, e, i);
        wrong += memcmp(&piece[piece_at(&b, e) + i], &want, sizeof want) != 0;
      }
    agree(&b, wrong, "reshard in place", replica);
    sent(&b, bytes, NULL);
    for (int i = 0; i < MT_NLEVEL; i++) /* the replica's weights and its gradient */
      ck_assert_int_eq(bytes[i],
                       replica && i == (int)mt_cluster_level(comm->cluster, 0, P - 1) ? 8 * b.length : 0);
    mt_free(piece);
    mt_free(own);
    mt_layout_free(layout);
    close_bench(&b);
  }
  mt_comm_free(comm);
}
END_TEST

/* Who owns what: full, everybody an even part; node, the ranks of node e mod nodes an even part each; owner,
 * the rank of the first slot everything. */
START_TEST(test_cuts)
{
  struct mt_comm *comm = open_comm(_i);
  for (uint64_t seed = 0; seed < 10; seed++)
    for (int kind = FULL; kind <= BY_OWNER; kind++) {
      struct dice dice = {seed, 0};
      struct bench b;
      int slots[MAX_RANK], E = 1 + roll(&dice, 6), first_owned = 0;
      made_up_slots(&dice, comm->size, 3, E, slots);
      struct mt_layout *layout = mt_layout_new(comm->cluster, E, slots);
      mt_layout_random(layout, comm->cluster, seed, 3);
      open_bench(&b, comm, (enum cut)kind, lengths[roll(&dice, NLENGTH)], layout);
      ck_assert_int_eq(b.cut.npart, kind == FULL ? 1 : E);
      for (int e = 0; e < E; e++) {
        const struct mt_part *part = &b.cut.part[e % b.cut.npart];
        int owner = 0, owners = 0;
        while (layout->slot_expert[owner] != e)
          owner++;
        owner = layout->slot_rank[owner];
        for (int r = 0; r < comm->size; r++)
          owners += kind == FULL || comm->cluster->node_of[r] == e % comm->nnode;
        ck_assert_int_eq(part->first[0], 0);
        ck_assert_int_eq(part->first[comm->size], b.length);
        for (int r = 0; r < comm->size; r++) {
          int64_t count = mt_part_count(part, r);
          int owns = kind == FULL      ? 1
                     : kind == BY_NODE ? comm->cluster->node_of[r] == e % comm->nnode
                                       : r == owner;
          ck_assert_int_ge(count, owns ? (kind == BY_OWNER ? b.length : b.length / owners) : 0);
          ck_assert_int_le(count, !owns ? 0 : kind == BY_OWNER ? b.length : (b.length + owners - 1) / owners);
        }
        ck_assert_int_eq(b.cut.before[e % b.cut.npart], kind == FULL ? 0 : first_owned);
        first_owned += (int)mt_part_count(part, comm->rank);
      }
      ck_assert_int_eq(b.cut.before[b.cut.npart], kind == FULL ? first_owned / E : first_owned);
      mt_layout_free(layout);
      close_bench(&b);
    }
  mt_comm_free(comm);
}
END_TEST

/* The shard: zeros, and where pieces lie, for several layers of experts under one cut. */
START_TEST(test_shard)
{
  struct mt_comm *comm = open_comm(1);
  for (int kind = FULL; kind <= BY_OWNER; kind++)
    for (int64_t length = 0; length < 20; length++) {
      enum { EXPERTS = 3, LAYERS = 2 };
      static const enum mt_sharding sharding[] = {MT_SHARDING_FULL, MT_SHARDING_NODE, MT_SHARDING_OWNER};
      struct bench b;
      int slots[MAX_RANK] = {0};
      slots[comm->size - 1] = 2;
      slots[0] += 2;
      struct mt_layout *layout = mt_layout_new(comm->cluster, EXPERTS, slots);
      open_bench(&b, comm, (enum cut)kind, length, layout);
      for (int training = 0; training < 2; training++) {
        int64_t optimizer = mt_memory_tag(MT_TAG_OPTIMIZER), at = 0, wrong = 0;
        struct mt_shard shard = mt_shard_new(comm, LAYERS * EXPERTS, length,
                                             mt_cut_experts(comm, sharding[kind], length, layout, NULL), training);
        for (int i = 0; i < LAYERS * EXPERTS; i++) {
          int64_t first, count = mt_shard_piece(&shard, i, &first);
          wrong += first != first_of(&b, i % EXPERTS) || count != count_of(&b, i % EXPERTS, comm->rank);
          wrong += mt_shard_at(&shard, i) != at;
          at += count;
        }
        wrong += shard.total != at || shard.nitem != LAYERS * EXPERTS || shard.length != length;
        for (int64_t i = 0; i < shard.total; i++)
          wrong += shard.master[i] != 0 ||
                   (training && (shard.m[i] != 0 || shard.v[i] != 0 || shard.grad[i] != 0));
        wrong += mt_memory_tag(MT_TAG_OPTIMIZER) - optimizer != (training ? 12 * at : 0);
        agree(&b, wrong, "a new shard", (int)length);
        mt_shard_free(&shard);
        ck_assert_ptr_null(shard.master);
        ck_assert_int_eq(mt_memory_tag(MT_TAG_OPTIMIZER), optimizer);
      }
      mt_layout_free(layout);
      close_bench(&b);
    }
  mt_comm_free(comm);
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  Suite *suite = suite_create("shard");
  TCase *tests = tcase_create("shard");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_layouts, 0, NODES);
  tcase_add_loop_test(tests, test_replicas, 0, NODES);
  tcase_add_loop_test(tests, test_homes, 0, NODES);
  tcase_add_loop_test(tests, test_in_place, 0, NODES);
  tcase_add_loop_test(tests, test_cuts, 0, NODES);
  tcase_add_test(tests, test_shard);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
