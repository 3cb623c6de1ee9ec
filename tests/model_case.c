/* See model_case.h. */
#include "model_case.h"
#include "base/crc32c.h"
#include <check.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const model_case_names[MODEL_CASES] = {"mixtral", "mixtral-odd", "gpt2", "gpt2-odd", "qwen-odd", "mixtral-drop"};

static enum mt_status read_token(void *self, int64_t position, int32_t *token)
{
  struct model_case *c = self;
  memcpy(token, c->token + position % (c->nbatch * c->B) * c->stored, sizeof(int32_t) * (size_t)(c->T + 1));
  return MT_OK;
}

static void read_config(struct model_case *c, int curve, int n, const char *const *overrides)
{
  char path[64];
  snprintf(path, sizeof path, "/tmp/motley-case-%d.ini", (int)getpid());
  FILE *file = fopen(path, "w");
  ck_assert_ptr_nonnull(file);
  char *text = vectors_text(c->vectors, "config");
  fprintf(file, "%s\n", text);
  mt_free(text);
  if (curve) {
    text = vectors_text(c->vectors, "curve/config");
    fprintf(file, "%s\n", text);
    mt_free(text);
  }
  fclose(file);
  /* layouts that follow the load change the bits from step to step: where a test wants that, it says so */
  struct mt_override more[32] = {{"data.train=/dev/null"}, {0}, {0}, {0}, {"data.format=uint16"}, {"parallel.layout=static"}, {"parallel.sharding=full"}};
  char batch[64], micro[64];
  snprintf(batch, sizeof batch, "train.global_batch=%lld", (long long)c->B);
  snprintf(micro, sizeof micro, "train.micro_batch=%lld", (long long)c->B);
  more[1].text = batch;
  more[2].text = micro;
  more[3].text = curve ? "train.steps=50" : "train.steps=1";
  for (int i = 0; i < n; i++)
    more[7 + i].text = overrides[i];
  enum mt_status status = mt_config_read(path, more, 7 + n, MT_CMD_TRAIN, &c->config);
  unlink(path);
  ck_assert_int_eq(status, MT_OK);
}

/* Where a row's values are in the file. A model with more layers than the file's repeats the file's layers in turn;
 * *scale makes the copies differ. The caller frees. */
static char *path_of(const struct model_case *c, const struct mt_param *row, float *scale)
{
  int layer = row->layer;
  char *path = mt_format("params/%s", row->name);
  while (!vectors_has(c->vectors, path) && layer >= 2) { /* even and odd layers may be of different kinds */
    mt_free(path);
    const char *number = strpbrk(row->name, "0123456789");
    layer -= 2;
    path = mt_format("params/%.*s%d%s", (int)(number - row->name), row->name, layer,
                     number + strspn(number, "0123456789"));
  }
  *scale = 1 + (float)(row->layer - layer) / 16;
  return path;
}

/* Weights: the table says where each piece of a tensor lies on this rank. */
static void load_piece(void *self, const struct mt_param *row, int expert, int64_t first, struct mt_shard *shard, int64_t at,
                       int64_t n)
{
  struct model_case *c = self;
  struct vectors_shape shape;
  float scale;
  char *path = path_of(c, row, &scale);
  float *all = vectors_float(c->vectors, path, &shape);
  ck_assert_int_eq(shape.size, row->count * (row->scope == MT_SCOPE_EXPERT ? c->model->params.nexpert : 1));
  for (int64_t i = 0; i < n; i++)
    shard->master[at + i] = scale * all[expert * row->count + first + i];
  mt_free(all);
  mt_free(path);
}

int model_case_ranks(void)
{
  int n;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}

const char *model_case_ragged(void)
{
  static const char *const nodes[8] = {NULL, "1", "1,1", "1,2", "1,3", "2,3", "3,1,2", "2,1,4"};
  return nodes[model_case_ranks()];
}

void model_case_without_update(struct mt_step *step)
{
  MT_CHECK(step->tasks.task[step->tasks.n - 1].kind == MT_TASK_UPDATE, "a step's last task is %s",
           mt_task_name(step->tasks.task[step->tasks.n - 1].kind));
  step->tasks.n--;
}

struct model_case *model_case_open(const char *name, const char *nodes, const char *device, int threads, int curve, int update,
                                   int n, const char *const *overrides)
{
  struct model_case *c = MT_ZNEW(MT_TAG_MISC, struct model_case, 1);
  if (nodes)
    setenv("MOTLEY_NODES", nodes, 1);
  else
    unsetenv("MOTLEY_NODES");
  ck_assert_int_eq(mt_comm_new(NULL, NULL, &c->comm), MT_OK);
  c->vectors = vectors_open(name);
  struct vectors_shape shape;
  c->token = vectors_int32(c->vectors, curve ? "curve/tokens" : "tokens", &shape);
  c->nbatch = curve ? shape.dim[0] : 1;
  c->B = shape.dim[curve];
  c->stored = shape.dim[1 + curve];
  read_config(c, curve, n, overrides);
  c->T = c->config.data.seq_length;
  ck_assert_int_lt(c->T, c->stored);
  ck_assert_int_eq(mt_device_open(device, threads, &c->device), MT_OK);
  ck_assert_int_eq(mt_model_new(c->comm, c->device, &c->config, mt_batch_max_B(&c->config, c->comm->cluster, c->comm->rank), c->T, 1, &c->model), MT_OK);
  int repeated = 0;
  for (int i = 0; i < n; i++)
    repeated |= !strncmp(overrides[i], "model.num_hidden_layers=", strlen("model.num_hidden_layers="));
  if (!repeated)
    ck_assert_int_eq(vectors_count(c->vectors, "params"), c->model->params.n);
  mt_model_pieces(c->model, load_piece, c);
  mt_model_publish(c->model);
  c->step = mt_step_new(c->comm, c->model, &c->config, (struct mt_source){read_token, c});
  if (!update)
    model_case_without_update(c->step);
  return c;
}

void model_case_close(struct model_case *c)
{
  mt_step_free(c->step);
  mt_model_free(c->model);
  c->device->ops->close(c->device);
  mt_config_free(&c->config);
  mt_free(c->token);
  vectors_close(c->vectors);
  mt_comm_free(c->comm);
  mt_free(c);
}

struct errors {
  struct model_case *c;
  const char *scope;
  double *error, *norm; /* [params] squares */
};

static void gradient_piece(void *self, const struct mt_param *row, int expert, int64_t first, struct mt_shard *shard, int64_t at,
                           int64_t n)
{
  struct errors *errors = self;
  char path[224];
  snprintf(path, sizeof path, "%s/grads/%s", errors->scope, row->name);
  double *all = vectors_double(errors->c->vectors, path, NULL);
  int i = (int)(row - errors->c->model->params.param);
  for (int64_t k = 0; k < n; k++) {
    double want = all[expert * row->count + first + k], difference = shard->grad[at + k] - want;
    errors->error[i] += isfinite(difference) ? difference * difference : INFINITY;
    errors->norm[i] += want * want;
  }
  mt_free(all);
}

double model_case_gradient_error(struct model_case *c, const char *scope, const char **worst)
{
  const int n = c->model->params.n;
  struct errors errors = {c, scope, MT_ZNEW(MT_TAG_MISC, double, n), MT_ZNEW(MT_TAG_MISC, double, n)};
  mt_model_pieces(c->model, gradient_piece, &errors);
  mt_sum(c->comm, errors.error, n);
  mt_sum(c->comm, errors.norm, n);
  double most = 0;
  *worst = "none";
  for (int i = 0; i < n; i++) {
    double norm = errors.norm[i], layer = 0;
    for (int k = 0; k < n; k++)
      if (c->model->params.param[k].layer == c->model->params.param[i].layer)
        layer += errors.norm[k];
    /* analytically zero (a key bias, the router of ties): its layer's norm is the measure */
    if (norm < 1e-16 * layer)
      norm = layer;
    double relative = sqrt(errors.error[i] / norm);
    if (!(relative <= most)) {
      most = relative;
      *worst = c->model->params.param[i].name;
    }
  }
  mt_free(errors.error);
  mt_free(errors.norm);
  return most;
}

double model_case_logits_error(struct model_case *c)
{
  double *want = vectors_double(c->vectors, "logits", NULL), error[2] = {0};
  const int64_t V = c->model->arch.V, first = c->step->batch.share.first[c->comm->rank] * c->T, n = c->model->N;
  float *logits = MT_NEW(MT_TAG_MISC, float, n * V);
  mt_model_logits(c->model, 0, n, logits);
  for (int64_t k = 0; k < n * V; k++) {
    double difference = logits[k] - want[first * V + k];
    error[0] += difference * difference;
    error[1] += want[first * V + k] * want[first * V + k];
  }
  mt_sum(c->comm, error, 2);
  ck_assert_double_gt(error[1], 0);
  mt_free(logits);
  mt_free(want);
  return sqrt(error[0] / error[1]);
}

uint32_t model_case_hash(struct model_case *c, int weights)
{
  struct mt_shard *shard[2] = {&c->model->shared, c->model->moe ? &c->model->moe->shard : NULL};
  uint32_t mine = 0, all[c->comm->size];
  for (int i = 0; i < 2 && shard[i]; i++)
    mine = mt_crc32c(mine, weights ? shard[i]->master : shard[i]->grad, shard[i]->total * 4);
  mt_allgather(c->comm, &mine, all, sizeof mine);
  return mt_crc32c(0, all, (int64_t)sizeof all);
}
