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

struct bench {
  struct mt_comm *comm; /* borrowed */
  struct mt_device *device;
  struct mt_cut cut;
  struct mt_part part; /* borrowed from cut */
  struct mt_tree *tree;
  int64_t length, stride, mine; /* mine: elements of one vector here */
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

static void open_bench(struct bench *b, struct mt_comm *comm, int weighted, int64_t length)
{
  b->comm = comm;
  ck_assert_int_eq(mt_device_open("cpu", 1, &b->device), MT_OK);
  int64_t weight[MAX_RANK];
  for (int r = 0; r < b->comm->size; r++)
    weight[r] = (r + 2) % 3; /* 2, 0, 1, ...: some own nothing */
  b->cut = mt_cut_full(b->comm, length);
  if (weighted) {
    mt_part_free(&b->cut.part[0]);
    b->cut.part[0] = mt_part_weighted(length, b->comm->size, weight);
    b->cut.before[1] = mt_part_count(&b->cut.part[0], b->comm->rank);
  }
  b->part = b->cut.part[0];
  b->tree = mt_tree_new(b->comm, b->device, &b->cut);
  b->length = length;
  b->stride = length + 3;
  b->mine = mt_part_count(&b->part, b->comm->rank);
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
          *bytes += 4 * mt_part_count(&b->part, r);
          *messages += mt_part_count(&b->part, r) > 0;
        }
}

/* The most that may travel inside nodes. To the slots: a node's own pieces go to their homes, and each other
 * holder gets the whole vector once. Back: each slot but the home's gives its gradient by itself, since sums
 * have one order. */
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
        owned += mt_part_count(&b->part, r);
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
  float *piece = MT_NEW(MT_TAG_MISC, float, b->E * b->mine + 1),
        *slot = MT_NEW(MT_TAG_MISC, float, b->nslot * b->stride + 1);
  for (int e = 0; e < b->E; e++)
    for (int64_t i = 0; i < b->mine; i++)
      piece[e * b->mine + i] = value(version, e, b->part.first[me] + i);
  for (int64_t i = 0; i <= b->nslot * b->stride; i++)
    slot[i] = GAP;
  int64_t bytes[MT_NLEVEL], messages[MT_NLEVEL], expected, count, allocated = mt_memory_allocations();
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
    for (int64_t i = 0; i < b->mine; i++)
      changed += piece[e * b->mine + i] != value(version, e, b->part.first[me] + i);
  agree(b, wrong, "unshard: elements", version);
  agree(b, gaps, "unshard: gaps", version);
  agree(b, changed, "unshard: the shard itself", version);

  int64_t foreseen[MT_NLEVEL];
  sent(b, bytes, messages);
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
  ck_assert_int_le(bytes[MT_LEVEL_NODE], within_nodes(b, layout, 0));
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
  const int64_t first = b->part.first[me];
  float *piece = MT_NEW(MT_TAG_MISC, float, b->E * b->mine + 1),
        *slot = MT_NEW(MT_TAG_MISC, float, b->nslot * b->stride + 1);
  for (int e = 0; e < b->E; e++)
    for (int64_t i = 0; i < b->mine; i++)
      piece[e * b->mine + i] = before(e, first + i);
  piece[b->E * b->mine] = GAP;
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

  int64_t wrong = 0, gaps = piece[b->E * b->mine] != GAP;
  for (int e = 0; e < b->E; e++)
    for (int64_t i = 0; i < b->mine; i++) {
      float want = summed(b, layout, version, e, first + i);
      wrong += memcmp(&piece[e * b->mine + i], &want, sizeof want) != 0;
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

/* Plans, both ways. again = 1: memory is there but for staging, whose growths are counted. */
static void check_layout(struct bench *b, const struct mt_layout *layout, int version, int again)
{
  int64_t allocations = mt_memory_allocations(), growths = mt_memory_growths();
  mt_tree_plan(b->tree, layout);
  allocations = mt_memory_allocations() - allocations;
  growths = mt_memory_growths() - growths;
  agree(b, again ? allocations - growths : 0, "planning: allocations besides growths", version);
  allocations = mt_memory_allocations();
  mt_tree_plan(b->tree, layout);
  agree(b, mt_memory_allocations() - allocations, "planning the same: allocations", version);
  check_unshard(b, layout, version);
  check_reshard(b, layout, version);
}

static const int64_t lengths[] = {0, 1, 5, 1000, 4097};

/* Slots 0..4 on each rank, any layout, then others of the same slots, then the first again. */
START_TEST(test_layouts)
{
  struct mt_comm *comm = open_comm(_i);
  const int P = size();
  for (int weighted = 0; weighted < 2; weighted++)
    for (int l = 0; l < (int)(sizeof lengths / sizeof *lengths); l++)
      for (uint64_t seed = 0; seed < 3; seed++) {
        struct dice dice = {seed * 100 + (uint64_t)(weighted * 10 + l), 0};
        struct bench b;
        int slots[MAX_RANK], E = seed == 2 ? 1 : 1 + roll(&dice, 6);
        open_bench(&b, comm, weighted, lengths[l]);
        made_up_slots(&dice, P, 4, E, slots);
        b.E = E;
        b.nslot = slots[b.comm->rank];
        struct mt_layout *layout = mt_layout_new(b.comm->cluster, E, slots);
        struct mt_layout *other = mt_layout_new(b.comm->cluster, E, slots);
        mt_layout_random(other, b.comm->cluster, seed, 1);
        check_layout(&b, layout, 0, 0);
        check_layout(&b, other, 1, 1);
        mt_layout_random(other, b.comm->cluster, seed, 2); /* in place: another revision */
        check_layout(&b, other, 2, 1);
        check_layout(&b, layout, 3, 1);
        int64_t allocations = mt_memory_allocations();
        mt_tree_plan(b.tree, other);
        mt_tree_plan(b.tree, layout);
        agree(&b, mt_memory_allocations() - allocations, "planning what was planned before: allocations", 4);
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
      open_bench(&b, comm, 0, 1000);
      for (int k = 0; k < P && !single; k++)
        slots[k] = 3;
      slots[r] += single;
      b.E = 1;
      b.nslot = slots[b.comm->rank];
      struct mt_layout *layout = mt_layout_new(b.comm->cluster, 1, slots);
      check_layout(&b, layout, 5 + r, 0);
      mt_layout_free(layout);
      close_bench(&b);
    }
  mt_comm_free(comm);
}
END_TEST

/* Homes share the work: with every expert on every rank, no rank sends more than its part of the pieces
 * between nodes. */
START_TEST(test_homes)
{
  struct mt_comm *comm = open_comm(_i);
  enum { LENGTH = 840, EXPERTS = 12 };
  const int P = size();
  struct bench b;
  int slots[MAX_RANK];
  open_bench(&b, comm, 0, LENGTH);
  for (int r = 0; r < P; r++)
    slots[r] = EXPERTS;
  b.E = EXPERTS;
  b.nslot = EXPERTS;
  struct mt_layout *layout = mt_layout_new(b.comm->cluster, EXPERTS, slots);
  for (int s = 0; s < P * EXPERTS; s++)
    layout->slot_expert[s] = s % EXPERTS;
  mt_layout_index(layout, b.comm->cluster, 2);
  check_layout(&b, layout, 6, 0);
  float *slot = MT_ZNEW(MT_TAG_MISC, float, b.nslot *b.stride),
        *piece = MT_ZNEW(MT_TAG_MISC, float, EXPERTS *b.mine);
  int64_t net = b.comm->sent_bytes[MT_LEVEL_NET];
  mt_tree_reshard_intra(b.tree, slot, b.stride);
  mt_tree_reshard_inter(b.tree, piece, slot, b.stride);
  net = b.comm->sent_bytes[MT_LEVEL_NET] - net;
  /* all of 4 (LENGTH - the node's own part) EXPERTS bytes divided by the node's ranks, which take turns; one
   * piece of each expert is what a rank may have beyond it */
  int64_t outside = LENGTH;
  for (int r = b.comm->node_first[b.comm->node]; r < b.comm->node_first[b.comm->node + 1]; r++)
    outside -= mt_part_count(&b.part, r);
  int64_t fair = 4 * EXPERTS * (outside / b.comm->node_size + (LENGTH + P - 1) / P);
  agree(&b, net > fair, "bytes between nodes beyond a fair part", 7);
  mt_free(slot);
  mt_free(piece);
  mt_layout_free(layout);
  close_bench(&b);
  mt_comm_free(comm);
}
END_TEST

/* The shard itself: even cut, zeros, sizes. */
START_TEST(test_shard)
{
  struct mt_comm *comm = open_comm(1);
  for (int64_t length = 0; length < 20; length++) {
    struct bench b;
    open_bench(&b, comm, 0, length);
    struct mt_shard shard = mt_shard_new(b.comm, 3, length, mt_cut_full(b.comm, length), 1);
    int64_t first, count = mt_shard_piece(&shard, 2, &first), at = mt_shard_at(&shard, 2);
    int64_t wrong = shard.nitem != 3 || shard.length != length || first != length * b.comm->rank / b.comm->size ||
                    count != length * (b.comm->rank + 1) / b.comm->size - first || at != 2 * count ||
                    shard.total != 3 * count;
    for (int64_t i = 0; i < shard.total; i++)
      wrong += shard.master[i] != 0 || shard.m[i] != 0 || shard.v[i] != 0 || shard.grad[i] != 0;
    agree(&b, wrong, "a new shard", (int)length);
    mt_shard_free(&shard);
    ck_assert_ptr_null(shard.master);
    int64_t optimizer = mt_memory_tag(MT_TAG_OPTIMIZER);
    shard = mt_shard_new(b.comm, 3, length, mt_cut_full(b.comm, length), 0); /* master weights only */
    ck_assert_int_eq(mt_memory_tag(MT_TAG_OPTIMIZER), optimizer);
    wrong = 0;
    for (int64_t i = 0; i < shard.total; i++)
      wrong += shard.master[i] != 0;
    agree(&b, wrong, "a new shard without moments", (int)length);
    mt_shard_free(&shard);
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
  tcase_add_test(tests, test_shard);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
