/* data.document: attention keeps the documents of a sequence apart, forward and backward. ranks: 1 3
 *
 * The measure is a construction without any mask: each document alone at the beginning of a sequence of its
 * own, at the positions that it has in the whole, followed by filler that no target counts. Causal attention
 * cannot see the filler, so logits, losses and every gradient (that of learned positions too) must be those
 * of the whole. */
#include "base/random.h"
#include "model_case.h"
#include "test.h"
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { ID = 5, B = 3, MAX_T = 16, MAX_V = 64, MAX_N = 3 * B * MAX_T };

/* One sequence of a batch. */
struct row {
  int32_t token[MAX_T + 1];
  int32_t position[MAX_T];
  int counts[MAX_T]; /* 1: this target is in the loss */
};

struct batch {
  struct model_case *c;
  struct row row[3 * B];
  int n;
  double tokens; /* denominator of the loss */
};

static int32_t random_token(int64_t V, uint64_t index)
{
  int32_t token = (int32_t)(mt_random_uniform(11, 0, index) * (double)(V - 1));
  return token + (token >= ID); /* never ID */
}

/* The cuts of sequence b: documents are [cut[d], cut[d + 1]). */
static const int cuts[B][4] = {{0, 2, 5, 99}, {0, 1, 6, 99}, {0, 99, 99, 99}};

static int cut_of(int b, int d, int T)
{
  return cuts[b][d] < T ? cuts[b][d] : T;
}

/* The whole: documents side by side. A border is an ID that opens a document or closes the one before. */
static void fill_whole(struct batch *batch, int T, int64_t V, int end)
{
  batch->n = B;
  for (int b = 0; b < B; b++) {
    struct row *row = &batch->row[b];
    for (int t = 0; t <= T; t++)
      row->token[t] = random_token(V, (uint64_t)(b * (MAX_T + 1) + t));
    for (int d = 1; d < 3; d++)
      if (cut_of(b, d, T) < T)
        row->token[cut_of(b, d, T) - end] = ID;
    for (int t = 0; t < T; t++) {
      row->position[t] = t;
      row->counts[t] = 1;
    }
  }
}

/* Document d of sequence b alone, in row d * B + b, followed by filler. shift = 0: at the positions from 0
 * on. */
static void fill_apart(struct batch *batch, const struct batch *whole, int T, int64_t V, int shift)
{
  batch->n = 3 * B;
  for (int d = 0; d < 3; d++)
    for (int b = 0; b < B; b++) {
      struct row *row = &batch->row[d * B + b];
      int first = cut_of(b, d, T), n = cut_of(b, d + 1, T) - first;
      for (int t = 0; t <= T; t++)
        row->token[t] =
            t <= n ? whole->row[b].token[first + t] : random_token(V, (uint64_t)(5000 + t * 7 + d * 100 + b));
      for (int t = 0; t < T; t++) {
        row->position[t] = (t + (shift ? first : 0)) % T;
        row->counts[t] = t < n;
      }
    }
}

/* In place of the step's own task that reads a micro-batch. */
static void set_batch(void *self, const struct mt_task *task)
{
  struct batch *batch = self;
  struct model_case *c = batch->c;
  struct mt_model *model = c->model;
  const int64_t T = c->T;
  int64_t from, mine = mt_part_count(&c->step->batch.share, c->comm->rank),
                n = mt_part_range(mine, c->step->batch.nmicro, task->micro, &from);
  int32_t position[MAX_N];
  for (int64_t i = 0; i < n * T; i++) {
    const struct row *row = &batch->row[c->step->batch.share.first[c->comm->rank] + from + i / T];
    model->host_token[i] = row->token[i % T];
    model->host_target[i] = row->token[i % T + 1];
    model->host_scale[i] = row->counts[i % T] ? (float)(1 / batch->tokens) : 0;
    position[i] = row->position[i % T];
  }
  c->device->ops->copy(c->device, MT_DEV_MATH, model->position, position, n * T * 4);
  c->device->ops->sync(c->device, MT_DEV_MATH);
  mt_model_batch(model, n);
  if (model->moe)
    mt_moe_begin_micro(model->moe, 0, n, c->step->batch.nmicro + task->micro);
}

/* Runs one step without update on the batch. logits[n, T, V] of all ranks where wanted. */
static double run(struct model_case *c, struct batch *batch, double *logits)
{
  const int64_t T = c->T, V = c->model->arch.V;
  batch->c = c;
  batch->tokens = (double)(B * T);
  for (int i = 0; i < c->step->tasks.n; i++)
    if (c->step->tasks.task[i].kind == MT_TASK_BATCH) {
      c->step->tasks.task[i].run = set_batch;
      c->step->tasks.task[i].self = batch;
    }
  double ce = mt_step_run(c->step, 1, 0)->ce;
  if (!logits)
    return ce;
  ck_assert_int_eq(c->step->batch.nmicro, 1);
  const int64_t first = c->step->batch.share.first[c->comm->rank] * T * V, n = c->model->N;
  float *mine = MT_NEW(MT_TAG_MISC, float, n *V);
  mt_model_logits(c->model, 0, n, mine);
  memset(logits, 0, sizeof(double) * (size_t)(batch->n * T * V));
  for (int64_t i = 0; i < n * V; i++)
    logits[first + i] = mine[i];
  mt_sum(c->comm, logits, (int)(batch->n * T * V));
  mt_free(mine);
  return ce;
}

static struct model_case *open_case(const char *name, const char *device, int n, const char *document,
                                    int micro)
{
  char batch[64], most[64], kind[64], id[64];
  snprintf(batch, sizeof batch, "train.global_batch=%d", n);
  snprintf(most, sizeof most, "train.micro_batch=%d", micro);
  snprintf(kind, sizeof kind, "data.document=%s", document);
  snprintf(id, sizeof id, "data.document_id=%d", ID);
  const char *recompute = micro == 1 ? "train.recompute=true" : "train.recompute=false";
  const char *all[] = {batch, most, recompute, "model.router_aux_loss_coef=0", "moe.z_loss=0", kind, id};
  struct model_case *c = model_case_open(name, NULL, device, 1, 0, 0, strcmp(document, "none") ? 7 : 6, all);
  ck_assert_int_le(c->T, MAX_T);
  ck_assert_int_le(c->model->arch.V, MAX_V);
  return c;
}

/* Norm-wise difference of a document's logits in the whole and alone. */
static double logit_error(const double *whole, const double *apart, int64_t T, int64_t V, int from_document)
{
  double error = 0, norm = 0;
  for (int d = from_document; d < 3; d++)
    for (int b = 0; b < B; b++) {
      int64_t first = cut_of(b, d, (int)T), n = cut_of(b, d + 1, (int)T) - first;
      for (int64_t i = 0; i < n * V; i++) {
        double x = whole[(b * T + first) * V + i], y = apart[(d * B + b) * T * V + i];
        error += (x - y) * (x - y);
        norm += y * y;
      }
    }
  ck_assert_double_gt(norm, 0);
  return sqrt(error / norm);
}

struct compare {
  struct model_case *c;
  const float *grad[2]; /* of the other run, laid out as this one's shards */
  double *error, *norm; /* [params] */
};

static void compare_piece(void *self, const struct mt_param *row, int expert, int64_t first,
                          struct mt_shard *shard, int64_t at, int64_t n)
{
  (void)expert;
  (void)first;
  struct compare *compare = self;
  const float *other = compare->grad[shard != &compare->c->model->shared];
  int i = (int)(row - compare->c->model->params.param);
  for (int64_t k = at; k < at + n; k++) {
    double difference = (double)shard->grad[k] - (double)other[k];
    compare->error[i] += difference * difference;
    compare->norm[i] += (double)other[k] * (double)other[k];
  }
}

/* Largest relative difference of a tensor's gradients to grad[]; small tensors are measured against their
 * layer. Agreed. */
static double gradient_error(struct model_case *c, float *const grad[2], const char **worst)
{
  const struct mt_params *params = &c->model->params;
  struct compare compare = {c,
                            {grad[0], grad[1]},
                            MT_ZNEW(MT_TAG_MISC, double, params->n),
                            MT_ZNEW(MT_TAG_MISC, double, params->n)};
  mt_model_pieces(c->model, compare_piece, &compare);
  mt_sum(c->comm, compare.error, params->n);
  mt_sum(c->comm, compare.norm, params->n);
  double most = 0;
  *worst = "none";
  for (int i = 0; i < params->n; i++) {
    double layer = 0, norm = compare.norm[i];
    for (int k = 0; k < params->n; k++)
      layer += params->param[k].layer == params->param[i].layer ? compare.norm[k] : 0;
    norm = norm < 1e-12 * layer ? layer : norm;
    double relative = sqrt(compare.error[i] / norm);
    if (!(relative <= most)) {
      most = relative;
      *worst = params->param[i].name;
    }
  }
  mt_free(compare.error);
  mt_free(compare.norm);
  return most;
}

static float *copied(const struct mt_shard *shard)
{
  float *copy = MT_NEW(MT_TAG_MISC, float, shard->total);
  memcpy(copy, shard->grad, sizeof(float) * (size_t)shard->total);
  return copy;
}

/* Smallest distance between the K-th and the next probability of any token: what rounding must not bridge. */
static double margin(struct model_case *c)
{
  const int64_t E = c->model->arch.E, K = c->model->arch.K;
  double least = 1;
  for (int l = 0; l < c->model->params.nmoe; l++)
    for (int64_t t = 0; t < c->model->N; t++) {
      const struct mt_moe_layer *layer = &c->model->moe->layer[l];
      const float *p = layer->p + t * E;
      double chosen = 1, left = 0;
      for (int64_t e = 0; e < E; e++) {
        int is_chosen = 0;
        for (int64_t k = 0; k < K; k++)
          is_chosen |= layer->expert[t * K + k] == e;
        chosen = is_chosen && p[e] < chosen ? p[e] : chosen;
        left = !is_chosen && p[e] > left ? p[e] : left;
      }
      least = chosen - left < least ? chosen - left : least;
    }
  least = -least;
  mt_max(c->comm, &least, 1);
  return -least;
}

static void check(const char *name, const char *device, int end, int micro)
{
  static struct batch whole, apart;
  static double logits[2][3 * B * MAX_T * MAX_V];
  const char *document = end ? "end" : "start", *worst;
  struct model_case *c = open_case(name, device, B, document, micro);
  const int T = (int)c->T, one_micro = micro == B;
  const int64_t V = c->model->arch.V;
  fill_whole(&whole, T, V, end);
  double ce = run(c, &whole, one_micro ? logits[0] : NULL);
  if (one_micro)
    ck_assert_double_gt(margin(c), 1e-5);
  float *grad[2] = {copied(&c->model->shared), c->model->moe ? copied(&c->model->moe->shard) : NULL};
  model_case_close(c);

  c = open_case(name, device, 3 * B, "none", 3 * B);
  fill_apart(&apart, &whole, T, V, 1);
  double expected = run(c, &apart, logits[1]);
  double logits_off = one_micro ? logit_error(logits[0], logits[1], T, V, 0) : 0;
  double grads_off = gradient_error(c, grad, &worst);
  model_case_close(c);
  mt_free(grad[0]);
  mt_free(grad[1]);
  ck_assert_msg(logits_off <= 1e-5, "%s, %s, %s: logits of documents are off by %.3g", name, device, document,
                logits_off);
  ck_assert_msg(fabs(ce - expected) <= 1e-5 * fabs(expected), "%s, %s, %s: loss %.9g, expected %.9g", name,
                device, document, ce, expected);
  ck_assert_msg(grads_off <= 1e-5, "%s, %s, %s: gradient of %s is off by %.3g", name, device, document, worst,
                grads_off);
}

START_TEST(test_apart)
{
  const char *name = model_case_names[_i / 2];
  check(name, "cpu", _i % 2, B);
  check(name, "cpu", _i % 2, 1);
  check(name, "ref", _i % 2, B);
}
END_TEST

/* Rotary positions are relative: a document's logits do not depend on where it stands. */
START_TEST(test_relative)
{
  static struct batch whole, apart;
  static double logits[2][3 * B * MAX_T * MAX_V];
  const char *name = model_case_names[_i];
  struct model_case *c = open_case(name, "cpu", B, "start", B);
  const int T = (int)c->T;
  const int64_t V = c->model->arch.V;
  fill_whole(&whole, T, V, 0);
  run(c, &whole, logits[0]);
  model_case_close(c);
  c = open_case(name, "cpu", 3 * B, "start", 3 * B);
  fill_apart(&apart, &whole, T, V, 0);
  run(c, &apart, logits[1]);
  model_case_close(c);
  double off = logit_error(logits[0], logits[1], T, V, 1);
  if (!strncmp(name, "mixtral", 7))
    ck_assert_msg(off <= 1e-5, "%s: logits of documents are off by %.3g", name, off);
  else
    ck_assert_msg(off > 1e-3, "%s: learned positions are absolute, but logits are off by %.3g only", name,
                  off);
}
END_TEST

/* Without the option a document sees the one before it: what the tests above measure is there. */
START_TEST(test_together)
{
  static struct batch whole, apart;
  static double logits[2][3 * B * MAX_T * MAX_V];
  const char *name = model_case_names[_i];
  struct model_case *c = open_case(name, "cpu", B, "none", B);
  const int T = (int)c->T;
  const int64_t V = c->model->arch.V;
  fill_whole(&whole, T, V, 0);
  run(c, &whole, logits[0]);
  model_case_close(c);
  c = open_case(name, "cpu", 3 * B, "none", 3 * B);
  fill_apart(&apart, &whole, T, V, 1);
  run(c, &apart, logits[1]);
  model_case_close(c);
  double off = logit_error(logits[0], logits[1], T, V, 1);
  ck_assert_msg(off > 1e-2, "%s: logits differ by %.3g only", name, off);
}
END_TEST

START_TEST(test_segments)
{
  static const struct {
    enum mt_document document;
    int T;
    int32_t token[8], segment[8];
  } cases[] = {
      {MT_DOCUMENT_START, 8, {1, 2, ID, 3, ID, ID, 4, ID}, {0, 0, 1, 1, 2, 3, 3, 4}},
      {MT_DOCUMENT_START, 8, {ID, ID, 1, 2, 3, 4, 6, 7}, {0, 1, 1, 1, 1, 1, 1, 1}},
      {MT_DOCUMENT_END, 8, {1, 2, ID, 3, ID, ID, 4, ID}, {0, 0, 0, 1, 1, 2, 3, 3}},
      {MT_DOCUMENT_END, 8, {ID, ID, 1, 2, 3, 4, 6, 7}, {0, 1, 2, 2, 2, 2, 2, 2}},
      {MT_DOCUMENT_END, 1, {ID}, {0}},
      {MT_DOCUMENT_START, 3, {1, 2, 3}, {0, 0, 0}},
      {MT_DOCUMENT_NONE, 3, {ID, ID, ID}, {0, 0, 0}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int32_t segment[9];
    memset(segment, 0x55, sizeof segment);
    mt_model_segments(cases[i].document, ID, cases[i].token, cases[i].T, segment);
    for (int t = 0; t < cases[i].T; t++)
      ck_assert_msg(segment[t] == cases[i].segment[t], "case %d: position %d is in %d, expected %d", (int)i,
                    t, segment[t], cases[i].segment[t]);
    ck_assert_int_eq(segment[cases[i].T], 0x55555555);
  }
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  Suite *suite = suite_create("documents");
  TCase *tests = tcase_create("documents");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, test_segments);
  tcase_add_loop_test(tests, test_apart, 0, 8);
  tcase_add_loop_test(tests, test_relative, 0, 4);
  tcase_add_loop_test(tests, test_together, 0, 4);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
