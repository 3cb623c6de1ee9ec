/* Capacities: which picks count, and whole models that drop some. ranks: 1 3 4
 *
 * That dropping is computed as PyTorch computes it, at any cut, is test_model's (vectors mixtral-drop). Here:
 * the choice against its definition, no capacity that is never reached changes a bit, and the extremes: one
 * row an expert, all tokens to the same experts. */
#include "model_case.h"
#include "test.h"
#include "base/random.h"
#include "experts/capacity.h"
#include <math.h>
#include <mpi.h>
#include <string.h>

enum { GUARD = 77 };

START_TEST(test_rows)
{
  ck_assert_int_eq(mt_capacity(1, 8, 2, 4), 4);
  ck_assert_int_eq(mt_capacity(1.25, 8, 2, 4), 5);
  ck_assert_int_eq(mt_capacity(1.26, 8, 2, 4), 6);
  ck_assert_int_eq(mt_capacity(1.1, 20, 1, 2), 11); /* in doubles a hair above */
  ck_assert_int_eq(mt_capacity(1.0 / 3, 9, 1, 1), 3);
  ck_assert_int_eq(mt_capacity(1e-300, 8, 2, 4), 1);
  ck_assert_int_eq(mt_capacity(1, 7, 1, 64), 1);
  ck_assert_int_eq(mt_capacity(4, 8, 2, 4), 8);
  ck_assert_int_eq(mt_capacity(1e300, 8, 2, 4), 8);
}
END_TEST

/* K different experts a token, the lower ones more often. */
static void draw(int32_t *expert, int64_t n, int64_t K, int64_t E, uint64_t seed)
{
  for (int64_t t = 0; t < n; t++)
    for (int64_t k = 0; k < K; k++)
      for (uint64_t turn = 0, again = 1; again; turn++) {
        double u = mt_random_uniform(seed, MT_STREAM_TEST, (uint64_t)((t * K + k) * 1000) + turn);
        expert[t * K + k] = (int32_t)(u * u * (double)E);
        again = 0;
        for (int64_t j = 0; j < k; j++)
          again |= expert[t * K + j] == expert[t * K + k];
      }
}

/* A pick counts if fewer than `capacity` earlier positions of its sequence picked the same expert. */
static int counts(const int32_t *expert, int64_t T, int64_t K, int64_t capacity, int64_t i)
{
  int64_t before = 0;
  for (int64_t j = i / (T * K) * T * K; j < i / K * K; j++)
    before += expert[j] == expert[i];
  return before < capacity;
}

START_TEST(test_keep)
{
  static const int64_t shapes[][5] = {/* B, T, K, E, capacity */
                                      {0, 5, 2, 4, 1}, {1, 1, 1, 1, 1},   {3, 9, 2, 4, 4}, {2, 7, 3, 5, 1},
                                      {4, 5, 5, 5, 2}, {1, 40, 2, 3, 17}, {5, 8, 1, 8, 8}, {2, 30, 4, 64, 2}};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    const int64_t B = shapes[s][0], T = shapes[s][1], K = shapes[s][2], E = shapes[s][3],
                  capacity = shapes[s][4], n = B * T * K;
    int32_t expert[n + 1], first[B * T + 2], kept[n + 1], pick[n + 1], triple[n + 1];
    draw(expert, B * T, K, E, s);
    first[B * T + 1] = kept[n] = pick[n] = triple[n] = GUARD;
    int64_t R = mt_capacity_keep(capacity, expert, B, T, K, E, 5 * s, first, kept, pick, triple), want = 0;
    for (int64_t i = 0; i < n; i++) {
      if (i % K == 0)
        ck_assert_int_eq(first[i / K], 5 * s + want);
      if (!counts(expert, T, K, capacity, i)) {
        ck_assert_int_eq(triple[i], R);
        continue;
      }
      ck_assert_int_eq(triple[i], want);
      ck_assert_int_eq(pick[want], i);
      ck_assert_int_eq(kept[want++], expert[i]);
    }
    ck_assert_int_eq(first[B * T], 5 * s + want);
    ck_assert_int_eq(R, want);
    ck_assert(first[B * T + 1] == GUARD && kept[n] == GUARD && pick[n] == GUARD && triple[n] == GUARD);
  }
}
END_TEST

START_TEST(test_never_reached)
{
  static const char *const names[2] = {"mixtral", "gpt2-odd"};
  uint32_t hash[3];
  for (int i = 0; i < 3; i++) {
    const char *factor[3] = {"moe.capacity_factor=0", "moe.capacity_factor=1e300",
                             "moe.capacity_factor=2.5"}; /* T rows */
    struct model_case *c = model_case_open(names[_i], model_case_ragged(), "cpu", 1, 0, 0, 2,
                                           (const char *[]){factor[i], "train.micro_batch=2"});
    const struct mt_step_result *result = mt_step_run(c->step, 1, 0);
    ck_assert_int_eq(result->dropped, 0);
    hash[i] = model_case_hash(c, 0);
    model_case_close(c);
  }
  ck_assert_uint_eq(hash[1], hash[0]);
  ck_assert_uint_eq(hash[2], hash[0]);
}
END_TEST

static void zero_router(void *self, const struct mt_param *row, int expert, int64_t first,
                        struct mt_shard *shard, int64_t at, int64_t n)
{
  (void)self, (void)expert, (void)first;
  if (strstr(row->name, ".gate.weight"))
    memset(shard->master + at, 0, sizeof(float) * (size_t)n);
}

/* What must not depend on the cut. */
struct outcome {
  double loss, norm, evaluation;
  int64_t dropped;
};

static struct outcome outcome(const char *name, int router_zero, const char *factor, const char *micro,
                              const char *slots)
{
  struct model_case *c = model_case_open(name, model_case_ragged(), "cpu", 1, 0, 0, 4,
                                         (const char *[]){factor, micro, slots, "parallel.layout=random"});
  if (router_zero) {
    mt_model_pieces(c->model, zero_router, NULL);
    mt_model_publish(c->model);
  }
  const struct mt_step_result *result = mt_step_run(c->step, 1, 0);
  struct outcome o = {result->loss, result->grad_norm, 0, result->dropped};
  const double ce = result->ce;
  const int64_t E = c->model->arch.E, K = c->model->arch.K, nmoe = c->model->params.nmoe;
  const int64_t capacity = mt_capacity(atof(strchr(factor, '=') + 1), c->T, K, E);
  int64_t rows = 0, most = 0;
  for (int64_t i = 0; i < nmoe * E; i++) {
    rows += result->per_expert[i];
    most = result->per_expert[i] > most ? result->per_expert[i] : most;
    if (router_zero)
      ck_assert_int_eq(result->per_expert[i], i % E < K ? c->B * capacity : 0);
  }
  ck_assert_int_le(most, c->B * capacity);
  ck_assert_int_eq(rows + result->dropped, result->tokens * K * nmoe);
  ck_assert_int_gt(result->dropped, 0);
  if (router_zero) /* what the router wants, not what it gets: K lowest experts, P = 1 / E */
    ck_assert_double_eq_tol(result->aux, (double)K, 1e-6);
  ck_assert_int_eq(mt_step_evaluate(c->step, c->step->source, c->config.train.global_batch, &o.evaluation),
                   MT_OK);
  ck_assert_double_eq_tol(o.evaluation, ce, 1e-6 * ce);
  model_case_close(c);
  return o;
}

START_TEST(test_extremes)
{
  static const char *const names[3] = {"mixtral", "gpt2-odd", "qwen-odd"};
  for (int router_zero = 0; router_zero < 2; router_zero++)
    for (int f = 0; f < 2; f++) {
      const char *factor = f ? "moe.capacity_factor=0.7" : "moe.capacity_factor=1e-9"; /* a row each */
      struct outcome a = outcome(names[_i], router_zero, factor, "train.micro_batch=1", "parallel.slots=5");
      struct outcome b = outcome(names[_i], router_zero, factor, "train.micro_batch=2", "parallel.slots=9");
      ck_assert_int_eq(a.dropped, b.dropped);
      ck_assert_double_eq_tol(a.loss, b.loss, 1e-5 * a.loss);
      ck_assert_double_eq_tol(a.norm, b.norm, 1e-5 * a.norm);
      ck_assert_double_eq_tol(a.evaluation, b.evaluation, 1e-5 * a.evaluation);
    }
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  Suite *suite = suite_create("capacity");
  TCase *tests = tcase_create("capacity");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, test_rows);
  tcase_add_test(tests, test_keep);
  tcase_add_loop_test(tests, test_never_reached, 0, 2);
  tcase_add_loop_test(tests, test_extremes, 0, 3);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
