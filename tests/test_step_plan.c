/* When a step's plan may change, with real steps: never its degree between checkpoints, and with one only if it is saved.
 * What is saved comes back. ranks: 1 2 3 4 7 */
#include <math.h>
#include <mpi.h>
#include <string.h>
#include "model_case.h"
#include "test.h"
#include "train/predict.h"
#include "train/step_plan.h"

static struct model_case *open_case(const char *degree)
{
  return model_case_open("mixtral", model_case_ragged(), "cpu", 1, 1, 1, 3,
                         (const char *[]){"schedule.policy=auto", degree, "train.micro_batch=1"});
}

/* A cluster on which rows and experts take long, by the amount (many chunks pay) or by the task (none do). */
static void teach(struct mt_comm *comm, int many)
{
  struct mt_learnt *learnt = &comm->cluster->learnt;
  for (int level = MT_LEVEL_NODE; level < MT_NLEVEL; level++)
    comm->cluster->link[level] = (struct mt_link){.alpha_ns = 1, .beta_ps = 1000000, .gap_ns = 1};
  *learnt = (struct mt_learnt){.n = 2, .task = {{"experts", 0, 10000000}, {"experts back", 0, 10000000}}};
  for (int i = 0; i < 2 && !many; i++)
    learnt->task[i].extra_ns = 1000000000;
}

static void steps(struct model_case *c, int64_t *number, int n)
{
  for (; n > 0; n--, ++*number)
    ck_assert_int_eq(mt_step_run(c->step, *number, (*number - 1) * c->B)->updated, 1);
}

/* Before anything was measured `auto` runs one thing after the other in one chunk, and weighs that too; in the end the plan that
 * was measured to be fastest is in force and predicted to take as long, or longer where its tasks alone do. */
START_TEST(test_begins_sequentially)
{
  struct model_case *c = open_case("schedule.degree=0"), *given = open_case("schedule.degree=2");
  struct mt_step *step = c->step;
  int64_t number = 1;
  const int several = c->comm->size > 1;
  ck_assert_int_eq(memcmp(&step->course.plan, &mt_plan_sequential, sizeof mt_plan_sequential), 0);
  ck_assert_int_eq(given->step->course.plan.degree[0], several ? 2 : 1);
  for (int i = 0; i < MT_ROUNDS * (1 + 2 * MT_ROUND_STEPS) && !step->replan.warm; i++)
    steps(c, &number, 1);
  ck_assert_int_eq(step->replan.warm, 1);
  ck_assert_int_eq(memcmp(&step->tried[0].plan, &mt_plan_sequential, sizeof mt_plan_sequential), 0);
  if (several) {
    double least = INFINITY, taken = INFINITY;
    for (int r = 0; r <= step->replan.round; r++)
      for (int way = 0; way < 2; way++) {
        const double s = mt_replan_s(&step->replan, r, way);
        least = s > 0 ? fmin(least, s) : least;
        if (s > 0 && way == step->course.beside && !memcmp(&step->tried[r].plan, &step->course.plan, sizeof step->course.plan))
          taken = fmin(taken, s);
      }
    ck_assert_double_eq(taken, least);
    /* as closely as it can be fitted: a task more or less may have to be woken by the other thread */
    const double off = 0.01 * taken + 4e-9 * (double)step->costs.hand_ns;
    ck_assert_double_ge(step->predicted_s, taken - off);
    ck_assert(step->predicted_s <= taken + off || !step->costs.late_ns[step->course.beside]);
  }
  model_case_close(c);
  model_case_close(given);
}
END_TEST

/* Pinned by a checkpoint: the degree stays through the rest of the first trial and whenever steps depart. */
START_TEST(test_pinned)
{
  struct model_case *c = open_case("schedule.degree=0");
  int64_t number = 1, departed = 0, warm = 0;
  steps(c, &number, 2);
  mt_step_before_save(c->step);
  mt_step_after_save(c->step, 1);
  const struct mt_course at = c->step->course;
  for (int i = 0; i < 70; i++) {
    if (c->step->replan.warm && !warm++) /* the next checkpoint may come with another degree */
      ck_assert_int_eq(c->step->replan.learnt, c->comm->size > 1);
    if (c->step->replan.warm)
      c->step->predicted_s = 1e-9; /* nothing could be as quick */
    steps(c, &number, 1);
    departed += c->step->replan.warm && (c->step->result.schedule || c->step->replan.trial);
    ck_assert(mt_course_same_bits(&c->step->course, &at));
  }
  ck_assert_int_eq(c->step->replan.warm, 1);
  ck_assert_int_gt(departed, 0);
  model_case_close(c);
}
END_TEST

/* With a checkpoint the degree changes for a reason, and not if it was not saved; results stay what they were to rounding. */
START_TEST(test_checkpoint)
{
  struct model_case *c = open_case("schedule.degree=0"), *same = open_case("schedule.degree=1");
  struct mt_step *step = c->step;
  int64_t number = 1, other = 1;
  const int several = c->comm->size > 1;
  steps(c, &number, 1);
  steps(same, &other, 1);
  for (int saved = 0; saved < 2; saved++) {
    const struct mt_course was = step->course;
    mt_replan_done(&step->replan, step->course.beside, 1);
    step->replan.learnt = 1;
    step->predicted_s = 1e6; /* what the plan in force comes to: anything is better */
    teach(c->comm, was.plan.degree[0] == 1);
    mt_step_before_save(step);
    ck_assert_int_eq(mt_course_same_bits(&was, &step->course), !several);
    ck_assert_int_eq(step->result.schedule != NULL, several);
    ck_assert(!c->model->moe || c->model->moe->nchunk == step->course.plan.degree[0]);
    mt_step_after_save(step, saved);
    ck_assert_int_eq(mt_course_same_bits(&was, &step->course), !saved || !several);
    ck_assert_int_eq(step->replan.pinned, saved);
    ck_assert_int_eq(step->replan.learnt, !several || !saved);
    steps(c, &number, 1);
    steps(same, &other, 1);
    ck_assert_double_le(fabs(step->result.loss - same->step->result.loss), 1e-5 * same->step->result.loss);
    ck_assert_double_le(fabs(step->result.grad_norm - same->step->result.grad_norm), 1e-5 * same->step->result.grad_norm);
  }
  model_case_close(c);
  model_case_close(same);
}
END_TEST

/* A trace has the step that ran, also where another plan comes into force behind it. */
START_TEST(test_traced)
{
  struct model_case *c = open_case("schedule.degree=0");
  struct mt_step *step = c->step;
  struct mt_replan *replan = &step->replan;
  struct mt_trace trace = {0};
  int64_t number = 1;
  const int n = step->tasks.n;
  int ran = 0;
  steps(c, &number, 1);
  replan->fixed = replan->trial = replan->round = 1; /* a trial whose last step comes, and whose first plan was the best */
  replan->serial = 1;
  replan->nth = MT_ROUND_STEPS;
  replan->ntimed[0][0] = 1;
  replan->timed[0][0][0] = 1e-9;
  step->tried[0] = (struct mt_course){.plan = {.serial = 1, .chunks = 1, .degree = {4, 4}, .one_wire = 1},
                                      .scheme = MT_SCHEME_SEQUENTIAL};
  step->trace = &trace;
  steps(c, &number, 1);
  ck_assert_int_eq(step->course.plan.degree[0], 4);
  const char *predicted = strstr(trace.text.text, "step 2, predicted");
  ck_assert_ptr_nonnull(predicted);
  for (const char *at = trace.text.text; (at = strstr(at, "\"ph\":\"X\"")) && at < predicted; at++)
    ran++;
  ck_assert_int_gt(ran, n / 2);
  mt_trace_free(&trace);
  model_case_close(c);
}
END_TEST

/* Where only some ranks can run lanes beside each other, the same trials follow everywhere. */
START_TEST(test_lanes_of_some)
{
  struct model_case *c = open_case("schedule.degree=0");
  const struct mt_source source = c->step->source;
  int64_t number = 1;
  mt_step_free(c->step);
  c->comm->threaded = c->comm->rank != c->comm->size - 1;
  c->step = mt_step_new(c->comm, c->model, &c->config, source);
  ck_assert_int_eq(c->step->executor != NULL, c->comm->size > 1 && c->comm->rank < c->comm->size - 1);
  ck_assert_int_eq(mt_same(c->comm, &c->step->replan.lanes, sizeof c->step->replan.lanes), 1);
  for (int i = 0; i < MT_ROUNDS * (1 + 2 * MT_ROUND_STEPS); i++) {
    steps(c, &number, 1);
    ck_assert_int_eq(mt_same(c->comm, &c->step->course, sizeof c->step->course), 1);
  }
  ck_assert_int_eq(c->step->replan.warm, 1);
  model_case_close(c);
}
END_TEST

/* A step that takes the plan of another has its bits, whatever it would have chosen itself. */
START_TEST(test_resume)
{
  struct model_case *c = open_case("schedule.degree=3"), *d = open_case("schedule.degree=0");
  int64_t number[2] = {1, 1};
  steps(c, &number[0], 9); /* the first trial is over */
  char *text = mt_step_schedule(c->step);
  ck_assert_int_eq(mt_step_resume(d->step, text), 1);
  ck_assert_int_eq(memcmp(&c->step->course, &d->step->course, sizeof c->step->course), 0);
  ck_assert_int_eq(d->step->replan.warm, c->step->replan.warm);
  ck_assert_int_eq(d->step->replan.pinned, 1);
  model_case_close(c);
  c = open_case("schedule.degree=3");
  number[0] = 1;
  for (int i = 0; i < 3; i++) {
    steps(c, &number[0], 1);
    steps(d, &number[1], 1);
    ck_assert_uint_eq(model_case_hash(d, 1), model_case_hash(c, 1));
  }
  ck_assert_int_eq(mt_step_resume(d->step, NULL), 0);
  ck_assert_int_eq(mt_step_resume(d->step, "{\"policy\": \"auto\"}"), 0);
  ck_assert_int_eq(d->step->course.plan.degree[0], c->step->course.plan.degree[0]);
  mt_free(text);
  model_case_close(c);
  model_case_close(d);
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  Suite *suite = suite_create("step plan");
  TCase *tests = tcase_create("step plan");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, test_begins_sequentially);
  tcase_add_test(tests, test_pinned);
  tcase_add_test(tests, test_checkpoint);
  tcase_add_test(tests, test_resume);
  tcase_add_test(tests, test_traced);
  tcase_add_test(tests, test_lanes_of_some);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
