/* Schedules: the same bits whatever overlaps, equal results to rounding however tokens are cut, lanes that really run
 * beside each other, and shared gradients that travel before the backward pass is over, but not before they are
 * complete. ranks: 1 2 3 4 7 */
#include "experts/sizes.h"
#include "model_case.h"
#include "test.h"
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 3, MOST = 4, POLICIES = 6 };

/* The model's steps as they are planned where devices are so slow that the wire has time for gradients. */
static void slow_devices(struct model_case *c)
{
  static const struct mt_link link[MT_NLEVEL] = {{0, 100, 0}, {1000, 5000, 100}, {1000, 5000, 100}};
  struct mt_cluster *cluster = c->comm->cluster;
  for (int p = 0; p < cluster->nplace; p++)
    cluster->place[p].speed = 300;
  memcpy(cluster->link, link, sizeof link);
  struct mt_source source = c->step->source;
  mt_step_free(c->step);
  c->step = mt_step_new(c->comm, c->model, &c->config, source);
}

struct outcome {
  uint32_t gradients, weights;
  double loss, norm;
};

/* A few steps under a policy and degree, the last without the update, which uses up the gradients. */
static struct outcome run(const char *name, const char *policy, const char *degree, const char *sizes,
                          const char *const *more)
{
  char text[32];
  snprintf(text, sizeof text, "schedule.policy=%s", policy);
  const char *override[MOST + 4] = {text, degree, "train.micro_batch=1", sizes};
  int n = 3 + (sizes != NULL);
  for (int i = 0; i < MOST && more[i]; i++)
    override[n++] = more[i];
  struct model_case *c = model_case_open(name, model_case_ragged(), "cpu", 1, !strstr(name, "odd"), 1, n, override);
  struct outcome outcome = {0};
  slow_devices(c);
  for (int64_t step = 1; step <= STEPS; step++) {
    if (step == STEPS)
      model_case_without_update(c->step);
    const struct mt_step_result *result = mt_step_run(c->step, step, (step - 1) * c->B);
    ck_assert_int_eq(result->updated, 1);
    outcome.loss = result->loss;
    outcome.norm = result->grad_norm;
  }
  outcome.gradients = model_case_hash(c, 0);
  outcome.weights = model_case_hash(c, 1);
  if (model_case_ranks() > 1 && strcmp(policy, "sequential") && strcmp(policy, "auto")) {
    ck_assert_ptr_nonnull(c->step->executor);
    ck_assert_int_eq(c->step->course.plan.degree[0], atoi(degree + strlen("schedule.degree=")));
  }
  model_case_close(c);
  return outcome;
}

static const struct {
  const char *name;
  int uneven; /* cut of the shared and experts' vectors, some ranks without any */
  const char *more[MOST];
} cases[] = {
    {"mixtral", 0, {NULL}},
    {"gpt2", 0, {"parallel.slots=5"}},
    {"mixtral", 0, {"parallel.wire=bf16", "moe.capacity_factor=0.9"}},
    {"mixtral", 0, {"parallel.sharding=owner", "train.recompute=true"}},
    {"gpt2", 0, {"parallel.layout=random", "parallel.slots=5"}},
    {"mixtral", 0, {"parallel.sharding=node", "moe.aux_scope=micro_batch", "parallel.layout=laer", "parallel.slots=4"}},
    {"mixtral-odd", 1, {"train.recompute=true"}},
    {"gpt2-odd", 1, {"parallel.sharding=node"}},
};

START_TEST(test_same_bits)
{
  static const char *const policies[2][POLICIES] = {{"laer", "auto", "fsmoe", "mast", "tutel-gar", "coconet"},
                                                    {"tutel", "laer", "fsmoe-one", "lina", "mast", "coconet"}};
  static const char *const uneven[8] = {
      NULL, NULL, "parallel.shard_sizes=0,1",          "parallel.shard_sizes=2,0,5", "parallel.shard_sizes=1,0,0,3",
      NULL, NULL, "parallel.shard_sizes=3,0,1,0,7,2,1"};
  const char *sizes = cases[_i].uneven ? uneven[model_case_ranks()] : NULL;
  struct outcome whole = {0};
  for (int i = 0; i < 2; i++) {
    const char *degree = i ? "schedule.degree=3" : "schedule.degree=1";
    struct outcome first = run(cases[_i].name, "sequential", degree, sizes, cases[_i].more);
    for (int p = 0; p < POLICIES; p++) {
      struct outcome other = run(cases[_i].name, policies[i][p], degree, sizes, cases[_i].more);
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

/* Which tensors' gradients are complete when layer l is through, by what they belong to. */
START_TEST(test_ready)
{
  struct model_case *c = model_case_open(model_case_names[_i], NULL, "cpu", 1, 0, 1, 0, NULL);
  const struct mt_arch *arch = &c->model->arch;
  for (int64_t l = 0; l <= arch->L; l++)
    for (int i = 0; i < c->model->params.n; i++) {
      const struct mt_param *row = &c->model->params.param[i];
      if (row->scope != MT_SCOPE_SHARED)
        continue;
      int embedding = row->layer < 0 && (row->offset == arch->wte || row->offset == arch->wpe);
      int complete = row->layer < 0 ? !embedding : row->layer >= l;
      ck_assert_msg((row->offset >= mt_model_ready(arch, l)) == complete, "%s, layer %d", row->name, (int)l);
    }
  model_case_close(c);
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
  struct model_case *c = model_case_open("mixtral", model_case_ragged(), "cpu", 1, 1, 1, 2,
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
  if (model_case_ranks() > 1)
    ck_assert_int_gt(x[0], 0);
}
END_TEST

/* Experts that are updated when the next step has time, and between steps: the same weights. */
START_TEST(test_settle)
{
  uint32_t before[2], after[2];
  for (int each = 0; each < 2; each++) {
    struct model_case *c = model_case_open("mixtral", model_case_ragged(), "cpu", 1, 1, 1, 2,
                                           (const char *[]){"schedule.policy=mast", "schedule.degree=2"});
    for (int64_t step = 1; step <= 3; step++) {
      mt_step_run(c->step, step, (step - 1) * c->B);
      if (each)
        mt_step_settle(c->step);
    }
    before[each] = model_case_hash(c, 1);
    mt_step_settle(c->step);
    after[each] = model_case_hash(c, 1);
    model_case_close(c);
  }
  ck_assert_uint_eq(after[0], after[1]);
  ck_assert_uint_eq(before[1], after[1]);
  ck_assert_uint_ne(before[0], after[0]);
}
END_TEST

/* Nothing is sent that the tasks before it in the list have not completed. */
static int64_t too_early(const struct mt_step *step)
{
  const struct mt_model *model = step->model;
  const int64_t n = model->params.shared_length;
  int64_t wrong = 0, complete = 0, sent = 0;
  for (int i = 0; i < step->tasks.n; i++) {
    const struct mt_task *task = &step->tasks.task[i];
    if (task->micro == (int)step->batch.nmicro - 1) {
      if (task->kind == MT_TASK_HEAD)
        complete = n - mt_model_ready(&model->arch, model->arch.L);
      if (task->kind == MT_TASK_ATTENTION_BACK)
        complete = n - mt_model_ready(&model->arch, task->layer);
      if (task->kind == MT_TASK_EMBED_BACK)
        complete = n;
    }
    if (task->kind != MT_TASK_REDUCE)
      continue;
    wrong += task->from != sent;
    sent += task->part;
    wrong += sent * n / MT_WHOLE > complete;
  }
  return wrong + (sent != MT_WHOLE);
}

/* Several pieces, of which some really travelled while the backward pass went on: the last exchange of rows waits
 * behind those before it in the list, and the embedding's backward pass behind that exchange. */
START_TEST(test_pieces_travel)
{
  static const char *const policies[] = {"tutel-gar", "fsmoe", "fsmoe-one", "laer", "mast"};
  char text[32];
  snprintf(text, sizeof text, "schedule.policy=%s", policies[_i / 2]);
  struct model_case *c = model_case_open(_i % 2 ? "gpt2-odd" : "mixtral-odd", model_case_ragged(), "cpu", 1, 0, 1, 2,
                                         (const char *[]){text, "train.micro_batch=1"});
  if (model_case_ranks() > 1)
    ck_assert_int_eq(c->model->shared.nitem, MT_SHARED_BLOCKS); /* so that a piece has an owner on every rank */
  slow_devices(c);
  mt_step_run(c->step, 1, 0);
  int64_t x[3] = {too_early(c->step), disorder(c->step), 0}, all = 0, early = 0, exchange = 0;
  const struct mt_span *back = NULL; /* the embedding's */
  for (int i = 0; i < c->step->tasks.n; i++) {
    back = c->step->tasks.task[i].kind == MT_TASK_EMBED_BACK ? &c->step->span[i] : back;
    exchange = c->step->tasks.task[i].kind == MT_TASK_DISPATCH_BACK ? i : exchange;
  }
  for (int i = 0; i < c->step->tasks.n; i++) {
    if (c->step->tasks.task[i].kind != MT_TASK_REDUCE)
      continue;
    all++;
    early += i < exchange;
    x[2] += i < exchange && c->step->span[i].end_ns > back->start_ns; /* but did not travel early */
  }
  mt_max_int(c->comm, x, 3);
  model_case_close(c);
  ck_assert_int_eq(x[0], 0);
  ck_assert_int_eq(x[1], 0);
  ck_assert_int_eq(x[2], 0);
  if (model_case_ranks() > 1) {
    ck_assert_int_ge(early, 2);
    ck_assert_int_gt(all, early);
  }
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  mt_sizes_least_piece = 64; /* small models in blocks too */
  Suite *suite = suite_create("lanes");
  TCase *tests = tcase_create("lanes");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_same_bits, 0, sizeof cases / sizeof *cases);
  tcase_add_test(tests, test_overlap);
  tcase_add_test(tests, test_settle);
  tcase_add_loop_test(tests, test_ready, 0, MODEL_CASES);
  tcase_add_loop_test(tests, test_pieces_travel, 0, 10);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
