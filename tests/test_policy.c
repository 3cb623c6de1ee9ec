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

/* ---- what holds for any cluster ---- */

static const enum mt_layout_policy kinds[] = {MT_LAYOUT_STATIC, MT_LAYOUT_RANDOM,  MT_LAYOUT_LAER,
                                              MT_LAYOUT_EPLB,   MT_LAYOUT_FLEXMOE, MT_LAYOUT_MOTLEY};
enum { NKIND = sizeof kinds / sizeof *kinds };

/* Ragged nodes, unlike speeds and links, any slots; loads of all kinds, nothing at all among them. */
static struct setting *made_up_setting(uint64_t seed)
{
  struct dice dice = {seed, 0};
  struct setting *x = MT_ZNEW(MT_TAG_MISC, struct setting, 1);
  x->cluster = made_up_cluster(&dice);
  x->P = x->cluster->nplace;
  x->E = 1 + roll(&dice, 12);
  made_up_slots(&dice, x->P, 1 + roll(&dice, 5), x->E, x->slots);
  for (int p = 0; p < x->P; p++) {
    x->S += x->slots[p];
    x->cluster->place[p].speed = seed % 3 ? 10000 + 1000 * roll(&dice, 50) : 0;
  }
  if (seed % 2)
    x->cluster->link[MT_LEVEL_NET] = (struct mt_link){1000, 1 + roll(&dice, 40000), 0};
  x->policy = mt_policy_new(x->cluster, x->E, x->slots);
  x->before = mt_layout_new(x->cluster, x->E, x->slots);
  mt_layout_random(x->before, x->cluster, seed, 1);
  const int kind = roll(&dice, 5);
  for (int i = 0; i < x->P * x->E; i++)
    x->counts[i] = kind == 0                   ? 0
                   : kind == 1                 ? (i % x->E == x->E - 1) * roll(&dice, 500)
                   : kind == 2 && i % x->E % 2 ? 0
                                               : roll(&dice, 1000 / (1 + i % x->E));
  x->problem = (struct mt_policy_problem){.cluster = x->cluster,
                                          .work = mt_work_of(32, 64, 1, 4, 0, (enum mt_sharding)roll(&dice, 3)),
                                          .dispatch = roll(&dice, 2) ? MT_DISPATCH_SOLVED : MT_DISPATCH_LITE,
                                          .nstep = 1 + roll(&dice, 3),
                                          .counts = x->counts,
                                          .before = x->before,
                                          .key = seed};
  x->problem.work.hidden = roll(&dice, 2);
  return x;
}

START_TEST(test_any_cluster)
{
  for (uint64_t seed = 0; seed < 2000; seed++) {
    struct setting *x = made_up_setting(seed);
    struct mt_policy *again = mt_policy_new(x->cluster, x->E, x->slots);
    struct mt_layout *layout = mt_layout_new(x->cluster, x->E, x->slots),
                     *other = mt_layout_new(x->cluster, x->E, x->slots);
    struct mt_shares *shares = mt_shares_new(x->cluster, x->E, x->S);
    int64_t total[NKIND];
    for (int k = 0; k < NKIND; k++) {
      mt_policy_plan(x->policy, kinds[k], &x->problem, layout);
      /* every slot has an expert, every expert a slot, and no slot moved to another rank */
      int seen[MOST] = {0};
      for (int p = 0; p < x->P; p++)
        ck_assert_int_eq(layout->slot_first[p + 1] - layout->slot_first[p], x->slots[p]);
      for (int s = 0; s < x->S; s++) {
        ck_assert_int_ge(layout->slot_expert[s], 0);
        ck_assert_int_lt(layout->slot_expert[s], x->E);
        seen[layout->slot_expert[s]]++;
      }
      for (int e = 0; e < x->E; e++)
        ck_assert_int_gt(seen[e], 0);
      /* the revision says whether anything changed */
      const int same = !memcmp(layout->slot_expert, x->before->slot_expert, sizeof(int) * (size_t)x->S);
      ck_assert_int_eq(layout->revision, x->before->revision + !same);
      /* whoever plans plans the same */
      if (seed % 4 == 0) {
        mt_policy_plan(again, kinds[k], &x->problem, other);
        ck_assert_mem_eq(layout->slot_expert, other->slot_expert, sizeof(int) * (size_t)x->S);
      }
      /* rows are conserved */
      mt_shares_deal(shares, x->problem.dispatch, x->cluster, &x->problem.work, layout, x->counts);
      int64_t rows[5 * MOST], dealt = 0, all = 0;
      ck_assert_int_le(x->S, 5 * MOST);
      mt_layout_rows(layout, shares, rows);
      for (int s = 0; s < x->S; s++)
        dealt += rows[s];
      for (int i = 0; i < x->P * x->E; i++)
        all += x->counts[i];
      ck_assert_int_eq(dealt, all);
      total[k] = mt_policy_cost(x->policy, &x->problem, layout->slot_expert).total_ps;
    }
    ck_assert_msg(total[NKIND - 1] <= total[0] && total[NKIND - 1] <= total[2],
                  "case %d: motley %lld, static %lld, laer %lld", (int)seed, (long long)total[NKIND - 1],
                  (long long)total[0], (long long)total[2]);
    mt_shares_free(shares);
    mt_layout_free(layout);
    mt_layout_free(other);
    mt_policy_free(again);
    tear_down(x);
  }
}
END_TEST

/* Largest rows of a device under motley's layout and solved shares. */
static int64_t largest(struct setting *x, struct mt_layout_cost *cost)
{
  struct mt_layout *layout = mt_layout_new(x->cluster, x->E, x->slots);
  struct mt_shares *shares = mt_shares_new(x->cluster, x->E, x->S);
  int64_t *rows = MT_NEW(MT_TAG_MISC, int64_t, x->S), most = 0;
  mt_policy_plan(x->policy, MT_LAYOUT_MOTLEY, &x->problem, layout);
  mt_shares_deal(shares, MT_DISPATCH_SOLVED, x->cluster, &x->problem.work, layout, x->counts);
  mt_layout_rows(layout, shares, rows);
  for (int p = 0; p < x->P; p++) {
    int64_t sum = 0;
    for (int s = layout->slot_first[p]; s < layout->slot_first[p + 1]; s++)
      sum += rows[s];
    most = sum > most ? sum : most;
  }
  *cost = mt_layout_cost(x->cluster, &x->problem.work, layout, shares);
  mt_free(rows);
  mt_shares_free(shares);
  mt_layout_free(layout);
  return most;
}

START_TEST(test_motley_values)
{
  /* eight equal devices with two slots: the mean is 181.25 */
  static const int64_t load[8] = {600, 560, 120, 120, 20, 10, 10, 10};
  static const char *const nodes[] = {"8", "4,4", "5,2,1"};
  struct mt_layout_cost cost;
  for (int i = 0; i < 3; i++) {
    struct setting *x = set_up(nodes[i], 8, 2, load);
    x->problem.work.expert_bytes = x->problem.work.row_bytes = 0; /* balance alone */
    ck_assert_int_le(largest(x, &cost), 182);
    tear_down(x);
  }
  /* devices of speeds 1, 2 and 3: rows follow the speeds */
  static const int64_t many[8] = {60000, 56000, 12000, 12000, 2000, 1000, 1000, 1000};
  struct setting *x = set_up("3,3", 8, 3, many);
  for (int p = 0; p < 6; p++)
    x->cluster->place[p].speed = 30000 * (1 + p % 3);
  set_counts(x, many);
  int64_t most = largest(x, &cost);
  ck_assert_int_le(cost.imbalance_ppm, 1001000);
  ck_assert_int_ge(most, 145000 / 4 - 10); /* a device of speed 3 of 12 */
  tear_down(x);
}
END_TEST

START_TEST(test_large)
{
  /* beyond what is searched: still not worse than static and laer, still balanced */
  struct setting *x = set_up("8,8,8,8,8,8,8,8", 48, 6, (int64_t[64]){0});
  int64_t load[48];
  for (int e = 0; e < 48; e++)
    load[e] = 400000 / (e + 1);
  set_counts(x, load);
  struct mt_layout_cost cost;
  largest(x, &cost);
  ck_assert_int_le(cost.imbalance_ppm, 1010000);
  struct mt_layout *layout = mt_layout_new(x->cluster, x->E, x->slots);
  int64_t total[3];
  const enum mt_layout_policy of[3] = {MT_LAYOUT_MOTLEY, MT_LAYOUT_STATIC, MT_LAYOUT_LAER};
  for (int k = 0; k < 3; k++) {
    mt_policy_plan(x->policy, of[k], &x->problem, layout);
    total[k] = mt_policy_cost(x->policy, &x->problem, layout->slot_expert).total_ps;
  }
  ck_assert_int_le(total[0], total[1]);
  ck_assert_int_le(total[0], total[2]);
  mt_layout_free(layout);
  tear_down(x);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("policy");
  TCase *tcase = tcase_create("policy");
  tcase_set_timeout(tcase, 240);
  tcase_add_test(tcase, test_laer_covering);
  tcase_add_test(tcase, test_laer_not_covering);
  tcase_add_test(tcase, test_eplb_values);
  tcase_add_test(tcase, test_any_cluster);
  tcase_add_test(tcase, test_motley_values);
  tcase_add_test(tcase, test_large);
  suite_add_tcase(suite, tcase);
  return mt_test_run(suite);
}
