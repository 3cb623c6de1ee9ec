/* What spans teach: the slowest rank's computing, the quickest rank's transfers, lines over predictions, slow-downs, waiting.
 * Spans are made up from costs that are known, so what is learnt must give them back. ranks: 1 2 3 4 7 */
#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "comm/comm.h"
#include "schedule/observe.h"
#include "schedule/plan.h"
#include "schedule/simulate.h"
#include "test.h"

static struct mt_comm *comm;

enum { STEPS = 5, STRAY = 2 }; /* one of the steps is off by a factor */

/* Lines that differ by kind, and some kinds of which nothing is predicted. */
static struct mt_costs predicted_costs(void)
{
  struct mt_costs costs = {0};
  for (int k = 0; k < MT_NTASK_KIND; k++)
    costs.kind[k] = (struct mt_cost){mt_task_communicates((enum mt_task_kind)k) ? 20000 : 0, 400000 + 30000 * k};
  costs.kind[MT_TASK_BATCH] = costs.kind[MT_TASK_NORM] = costs.kind[MT_TASK_STATISTICS] = (struct mt_cost){0, 0};
  return costs;
}

static double true_factor(enum mt_task_kind kind)
{
  return 0.5 + 0.25 * (kind % 7);
}

static double true_extra(enum mt_task_kind kind)
{
  return 1000 * (1 + kind % 5);
}

static double true_ns(const struct mt_costs *predicted, const struct mt_task *task)
{
  double line = (double)mt_task_cost(predicted, task);
  return true_extra(task->kind) + true_factor(task->kind) * line;
}

static const struct mt_shape shape = {
    .nlayer = 3, .nmicro = 2, .sequences = 4, .several = 1, .sharded = 1, .whole = 1, .backward = 1};

static struct mt_tasks tasks_of(int degree)
{
  struct mt_plan plan = {.chunks = 1, .degree = {degree, degree}, .one_wire = 1};
  return mt_plan_tasks(&shape, &plan);
}

/* Of `size` ranks, rank 0 computes as predicted costs make it and each further one a tenth faster; of transfers the last rank
 * is the one that never waits, each one before it waits 0.3 ms. */
static void serial_spans(const struct mt_costs *predicted, const struct mt_tasks *tasks, int rank, int size, double factor,
                         struct mt_span *span)
{
  int64_t now = 0;
  for (int i = 0; i < tasks->n; i++) {
    const struct mt_task *task = &tasks->task[i];
    double ns = task->part ? true_ns(predicted, task) : 0;
    ns = mt_task_communicates(task->kind) ? ns + 3e5 * (size - 1 - rank) : ns * (1 - 0.1 * rank);
    span[i].start_ns = now;
    now += (int64_t)(factor * ns + 0.5);
    span[i].end_ns = now;
  }
}

static void observe_serial(struct mt_observed *observed, const struct mt_costs *predicted, int degree)
{
  struct mt_tasks tasks = tasks_of(degree);
  struct mt_span *span = MT_NEW(MT_TAG_PLAN, struct mt_span, tasks.n);
  for (int step = 0; step < STEPS; step++) {
    serial_spans(predicted, &tasks, comm->rank, comm->size, step == STRAY ? 7 : 1, span);
    mt_observe(observed, &tasks, span, 0);
  }
  mt_free(span);
  mt_tasks_free(&tasks);
}

static struct mt_figures agreed(const struct mt_observed *observed)
{
  struct mt_figures figures = mt_observe_figures(observed);
  mt_max(comm, (double *)&figures, MT_NFIGURES);
  return figures;
}

/* Two amounts of each kind that is cut give the line, whoever is slow and however one step strayed. */
START_TEST(test_lines)
{
  const struct mt_costs predicted = predicted_costs();
  struct mt_observed observed = {0};
  struct mt_learnt learnt = {0};
  observe_serial(&observed, &predicted, 1);
  observe_serial(&observed, &predicted, 3);
  struct mt_tasks tasks = tasks_of(3);
  struct mt_figures figures = agreed(&observed);
  double error = mt_observe_learn(&figures, &observed, &tasks, &predicted, (double[]){0, 0}, &learnt);
  ck_assert_double_lt(error, 1e-4);
  for (int i = 0; i < learnt.n; i++) {
    enum mt_task_kind kind = 0;
    while (kind < MT_NTASK_KIND && strcmp(mt_task_name(kind), learnt.task[i].name))
      kind++;
    ck_assert_int_lt(kind, MT_NTASK_KIND);
    double factor = 1e-3 * (double)learnt.task[i].thousandths, extra = (double)learnt.task[i].extra_ns;
    double whole = (double)(predicted.kind[kind].alpha_ns + predicted.kind[kind].rest_ns);
    double full = true_extra(kind) + true_factor(kind) * whole;
    ck_assert_double_eq_tol(extra + factor * whole, full, 2e-3 * full);
    if (kind == MT_TASK_DISPATCH || kind == MT_TASK_EXPERTS || kind == MT_TASK_PACK_BACK) { /* cut: more than the sum */
      ck_assert_double_eq_tol(factor, true_factor(kind), 2e-3);
      ck_assert_double_eq_tol(extra, true_extra(kind), 400);
    }
    if (kind == MT_TASK_NORM || kind == MT_TASK_BATCH) {
      ck_assert_double_eq_tol(extra, true_extra(kind), 1);
      ck_assert_int_eq(learnt.task[i].thousandths, 1000);
    }
  }
  ck_assert_int_gt(learnt.n, 20);
  mt_tasks_free(&tasks);
}
END_TEST

/* The costs that are learnt make the simulator say what was measured, either way of running; one amount alone scales the
 * prediction, and what was learnt of the part that does not grow stays. */
START_TEST(test_steps)
{
  const struct mt_costs predicted = predicted_costs();
  struct mt_observed observed = {0};
  struct mt_learnt learnt = {0};
  observe_serial(&observed, &predicted, 2);
  struct mt_tasks tasks = tasks_of(2);
  struct mt_span *span = MT_NEW(MT_TAG_PLAN, struct mt_span, tasks.n);
  for (int i = 0; i < tasks.n; i++)
    tasks.task[i].cost_ns = tasks.task[i].part ? (int64_t)true_ns(&predicted, &tasks.task[i]) : 0;
  const int64_t beside_ns =
      mt_simulate(&tasks, &(struct mt_costs){.slow_compute = 1500, .slow_comm = 1250, .hand_ns = 30000}, span).total_ns;
  for (int step = 0; step < STEPS; step++)
    mt_observe(&observed, &tasks, span, 1);
  int64_t alone_ns = 0, sends = 0;
  for (int i = 0; i < tasks.n; i++) {
    alone_ns += tasks.task[i].cost_ns;
    sends += tasks.task[i].part && mt_task_communicates(tasks.task[i].kind);
  }
  struct mt_figures figures = agreed(&observed);
  const double step_s[2] = {1e-9 * (double)(alone_ns + 200000 * sends), 1e-9 * (double)beside_ns + 2e-3};
  mt_observe_learn(&figures, &observed, &tasks, &predicted, step_s, &learnt);
  ck_assert_int_ge(learnt.slow_compute, 1350);
  ck_assert_int_le(learnt.slow_compute, 1650);
  ck_assert_int_ge(learnt.slow_comm, 1125);
  ck_assert_int_le(learnt.slow_comm, 1375);
  ck_assert_int_ge(learnt.late_ns[0], 195000);
  ck_assert_int_le(learnt.late_ns[0], 205000);
  struct mt_costs costs = predicted;
  mt_costs_learn(&costs, &learnt, 0);
  for (int way = 0; way < 2; way++) {
    tasks.serial = !way;
    mt_tasks_cost(&tasks, &costs);
    ck_assert_double_eq_tol(1e-9 * (double)mt_tasks_ns(&tasks, &costs), step_s[way], 0.01 * step_s[way]);
  }

  /* Everything takes twice as long, seen beside only: factors double, what is extra does not. */
  struct mt_learnt doubled = learnt;
  memset(&observed, 0, sizeof observed);
  for (int i = 0; i < tasks.n; i++) {
    span[i].start_ns *= 2;
    span[i].end_ns *= 2;
  }
  mt_observe(&observed, &tasks, span, 1);
  figures = agreed(&observed);
  tasks.serial = 0;
  mt_observe_learn(&figures, &observed, &tasks, &predicted, (double[]){0, 2 * step_s[1]}, &doubled);
  ck_assert_int_eq(doubled.n, learnt.n);
  ck_assert_int_eq(doubled.slow_compute, learnt.slow_compute);
  costs = predicted;
  mt_costs_learn(&costs, &doubled, 0);
  mt_tasks_cost(&tasks, &costs);
  ck_assert_double_eq_tol(1e-9 * (double)mt_tasks_ns(&tasks, &costs), 2 * step_s[1], 0.01 * step_s[1]);
  mt_free(span);
  mt_tasks_free(&tasks);
}
END_TEST

/* More amounts than are kept: none is mixed with another. */
START_TEST(test_many_amounts)
{
  enum { MANY = MT_AMOUNTS + 3 };
  struct mt_observed observed = {0};
  struct mt_task task[MANY] = {{0}};
  struct mt_span span[MANY] = {{0}};
  for (int i = 0; i < MANY; i++) {
    task[i] = (struct mt_task){.kind = MT_TASK_REDUCE, .lane = MT_LANE_INTER, .part = (i + 1) * MT_WHOLE / 10};
    span[i] = (struct mt_span){1000 * i * i, 1000 * (i + 1) * (i + 1)};
  }
  const struct mt_tasks tasks = {.n = MANY, .task = task};
  mt_observe(&observed, &tasks, span, 0);
  struct mt_figures figures = mt_observe_figures(&observed);
  for (int a = 0; a < MT_AMOUNTS; a++) {
    const int i = a < MT_AMOUNTS - 1 ? a : MANY - 1;
    ck_assert_int_eq(observed.amount[0][MT_TASK_REDUCE][a].part, task[i].part);
    ck_assert_double_eq(-figures.ns[0][MT_TASK_REDUCE][a], (double)(span[i].end_ns - span[i].start_ns));
  }
}
END_TEST

/* Figures of ranks: the largest of computing, the least of communication. */
START_TEST(test_ranks)
{
  const struct mt_costs predicted = predicted_costs();
  struct mt_observed observed = {0};
  observe_serial(&observed, &predicted, 1);
  struct mt_figures figures = agreed(&observed);
  const struct mt_task experts = {.kind = MT_TASK_EXPERTS, .part = MT_WHOLE},
                       dispatch = {.kind = MT_TASK_DISPATCH, .part = MT_WHOLE};
  ck_assert_double_eq_tol(figures.ns[0][MT_TASK_EXPERTS][0], true_ns(&predicted, &experts), 1);
  ck_assert_double_eq_tol(-figures.ns[0][MT_TASK_DISPATCH][0], true_ns(&predicted, &dispatch), 1);
  ck_assert_double_eq(figures.ns[1][MT_TASK_EXPERTS][0], MT_UNSEEN);
  ck_assert_double_eq(figures.ns[0][MT_TASK_EXPERTS][1], MT_UNSEEN);
}
END_TEST

/* What carries over to one rank has no transfers, and kinds that send nothing stay at nothing. */
START_TEST(test_apply)
{
  struct mt_learnt learnt = {.slow_compute = 1100, .slow_comm = 1200, .hand_ns = 5, .late_ns = {7, 9}, .n = 2,
                             .task = {{"experts", 50, 1500}, {"dispatch", 60, 2000}}};
  struct mt_costs costs = {.kind = {[MT_TASK_EXPERTS] = {100, 1000}, [MT_TASK_DISPATCH] = {10, 200}}}, many = costs, none = {0};
  mt_costs_learn(&costs, &learnt, 1);
  mt_costs_learn(&many, &learnt, 0);
  mt_costs_learn(&none, &learnt, 0);
  ck_assert_int_eq(costs.kind[MT_TASK_EXPERTS].alpha_ns, 200);
  ck_assert_int_eq(costs.kind[MT_TASK_EXPERTS].rest_ns, 1500);
  ck_assert_int_eq(costs.kind[MT_TASK_DISPATCH].alpha_ns, 10);
  ck_assert_int_eq(many.kind[MT_TASK_DISPATCH].alpha_ns, 80);
  ck_assert_int_eq(many.kind[MT_TASK_DISPATCH].rest_ns, 400);
  ck_assert_int_eq(none.kind[MT_TASK_DISPATCH].alpha_ns, 0);
  ck_assert_int_eq(none.kind[MT_TASK_EXPERTS].alpha_ns, 50);
  ck_assert_int_eq(many.slow_comm, 1200);
  struct mt_task task = {.kind = MT_TASK_DISPATCH, .lane = MT_LANE_INTER, .part = MT_WHOLE};
  struct mt_tasks one = {.n = 1, .capacity = 1, .task = &task};
  mt_tasks_cost(&one, &many);
  ck_assert_int_eq(task.cost_ns, 480 + 9);
  one.serial = 1;
  mt_tasks_cost(&one, &many);
  ck_assert_int_eq(task.cost_ns, 480 + 7);
}
END_TEST

static void end(void)
{
  mt_comm_free(comm);
}

int main(int argc, char **argv)
{
  if (mt_comm_new(&argc, &argv, &comm) != MT_OK)
    return EXIT_FAILURE;
  Suite *suite = suite_create("observe");
  TCase *tests = tcase_create("observe");
  tcase_add_test(tests, test_lines);
  tcase_add_test(tests, test_steps);
  tcase_add_test(tests, test_many_amounts);
  tcase_add_test(tests, test_ranks);
  tcase_add_test(tests, test_apply);
  suite_add_tcase(suite, tests);
  return mt_test_run_then(suite, end);
}
