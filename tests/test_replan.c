/* Trials of plans by their rules, with made-up times; a course through JSON and back. ranks: 1 */
#include <string.h>
#include "test.h"
#include "train/replan.h"

static struct mt_replan begun(int lanes, int either, int serial)
{
  struct mt_replan r = {.lanes = lanes, .either = either, .wait = MT_WATCHED};
  mt_replan_begin(&r, serial, 1);
  return r;
}

/* Runs a round whose steps take s[beside] seconds; returns how many steps it took. */
static int run_round(struct mt_replan *r, const double *s)
{
  for (int n = 1;; n++) {
    int ways = r->beside, counts = mt_replan_counts(r);
    ck_assert_int_eq(counts, n > 1);
    enum mt_turn turn = mt_replan_step(r, counts ? s[ways] * (n % 3 == 1 ? 5 : 1) : 99, 1);
    ck_assert_int_ne(turn, MT_TURN_DEPARTED);
    if (turn == MT_TURN_ROUND)
      return n;
    ck_assert_int_eq(turn == MT_TURN_SWITCH, r->beside != ways);
    ck_assert_int_lt(n, 20);
  }
}

/* The fastest stays, also if that is one after the other; a step that strays does not count, nor does a plan's first. */
START_TEST(test_trial)
{
  static const double slow[2] = {2, 3}, quick[2] = {4, 1.5}, middle[2] = {1.7, 1.8};
  int beside;
  struct mt_replan r = begun(1, 1, 0);
  ck_assert_int_eq(r.beside, 1);
  ck_assert_int_eq(run_round(&r, slow), 1 + 2 * MT_ROUND_STEPS);
  ck_assert_double_eq(mt_replan_s(&r, 0, 0), 2);
  ck_assert_double_eq(mt_replan_s(&r, 0, 1), 3);
  ck_assert_int_eq(mt_replan_best(&r, 1, &beside), 0);
  ck_assert_int_eq(beside, 0);
  mt_replan_next(&r, 0);
  run_round(&r, quick);
  mt_replan_next(&r, 0);
  run_round(&r, middle);
  ck_assert_int_eq(mt_replan_best(&r, 7, &beside), 1);
  ck_assert_int_eq(beside, 1);
  ck_assert_int_eq(mt_replan_best(&r, 5, &beside), 2); /* where the second plan's degree is not allowed */
  ck_assert_int_eq(beside, 0);
  ck_assert_int_eq(mt_replan_best(&r, 1, &beside), 0);
  r.either = 0; /* a policy that was asked for overlaps */
  ck_assert_int_eq(mt_replan_best(&r, 5, &beside), 2);
  ck_assert_int_eq(beside, 1);
  mt_replan_done(&r, 1, 1);
  ck_assert_int_eq(r.trial, 0);
  ck_assert_int_eq(r.warm, 1);
}
END_TEST

/* What cannot overlap runs one way only. */
START_TEST(test_serial)
{
  static const double s[2] = {2, 0};
  for (int lanes = 0; lanes < 2; lanes++) {
    struct mt_replan r = begun(lanes, 1, lanes);
    int beside;
    ck_assert_int_eq(r.beside, 0);
    ck_assert_int_eq(run_round(&r, s), 1 + MT_ROUND_STEPS);
    ck_assert_double_eq(mt_replan_s(&r, 0, 1), 0);
    ck_assert_int_eq(mt_replan_best(&r, 1, &beside), 0);
    ck_assert_int_eq(beside, 0);
  }
}
END_TEST

static int64_t until_departed(struct mt_replan *r, double ratio, int64_t most)
{
  for (int64_t n = 1; n <= most; n++)
    if (mt_replan_step(r, ratio * (n % 5 ? 1 : 9), 1) == MT_TURN_DEPARTED)
      return n;
  return 0;
}

/* Only a median that is off counts, either way; and trials become rarer while nothing comes of them. */
START_TEST(test_watch)
{
  struct mt_replan r = begun(1, 1, 0);
  mt_replan_done(&r, 1, 1);
  ck_assert_int_eq(until_departed(&r, 1.1, 200), 0);
  ck_assert_int_eq(until_departed(&r, 0.9, 200), 0);
  ck_assert(mt_replan_rested(&r));
  mt_replan_done(&r, 1, 0);
  ck_assert_int_eq(until_departed(&r, 1.3, 200), MT_WATCHED);
  ck_assert_double_eq(mt_replan_ratio(&r), 1.3);
  ck_assert(!mt_replan_rested(&r));
  r.nratio = 0;
  ck_assert_int_eq(until_departed(&r, 0.7, 200), MT_WATCHED);
  ck_assert(mt_replan_rested(&r));
  mt_replan_done(&r, 1, 0);
  ck_assert_int_eq(r.wait, 4 * MT_WATCHED);
  mt_replan_done(&r, 1, 1);
  ck_assert_int_eq(r.wait, MT_WATCHED);
  r.fixed = 1;
  ck_assert_int_eq(until_departed(&r, 3, 200), MT_WATCHED); /* predictions follow all the same */
  ck_assert(!mt_replan_rested(&r));
}
END_TEST

START_TEST(test_json)
{
  const struct mt_course course = {.plan = {.serial = 0,
                                            .chunks = 2,
                                            .degree = {4, 8},
                                            .one_queue = 1,
                                            .one_wire = 1,
                                            .tiled = 0,
                                            .prefetch = 1,
                                            .delay = 1,
                                            .order = MT_ORDER_CHUNK,
                                            .gradient = MT_GRADIENT_WINDOW,
                                            .moe_window = 1234,
                                            .dense_window = MT_WHOLE,
                                            .piece = 77},
                                   .scheme = MT_SCHEME_LINA,
                                   .beside = 1};
  for (int warm = 0; warm < 2; warm++) {
    struct mt_course back = {0};
    int was = -1;
    mt_json *json = mt_course_json(&course, warm);
    ck_assert_int_eq(mt_course_from_json(json, &back, &was), 1);
    ck_assert_int_eq(was, warm);
    ck_assert_int_eq(memcmp(&back, &course, sizeof back), 0);
    static const struct {
      const char *key;
      int64_t value;
    } bad[] = {{"degree", 0}, {"degree", 9}, {"degree_back", 3}, {"chunks", 0}, {"order", 3}, {"piece", MT_WHOLE + 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
      mt_json *other = mt_course_json(&course, warm);
      mt_json_set(other, bad[i].key, mt_json_integer(bad[i].value));
      ck_assert_msg(!mt_course_from_json(other, &back, &was), "%s = %d is taken", bad[i].key, (int)bad[i].value);
      mt_json_free(other);
    }
    mt_json_set(json, "policy", mt_json_string("hope"));
    ck_assert_int_eq(mt_course_from_json(json, &back, &was), 0);
    ck_assert_int_eq(memcmp(&back, &course, sizeof back), 0); /* untouched */
    mt_json_free(json);
  }
  struct mt_course same = course;
  same.plan.order = MT_ORDER_READY;
  same.plan.prefetch = same.beside = 0;
  ck_assert(mt_course_same_bits(&course, &same));
  same.plan.degree[1] = 4;
  ck_assert(!mt_course_same_bits(&course, &same));
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("replan");
  TCase *tests = tcase_create("replan");
  tcase_add_test(tests, test_trial);
  tcase_add_test(tests, test_serial);
  tcase_add_test(tests, test_watch);
  tcase_add_test(tests, test_json);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
