/* A micro-step's sequences in chunks that go through attention one by one, their tokens in more, the experts' products apart,
 * tasks in any order: results to rounding whatever the cut, and for one cut the same bits in any order that dependencies
 * allow, one after the other or with communication beside computing. ranks: 1 2 3 4 7
 *
 * The trap that this is for: list order keeps apart what no dependency does, and memory that two tasks share then looks safe
 * until another policy orders the list otherwise. So lists are shuffled. */
#include "model_case.h"
#include "test.h"
#include "base/crc32c.h"
#include "base/random.h"
#include "train/step_plan.h"
#include <math.h>
#include <mpi.h>
#include <string.h>

enum { STEPS = 2, MOST = 7 };

/* The curve's many tokens, where a file has one. */
static struct model_case *open_case(const char *name, int n, const char *const *override)
{
  return model_case_open(name, model_case_ragged(), "cpu", 1, !strstr(name, "-odd"), 1, n, override);
}

/* ---- what a run comes to ---- */

struct outcome {
  uint32_t gradients, weights; /* of all steps; at the end */
  double loss, norm, valid;    /* of the last step; of an evaluation behind it */
  float *gradient;             /* of the first step: the shards' of this rank; owned */
};

/* The update uses the gradients up, so they are looked at when it begins. */
struct watch {
  struct model_case *c;
  struct mt_task update;
  struct outcome *outcome;
};

static void watched_update(void *self, const struct mt_task *task)
{
  struct watch *watch = self;
  const struct mt_model *model = watch->c->model;
  const struct mt_shard *shards[2] = {&model->shared, &model->moe->shard};
  const int first = !watch->outcome->gradient;
  if (first)
    watch->outcome->gradient = MT_ZNEW(MT_TAG_MISC, float, shards[0]->total + shards[1]->total);
  for (int i = 0; i < 2; i++) {
    watch->outcome->gradients = mt_crc32c(watch->outcome->gradients, shards[i]->grad, shards[i]->total * 4);
    if (first)
      memcpy(watch->outcome->gradient + i * shards[0]->total, shards[i]->grad, sizeof(float) * (size_t)shards[i]->total);
  }
  watch->update.run(watch->update.self, task);
}

static void attach(struct watch *watch)
{
  struct mt_tasks *tasks = &watch->c->step->tasks;
  for (int i = 0; i < tasks->n; i++)
    if (tasks->task[i].kind == MT_TASK_UPDATE && tasks->task[i].layer < 0 && tasks->task[i].self != watch) {
      watch->update = tasks->task[i];
      tasks->task[i].run = watched_update;
      tasks->task[i].self = watch;
    }
}

static uint32_t over_ranks(struct mt_comm *comm, uint32_t mine)
{
  uint32_t all[comm->size];
  mt_allgather(comm, &mine, all, sizeof mine);
  return mt_crc32c(0, all, (int64_t)sizeof all);
}

/* Another order of the list that its dependencies allow, the same on all ranks: what list order alone keeps apart meets. */
static void shuffle(struct mt_tasks *tasks, uint64_t seed)
{
  const int n = tasks->n;
  struct mt_task *order = MT_NEW(MT_TAG_MISC, struct mt_task, n);
  int *place = MT_NEW(MT_TAG_MISC, int, n), *ready = MT_NEW(MT_TAG_MISC, int, n);
  memset(place, 0xff, sizeof *place * (size_t)n); /* -1 */
  for (int i = 0; i < n; i++) {
    int nready = 0;
    for (int t = 0; t < n; t++) {
      int open = place[t] >= 0;
      for (int d = 0; d < tasks->task[t].ndep; d++)
        open |= place[tasks->task[t].dep[d]] < 0;
      if (!open)
        ready[nready++] = t;
    }
    /* any of them, but now the newest and now the oldest more often: far from the list in both ways */
    double at = mt_random_uniform(seed, 99, (uint64_t)i);
    at = seed % 3 == 0 ? at : seed % 3 == 1 ? 1 - at * at * at : at * at * at;
    int which = (int)(at * nready), t = ready[which < nready ? which : nready - 1];
    place[t] = i;
    order[i] = tasks->task[t];
    for (int d = 0; d < order[i].ndep; d++)
      order[i].dep[d] = place[order[i].dep[d]];
  }
  memcpy(tasks->task, order, sizeof *order * (size_t)n);
  mt_free(order);
  mt_free(place);
  mt_free(ready);
}

/* Steps and an evaluation by this plan. seed > 0: tasks in another order in each step. */
static struct outcome run(const char *name, const char *const *more, const struct mt_plan *plan, uint64_t seed)
{
  const char *override[MOST + 2] = {"schedule.policy=sequential", "schedule.degree=1"};
  int n = 2;
  for (int i = 0; i < MOST && more[i]; i++)
    override[n++] = more[i];
  struct model_case *c = open_case(name, n, override);
  struct mt_step *step = c->step;
  struct outcome outcome = {0};
  struct watch watch = {.c = c, .outcome = &outcome};
  if (!plan->serial)
    step->executor = mt_executor_new();
  step->replan = (struct mt_replan){.fixed = 1, .warm = 1};
  mt_step_follow(step, &(struct mt_course){.plan = *plan, .beside = !plan->serial});
  attach(&watch);
  for (int64_t number = 1; number <= STEPS; number++) {
    if (seed) {
      shuffle(&step->tasks, seed + (uint64_t)number);
      step->course.beside = number % 2 && !plan->serial;
    }
    const struct mt_step_result *result = mt_step_run(step, number, (number - 1) * c->config.train.global_batch);
    ck_assert_int_eq(result->updated, 1);
    outcome.loss = result->loss;
    outcome.norm = result->grad_norm;
  }
  ck_assert(!memcmp(&step->course.plan, plan, sizeof *plan));
  ck_assert_int_eq(mt_step_evaluate(step, step->source, 5, &outcome.valid), MT_OK);
  outcome.gradients = over_ranks(c->comm, outcome.gradients);
  outcome.weights = model_case_hash(c, 1);
  model_case_close(c);
  return outcome;
}

static void assert_same(const struct outcome *a, const struct outcome *b, const char *what, int i, const char *how)
{
  ck_assert_msg(a->gradients == b->gradients && a->weights == b->weights && a->loss == b->loss && a->valid == b->valid,
                "%s %d, %s: other bits", what, i, how);
}

/* ---- against each other ---- */

static const struct {
  const char *name;
  const char *more[MOST + 1];
} cuts[] = {
    {"mixtral", {"train.micro_batch=2"}},
    {"gpt2", {"train.micro_batch=6", "parallel.slots=5"}},
    {"mixtral", {"train.micro_batch=5", "moe.capacity_factor=0.9", "moe.z_loss=0.01", "model.num_hidden_layers=4"}},
    {"mixtral", {"train.micro_batch=4", "parallel.sharding=owner", "train.recompute=true", "moe.aux_scope=micro_batch"}},
    {"gpt2", {"train.micro_batch=3", "parallel.layout=random", "parallel.slots=5", "model.num_hidden_layers=5"}},
    {"mixtral", {"train.micro_batch=4", "parallel.sharding=node", "moe.aux_scope=micro_batch", "parallel.layout=laer",
                 "parallel.slots=4", "moe.z_loss=0.02"}},
    {"mixtral", {"train.micro_batch=3", "parallel.layout=motley", "parallel.slots=5", "moe.router=zipf",
                 "moe.capacity_factor=0.7", "train.recompute=true"}},
    {"qwen-odd", {"train.micro_batch=4", "train.recompute=true", "model.num_hidden_layers=7", "moe.capacity_factor=1"}},
    {"gpt2-odd", {"train.micro_batch=3", "moe.router=balanced", "model.num_hidden_layers=6", "data.document=start",
                  "data.document_id=1"}},
};
enum { NCUT = sizeof cuts / sizeof *cuts };

struct difference {
  const struct outcome *a, *b;
  struct model_case *c;
  double *square, *norm; /* [params] */
};

static void add_difference(void *self, const struct mt_param *row, int expert, int64_t first, struct mt_shard *shard,
                           int64_t at, int64_t n)
{
  struct difference *d = self;
  const int64_t from = at + (shard == &d->c->model->shared ? 0 : d->c->model->shared.total);
  const int64_t i = row - d->c->model->params.param;
  (void)expert;
  (void)first;
  for (int64_t k = from; k < from + n; k++) {
    double difference = (double)d->a->gradient[k] - (double)d->b->gradient[k];
    d->square[i] += difference * difference;
    d->norm[i] += (double)d->b->gradient[k] * (double)d->b->gradient[k];
  }
}

/* Largest norm-wise difference of a tensor's gradients; that of a key bias, nearly all of which cancels (softmax does not
 * see shifts), is measured by its layer's. */
static double worst_difference(const char *name, const char *const *more, const struct outcome *a, const struct outcome *b)
{
  const char *override[MOST + 1];
  int n = 0;
  for (; n < MOST && more[n]; n++)
    override[n] = more[n];
  struct model_case *c = open_case(name, n, override);
  const int rows = c->model->params.n;
  struct difference d = {a, b, c, MT_ZNEW(MT_TAG_MISC, double, rows), MT_ZNEW(MT_TAG_MISC, double, rows)};
  mt_model_pieces(c->model, add_difference, &d);
  mt_sum(c->comm, d.square, rows);
  mt_sum(c->comm, d.norm, rows);
  double worst = 0;
  for (int i = 0; i < rows; i++) {
    const struct mt_param *param = c->model->params.param;
    double norm = d.norm[i];
    for (int k = 0; k < rows && strstr(param[i].name, "k_proj.bias"); k++)
      norm += k != i && param[k].layer == param[i].layer ? d.norm[k] : 0;
    worst = fmax(worst, sqrt(d.square[i] / norm));
  }
  mt_free(d.square);
  mt_free(d.norm);
  model_case_close(c);
  return worst;
}

START_TEST(test_cuts)
{
  static const int degrees[][2] = {{1, 4}, {2, 2}, {2, 8}, {4, 4}, {8, 8}, {4, 8}};
  enum { LISTED, TILED, READY, CHUNK, ANY, NHOW };
  static const char *const how[NHOW] = {"as listed", "tiled", "what is ready", "by chunk", "in any order"};
  const char *const name = cuts[_i].name, *more[MOST + 1] = {"train.global_batch=11"};
  for (int i = 0; i < MOST - 1 && cuts[_i].more[i]; i++)
    more[i + 1] = cuts[_i].more[i];
  struct mt_plan plan = {.serial = 1, .chunks = 1, .degree = {1, 1}, .one_wire = 1};
  struct outcome whole = run(name, more, &plan, 0);
  for (size_t i = (size_t)_i % 2; i < sizeof degrees / sizeof *degrees; i += 2) {
    plan = (struct mt_plan){.serial = 1, .chunks = degrees[i][0], .degree = {degrees[i][1], degrees[i][1]}, .one_wire = 1};
    struct outcome first = run(name, more, &plan, 0);
    ck_assert_double_le(fabs(first.loss - whole.loss), 1e-5 * fabs(whole.loss));
    ck_assert_double_le(fabs(first.norm - whole.norm), 1e-5 * fabs(whole.norm));
    ck_assert_double_le(fabs(first.valid - whole.valid), 1e-5 * fabs(whole.valid));
    double worst = worst_difference(name, more, &first, &whole);
    ck_assert_msg(worst <= 1e-5, "cut %d, %d chunks, degree %d: gradients differ by %g", _i, degrees[i][0], degrees[i][1],
                  worst);
    for (int h = LISTED; h < NHOW; h++) {
      if (h != ANY && (h + (int)i / 2 + _i) % 4)
        continue;
      plan.serial = 0;
      plan.tiled = h == TILED || (h != LISTED && (i / 2 + (size_t)_i) % 2);
      plan.prefetch = plan.delay = (h + i) % 3 > 0;
      plan.gradient = h == LISTED ? MT_GRADIENT_WINDOW : i % 3 ? MT_GRADIENT_FREE : MT_GRADIENT_END;
      plan.piece = plan.moe_window = MT_WHOLE / 9;
      plan.order = h == READY ? MT_ORDER_READY : h == CHUNK ? MT_ORDER_CHUNK : MT_ORDER_LISTED;
      struct outcome other = run(name, more, &plan, h == ANY ? 1 + 10 * (uint64_t)(_i * 10 + (int)i) : 0);
      assert_same(&other, &first, "cut", _i, how[h]);
      mt_free(other.gradient);
    }
    mt_free(first.gradient);
  }
  mt_free(whole.gradient);
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  Suite *suite = suite_create("chunks");
  TCase *tests = tcase_create("chunks");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_cuts, 0, NCUT);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
