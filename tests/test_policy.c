/* Policies: published test values, and what must hold for any cluster. ranks: 1 */
#include <string.h>
#include "experts/policy.h"
#include "experts/policy_parts.h"
#include "made_up.h"
#include "test.h"

enum { MOST = 64 };

/* A problem on made-up nodes; counts[p][e] = load[e] over the ranks, the first ones with the remainder. */
struct setting {
  struct mt_cluster *cluster;
  struct mt_policy *policy;
  struct mt_layout *before;
  struct mt_policy_problem problem;
  int P, E, S, slots[MOST];
  int64_t counts[MOST * MOST];
};

static void set_counts(struct setting *x, const int64_t *load)
{
  for (int p = 0; p < x->P; p++)
    for (int e = 0; e < x->E; e++)
      x->counts[p * x->E + e] = load[e] / x->P + (p < load[e] % x->P);
  memcpy(x->policy->load, load, sizeof *load * (size_t)x->E);
  mt_work_row_ps(&x->problem.work, x->cluster, x->policy->ps);
}

static struct setting *set_up(const char *sizes, int E, int each, const int64_t *load)
{
  struct setting *x = MT_ZNEW(MT_TAG_MISC, struct setting, 1);
  ck_assert_int_eq(mt_cluster_from_sizes(sizes, &x->cluster), MT_OK);
  x->P = x->cluster->nplace;
  x->E = E;
  for (int p = 0; p < x->P; p++)
    x->slots[p] = each;
  x->S = x->P * each;
  x->policy = mt_policy_new(x->cluster, E, x->slots);
  x->before = mt_layout_new(x->cluster, E, x->slots);
  x->problem = (struct mt_policy_problem){.cluster = x->cluster,
                                          .work = mt_work_of(64, 128, 1, 4, 0, MT_SHARDING_FULL),
                                          .dispatch = MT_DISPATCH_SOLVED,
                                          .nstep = 1,
                                          .counts = x->counts,
                                          .before = x->before};
  set_counts(x, load);
  return x;
}

static void tear_down(struct setting *x)
{
  mt_layout_free(x->before);
  mt_policy_free(x->policy);
  mt_cluster_free(x->cluster);
  mt_free(x);
}

/* ---- values of the original programs ---- */

static const int64_t loads_a[8] = {1601, 809, 421, 397, 331, 241, 167, 83};

START_TEST(test_laer_covering)
{
  /* 2 nodes of 8, 2 slots each: every expert on both nodes */
  static const int replicas[8] = {10, 6, 4, 4, 2, 2, 2, 2};
  static const int place[8][2] = {{4, 7}, {0, 2}, {0, 2}, {0, 3}, {0, 3}, {0, 6}, {1, 1}, {1, 5}};
  struct setting *x = set_up("8,8", 8, 2, loads_a);
  int slot_expert[32];
  mt_laer_replicas(x->policy);
  ck_assert_mem_eq(x->policy->replica, replicas, sizeof replicas);
  int64_t most = mt_laer_place(x->policy, x->cluster, slot_expert);
  ck_assert_int_eq(most * 1000 >> MT_LOAD_SHIFT, 269666); /* 269.667, less what the parts' shifts cut off */
  for (int p = 0; p < 16; p++) {
    int low = slot_expert[2 * p], high = slot_expert[2 * p + 1];
    ck_assert_int_eq(low < high ? low : high, place[p % 8][0]);
    ck_assert_int_eq(low < high ? high : low, place[p % 8][1]);
  }
  /* Published cost 2.151666 ms and 3.060255 ms for even replicas; times and rates in thousandths here, for the digits:
   * 1484.375 us a row and pass, four passes, 8192 bytes a row, 216.269 and 88.9539 MB/s. */
  x->problem.work.row_flops = (int64_t)1484375000 * 4 / 1000 * 50;
  x->problem.work.row_bytes = 8192;
  x->cluster->link[MT_LEVEL_NODE].beta_ps = 4624;
  x->cluster->link[MT_LEVEL_NET].beta_ps = 11242;
  set_counts(x, loads_a);
  ck_assert_int_eq(x->policy->ps[0], 1484375000LL * 4);
  double ms = (double)mt_laer_score(x->policy, &x->problem, slot_expert) * 1e-12;
  ck_assert_double_eq_tol(ms, 2.151666, 1e-4);
  ck_assert(mt_laer_even(x->policy));
  most = mt_laer_place(x->policy, x->cluster, slot_expert);
  ck_assert_int_eq(most >> MT_LOAD_SHIFT, 421);
  ms = (double)mt_laer_score(x->policy, &x->problem, slot_expert) * 1e-12;
  ck_assert_double_eq_tol(ms, 3.060255, 1e-4);
  tear_down(x);
}
END_TEST

START_TEST(test_laer_not_covering)
{
  static const int64_t load[24] = {900, 610, 430, 390, 350, 310, 270, 230, 210, 190, 170, 150,
                                   140, 130, 120, 110, 100, 90,  80,  70,  60,  50,  40,  30};
  struct setting *x = set_up("8,8", 24, 2, load);
  int slot_expert[32];
  mt_laer_replicas(x->policy);
  ck_assert_int_eq(x->policy->replica[0], 4);
  for (int e = 1; e < 24; e++)
    ck_assert_int_eq(x->policy->replica[e], e < 6 ? 2 : 1);
  ck_assert_int_eq(mt_laer_place(x->policy, x->cluster, slot_expert) >> MT_LOAD_SHIFT, 370);
  ck_assert(!mt_laer_even(x->policy));
  tear_down(x);
}
END_TEST

START_TEST(test_eplb_values)
{
  static const int64_t load[2][12] = {{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86},
                                      {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}};
  static const int place[2][16] = {{5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1},
                                   {7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1}};
  for (int i = 0; i < 2; i++) {
    struct setting *x = set_up("4,4", 12, 2, load[i]);
    int slot_expert[16];
    ck_assert(mt_eplb_place(x->policy, x->cluster, 4, slot_expert));
    ck_assert_mem_eq(slot_expert, place[i], sizeof place[i]);
    tear_down(x);
  }
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("policy");
  TCase *tcase = tcase_create("policy");
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, test_laer_covering);
  tcase_add_test(tcase, test_laer_not_covering);
  tcase_add_test(tcase, test_eplb_values);
  suite_add_tcase(suite, tcase);
  return mt_test_run(suite);
}
