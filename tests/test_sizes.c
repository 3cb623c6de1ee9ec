/* Sizes of shards: a function of memory and links that are made up. ranks: 1 */
#include <string.h>
#include "experts/sizes.h"
#include "made_up.h"
#include "test.h"

/* 1000 shared elements, 2 MoE layers of 4 experts of 500. */
static const struct mt_params params = {.shared_length = 1000, .expert_length = 500, .nmoe = 2, .nexpert = 4};
enum { TOTAL = 5000 };

static struct mt_config config_of(const char *sizes)
{
  struct mt_config config = {0};
  config.parallel.shard_sizes = (char *)(uintptr_t)sizes;
  config.parallel.slots = (char *)(uintptr_t)"1";
  return config;
}

/* Memory of a node with so many ranks that each has room for so many elements beside its slot and the shared ones. */
static int64_t memory(int64_t elements, int ranks)
{
  return ((elements * 16 + 8 * 1000 + 12 * 500) * ranks + 2) / 3 * 4;
}

static const struct {
  const char *nodes, *sizes;
  int64_t room[6], net, self; /* room of a node's ranks, -1 = unknown */
  int64_t expected[6]; /* none: even */
} cases[] = {
    {"4", "even", {0}, 0, 0, {0}},
    {"4", "auto", {-1}, 0, 0, {0}},
    {"4", "auto", {5000}, 0, 0, {0}},
    /* one node is small; what does not fit goes to the others evenly; a second one becomes full by that */
    {"1,1,2", "auto", {500, -1, -1}, 0, 0, {500, 1500, 1500, 1500}},
    {"1,1,1,1", "auto", {500, 1300, -1, -1}, 0, 0, {500, 1300, 1600, 1600}},
    {"2,2", "auto", {0, -1}, 0, 0, {0, 0, 2500, 2500}},
    /* nothing helps: what there is */
    {"1,1,2", "auto", {500, 700, 200}, 0, 0, {500, 700, 200, 200}},
    {"2,2", "auto", {0, 0}, 0, 0, {0}},
    /* a crowded uplink: over nodes if the network is slow beside memory, over ranks if it is quick or not measured */
    {"3,1", "auto", {-1, -1}, 8000, 100, {833, 833, 833, 2500}},
    {"3,1", "auto", {-1, -1}, 50, 100, {0}},
    {"3,1", "auto", {-1, -1}, 8000, 0, {0}},
    {"3,1", "auto", {-1, 800}, 8000, 100, {1400, 1400, 1400, 800}},
    {"2,2", "auto", {-1, -1}, 8000, 100, {0}},
    {"2,1", "4, 0,1", {1, 1}, 8000, 100, {4, 0, 1}},
    {"2,1", "2,2,2", {1, 1}, 8000, 100, {0}},
};

static struct mt_cluster *made_up(const char *nodes, const int64_t *rooms, int64_t net, int64_t self)
{
  struct mt_cluster *cluster;
  ck_assert_int_eq(mt_cluster_from_sizes(nodes, &cluster), MT_OK);
  cluster->link[MT_LEVEL_NET].beta_ps = net;
  cluster->link[MT_LEVEL_SELF].beta_ps = self;
  for (int p = 0; p < cluster->nplace; p++) {
    int q = cluster->node_of[p], n = cluster->node_first[q + 1] - cluster->node_first[q];
    cluster->place[p].mem_bytes = rooms[q] < 0 ? 0 : memory(rooms[q], n);
  }
  return cluster;
}

/* Blocks divide the shared vector, pieces of them are not small, and one rank needs none. */
START_TEST(test_blocks)
{
  for (int64_t length = 16 * MT_SHARED_BLOCKS; length < 1 << 26; length *= 2)
    for (int P = 1; P < 3000; P = P * 3 / 2 + 1) {
      const int n = mt_sizes_blocks(&(struct mt_params){.shared_length = length}, &(struct mt_comm){.size = P});
      ck_assert_int_ge(n, 1);
      ck_assert_int_eq(length % n, 0);
      ck_assert(n == 1 || length * 4 / n / P >= mt_sizes_least_piece);
      ck_assert_int_le(n, P == 1 ? 1 : MT_SHARED_BLOCKS);
      if (P > 1 && length * 4 / P / MT_SHARED_BLOCKS >= mt_sizes_least_piece)
        ck_assert_int_eq(n, MT_SHARED_BLOCKS);
    }
}
END_TEST

START_TEST(test_weights)
{
  struct mt_cluster *cluster = made_up(cases[_i].nodes, cases[_i].room, cases[_i].net, cases[_i].self);
  struct mt_config config = config_of(cases[_i].sizes);
  int64_t weight[6], any = 0;
  ck_assert_int_eq(mt_sizes_check(&config, cluster), MT_OK);
  for (int p = 0; p < cluster->nplace; p++)
    any |= cases[_i].expected[p];
  ck_assert_msg(mt_sizes(&config, &params, cluster, weight) == (any != 0), "case %d: even or not", _i);
  for (int p = 0; p < cluster->nplace && any; p++)
    ck_assert_msg(weight[p] == cases[_i].expected[p], "case %d: rank %d has the weight %lld", _i, p, (long long)weight[p]);
  mt_cluster_free(cluster);
}
END_TEST

/* On any cluster: nobody owns more than fits, if all of it fits somewhere; and all of it is owned. */
START_TEST(test_fit)
{
  struct dice dice = {7, 0};
  int tight = 0;
  for (int i = 0; i < 500; i++) {
    int64_t rooms[6], sum = 0, weight[6], owned = 0;
    static const char *const nodes[] = {"1,2,3", "4,1,1", "1,1,1,1,1,1", "5,1", "2,2"};
    int which = roll(&dice, 5);
    for (int q = 0; q < 6; q++)
      rooms[q] = roll(&dice, 1500);
    struct mt_cluster *cluster = made_up(nodes[which], rooms, roll(&dice, 3) * 5000, 100);
    struct mt_config config = config_of("auto");
    for (int p = 0; p < cluster->nplace; p++)
      sum += rooms[cluster->node_of[p]];
    if (mt_sizes(&config, &params, cluster, weight) && sum >= TOTAL) {
      for (int p = 0; p < cluster->nplace; p++) {
        ck_assert(weight[p] >= 0 && weight[p] <= rooms[cluster->node_of[p]]);
        owned += weight[p];
      }
      ck_assert(owned <= TOTAL && owned > TOTAL - 6); /* what rounding leaves is dealt by the partition */
      tight++;
    }
    mt_cluster_free(cluster);
  }
  ck_assert_int_gt(tight, 20);
}
END_TEST

START_TEST(test_refused)
{
  static const char *const bad[] = {"1", "1,2,3,4", "0,0,0", "1,x,2", "1,2,"};
  static const int64_t unknown[] = {-1, -1};
  struct mt_cluster *cluster = made_up("2,1", unknown, 0, 0);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct mt_config config = config_of(bad[i]);
    ck_assert_msg(mt_sizes_check(&config, cluster) == MT_USAGE, "'%s' is taken", bad[i]);
  }
  mt_cluster_free(cluster);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("sizes");
  TCase *tests = tcase_create("sizes");
  tcase_add_test(tests, test_blocks);
  tcase_add_loop_test(tests, test_weights, 0, sizeof cases / sizeof *cases);
  tcase_add_test(tests, test_fit);
  tcase_add_test(tests, test_refused);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
