/* Whole models against PyTorch's numbers, however they are cut. ranks: 1 2 3 4 7
 *
 * Every case below computes one step on the vectors' batch; loss, its parts and every gradient must be the oracle's to
 * 1e-5, whatever the ranks, pretend nodes, micro-batches, slots, layouts, exchange, device and threads. Where bits are
 * promised to be equal (exchange, threads), hashes of all gradients are compared. */
#include "model_case.h"
#include "test.h"
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { LIMIT = 8 };

/* Runs one step and compares everything; returns the hash of the gradients. */
static uint32_t check_case(const char *name, const char *nodes, const char *device, int threads, const char *scope, int n,
                           const char *const *overrides)
{
  const char *all[LIMIT] = {strcmp(scope, "sequence") ? "moe.aux_scope=micro_batch" : "moe.aux_scope=sequence"};
  for (int i = 0; i < n; i++)
    all[i + 1] = overrides[i];
  struct model_case *c = model_case_open(name, nodes, device, threads, 0, 0, n + 1, all);
  const struct mt_step_result *result = mt_step_run(c->step, 1, 0);
  char path[64];
  const char *parts[4] = {"ce", "aux", "z", "loss"};
  const double found[4] = {result->ce, result->aux, result->z, result->loss};
  for (int i = 0; i < 4; i++) {
    snprintf(path, sizeof path, i ? "%s/%s" : "%.0s%s", scope, parts[i]);
    double want = vectors_scalar(c->vectors, path);
    ck_assert_msg(fabs(found[i] - want) <= 1e-5 * fabs(want), "%s on %d ranks (nodes %s, %s, %s, %s): %s is %.9g, expected %.9g",
                  name, c->comm->size, nodes ? nodes : "one", device, scope, n ? overrides[0] : "", parts[i], found[i], want);
  }
  ck_assert_int_eq(result->dropped, vectors_has(c->vectors, "dropped") ? (int64_t)vectors_scalar(c->vectors, "dropped") : 0);
  const char *worst;
  double error = model_case_gradient_error(c, scope, &worst);
  ck_assert_msg(error <= 1e-5, "%s on %d ranks (nodes %s, %s, %s, %s): gradient of %s is off by %.3g", name, c->comm->size,
                nodes ? nodes : "one", device, scope, n ? overrides[0] : "", worst, error);
  uint32_t hash = model_case_hash(c, 0);
  model_case_close(c);
  return hash;
}

START_TEST(test_vectors)
{
  const char *name = model_case_names[_i];
  check_case(name, NULL, "ref", 1, "sequence", 0, NULL);
  check_case(name, NULL, "cpu", 1, "sequence", 0, NULL);
  check_case(name, NULL, "cpu", 2, "micro_batch", 0, NULL);
  check_case(name, model_case_ragged(), "cpu", 1, "micro_batch", 0, NULL);
}
END_TEST

START_TEST(test_cuts)
{
  const char *name = model_case_names[_i];
  check_case(name, model_case_ragged(), "cpu", 1, "sequence", 1, (const char *[]){"train.micro_batch=1"});
  check_case(name, NULL, "cpu", 1, "sequence", 1, (const char *[]){"train.micro_batch=2"});
}
END_TEST

START_TEST(test_layouts)
{
  const char *name = model_case_names[_i];
  char uneven[64] = "parallel.slots=5"; /* rank r holds r mod 3 slots, rank 0 the rest that is needed */
  int n = snprintf(uneven, sizeof uneven, "parallel.slots=6");
  for (int r = 1; r < model_case_ranks(); r++)
    n += snprintf(uneven + n, sizeof uneven - (size_t)n, ",%d", r % 3);
  check_case(name, model_case_ragged(), "cpu", 1, "sequence", 1, (const char *[]){"parallel.slots=5"});
  check_case(name, model_case_ragged(), "cpu", 1, "sequence", 1, (const char *[]){uneven});
  check_case(name, model_case_ragged(), "cpu", 1, "sequence", 3,
             (const char *[]){"parallel.layout=random", "parallel.slots=5", "train.micro_batch=1"});
  check_case(name, NULL, "cpu", 1, "sequence", 3, (const char *[]){"parallel.layout=random", uneven, "train.micro_batch=2"});
}
END_TEST

START_TEST(test_sharding)
{
  const char *name = model_case_names[_i];
  for (int owner = 0; owner < 2; owner++) {
    const char *sharding = owner ? "parallel.sharding=owner" : "parallel.sharding=node";
    check_case(name, model_case_ragged(), "cpu", 1, "sequence", 2, (const char *[]){sharding, "train.micro_batch=1"});
    check_case(name, NULL, "cpu", 1, "sequence", 2, (const char *[]){sharding, "train.micro_batch=2"});
    check_case(name, model_case_ragged(), "cpu", 1, "sequence", 2, (const char *[]){sharding, "parallel.slots=5"});
    check_case(name, model_case_ragged(), "cpu", 1, "sequence", 3, (const char *[]){sharding, "parallel.slots=5", "parallel.layout=random"});
  }
}
END_TEST

/* Rows rounded to bf16 on every way, one's own included: loose against the oracle, the same bits whatever carries them. */
START_TEST(test_wire)
{
  const char *name = model_case_names[_i];
  uint32_t hash[2];
  for (int i = 0; i < 2; i++) {
    struct model_case *c =
        model_case_open(name, model_case_ragged(), "cpu", 1, 0, 0, 2,
                        (const char *[]){"parallel.wire=bf16", i ? "parallel.exchange=hierarchical" : "parallel.exchange=pairwise"});
    const struct mt_step_result *result = mt_step_run(c->step, 1, 0);
    const char *worst;
    double want = vectors_scalar(c->vectors, "sequence/loss"), error = model_case_gradient_error(c, "sequence", &worst);
    ck_assert_msg(fabs(result->loss - want) <= 2e-2 * want, "%s: loss %.7g, expected %.7g", name, result->loss, want);
    ck_assert_msg(error <= 2e-2, "%s: gradient of %s is off by %.3g", name, worst, error);
    ck_assert_msg(error > 1e-5, "%s: nothing was rounded (error %.3g)", name, error);
    hash[i] = model_case_hash(c, 0);
    model_case_close(c);
  }
  ck_assert_uint_eq(hash[0], hash[1]);
}
END_TEST

START_TEST(test_same_bits)
{
  const char *name = model_case_names[_i];
  for (int changing = 0; changing < 2; changing++) {
    const char *layout = changing ? "parallel.layout=random" : "parallel.layout=static";
    uint32_t hash[5] = {
        check_case(name, model_case_ragged(), "cpu", 1, "sequence", 3,
                   (const char *[]){"parallel.exchange=pairwise", "parallel.slots=5", layout}),
        check_case(name, model_case_ragged(), "cpu", 1, "sequence", 3,
                   (const char *[]){"parallel.exchange=hierarchical", "parallel.slots=5", layout}),
        check_case(name, model_case_ragged(), "cpu", 2, "sequence", 3,
                   (const char *[]){"parallel.exchange=pairwise", "parallel.slots=5", layout}),
        check_case(name, model_case_ragged(), "cpu", 3, "sequence", 3,
                   (const char *[]){"parallel.exchange=auto", "parallel.slots=5", layout}),
        check_case(name, model_case_ragged(), "cpu", 1, "sequence", 3,
                   (const char *[]){"train.recompute=true", "parallel.slots=5", layout}),
    };
    for (int i = 1; i < 5; i++)
      ck_assert_msg(hash[i] == hash[0], "%s, %s: gradients of variant %d have other bits", name, layout, i);
  }
}
END_TEST

START_TEST(test_logits)
{
  for (int i = 0; i < MODEL_CASES; i++) {
    struct model_case *c = model_case_open(model_case_names[i], model_case_ragged(), "cpu", 1, 0, 0, 0, NULL);
    mt_step_run(c->step, 1, 0);
    double error = model_case_logits_error(c);
    ck_assert_msg(error <= 1e-5, "%s: logits are off by %.3g", model_case_names[i], error);
    model_case_close(c);
  }
}
END_TEST

/* 50 steps of AdamW with warm-up, cosine, clipping and decay groups, each step's loss to 1e-4 of PyTorch's. */
START_TEST(test_curve)
{
  const char *const names[2] = {"mixtral", "gpt2"};
  struct model_case *c = model_case_open(names[_i], model_case_ragged(), "cpu", 1, 1, 1, 1, (const char *[]){"train.micro_batch=2"});
  double *loss = vectors_double(c->vectors, "curve/loss", NULL), *norm = vectors_double(c->vectors, "curve/grad_norm", NULL);
  double *lr = vectors_double(c->vectors, "curve/lr", NULL);
  for (int64_t s = 1; s <= 50; s++) {
    const struct mt_step_result *result = mt_step_run(c->step, s, (s - 1) * c->B);
    ck_assert_int_eq(result->updated, 1);
    ck_assert_msg(fabs(result->loss - loss[s - 1]) <= 1e-4 * fabs(loss[s - 1]), "%s, step %d: loss %.7f, expected %.7f",
                  names[_i], (int)s, result->loss, loss[s - 1]);
    ck_assert_msg(fabs(result->grad_norm - norm[s - 1]) <= 1e-3 * norm[s - 1], "%s, step %d: gradient norm %.7f, expected %.7f",
                  names[_i], (int)s, result->grad_norm, norm[s - 1]);
    ck_assert_double_eq_tol(result->lr, lr[s - 1], 1e-12);
  }
  mt_free(loss);
  mt_free(norm);
  mt_free(lr);
  model_case_close(c);
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  Suite *suite = suite_create("model");
  TCase *tests = tcase_create("model");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_vectors, 0, MODEL_CASES);
  tcase_add_loop_test(tests, test_cuts, 0, MODEL_CASES);
  tcase_add_loop_test(tests, test_layouts, 0, MODEL_CASES);
  tcase_add_loop_test(tests, test_sharding, 0, MODEL_CASES);
  tcase_add_loop_test(tests, test_wire, 0, MODEL_CASES);
  tcase_add_loop_test(tests, test_same_bits, 0, MODEL_CASES);
  tcase_add_test(tests, test_logits);
  tcase_add_loop_test(tests, test_curve, 0, 2);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
