/* Whole models on emulated GPUs, alone and together with CPUs, against PyTorch's numbers. ranks: 1 2 3
 *
 * To 1e-5 in f32, and to 2e-2 where bf16 takes part; whatever the order of a block's threads, with the same bits. */
#include "model_case.h"
#include "test.h"
#include "train/step_plan.h"
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include "comm/comm_mpi.h"

enum { LIMIT = 8 };

static int rank(void)
{
  int r;
  MPI_Comm_rank(MPI_COMM_WORLD, &r);
  return r;
}

/* One step, by `plan` unless that is NULL; returns the hash of the gradients. `device` is this rank's. *worst_error, if
 * not NULL, gets the worst tensor's error, which then has no bound. */
static uint32_t one_step(const char *name, const char *device, double bound, double *worst_error,
                         const struct mt_plan *plan, int n, const char *const *overrides)
{
  const char *all[LIMIT] = {"moe.aux_scope=sequence"};
  for (int i = 0; i < n; i++)
    all[i + 1] = overrides[i];
  struct model_case *c = model_case_open(name, model_case_ragged(), device, 1, 0, 0, n + 1, all);
  if (plan) {
    mt_step_follow(c->step, &(struct mt_course){.plan = *plan});
    model_case_without_update(c->step); /* as model_case_open leaves it out */
  }
  const struct mt_step_result *result = mt_step_run(c->step, 1, 0);
  double want = vectors_scalar(c->vectors, "sequence/loss");
  ck_assert_msg(fabs(result->loss - want) <= bound * fabs(want), "%s on %d ranks (%s, %s): loss is %.9g, expected %.9g",
                name, model_case_ranks(), device, n ? overrides[0] : "", result->loss, want);
  const char *worst;
  double error = model_case_gradient_error(c, "sequence", &worst);
  ck_assert_msg(worst_error || error <= bound, "%s on %d ranks (%s, %s): gradient of %s is off by %.3g", name, model_case_ranks(),
                device, n ? overrides[0] : "", worst, error);
  ck_assert_msg(bound < 1e-3 || error > 1e-4, "%s: nothing was rounded (error %.3g)", name, error);
  if (worst_error)
    *worst_error = error;
  uint32_t hash = model_case_hash(c, 0);
  model_case_close(c);
  return hash;
}

static uint32_t check_case(const char *name, const char *device, double bound, int n, const char *const *overrides)
{
  return one_step(name, device, bound, NULL, NULL, n, overrides);
}

START_TEST(test_vectors)
{
  const char *name = model_case_names[_i], *const order[3] = {"emulated", "emulated:1", "emulated:2"};
  const uint32_t hash = check_case(name, order[0], 1e-5, 0, NULL);
  ck_assert_uint_eq(hash, check_case(name, order[1], 1e-5, 0, NULL));
  ck_assert_uint_eq(hash, check_case(name, order[2], 1e-5, 1, (const char *[]){"train.recompute=true"}));
  /* every rank another order */
  ck_assert_uint_eq(hash, check_case(name, order[rank() % 3], 1e-5, 0, NULL));
}
END_TEST

START_TEST(test_cuts)
{
  const char *name = model_case_names[_i];
  check_case(name, "emulated", 1e-5, 1, (const char *[]){"train.micro_batch=1"});
  check_case(name, "emulated:2", 1e-5, 3,
             (const char *[]){"parallel.layout=random", "parallel.slots=5", "train.micro_batch=1"});
  check_case(name, "emulated:1", 1e-5, 2, (const char *[]){"parallel.sharding=owner", "train.micro_batch=2"});
}
END_TEST

/* Sequences in more chunks than there are, tokens in two of each, the experts' products apart. */
START_TEST(test_chunks)
{
  const struct mt_plan plan = {.chunks = 4, .degree = {8, 8}, .one_wire = 1, .tiled = 1, .prefetch = 1, .delay = 1};
  const char *name = model_case_names[_i];
  one_step(name, rank() % 2 ? "cpu" : "emulated:1", 1e-5, NULL, &plan, 1,
           (const char *[]){_i % 2 ? "train.recompute=true" : "parallel.sharding=node"});
}
END_TEST

/* Nanoseconds in which something was computed while something travelled; *wrong counts what began before a dependency had
 * ended. */
static int64_t overlap_ns(const struct mt_step *step, int64_t *wrong)
{
  int64_t overlap = 0;
  for (int i = 0; i < step->tasks.n; i++) {
    const struct mt_task *task = &step->tasks.task[i];
    const struct mt_span *a = &step->span[i];
    for (int d = 0; d < task->ndep; d++)
      *wrong += a->start_ns < step->span[task->dep[d]].end_ns;
    for (int j = 0; j < step->tasks.n && task->lane == MT_LANE_COMPUTE; j++) {
      const struct mt_span *b = &step->span[j];
      int64_t from = a->start_ns > b->start_ns ? a->start_ns : b->start_ns, to = a->end_ns < b->end_ns ? a->end_ns : b->end_ns;
      overlap += step->tasks.task[j].lane != MT_LANE_COMPUTE && to > from ? to - from : 0;
    }
  }
  return overlap;
}

/* Steps with communication beside computing or in list order: the same bits, and lanes of every GPU's rank that overlap. */
START_TEST(test_beside)
{
  static const struct mt_plan plans[] = {{.chunks = 2, .degree = {4, 4}, .one_wire = 1, .tiled = 1, .prefetch = 1, .delay = 1},
                                         {.chunks = 1, .degree = {3, 3}, .one_wire = 1, .prefetch = 1, .delay = 1}};
  const char *const devices[] = {"emulated:1", rank() % 2 ? "cpu" : "emulated:2", rank() % 2 ? "emulated:1-bf16" : "cpu"};
  const char *mine = devices[_i / MODEL_CASES];
  uint32_t hash[2][2];
  int64_t x[2] = {0}, overlap = 0;
  for (int beside = 0; beside < 2; beside++) {
    struct model_case *c = model_case_open(model_case_names[_i % MODEL_CASES], model_case_ragged(), mine, 1, 0, 1, 2,
                                           (const char *[]){"train.micro_batch=1", _i % 2 ? "train.recompute=true" : "moe.capacity_factor=0.9"});
    mt_step_follow(c->step, &(struct mt_course){.plan = plans[_i % 2], .beside = beside});
    ck_assert(c->step->executor || model_case_ranks() == 1);
    for (int64_t step = 1; step <= 4; step++) {
      if (step == 4)
        model_case_without_update(c->step);
      mt_step_run(c->step, step, (step - 1) * c->B);
      overlap += beside ? overlap_ns(c->step, &x[1]) : 0;
    }
    x[0] = overlap == 0 && strcmp(mine, "cpu");
    hash[beside][0] = model_case_hash(c, 0);
    hash[beside][1] = model_case_hash(c, 1);
    if (beside)
      mt_max_int(c->comm, x, 2);
    model_case_close(c);
  }
  ck_assert_uint_eq(hash[0][0], hash[1][0]);
  ck_assert_uint_eq(hash[0][1], hash[1][1]);
  ck_assert_int_eq(x[1], 0);
  ck_assert(model_case_ranks() == 1 || !x[0]);
}
END_TEST

/* Rows that leave GPUs in chunks of any length: the same bits. */
START_TEST(test_messages)
{
  static const int64_t chunk[] = {1000, 77, 1};
  const char *const names[2] = {"mixtral", "gpt2"}, *name = names[_i], *mine = rank() == 1 ? "cpu" : "emulated:1";
  const int64_t kept = mt_exchange_chunk;
  const uint32_t hash = check_case(name, mine, 1e-5, 0, NULL);
  for (int i = 0; i < 3; i++) {
    mt_exchange_chunk = chunk[i];
    ck_assert_uint_eq(hash, check_case(name, mine, 1e-5, i > 0, (const char *[]){"parallel.exchange=hierarchical"}));
  }
  mt_exchange_chunk = kept;
}
END_TEST

/* CPUs and GPUs in one job, in nodes of unequal size, layouts changing, and shares that leave a rank without sequences.
 */
START_TEST(test_mixed)
{
  static const char *const shares[] = {"parallel.shares=1", "parallel.shares=1,0", "parallel.shares=2,0,1"};
  const char *name = model_case_names[_i], *mine = rank() % 2 ? "cpu" : "emulated";
  check_case(name, mine, 1e-5, 0, NULL);
  check_case(name, mine, 1e-5, 3,
             (const char *[]){"parallel.layout=random", "parallel.slots=5", "train.micro_batch=1"});
  check_case(name, mine, 1e-5, 2,
             (const char *[]){"parallel.sharding=node", shares[model_case_ranks() - 1]});
}
END_TEST

/* In bf16 single tensors of these small models are off by some percent, whoever computes; a GPU's must be no worse than
 * twice the reference's, which rounds where it stores and nowhere else. Mixed with CPUs they must be better than that.
 */
START_TEST(test_bf16)
{
  const char *name = model_case_names[_i];
  double ref, error[3];
  one_step(name, "ref-bf16", 2e-2, &ref, NULL, 0, NULL);
  one_step(name, "emulated:1-bf16", 2e-2, &error[0], NULL, 0, NULL);
  one_step(name, rank() % 2 ? "cpu" : "emulated:2-bf16", 2e-2, &error[1], NULL, 1, (const char *[]){"parallel.wire=bf16"});
  one_step(name, rank() % 2 ? "emulated" : "emulated-bf16", 2e-2, &error[2], NULL, 0, NULL);
  for (int i = 0; i < 3; i++)
    ck_assert_msg(error[i] <= 2 * ref, "%s: a gradient is off by %.3g, on ref by %.3g", name, error[i], ref);
  ck_assert_msg(ref < 0.15, "%s: a gradient is off by %.3g on ref", name, ref);
}
END_TEST

START_TEST(test_logits)
{
  for (int i = 0; i < MODEL_CASES; i++)
    for (int half = 0; half < 2; half++) {
      struct model_case *c =
          model_case_open(model_case_names[i], model_case_ragged(), half ? "emulated-bf16" : "emulated", 1, 0, 0, 0, NULL);
      mt_step_run(c->step, 1, 0);
      double error = model_case_logits_error(c);
      ck_assert_msg(error <= (half ? 2e-2 : 1e-5), "%s: logits are off by %.3g", model_case_names[i], error);
      model_case_close(c);
    }
}
END_TEST

/* Five steps of AdamW: loss and weights as on CPUs alone. */
static void run_steps(const char *name, const char *device, double *loss, uint32_t *hash)
{
  struct model_case *c = model_case_open(name, model_case_ragged(), device, 1, 1, 1, 1, (const char *[]){"train.micro_batch=2"});
  for (int64_t s = 1; s <= 5; s++)
    loss[s - 1] = mt_step_run(c->step, s, (s - 1) * c->B)->loss;
  *hash = model_case_hash(c, 1);
  model_case_close(c);
}

START_TEST(test_steps)
{
  const char *const names[2] = {"mixtral", "gpt2"};
  double cpu[5], gpu[5], mixed[5];
  uint32_t hash[3];
  run_steps(names[_i], "cpu", cpu, &hash[0]);
  run_steps(names[_i], "emulated", gpu, &hash[1]);
  run_steps(names[_i], rank() == 1 ? "cpu" : "emulated:2", mixed, &hash[2]);
  for (int s = 0; s < 5; s++) {
    ck_assert_msg(fabs(gpu[s] - cpu[s]) <= 1e-5 * cpu[s], "%s, step %d: loss %.8f on emulated GPUs, %.8f on CPUs",
                  names[_i], s + 1, gpu[s], cpu[s]);
    ck_assert_msg(fabs(mixed[s] - cpu[s]) <= 1e-5 * cpu[s], "%s, step %d: loss %.8f on both, %.8f on CPUs", names[_i],
                  s + 1, mixed[s], cpu[s]);
  }
  ck_assert(gpu[4] < gpu[0]);
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  struct mt_device *device;
  if (mt_device_open("emulated", 1, &device) != MT_OK) {
    printf("skipped: the emulation of CUDA is not there\n");
    MPI_Finalize();
    return MT_SKIPPED;
  }
  device->ops->close(device);
  Suite *suite = suite_create("cuda_model");
  TCase *tests = tcase_create("models");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_vectors, 0, MODEL_CASES);
  tcase_add_loop_test(tests, test_cuts, 0, MODEL_CASES);
  tcase_add_loop_test(tests, test_chunks, 0, MODEL_CASES);
  tcase_add_loop_test(tests, test_messages, 0, 2);
  tcase_add_loop_test(tests, test_mixed, 0, MODEL_CASES);
  tcase_add_loop_test(tests, test_bf16, 0, MODEL_CASES);
  tcase_add_test(tests, test_logits);
  tcase_add_loop_test(tests, test_steps, 0, 2);
  suite_add_tcase(suite, tests);
  TCase *lanes = tcase_create("lanes");
  tcase_set_timeout(lanes, 0);
  tcase_add_loop_test(lanes, test_beside, 0, 3 * MODEL_CASES);
  suite_add_tcase(suite, lanes);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
