/* Schedules: the same bits whatever overlaps, equal results to rounding however tokens are cut, and lanes that really
 * run beside each other. ranks: 1 2 3 4 7 */
#include "model_case.h"
#include "test.h"
#include <math.h>
#include <mpi.h>
#include <string.h>
#include <time.h>

enum { STEPS = 3, MOST = 4 };

static int size(void)
{
  int n;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}

static const char *ragged(void)
{
  static const char *const nodes[8] = {NULL, "1", "1,1", "1,2", "1,3", "2,3", "3,1,2", "2,1,4"};
  return nodes[size()];
}

struct outcome {
  uint32_t gradients, weights;
  double loss, norm;
};

/* A few steps under a policy and degree. */
static struct outcome run(const char *name, const char *policy, const char *degree, const char *const *more)
{
  const char *override[MOST + 3] = {policy, degree, "train.micro_batch=1"};
  int n = 3;
  for (; n - 3 < MOST && more[n - 3]; n++)
    override[n] = more[n - 3];
  struct model_case *c = model_case_open(name, ragged(), "cpu", 1, 1, 1, n, override);
  struct outcome outcome = {0};
  for (int64_t step = 1; step <= STEPS; step++) {
    const struct mt_step_result *result = mt_step_run(c->step, step, (step - 1) * c->B);
    ck_assert_int_eq(result->updated, 1);
    outcome.loss = result->loss;
    outcome.norm = result->grad_norm;
    outcome.gradients = model_case_hash(c, 0);
  }
  outcome.weights = model_case_hash(c, 1);
  if (size() > 1 && strcmp(policy, "schedule.policy=sequential") && strcmp(policy, "schedule.policy=auto")) {
    ck_assert_ptr_nonnull(c->step->executor);
    ck_assert_int_eq(c->step->course.plan.degree[0], atoi(degree + strlen("schedule.degree=")));
  }
  model_case_close(c);
  return outcome;
}

static const struct {
  const char *name;
  const char *more[MOST];
} cases[] = {
    {"mixtral", {NULL}},
    {"gpt2", {"parallel.slots=5"}},
    {"mixtral", {"parallel.wire=bf16", "moe.capacity_factor=0.9"}},
    {"mixtral", {"parallel.sharding=owner", "train.recompute=true"}},
    {"gpt2", {"parallel.layout=random", "parallel.slots=5"}},
    {"mixtral", {"parallel.sharding=node", "moe.aux_scope=micro_batch", "parallel.layout=laer", "parallel.slots=4"}},
};

START_TEST(test_same_bits)
{
  static const char *const policies[2][3] = {{"schedule.policy=laer", "schedule.policy=auto"},
                                             {"schedule.policy=tutel", "schedule.policy=laer"}};
  struct outcome whole = {0};
  for (int i = 0; i < 2; i++) {
    const char *degree = i ? "schedule.degree=3" : "schedule.degree=1";
    struct outcome first = run(cases[_i].name, "schedule.policy=sequential", degree, cases[_i].more);
    for (int p = 0; p < 2; p++) {
      struct outcome other = run(cases[_i].name, policies[i][p], degree, cases[_i].more);
      ck_assert_msg(other.gradients == first.gradients && other.weights == first.weights, "case %d, %s, %s: other bits",
                    _i, policies[i][p], degree);
    }
    if (!i)
      whole = first;
    /* bf16 on the wire rounds what the cut has changed */
    double tolerance = cases[_i].more[0] && strstr(cases[_i].more[0], "bf16") ? 2e-2 : 1e-5;
    ck_assert_double_le(fabs(first.loss - whole.loss), tolerance * fabs(whole.loss));
    ck_assert_double_le(fabs(first.norm - whole.norm), tolerance * fabs(whole.norm));
  }
}
END_TEST

/* Something was computed while something travelled. */
static int64_t overlap_ns(const struct mt_step *step)
{
  int64_t overlap = 0;
  for (int i = 0; i < step->tasks.n; i++)
    for (int j = 0; j < step->tasks.n; j++) {
      if (step->tasks.task[i].lane != MT_LANE_COMPUTE || step->tasks.task[j].lane == MT_LANE_COMPUTE)
        continue;
      const struct mt_span *a = &step->span[i], *b = &step->span[j];
      int64_t from = a->start_ns > b->start_ns ? a->start_ns : b->start_ns,
              to = a->end_ns < b->end_ns ? a->end_ns : b->end_ns;
      overlap += to > from ? to - from : 0;
    }
  return overlap;
}

/* And nothing began before what it depends on had ended, nor two things of one lane at once. */
static int64_t disorder(const struct mt_step *step)
{
  int64_t wrong = 0;
  int before[2] = {-1, -1};
  for (int i = 0; i < step->tasks.n; i++) {
    const struct mt_task *task = &step->tasks.task[i];
    int side = task->lane == MT_LANE_COMPUTE;
    for (int d = 0; d < task->ndep; d++)
      wrong += step->span[i].start_ns < step->span[task->dep[d]].end_ns;
    wrong += before[side] >= 0 && step->span[i].start_ns < step->span[before[side]].end_ns;
    before[side] = i;
  }
  return wrong;
}

START_TEST(test_overlap)
{
  struct model_case *c = model_case_open("mixtral", ragged(), "cpu", 1, 1, 1, 2,
                                         (const char *[]){"schedule.policy=tutel", "schedule.degree=4"});
  int64_t x[2] = {0};
  for (int64_t step = 1; step <= 5; step++) {
    mt_step_run(c->step, step, (step - 1) * c->B);
    x[0] += overlap_ns(c->step);
    x[1] += disorder(c->step);
  }
  mt_max_int(c->comm, x, 2);
  model_case_close(c);
  ck_assert_int_eq(x[1], 0);
  if (size() > 1)
    ck_assert_int_gt(x[0], 0);
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  Suite *suite = suite_create("lanes");
  TCase *tests = tcase_create("lanes");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_same_bits, 0, sizeof cases / sizeof *cases);
  tcase_add_test(tests, test_overlap);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
