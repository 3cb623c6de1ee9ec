/* The global batch cut over ranks: a function of speeds that are made up. ranks: 1 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "test.h"
#include "train/batch.h"

static const struct {
  const char *sizes, *shares;
  int64_t n, micro, speed[8];
  int64_t expected[8], nmicro;
} cases[] = {
    /* twice as fast: twice as many; by largest remainder, ties to the lowest rank */
    {"2", "auto", 9, 4, {200, 100}, {6, 3}, 2},
    {"1,2", "auto", 10, 4, {10, 20, 30}, {2, 3, 5}, 2},
    {"2,1", "auto", 2, 4, {50, 50, 100}, {1, 0, 1}, 1},
    {"1,1,1", "auto", 8, 8, {1, 1, 1000000}, {0, 0, 8}, 1},
    /* within a tenth, or not all measured: evenly */
    {"2,1", "auto", 11, 4, {100, 110, 105}, {3, 4, 4}, 1},
    {"2,1", "auto", 10, 1, {100, 0, 500}, {3, 3, 4}, 4},
    {"4", "auto", 3, 2, {0, 0, 0, 0}, {0, 1, 1, 1}, 1},
    /* just beyond */
    {"2", "auto", 231, 11, {100, 111}, {109, 122}, 12},
    /* whatever the speeds */
    {"2", "even", 9, 2, {200, 100}, {4, 5}, 3},
    {"2,1", "3,0, 1", 10, 2, {1, 2, 3}, {8, 0, 2}, 4},
    {"1,1", "1073741824,1", 7, 3, {0, 0}, {7, 0}, 3},
    {"1", "5", 7, 3, {9}, {7}, 3},
    {"3", "auto", 0, 3, {10, 20, 30}, {0, 0, 0}, 0},
};

static struct mt_config config_of(const char *shares, int64_t micro, int64_t global)
{
  struct mt_config config = {0};
  config.parallel.shares = (char *)(uintptr_t)shares;
  config.train.micro_batch = micro;
  config.train.global_batch = global;
  return config;
}

START_TEST(test_cut)
{
  struct mt_cluster *cluster;
  ck_assert_int_eq(mt_cluster_from_sizes(cases[_i].sizes, &cluster), MT_OK);
  for (int p = 0; p < cluster->nplace; p++)
    cluster->place[p].speed = cases[_i].speed[p];
  struct mt_config config = config_of(cases[_i].shares, cases[_i].micro, cases[_i].n);
  ck_assert_int_eq(mt_batch_check(&config, cluster), MT_OK);
  struct mt_batch batch = mt_batch_cut(&config, cluster, cases[_i].n);
  ck_assert_int_eq(batch.share.nrank, cluster->nplace);
  ck_assert_int_eq(batch.nmicro, cases[_i].nmicro);
  for (int r = 0; r < cluster->nplace; r++) {
    ck_assert_msg(mt_part_count(&batch.share, r) == cases[_i].expected[r], "case %d: rank %d gets %lld", _i, r,
                  (long long)mt_part_count(&batch.share, r));
    int64_t most = mt_batch_most(&batch, r), from, seen = 0;
    ck_assert_int_eq(most, mt_batch_max_B(&config, cluster, r));
    ck_assert(most >= 1 && most <= cases[_i].micro);
    for (int64_t m = 0; m < batch.nmicro; m++) { /* as the step takes them */
      int64_t B = mt_part_range(cases[_i].expected[r], batch.nmicro, m, &from);
      seen = B > seen ? B : seen;
    }
    ck_assert_int_eq(most, seen > 1 ? seen : 1);
  }
  mt_part_free(&batch.share);
  mt_cluster_free(cluster);
}
END_TEST

START_TEST(test_refused)
{
  static const char *const bad[] = {"1", "1,2", "1,2,3,4", "0,0,0", "1,-1,2", "1,2,x", "1,,2", "1,2,", "", "odd"};
  struct mt_cluster *cluster;
  ck_assert_int_eq(mt_cluster_from_sizes("2,1", &cluster), MT_OK);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct mt_config config = config_of(bad[i], 1, 1);
    ck_assert_msg(mt_batch_check(&config, cluster) == MT_USAGE, "'%s' is taken", bad[i]);
  }
  mt_cluster_free(cluster);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("batch");
  TCase *tests = tcase_create("batch");
  tcase_add_loop_test(tests, test_cut, 0, sizeof cases / sizeof *cases);
  tcase_add_test(tests, test_refused);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
