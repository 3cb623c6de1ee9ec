/* Choosing tokens from logits made by hand. ranks: 1 */
#include "test.h"
#include "base/random.h"
#include "train/sample.h"
#include <math.h>
#include <string.h>

enum { V = 6, DRAWS = 4000 };

/* Probabilities 1/2, 1/4, 1/8, 1/16, 1/16 at temperature 1, of ids 3, 0, 5, 1 and 4; id 2 never. */
static const float logits[V] = {-1.3862944f, -2.7725887f, -INFINITY, -0.6931472f, -2.7725887f, -2.0794415f};

/* How often each id is drawn with numbers spread evenly over [0, 1): parts of DRAWS. */
static void draw(const struct mt_sampling *sampling, double part[V])
{
  struct mt_candidate work[V + 1];
  memset(&work[V], 0x55, sizeof *work);
  memset(part, 0, sizeof(double) * V);
  int32_t last = -1;
  for (int i = 0; i < DRAWS; i++) {
    int32_t id = mt_sample(logits, V, sampling, (i + 0.5) / DRAWS, work);
    ck_assert_int_ge(id, last); /* in the order of ids */
    ck_assert_int_lt(id, V);
    last = id;
    part[id] += 1.0 / DRAWS;
  }
  for (size_t i = 0; i < sizeof *work; i++)
    ck_assert_int_eq(((unsigned char *)&work[V])[i], 0x55);
}

static const struct {
  struct mt_sampling sampling;
  double want[V];
} cases[] = {
    {{1, 0, 1}, {0.25, 0.0625, 0, 0.5, 0.0625, 0.125}},
    {{1, V, 1}, {0.25, 0.0625, 0, 0.5, 0.0625, 0.125}},
    {{1, 100, 1}, {0.25, 0.0625, 0, 0.5, 0.0625, 0.125}},
    {{0.5, 0, 1}, {16 / 86., 1 / 86., 0, 64 / 86., 1 / 86., 4 / 86.}}, /* squares */
    {{1, 1, 1}, {0, 0, 0, 1, 0, 0}},
    {{1, 2, 1}, {1 / 3., 0, 0, 2 / 3., 0, 0}},
    {{1, 4, 1}, {4 / 15., 1 / 15., 0, 8 / 15., 0, 2 / 15.}}, /* of two equal ones the lower id */
    {{1, 0, 0.01}, {0, 0, 0, 1, 0, 0}},                      /* one is left */
    {{1, 0, 0.49}, {0, 0, 0, 1, 0, 0}},
    {{1, 0, 0.51}, {1 / 3., 0, 0, 2 / 3., 0, 0}}, /* the one that passes p is in */
    {{1, 0, 0.74}, {1 / 3., 0, 0, 2 / 3., 0, 0}},
    {{1, 0, 0.76}, {2 / 7., 0, 0, 4 / 7., 0, 1 / 7.}},
    {{1, 0, 0.9}, {4 / 15., 1 / 15., 0, 8 / 15., 0, 2 / 15.}},
    {{1, 3, 0.55}, {0, 0, 0, 1, 0, 0}},           /* p of what top-k left: 4/7 */
    {{1, 3, 0.58}, {1 / 3., 0, 0, 2 / 3., 0, 0}}, /* 6/7 */
    {{0.5, 0, 0.74}, {0, 0, 0, 1, 0, 0}},         /* p of what the temperature made: 64/86 = 0.744 */
    {{0.5, 0, 0.75}, {0.2, 0, 0, 0.8, 0, 0}},
    {{2, 2, 1}, {1 / (1 + M_SQRT2), 0, 0, M_SQRT2 / (1 + M_SQRT2), 0, 0}},
};
enum { NCASE = sizeof cases / sizeof *cases };

START_TEST(test_parts)
{
  double part[V];
  draw(&cases[_i].sampling, part);
  for (int v = 0; v < V; v++)
    ck_assert_msg(fabs(part[v] - cases[_i].want[v]) <= 1.5 / DRAWS, "case %d, id %d: %.5f, expected %.5f", _i,
                  v, part[v], cases[_i].want[v]);
}
END_TEST

START_TEST(test_greedy)
{
  const struct mt_sampling greedy = {0, 0, 1};
  const float ties[4] = {1, 3, 3, 2}, nan[3] = {NAN, -5, NAN}, nothing[3] = {NAN, NAN, NAN},
              huge[3] = {1, INFINITY, 2};
  ck_assert_int_eq(mt_sample(logits, V, &greedy, 0.99, NULL), 3);
  ck_assert_int_eq(mt_sample(ties, 4, &greedy, 0.99, NULL), 1);
  ck_assert_int_eq(mt_sample(nan, 3, &greedy, 0.99, NULL), 1);
  struct mt_candidate work[4];
  const struct mt_sampling limits = {1, 2, 0.9}, all = {1, 0, 1};
  for (int i = 0; i < 10; i++) {
    ck_assert_int_eq(mt_sample(nan, 3, &limits, i / 10.0, work), 1);
    ck_assert_int_eq(mt_sample(nan, 3, &all, i / 10.0, NULL), 1);
    ck_assert_int_eq(mt_sample(nothing, 3, &limits, i / 10.0, work), 0);
    ck_assert_int_eq(mt_sample(huge, 3, &limits, i / 10.0, work), 1);
    ck_assert_int_eq(mt_sample(logits, 1, &limits, i / 10.0, work), 0);
  }
}
END_TEST

/* Limits that exclude nothing change nothing, and what is drawn is always among the likeliest k. */
START_TEST(test_random)
{
  enum { N = 300 };
  float x[N];
  struct mt_candidate work[N];
  for (uint64_t seed = 0; seed < 50; seed++) {
    for (int v = 0; v < N; v++)
      x[v] = roundf(20 * (float)mt_random_uniform(seed, MT_STREAM_TEST, (uint64_t)v)) / 2;
    double uniform = mt_random_uniform(seed, MT_STREAM_TEST, N);
    const struct mt_sampling plain = {1.5, 0, 1}, wide = {1.5, N, 1}, few = {1.5, 7, 1};
    ck_assert_int_eq(mt_sample(x, N, &wide, uniform, work), mt_sample(x, N, &plain, uniform, NULL));
    int32_t id = mt_sample(x, N, &few, uniform, work), larger = 0;
    for (int v = 0; v < N; v++)
      larger += x[v] > x[id] || (x[v] == x[id] && v < id);
    ck_assert_int_lt(larger, 7);
  }
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("sample");
  TCase *tests = tcase_create("sample");
  tcase_add_loop_test(tests, test_parts, 0, NCASE);
  tcase_add_test(tests, test_greedy);
  tcase_add_test(tests, test_random);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
