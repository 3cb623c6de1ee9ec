/* Task lists from shapes and plans, their costs, and virtual time: published test values, identities, bounds. ranks: 1
 */
#include "test.h"
#include <math.h>
#include <string.h>
#include "base/random.h"
#include "schedule/scheme.h"

static uint64_t draws;

/* A whole number in [low, high]. */
static int64_t draw(int64_t low, int64_t high)
{
  return low + (int64_t)(mt_random_bits(7, MT_STREAM_TEST, draws++) % (uint64_t)(high - low + 1));
}

static struct mt_cost cost(double alpha_ns, double rest_ns)
{
  return (struct mt_cost){(int64_t)(alpha_ns + 0.5), (int64_t)(rest_ns + 0.5)};
}

/* One MoE layer and nothing else, forward, in `degree` chunks. */
static int64_t layer_time(const struct mt_costs *costs, int grouped, int degree)
{
  struct mt_shape shape = {.nlayer = 1, .nmicro = 1, .sequences = 1, .several = 1, .grouped = grouped};
  struct mt_plan plan = {.chunks = 1, .degree = {degree, 1}};
  return mt_plan_simulate(&shape, &plan, costs).total_ns;
}

/* PipeMoE's example: 16 GPUs, B = 8, T = 1024, C = F = 4096, two experts a token; published constants. */
START_TEST(test_pipemoe_times)
{
  struct mt_costs costs = {0};
  const double rows = 2 * 8192, exchange = rows * 4096 * 4, work = rows * 4096 * 4096 * 4;
  costs.kind[MT_TASK_DISPATCH] = costs.kind[MT_TASK_COMBINE] = cost(5.70e5, 2.96e-1 * exchange);
  costs.kind[MT_TASK_EXPERTS] = cost(2 * 1.5e5, 2 * 3.73e-5 * work);
  static const struct {
    int degree;
    double seconds;
  } known[] = {{1, 0.24238}, {2, 0.16322}, {3, 0.16233}, {4, 0.16347}, {8, 0.16803}};
  for (int i = 0; i < 5; i++)
    ck_assert_double_eq_tol(1e-9 * (double)layer_time(&costs, 0, known[i].degree), known[i].seconds, 0.6e-5);
  struct mt_shape shape = {.nlayer = 1, .nmicro = 1, .sequences = 8, .several = 1};
  struct mt_plan plan = mt_scheme_plan(MT_SCHEME_PIPEMOE, 0, &shape, &costs);
  ck_assert_int_eq(plan.degree[0], 3);
}
END_TEST

/* FSMoE's released constants: milliseconds, elements. */
static struct mt_costs fsmoe_costs(int backward)
{
  struct mt_costs costs = {0};
  const double rows = 2.4 * 4 * 1024 * 4096;
  costs.kind[MT_TASK_DISPATCH] = costs.kind[MT_TASK_COMBINE] = cost(1e6 * 0.23515, 1.85433 * rows / 8);
  costs.kind[MT_TASK_ROWS_GATHER] = cost(1e6 * 0.0549, 6.72388e-1 * rows);
  costs.kind[MT_TASK_ROWS_SCATTER] = cost(1e6 * 0.0688, 6.70433e-1 * rows);
  double products = 1 + backward;
  costs.kind[MT_TASK_EXPERTS] = cost(1e6 * 0.59194 * products, 5.68474e-5 * rows * 14336 / 8 * 3 * products);
  return costs;
}

START_TEST(test_fsmoe_times)
{
  static const double forward[4] = {86.227, 64.120, 59.701, 57.862};
  struct mt_costs there = fsmoe_costs(0), back = fsmoe_costs(1);
  for (int i = 0; i < 4; i++) {
    ck_assert_double_eq_tol(1e-6 * (double)layer_time(&there, 1, 1 << i), forward[i], 6e-4);
    ck_assert_double_eq_tol(1e-6 * (double)layer_time(&back, 1, 1 << i), i ? forward[i] : 99.124, 6e-4);
  }
}
END_TEST

/* FSMoE's four cases as one maximum, per-chunk times at degree r: where gather and scatter cost nearly the same the
 * replay equals it almost always, is never below it, and at most 1 % above. */
static int64_t four_terms(int r, int64_t exchange, int64_t gather, int64_t scatter, int64_t experts, int64_t gradient)
{
  int64_t t[4] = {2 * r * exchange + gradient, 2 * r * exchange + gather + scatter,
                  2 * exchange + gather + scatter + r * experts, 2 * exchange + r * (gather + scatter)};
  int64_t most = 0;
  for (int i = 0; i < 4; i++)
    most = t[i] > most ? t[i] : most;
  return most;
}

START_TEST(test_four_term_maximum)
{
  enum { CASES = 4000 };
  int equal = 0;
  for (int i = 0; i < CASES; i++) {
    const int r = 1 << draw(0, 3);
    /* Whole chunks of whole nanoseconds, so that sums are exact. */
    int64_t exchange = draw(1000, 10000), gather = draw(1000, 10000), experts = draw(1000, 10000),
            gradient = draw(0, 40000);
    int64_t scatter = gather * draw(95, 105) / 100;
    struct mt_costs costs = {0};
    costs.kind[MT_TASK_DISPATCH].rest_ns = costs.kind[MT_TASK_COMBINE].rest_ns = exchange * r;
    costs.kind[MT_TASK_COMBINE_BACK].rest_ns = costs.kind[MT_TASK_DISPATCH_BACK].rest_ns = exchange * r;
    costs.kind[MT_TASK_ROWS_GATHER].rest_ns = gather * r;
    costs.kind[MT_TASK_ROWS_SCATTER].rest_ns = scatter * r;
    costs.kind[MT_TASK_EXPERTS].rest_ns = costs.kind[MT_TASK_EXPERTS_BACK].rest_ns = experts * r;
    costs.kind[MT_TASK_REDUCE].rest_ns = 2 * gradient;
    /* Two layers: the gradients of the upper one travel in the lower one's backward pass, its own alone at the end. */
    struct mt_shape shape = {.nlayer = 2,
                             .nmicro = 1,
                             .sequences = 1,
                             .several = 1,
                             .grouped = 1,
                             .backward = 1,
                             .layer = (struct mt_shape_layer[]){{0, MT_WHOLE / 2, 0}, {0, MT_WHOLE / 2, 0}}};
    struct mt_plan plan = {.chunks = 1, .degree = {r, r}, .gradient = MT_GRADIENT_WINDOW, .moe_window = MT_WHOLE};
    int64_t alone = four_terms(r, exchange, gather, scatter, experts, 0);
    int64_t formula = 3 * alone + four_terms(r, exchange, gather, scatter, experts, gradient) + gradient;
    costs.kind[MT_TASK_HEADS_GATHER] = costs.kind[MT_TASK_HEADS_SCATTER] = (struct mt_cost){0, 0};
    int64_t time = mt_plan_simulate(&shape, &plan, &costs).total_ns;
    equal += time == formula;
    ck_assert_int_ge(time, formula);
    ck_assert_int_le(time, formula + formula / 100);
  }
  ck_assert_int_ge(equal, CASES * 98 / 100);
}
END_TEST

static struct mt_shape random_shape(struct mt_shape_layer *layer)
{
  struct mt_shape shape = {.nlayer = (int)draw(1, 6),
                           .nmicro = (int)draw(1, 3),
                           .sequences = (int)draw(1, 8),
                           .several = (int)draw(0, 1),
                           .sharded = (int)draw(0, 1),
                           .grouped = draw(0, 3) == 0,
                           .gated = (int)draw(0, 1),
                           .recompute = (int)draw(0, 1),
                           .whole = (int)draw(0, 1),
                           .backward = 1,
                           .follows = (int)draw(0, 1),
                           .gradient_bytes = draw(1, 100) * 1000000};
  const int most = MT_WHOLE / (shape.nlayer + 1);
  for (int l = 0; l < shape.nlayer; l++) {
    const int dense = draw(0, 3) == 0;
    layer[l] = (struct mt_shape_layer){dense, (int)draw(0, most), dense ? 0 : (int)draw(0, most)};
  }
  shape.layer = layer;
  shape.shared_update = (int)draw(0, most);
  shape.head_gradient = (int)draw(0, MT_WHOLE / (shape.nlayer + 1));
  return shape;
}

static struct mt_costs random_costs(void)
{
  struct mt_costs costs = {
      .slow_compute = (int)draw(900, 1500), .slow_comm = (int)draw(900, 1500), .slow_wires = (int)draw(900, 1500)};
  for (int kind = 0; kind < MT_NTASK_KIND; kind++)
    costs.kind[kind] = (struct mt_cost){draw(0, 2) ? 0 : draw(0, 10000), draw(0, 3) ? draw(0, 1000000) : 0};
  return costs;
}

static struct mt_plan random_plan(const struct mt_shape *shape)
{
  int chunks = 1 << draw(0, 3);
  while (chunks > shape->sequences)
    chunks /= 2;
  struct mt_plan plan = {.serial = draw(0, 7) == 0,
                         .chunks = chunks,
                         .one_queue = (int)draw(0, 1),
                         .tiled = draw(0, 3) == 0,
                         .prefetch = (int)draw(0, 1),
                         .delay = (int)draw(0, 1),
                         .order = (enum mt_order)draw(0, 2),
                         .gradient = (enum mt_gradient)draw(0, 2),
                         .moe_window = (int)draw(0, MT_WHOLE),
                         .dense_window = (int)draw(0, MT_WHOLE),
                         .piece = draw(0, 1) ? (int)draw(MT_WHOLE / 50, MT_WHOLE) : 0};
  for (int i = 0; i < 2; i++)
    plan.degree[i] = chunks * (int)draw(1, MT_MOST_CHUNKS / chunks);
  return plan;
}

/* Every plan does the same work: per kind, layer and micro-step all parts, once (unshard: nothing where it is there
 * already). */
static void check_work(const struct mt_shape *shape, const struct mt_tasks *tasks)
{
  int64_t reduced = 0, norm = 0, shared_update = 0, experts = 0;
  for (int m = 0; m < shape->nmicro; m++)
    for (int l = -1; l < shape->nlayer; l++)
      for (int kind = 0; kind < MT_NTASK_KIND; kind++) {
        int64_t sum = 0;
        for (int i = 0; i < tasks->n; i++) {
          const struct mt_task *task = &tasks->task[i];
          sum += task->micro == m && task->layer == l && task->kind == (enum mt_task_kind)kind ? task->part : 0;
        }
        if (kind == MT_TASK_REDUCE)
          continue;
        if (kind == MT_TASK_UPDATE) { /* of experts, once a step */
          ck_assert_int_eq(sum, shape->whole && m == 0 && l >= 0 ? shape->layer[l].update : 0);
          continue;
        }
        int twice = kind == MT_TASK_ROWS_GATHER || kind == MT_TASK_ROWS_SCATTER || kind == MT_TASK_HEADS_GATHER ||
                    kind == MT_TASK_HEADS_SCATTER || kind == MT_TASK_ATTENTION || kind == MT_TASK_UNSHARD_INTER ||
                    kind == MT_TASK_UNSHARD_INTRA;
        ck_assert_int_eq(sum % MT_WHOLE, 0);
        ck_assert_int_le(sum, twice ? 3 * MT_WHOLE : MT_WHOLE);
        int moe = l >= 0 && !shape->layer[l].dense;
        if (kind == MT_TASK_EXPERTS || kind == MT_TASK_EXPERTS_BACK || kind == MT_TASK_DISPATCH ||
            kind == MT_TASK_COMBINE_BACK)
          ck_assert_int_eq(sum, moe ? MT_WHOLE : 0);
        if (kind == MT_TASK_ATTENTION_BACK)
          ck_assert_int_eq(sum, l >= 0 ? MT_WHOLE : 0);
        if (kind == MT_TASK_RESHARD_INTER)
          ck_assert_int_eq(sum, moe && shape->sharded ? MT_WHOLE : 0);
      }
  for (int i = 0; i < tasks->n; i++) {
    const struct mt_task *task = &tasks->task[i];
    reduced += task->kind == MT_TASK_REDUCE ? task->part : 0;
    norm += task->kind == MT_TASK_NORM ? task->part : 0;
    shared_update += task->kind == MT_TASK_UPDATE && task->layer < 0 ? task->part : 0;
  }
  for (int l = 0; l < shape->nlayer; l++)
    experts += shape->layer[l].update;
  ck_assert_int_eq(reduced, MT_WHOLE);
  ck_assert_int_eq(norm, shape->whole ? experts + shape->shared_update : 0);
  ck_assert_int_eq(shared_update, shape->whole ? shape->shared_update : 0);
}

/* No task begins before what it depends on has ended, lanes do one thing at a time in list order, no rows travel behind what
 * waits for the planner of layouts, and no piece of the gradients travels before the layers that it belongs to are through. */
static void check_replay(const struct mt_shape *shape, const struct mt_tasks *tasks, const struct mt_span *span)
{
  int before[MT_NLANE] = {-1, -1, -1};
  int64_t sent = 0;
  int told = 0;
  for (int i = 0; i < tasks->n; i++) {
    const struct mt_task *task = &tasks->task[i];
    told |= task->kind == MT_TASK_TELL;
    ck_assert(!told || (task->kind != MT_TASK_COMBINE_BACK && task->kind != MT_TASK_DISPATCH_BACK));
    ck_assert_int_ge(span[i].end_ns, span[i].start_ns + task->cost_ns);
    for (int d = 0; d < task->ndep; d++) {
      ck_assert_int_lt(task->dep[d], i);
      ck_assert_int_ge(span[i].start_ns, span[task->dep[d]].end_ns);
    }
    int *last = &before[task->lane];
    ck_assert(*last < 0 || span[i].start_ns >= span[*last].end_ns);
    *last = i;
    if (task->kind != MT_TASK_REDUCE)
      continue;
    ck_assert_int_eq(task->from, sent);
    sent += task->part;
    int64_t ready = 0, layers = 0;
    for (int j = 0; j < tasks->n; j++)
      if (tasks->task[j].kind == MT_TASK_HEAD && tasks->task[j].micro == shape->nmicro - 1)
        ready += span[j].end_ns <= span[i].start_ns ? shape->head_gradient : 0;
    for (int l = 0; l < shape->nlayer; l++) {
      int through = 1;
      for (int j = 0; j < tasks->n; j++)
        if (tasks->task[j].kind == MT_TASK_ATTENTION_BACK && tasks->task[j].layer == l &&
            tasks->task[j].micro == shape->nmicro - 1)
          through &= span[j].end_ns <= span[i].start_ns;
      ready += through ? shape->layer[l].gradient : 0;
      layers += through;
    }
    if (layers == shape->nlayer)
      ready = MT_WHOLE;
    ck_assert_int_le(sent, ready);
  }
}

START_TEST(test_any_plan)
{
  for (int i = 0; i < 400; i++) {
    struct mt_shape_layer layer[8];
    struct mt_shape shape = random_shape(layer);
    struct mt_costs costs = random_costs();
    struct mt_plan plan = random_plan(&shape);
    struct mt_tasks tasks = mt_plan_costed(&shape, &plan, &costs);
    struct mt_span *span = MT_NEW(MT_TAG_MISC, struct mt_span, tasks.n);
    struct mt_simulation s = mt_simulate(&tasks, &costs, span);
    check_work(&shape, &tasks);
    check_replay(&shape, &tasks, span);
    ck_assert_int_ge(s.total_ns, mt_simulation_bound(&s));
    int64_t sum = 0;
    for (int t = 0; t < tasks.n; t++)
      sum += tasks.task[t].cost_ns;
    ck_assert_int_eq(sum, s.lane_ns[0] + s.lane_ns[1] + s.lane_ns[2]);
    if (plan.serial)
      ck_assert_int_eq(s.total_ns, sum);
    tasks.serial = 1; /* any plan may be run so */
    ck_assert_int_eq(mt_simulate(&tasks, &costs, span).total_ns, sum);
    ck_assert_int_eq(span[tasks.n - 1].end_ns, sum);
    if (!shape.several)
      ck_assert_int_eq(s.lane_ns[MT_LANE_INTER], 0);
    mt_free(span);
    mt_tasks_free(&tasks);
  }
}
END_TEST

/* In one chunk, and with gradients at the end, overlapping MoE parts cannot overlap anything but weights on their way, and what
 * is done to experts meanwhile. */
START_TEST(test_one_chunk_is_sequential)
{
  static const enum mt_scheme schemes[] = {MT_SCHEME_TUTEL, MT_SCHEME_PIPEMOE, MT_SCHEME_COCONET};
  for (int i = 0; i < 100; i++) {
    struct mt_shape_layer layer[8];
    struct mt_shape shape = random_shape(layer);
    struct mt_costs costs = random_costs();
    shape.sharded = shape.follows = 0;
    for (int kind = 0; kind < MT_NTASK_KIND; kind++)
      costs.kind[kind].alpha_ns = 0;
    costs.kind[MT_TASK_PUBLISH].rest_ns = costs.kind[MT_TASK_UPDATE].rest_ns = costs.kind[MT_TASK_NORM].rest_ns = 0;
    struct mt_plan plan = mt_scheme_plan(MT_SCHEME_SEQUENTIAL, 0, &shape, &costs);
    int64_t sequential = mt_plan_simulate(&shape, &plan, &costs).total_ns;
    for (int s = 0; s < 3; s++) {
      plan = mt_scheme_plan(schemes[s], 1, &shape, &costs);
      int64_t time = mt_plan_simulate(&shape, &plan, &costs).total_ns;
      ck_assert_int_le(llabs(time - sequential),
                       shape.nlayer * shape.nmicro * 2); /* halves of the products are rounded */
    }
  }
}
END_TEST

START_TEST(test_auto_is_the_best)
{
  for (int i = 0; i < 30; i++) {
    struct mt_shape_layer layer[8];
    struct mt_shape shape = random_shape(layer);
    struct mt_costs costs = random_costs();
    enum mt_scheme chosen = MT_SCHEME_AUTO;
    struct mt_plan plan = mt_scheme_choose(MT_SCHEME_AUTO, 0, &shape, &costs, &chosen);
    int64_t best = mt_plan_simulate(&shape, &plan, &costs).total_ns;
    ck_assert_int_ne(chosen, MT_SCHEME_AUTO);
    for (enum mt_scheme s = MT_SCHEME_SEQUENTIAL; s < MT_NSCHEME; s++) {
      plan = mt_scheme_plan(s, 0, &shape, &costs);
      ck_assert_int_ge(mt_plan_simulate(&shape, &plan, &costs).total_ns, best);
      ck_assert_int_le(plan.chunks, shape.sequences);
    }
  }
}
END_TEST

static void two_tasks(struct mt_tasks *tasks, enum mt_lane a, int64_t a_ns, enum mt_lane b, int64_t b_ns)
{
  *tasks = (struct mt_tasks){0};
  mt_tasks_add(tasks, &(struct mt_task){.lane = a, .cost_ns = a_ns});
  mt_tasks_add(tasks, &(struct mt_task){.lane = b, .cost_ns = b_ns});
}

START_TEST(test_contention)
{
  struct mt_costs costs = {.slow_compute = 1500, .slow_comm = 2000, .slow_wires = 1250};
  struct mt_tasks tasks;
  two_tasks(&tasks, MT_LANE_COMPUTE, 1000, MT_LANE_INTER, 500); /* together for 1000: 666 of the computing is done */
  struct mt_simulation s = mt_simulate(&tasks, &costs, NULL);
  ck_assert_int_eq(s.total_ns, 1000 + (1000 - 666));
  ck_assert_int_eq(s.exposed_ns, 0);
  mt_tasks_free(&tasks);
  two_tasks(&tasks, MT_LANE_INTRA, 1000, MT_LANE_INTER, 1000);
  s = mt_simulate(&tasks, &costs, NULL);
  ck_assert_int_eq(s.total_ns, 1250);
  ck_assert_int_eq(s.exposed_ns, 1250);
  mt_tasks_free(&tasks);
  two_tasks(&tasks, MT_LANE_INTER, 1000, MT_LANE_INTER, 1000);
  s = mt_simulate(&tasks, &costs, NULL);
  ck_assert_int_eq(s.total_ns, 2000);
  mt_tasks_free(&tasks);
}
END_TEST

/* A low rank goes first, whatever its place in the list; what is not ready does not hold up what is. */
START_TEST(test_reorder)
{
  struct mt_tasks tasks = {0};
  struct mt_costs costs = {0};
  int slow = mt_tasks_add(&tasks, &(struct mt_task){.lane = MT_LANE_COMPUTE, .cost_ns = 100, .layer = 0});
  mt_tasks_add(&tasks, &(struct mt_task){.lane = MT_LANE_INTER, .cost_ns = 10, .layer = 1, .dep = {slow}, .ndep = 1});
  mt_tasks_add(&tasks, &(struct mt_task){.lane = MT_LANE_INTER, .cost_ns = 10, .layer = 2});
  mt_tasks_add(&tasks, &(struct mt_task){.lane = MT_LANE_INTER, .cost_ns = 10, .layer = 3});
  ck_assert_int_eq(mt_simulate(&tasks, &costs, NULL).total_ns, 130);
  mt_tasks_reorder(&tasks, &costs, (int64_t[]){0, 0, 5, 4});
  ck_assert_int_eq(mt_simulate(&tasks, &costs, NULL).total_ns, 110);
  ck_assert_int_eq(tasks.task[0].layer, 0);
  ck_assert_int_eq(tasks.task[1].layer, 3);
  ck_assert_int_eq(tasks.task[2].layer, 2);
  ck_assert_int_eq(tasks.task[3].layer, 1);
  ck_assert_int_eq(tasks.task[3].dep[0], 0);
  mt_tasks_free(&tasks);
}
END_TEST

START_TEST(test_fit)
{
  const double work[4] = {1, 10, 100, 1000};
  double ns[4];
  for (int i = 0; i < 4; i++)
    ns[i] = 500 + 3 * work[i];
  struct mt_fit fit = mt_cost_fit(work, ns, 4);
  ck_assert_double_eq_tol(fit.alpha_ns, 500, 1e-6);
  ck_assert_double_eq_tol(fit.per_unit_ns, 3, 1e-9);
  ck_assert_double_lt(fit.error, 1e-9);
  ns[1] *= 1.2;
  fit = mt_cost_fit(work, ns, 4);
  ck_assert_double_gt(fit.error, 0.01);
  /* Steeper than in proportion: a line would begin below 0. */
  const double steep[3] = {100, 250, 600}, few[3] = {1, 2, 4};
  fit = mt_cost_fit(few, steep, 3);
  ck_assert_double_eq(fit.alpha_ns, 0);
  ck_assert_double_gt(fit.per_unit_ns, 100);
  ck_assert_double_lt(fit.per_unit_ns, 150);
  /* Falling: no work is cheaper for being more. */
  const double falling[3] = {300, 290, 280};
  fit = mt_cost_fit(few, falling, 3);
  ck_assert_double_eq(fit.per_unit_ns, 0);
  ck_assert_double_eq_tol(fit.alpha_ns, 290, 2);
  fit = mt_cost_fit((double[]){4, 4}, (double[]){40, 40}, 2);
  ck_assert_double_eq(fit.alpha_ns, 0);
  ck_assert_double_eq_tol(fit.per_unit_ns, 10, 1e-9);
  fit = mt_cost_fit((double[]){0}, (double[]){7}, 1);
  ck_assert_double_eq(fit.alpha_ns, 7);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("schedule");
  TCase *tests = tcase_create("schedule");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, test_pipemoe_times);
  tcase_add_test(tests, test_fsmoe_times);
  tcase_add_test(tests, test_four_term_maximum);
  tcase_add_test(tests, test_any_plan);
  tcase_add_test(tests, test_one_chunk_is_sequential);
  tcase_add_test(tests, test_auto_is_the_best);
  tcase_add_test(tests, test_contention);
  tcase_add_test(tests, test_reorder);
  tcase_add_test(tests, test_fit);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
