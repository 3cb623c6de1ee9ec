/* Zero is a value: experts without tokens, ranks without sequences, slots or experts; and more MoE layers
 * than the pool of slots holds. ranks: 1 2 3 4 7
 *
 * One rank computes each case first and keeps the results in a file; the other rank counts must find the
 * same, to 1e-5 per tensor (2e-2 where rows travel in bf16: a value beside a rounding boundary may fall on
 * either side of it), however experts and sequences lie. So the counts must run in this order, in one
 * folder. Trap: with equal router logits every token takes the lowest experts; that is a tie on purpose, and
 * exact everywhere. */
#include "model_case.h"
#include "test.h"
#include "train/optimizer.h"
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum edit { AS_IT_IS, ROUTER_ZERO, NORM_ZERO };

/* What is computed: the numbers that no cut may change. */
static const struct mathematics {
  const char *key, *name; /* in the file; of the vectors */
  enum edit edit;
  const char *batch, *length, *scope, *other; /* overrides; NULL = none */
} cases[] = {
    /* all tokens to the K lowest experts */
    {"mixtral, router 0", "mixtral", ROUTER_ZERO, NULL, NULL, NULL, NULL},
    {"gpt2-odd, router 0", "gpt2-odd", ROUTER_ZERO, NULL, NULL, NULL, NULL},
    {"qwen-odd, router 0", "qwen-odd", ROUTER_ZERO, NULL, NULL, NULL, NULL},
    /* gpt2: all tokens to the same K experts, whichever those are; mixtral: rows of zeros to the lowest */
    {"gpt2, norm 0", "gpt2", NORM_ZERO, NULL, NULL, NULL, NULL},
    {"mixtral-odd, norm 0", "mixtral-odd", NORM_ZERO, NULL, NULL, NULL, NULL},
    /* ranks without sequences */
    {"mixtral, one sequence", "mixtral", AS_IT_IS, "train.global_batch=1", NULL, NULL, NULL},
    {"gpt2-odd, one sequence", "gpt2-odd", AS_IT_IS, "train.global_batch=1", NULL,
     "moe.aux_scope=micro_batch", NULL},
    {"qwen-odd, one sequence", "qwen-odd", AS_IT_IS, "train.global_batch=1", NULL, NULL, NULL},
    /* fewer rows than experts */
    {"mixtral-odd, one token each", "mixtral-odd", AS_IT_IS, NULL, "data.seq_length=1", NULL, NULL},
    {"gpt2, one token", "gpt2", AS_IT_IS, "train.global_batch=1", "data.seq_length=1",
     "moe.aux_scope=micro_batch", NULL},
    {"mixtral, one token, router 0", "mixtral", ROUTER_ZERO, "train.global_batch=1", "data.seq_length=1",
     NULL, NULL},
    /* rows in bf16 */
    {"mixtral, router 0, bf16", "mixtral", ROUTER_ZERO, NULL, NULL, NULL, "parallel.wire=bf16"},
    {"gpt2-odd, one sequence, bf16", "gpt2-odd", AS_IT_IS, "train.global_batch=1", NULL, NULL, "parallel.wire=bf16"},
    {"qwen-odd, router 0, bf16", "qwen-odd", ROUTER_ZERO, NULL, NULL, NULL, "parallel.wire=bf16"},
    {"mixtral-odd, one token each, bf16", "mixtral-odd", AS_IT_IS, NULL, "data.seq_length=1", NULL, "parallel.wire=bf16"},
    /* more MoE layers than two, which the pool of slots holds */
    {"gpt2, five layers", "gpt2", AS_IT_IS, NULL, NULL, NULL, "model.num_hidden_layers=5"},
};
enum { NCASE = sizeof cases / sizeof *cases };

enum { NPART = 6, MAX_EXPERT = 16 }; /* loss, ce, aux, z, gradient norm, evaluation */
static const char *const part_name[NPART] = {"loss",   "cross entropy", "balance loss",
                                             "z-loss", "gradient norm", "evaluation"};

/* A case's results on one rank, as they lie in the file, followed by per_expert and the gradients. */
struct record {
  char key[64];
  double part[NPART];
  int64_t nexpert;   /* numbers of rows: [nmoe, E] */
  int64_t ngradient; /* elements, tensors in the table's order, experts stacked */
};
struct results {
  struct record record;
  int64_t *per_expert;
  float *gradient;
};

static void results_free(struct results *results)
{
  mt_free(results->per_expert);
  mt_free(results->gradient);
  *results = (struct results){0};
}

/* The file: in the build folder, or here. */
static const char *reference_path(void)
{
  static char path[4096];
  const char *dir = getenv("builddir");
  snprintf(path, sizeof path, "%s/test_zero.reference", dir ? dir : ".");
  return path;
}

static void store(const struct results *results)
{
  FILE *file = fopen(reference_path(), "ab");
  ck_assert_ptr_nonnull(file);
  const struct record *record = &results->record;
  ck_assert_int_eq(fwrite(record, sizeof *record, 1, file), 1);
  ck_assert_int_eq(fwrite(results->per_expert, 8, (size_t)record->nexpert, file), record->nexpert);
  ck_assert_int_eq(fwrite(results->gradient, 4, (size_t)record->ngradient, file), record->ngradient);
  ck_assert_int_eq(fclose(file), 0);
}

/* Every rank reads for itself. */
static void fetch(const char *key, struct results *results)
{
  FILE *file = fopen(reference_path(), "rb");
  ck_assert_msg(file != NULL, "%s is missing: one rank must have run first", reference_path());
  for (;;) {
    struct record *record = &results->record;
    ck_assert_msg(fread(record, sizeof *record, 1, file) == 1, "%s: no case '%s'", reference_path(), key);
    results->per_expert = MT_NEW(MT_TAG_MISC, int64_t, record->nexpert);
    results->gradient = MT_NEW(MT_TAG_MISC, float, record->ngradient);
    ck_assert_int_eq(fread(results->per_expert, 8, (size_t)record->nexpert, file), record->nexpert);
    ck_assert_int_eq(fread(results->gradient, 4, (size_t)record->ngradient, file), record->ngradient);
    if (!strcmp(record->key, key))
      break;
    results_free(results);
  }
  fclose(file);
}

/* ---- running ---- */

static int ends_with(const char *text, const char *end)
{
  size_t n = strlen(text), m = strlen(end);
  return n >= m && !strcmp(text + n - m, end);
}

static void edit_piece(void *self, const struct mt_param *row, int expert, int64_t first,
                       struct mt_shard *shard, int64_t at, int64_t n)
{
  (void)expert, (void)first;
  const enum edit *edit = self;
  if ((*edit == ROUTER_ZERO && ends_with(row->name, ".gate.weight")) ||
      (*edit == NORM_ZERO &&
       (ends_with(row->name, ".ln_2.weight") || ends_with(row->name, ".post_attention_layernorm.weight"))))
    memset(shard->master + at, 0, sizeof(float) * (size_t)n);
}

/* Where a tensor's elements begin in the gradients of all. */
static int64_t base_of(const struct mt_params *params, int tensor)
{
  int64_t base = 0;
  for (int i = 0; i < tensor; i++)
    base += params->param[i].count * (params->param[i].scope == MT_SCOPE_EXPERT ? params->nexpert : 1);
  return base;
}

struct visit {
  struct model_case *c;
  struct results *results;
  double *error, *norm; /* [tensors] */
  int64_t *idle;        /* gradients that are not 0 though their expert got no row */
};

static void keep_piece(void *self, const struct mt_param *row, int expert, int64_t first,
                       struct mt_shard *shard, int64_t at, int64_t n)
{
  struct visit *visit = self;
  const struct mt_params *params = &visit->c->model->params;
  int64_t to = base_of(params, (int)(row - params->param)) + expert * row->count + first;
  memcpy(visit->results->gradient + to, shard->grad + at, sizeof(float) * (size_t)n);
}

static void compare_piece(void *self, const struct mt_param *row, int expert, int64_t first,
                          struct mt_shard *shard, int64_t at, int64_t n)
{
  struct visit *visit = self;
  const struct mt_params *params = &visit->c->model->params;
  int tensor = (int)(row - params->param);
  const float *want = visit->results->gradient + base_of(params, tensor) + expert * row->count + first;
  const int64_t *rows = visit->c->step->result.per_expert;
  for (int64_t k = 0; k < n; k++) {
    double difference = (double)shard->grad[at + k] - want[k];
    visit->error[tensor] += isfinite(difference) ? difference * difference : INFINITY;
    visit->norm[tensor] += (double)want[k] * want[k];
    if (row->scope == MT_SCOPE_EXPERT && rows[row->moe * params->nexpert + expert] == 0)
      *visit->idle += shard->grad[at + k] != 0;
  }
}

/* Numbers that follow from the case alone. */
static void check_known(const struct mathematics *m, struct model_case *c,
                        const struct mt_step_result *result)
{
  const int E = (int)c->config.model.num_local_experts, K = (int)c->config.model.num_experts_per_tok;
  for (int l = 0; l < c->model->params.nmoe; l++) {
    int64_t sum = 0;
    for (int e = 0; e < E; e++) {
      int64_t rows = result->per_expert[l * E + e];
      sum += rows;
      if (m->edit == ROUTER_ZERO || (m->edit == NORM_ZERO && c->config.model.family == MT_FAMILY_MIXTRAL))
        ck_assert_int_eq(rows, e < K ? result->tokens : 0);
      if (m->edit == NORM_ZERO)
        ck_assert(rows == 0 || rows == result->tokens);
    }
    ck_assert_int_eq(sum, result->tokens * K);
  }
  if (m->edit == ROUTER_ZERO) { /* f_e = 1 for K experts, P_e = 1 / E */
    ck_assert_double_eq_tol(result->aux, K, 1e-6);
    ck_assert_double_eq_tol(result->z, log(E) * log(E), 1e-6);
  }
}

/* Runs a case in one way. `keep`: the results become the reference, else they are compared with it. */
static void compute(const struct mathematics *m, const char *nodes, const char *device, int n,
                    const char *const *how, int keep, struct results *results)
{
  const char *all[16], *more[4] = {m->batch, m->length, m->scope, m->other};
  int count = 0;
  if (m->batch) /* of one sequence */
    all[count++] = "train.micro_batch=1";
  for (int i = 0; i < 4; i++)
    if (more[i])
      all[count++] = more[i];
  for (int i = 0; i < n; i++)
    all[count++] = how[i];
  struct model_case *c = model_case_open(m->name, nodes, device, 1, 0, 0, count, all);
  enum edit edit = m->edit;
  mt_model_pieces(c->model, edit_piece, &edit);
  mt_model_publish(c->model);
  if (c->model->moe && c->model->moe->relayout) { /* what is compared runs under the layouts that this one leads to */
    mt_step_run(c->step, 1, 0);
    const struct mt_update none = {.apply = 0};
    for (int moe = -1; moe < c->model->params.nmoe; moe++)
      mt_optimizer_update(c->model, &none, moe);
    mt_model_publish(c->model);
  }
  const struct mt_step_result *result = mt_step_run(c->step, 1, 0);
  ck_assert_int_eq(result->updated, 1);
  check_known(m, c, result);
  double part[NPART] = {result->loss, result->ce, result->aux, result->z, result->grad_norm, 0};
  const struct mt_params *params = &c->model->params;
  const int64_t nexpert = params->nmoe * params->nexpert;
  int64_t per_expert[MAX_EXPERT * 4], idle = 0;
  ck_assert_int_le(nexpert, MAX_EXPERT * 4);
  memcpy(per_expert, result->per_expert, sizeof(int64_t) * (size_t)nexpert);
  struct visit visit = {c, results, MT_ZNEW(MT_TAG_MISC, double, params->n),
                        MT_ZNEW(MT_TAG_MISC, double, params->n), &idle};
  if (keep) {
    results->record.nexpert = nexpert;
    results->record.ngradient = base_of(params, params->n);
    results->per_expert = MT_NEW(MT_TAG_MISC, int64_t, nexpert);
    results->gradient = MT_ZNEW(MT_TAG_MISC, float, results->record.ngradient);
    memcpy(results->per_expert, per_expert, sizeof(int64_t) * (size_t)nexpert);
    mt_model_pieces(c->model, keep_piece, &visit);
  }
  ck_assert_int_eq(results->record.nexpert, nexpert);
  ck_assert_int_eq(results->record.ngradient, base_of(params, params->n));
  mt_model_pieces(c->model, compare_piece, &visit);
  mt_sum(c->comm, visit.error, params->n);
  mt_sum(c->comm, visit.norm, params->n);
  mt_max_int(c->comm, &idle, 1);
  ck_assert_int_eq(mt_step_evaluate(c->step, c->step->source, c->config.train.global_batch, &part[5]), MT_OK);
  if (keep)
    memcpy(results->record.part, part, sizeof part);
  const char *where = n ? how[0] : device;
  const double tolerance = c->config.parallel.wire == MT_WIRE_BF16 ? 2e-2 : 1e-5;
  ck_assert_msg(fabs(part[5] - part[1]) <= 1e-6 * fabs(part[1]),
                "%s on %d ranks (%s): evaluation gives %.9g, the step %.9g", m->key, c->comm->size, where,
                part[5], part[1]);
  ck_assert_msg(idle == 0, "%s on %d ranks (%s): %lld gradients of experts without tokens", m->key,
                c->comm->size, where, (long long)idle);
  for (int i = 0; i < NPART; i++)
    ck_assert_msg(fabs(part[i] - results->record.part[i]) <= tolerance * fabs(results->record.part[i]),
                  "%s on %d ranks (%s): %s is %.9g, on one rank %.9g", m->key, c->comm->size, where,
                  part_name[i], part[i], results->record.part[i]);
  for (int64_t i = 0; i < nexpert; i++)
    ck_assert_msg(per_expert[i] == results->per_expert[i],
                  "%s on %d ranks (%s): expert %lld got %lld rows, on one rank %lld", m->key, c->comm->size,
                  where, (long long)i, (long long)per_expert[i], (long long)results->per_expert[i]);
  for (int i = 0; i < params->n; i++) {
    double norm = visit.norm[i], layer = 0;
    for (int k = 0; k < params->n; k++)
      if (params->param[k].layer == params->param[i].layer)
        layer += visit.norm[k];
    if (norm < 1e-12 * layer) /* analytically zero, here rounding: its layer's norm is the measure */
      norm = layer;
    ck_assert_msg(visit.error[i] <= tolerance * tolerance * norm, "%s on %d ranks (%s): gradient of %s is off by %.3g",
                  m->key, c->comm->size, where, params->param[i].name, sqrt(visit.error[i] / norm));
  }
  mt_free(visit.error);
  mt_free(visit.norm);
  model_case_close(c);
}

/* "parallel.slots=..." with slots on the last rank only, or on every rank but rank 0 and an odd number of
 * them. */
static void slots_text(char *text, int last_only)
{
  int P = model_case_ranks(), n = sprintf(text, "parallel.slots=%d", P == 1 ? 6 : 0);
  for (int r = 1; r < P; r++)
    n += sprintf(text + n, ",%d", r == P - 1 ? 6 : last_only ? 0 : r % 2 ? 3 : 0);
}

START_TEST(test_zero)
{
  const struct mathematics *m = &cases[_i];
  char last[64], uneven[64];
  slots_text(last, 1);
  slots_text(uneven, 0);
  struct results results = {0};
  if (model_case_ranks() == 1) {
    snprintf(results.record.key, sizeof results.record.key, "%s", m->key);
    compute(m, NULL, "cpu", 0, NULL, 1, &results);
    if (_i == 0)
      remove(reference_path());
    store(&results);
  } else {
    fetch(m->key, &results);
    compute(m, NULL, "cpu", 0, NULL, 0, &results);
  }
  compute(m, model_case_ragged(), "ref", 0, NULL, 0, &results);
  compute(m, model_case_ragged(), "cpu", 1, (const char *[]){"parallel.sharding=owner"}, 0, &results);
  compute(m, model_case_ragged(), "cpu", 1, (const char *[]){last}, 0, &results);
  compute(m, model_case_ragged(), "cpu", 3,
          (const char *[]){uneven, "parallel.exchange=pairwise", "parallel.sharding=owner"}, 0, &results);
  compute(m, model_case_ragged(), "cpu", 3,
          (const char *[]){"parallel.layout=random", "parallel.slots=5", "parallel.sharding=node"}, 0,
          &results);
  compute(m, model_case_ragged(), "cpu", 3,
          (const char *[]){"parallel.layout=random", uneven, "parallel.exchange=hierarchical"}, 0, &results);
  compute(m, model_case_ragged(), "cpu", 3,
          (const char *[]){"parallel.layout=motley", uneven, "parallel.sharding=node"}, 0, &results);
  compute(m, model_case_ragged(), "cpu", 2, (const char *[]){"parallel.layout=laer", "parallel.slots=5"}, 0, &results);
  if (!m->scope || m->batch) /* pooled over micro-steps of one sequence the balance loss is another */
    compute(m, NULL, "cpu", 3, (const char *[]){"parallel.layout=random", last, "train.micro_batch=1"}, 0,
            &results);
  results_free(&results);
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  Suite *suite = suite_create("zero");
  TCase *tests = tcase_create("zero");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_zero, 0, NCASE);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
