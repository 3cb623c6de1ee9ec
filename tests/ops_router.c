/* Cases of the router and of the rows that travel to experts and back. */
#include "ops_tests.h"
#include <math.h>
#include <stddef.h>

/* ---- gate_logits ---- */

static const struct gate_shape {
  int64_t n, c, E;
} gate_shapes[] = {{0, 7, 4},   {1, 1, 1},    {2, 3, 1},     {3, 7, 2},     {7, 17, 3},    {17, 33, 7},
                   {33, 65, 8}, {63, 63, 17}, {65, 127, 64}, {130, 130, 3}, {257, 33, 33}, {127, 257, 8}};
enum { NGATE = sizeof gate_shapes / sizeof *gate_shapes };
enum { G_X, G_W, G_LOGITS, G_DX, G_DW, G_DLOGITS };

static int gate_make(struct ops_case *c, int index, int back)
{
  if (index >= NGATE)
    return 0;
  const struct gate_shape *s = c->shape = &gate_shapes[index];
  ops_label(c, "n=%lld c=%lld E=%lld", (long long)s->n, (long long)s->c, (long long)s->E);
  ops_add(c, G_X, "x", OPS_CTYPE, OPS_IN, s->n * s->c);
  ops_add(c, G_W, "w", OPS_F32, OPS_IN, s->E * s->c);
  ops_add(c, G_LOGITS, "logits", OPS_F32, back ? OPS_SAVED : OPS_OUT, s->n * s->E);
  if (back) {
    ops_add_of(c, G_DX, "dx", OPS_CTYPE, OPS_ADD, s->n * s->c, G_X);
    ops_add_of(c, G_DW, "dw", OPS_F32, OPS_ADD, s->E * s->c, G_W);
    ops_add_of(c, G_DLOGITS, "dlogits", OPS_F32, OPS_IN, s->n * s->E, G_LOGITS);
  }
  return 1;
}

static int gate_logits_make(struct ops_case *c, int index)
{
  return gate_make(c, index, 0);
}

static int gate_logits_back_make(struct ops_case *c, int index)
{
  return gate_make(c, index, 1);
}

static void gate_logits_run(const struct ops_case *c, struct mt_device *device)
{
  const struct gate_shape *s = c->shape;
  device->kernels->gate_logits(device, ops_at(c, G_LOGITS), ops_at(c, G_X), ops_at(c, G_W), s->n, s->c, s->E);
}

static void gate_logits_back_run(const struct ops_case *c, struct mt_device *device)
{
  const struct gate_shape *s = c->shape;
  device->kernels->gate_logits_back(device, ops_at(c, G_DX), ops_at(c, G_DW), ops_at(c, G_DLOGITS),
                                    ops_at(c, G_X), ops_at(c, G_W), s->n, s->c, s->E);
}

const struct ops_test ops_gate_logits = {
    .name = "gate_logits", .make = gate_logits_make, .run = gate_logits_run, .bound = 2e-6};
const struct ops_test ops_gate_logits_back = {.name = "gate_logits_back",
                                              .make = gate_logits_back_make,
                                              .forward = gate_logits_run,
                                              .run = gate_logits_back_run,
                                              .bound = 2e-6};

/* ---- gate_topk ---- */

enum logits { NORMAL, LADDER /* margins of 0.35 */, TIES /* of three values */, EQUAL, EXTREME /* +-80 */ };

static const struct topk_shape {
  int64_t n, T, E, K;
  int balanced;
  enum logits logits;
} topk_shapes[] = {
    {0, 3, 4, 2, 0, NORMAL},     {1, 1, 1, 1, 0, NORMAL},      {3, 2, 1, 1, 0, NORMAL},
    {5, 2, 4, 1, 0, LADDER},     {7, 3, 8, 2, 0, LADDER},      {7, 7, 5, 5, 0, LADDER},
    {9, 4, 7, 3, 0, LADDER},     {6, 100, 3, 2, 0, LADDER},    {8, 3, 6, 2, 1, NORMAL},
    {17, 17, 3, 3, 1, NORMAL},   {33, 8, 8, 2, 0, NORMAL},     {65, 16, 17, 4, 0, TIES},
    {63, 9, 8, 2, 0, EQUAL},     {130, 65, 8, 2, 0, EXTREME},  {127, 64, 64, 7, 0, NORMAL},
    {257, 64, 33, 33, 0, TIES},  {65, 65, 8, 2, 1, EXTREME},   {17, 5, 130, 6, 0, EXTREME},
    {130, 130, 257, 8, 0, TIES}, {7, 2, 130, 130, 0, EXTREME}, {33, 33, 7, 3, 12, NORMAL},
    {2, 2, 3, 2, 0, EXTREME},    {17, 4, 2, 1, 2, EXTREME},
};
enum { NTOPK = sizeof topk_shapes / sizeof *topk_shapes };
enum { T_LOGITS, T_P, T_LSE, T_EXPERT, T_WEIGHT, T_DLOGITS, T_DWEIGHT, T_AUX };
static const float Z = 0.01f;

static void fill_logits(struct ops_buffer *b, const struct topk_shape *s)
{
  for (int64_t t = 0; t < s->n; t++) {
    int64_t first = (int64_t)(ops_bits() % (uint64_t)s->E);
    for (int64_t e = 0; e < s->E; e++) {
      double x = ops_get(b, b->start, t * s->E + e);
      if (s->logits == LADDER)
        x = 0.35 * (double)((first + e * (s->E % 3 ? 3 : 1)) % s->E) - 1 + 0.02 * ops_uniform();
      else if (s->logits == TIES)
        x = (double)(ops_bits() % 3) * 0.5;
      else if (s->logits == EQUAL)
        x = (double)t;
      else if (s->logits == EXTREME && ops_bits() % 2)
        x = ops_bits() % 2 ? 80 : -80;
      ops_set(b, t * s->E + e, x);
    }
  }
}

static int topk_make(struct ops_case *c, int index, int back)
{
  if (index >= NTOPK)
    return 0;
  const struct topk_shape *s = c->shape = &topk_shapes[index];
  ops_label(c, "n=%lld T=%lld E=%lld K=%lld balanced=%d logits=%d", (long long)s->n, (long long)s->T,
            (long long)s->E, (long long)s->K, s->balanced, s->logits);
  enum ops_role out = back ? OPS_SAVED : OPS_OUT;
  fill_logits(ops_add(c, T_LOGITS, "logits", OPS_F32, OPS_IN, s->n * s->E), s);
  ops_add(c, T_P, "p", OPS_F32, out, s->n * s->E);
  ops_add(c, T_LSE, "lse", OPS_F32, out, s->n);
  ops_add(c, T_EXPERT, "expert", OPS_I32, out, s->n * s->K);
  ops_add(c, T_WEIGHT, "weight", OPS_F32, out, s->n * s->K);
  if (back) {
    ops_add_of(c, T_DLOGITS, "dlogits", OPS_F32, OPS_OUT, s->n * s->E, T_LOGITS)->floor =
        s->E == 1 ? 1 : 0.05;
    ops_add_of(c, T_DWEIGHT, "dweight", OPS_F32, OPS_IN, s->n * s->K, T_WEIGHT);
    ops_add(c, T_AUX, "aux", OPS_F32, OPS_IN, (s->n + s->T - 1) / s->T * s->E);
  }
  return 1;
}

static int gate_topk_make(struct ops_case *c, int index)
{
  return topk_make(c, index, 0);
}

/* Differences need logits with margins, but where the choice is balanced. */
static int gate_topk_back_make(struct ops_case *c, int index)
{
  if (!topk_make(c, index, 1))
    return 0;
  const struct topk_shape *s = c->shape;
  c->rough = s->logits != LADDER && !(s->balanced && s->logits == NORMAL) && s->E > 1;
  return 1;
}

static void gate_topk_run(const struct ops_case *c, struct mt_device *device)
{
  const struct topk_shape *s = c->shape;
  device->kernels->gate_topk(device, ops_at(c, T_P), ops_at(c, T_LSE), ops_at(c, T_EXPERT),
                             ops_at(c, T_WEIGHT), ops_at(c, T_LOGITS), s->n, s->E, s->K, s->balanced);
}

static void gate_topk_back_run(const struct ops_case *c, struct mt_device *device)
{
  const struct topk_shape *s = c->shape;
  device->kernels->gate_topk_back(device, ops_at(c, T_DLOGITS), ops_at(c, T_DWEIGHT), ops_at(c, T_P),
                                  ops_at(c, T_LSE), ops_at(c, T_EXPERT), ops_at(c, T_WEIGHT),
                                  ops_at(c, T_AUX), Z, s->n, s->T, s->E, s->K);
}

/* The terms of the balance loss and of the z-loss. */
static double gate_topk_loss(const struct ops_case *c)
{
  const struct topk_shape *s = c->shape;
  const float *p = ops_at(c, T_P), *lse = ops_at(c, T_LSE), *aux = ops_at(c, T_AUX);
  double sum = 0;
  for (int64_t t = 0; t < s->n; t++) {
    sum += (double)Z * lse[t] * lse[t];
    for (int64_t e = 0; e < s->E; e++)
      sum += (double)aux[t / s->T * s->E + e] * p[t * s->E + e];
  }
  return sum;
}

/* Sorted by logit, ties by expert, all of them larger than those not chosen; weights sum to 1. */
static const char *gate_topk_check(const struct ops_case *c)
{
  const struct topk_shape *s = c->shape;
  const float *logits = c->buffer[T_LOGITS].start, *weight = c->buffer[T_WEIGHT].result,
              *p = c->buffer[T_P].result;
  const int32_t *expert = c->buffer[T_EXPERT].result;
  for (int64_t t = 0; t < s->n; t++) {
    const float *l = logits + t * s->E;
    double sum = 0, sum_p = 0;
    for (int64_t e = 0; e < s->E; e++)
      sum_p += p[t * s->E + e];
    for (int64_t k = 0; k < s->K; k++) {
      int32_t e = expert[t * s->K + k];
      sum += weight[t * s->K + k];
      if (s->balanced ? e != ((t + s->balanced - 1) * s->K + k) % s->E : e < 0 || e >= s->E)
        return "an expert is out of place";
      int64_t before = 0; /* experts that come before e in the order of choice */
      for (int64_t other = 0; other < s->E; other++)
        before += l[other] > l[e] || (l[other] == l[e] && other < e);
      if (!s->balanced && before != k)
        return "the experts are not those of the largest logits in order";
    }
    if (!(fabs(sum - 1) < 1e-5) || !(fabs(sum_p - 1) < 1e-5))
      return "weights or probabilities do not sum to 1";
  }
  return NULL;
}

const struct ops_test ops_gate_topk = {.name = "gate_topk",
                                       .make = gate_topk_make,
                                       .run = gate_topk_run,
                                       .check = gate_topk_check,
                                       .bound = 2e-6};
const struct ops_test ops_gate_topk_back = {.name = "gate_topk_back",
                                            .make = gate_topk_back_make,
                                            .forward = gate_topk_run,
                                            .run = gate_topk_back_run,
                                            .loss = gate_topk_loss,
                                            .bound = 2e-6};

/* ---- gate_sums ---- */

static const struct sums_shape {
  int64_t B, T, E;
} sums_shapes[] = {{0, 3, 2},   {2, 0, 3},  {1, 1, 1},    {3, 2, 7},
                   {2, 17, 33}, {7, 33, 8}, {1, 257, 65}, {5, 130, 3}};
enum { S_P, S_LSE, S_PSUM, S_ZSUM };

static int gate_sums_make(struct ops_case *c, int index)
{
  if (index >= (int)(sizeof sums_shapes / sizeof *sums_shapes))
    return 0;
  const struct sums_shape *s = c->shape = &sums_shapes[index];
  ops_label(c, "B=%lld T=%lld E=%lld", (long long)s->B, (long long)s->T, (long long)s->E);
  ops_add(c, S_P, "p", OPS_F32, OPS_IN, s->B * s->T * s->E);
  ops_add(c, S_LSE, "lse", OPS_F32, OPS_IN, s->B * s->T);
  ops_add(c, S_PSUM, "psum", OPS_F64, OPS_OUT, s->B * s->E);
  ops_add(c, S_ZSUM, "zsum", OPS_F64, OPS_OUT, s->B);
  return 1;
}

static void gate_sums_run(const struct ops_case *c, struct mt_device *device)
{
  const struct sums_shape *s = c->shape;
  device->kernels->gate_sums(device, ops_at(c, S_PSUM), ops_at(c, S_ZSUM), ops_at(c, S_P), ops_at(c, S_LSE),
                             s->B, s->T, s->E);
}

const struct ops_test ops_gate_sums = {
    .name = "gate_sums", .make = gate_sums_make, .run = gate_sums_run, .bound = 1e-13};

/* ---- gather ---- */

static const struct gather_shape {
  int64_t rows, width, from; /* from: rows to choose from */
} gather_shapes[] = {{0, 5, 3},    {1, 1, 1},     {3, 2, 2},     {7, 33, 17},  {33, 7, 5},  {65, 63, 130},
                     {130, 65, 1}, {257, 17, 63}, {17, 130, 33}, {63, 127, 2}, {3, 257, 7}, {4, 0, 2}};
enum { NGATHER = sizeof gather_shapes / sizeof *gather_shapes };
enum { GA_FROM, GA_INDEX, GA_TO };

static int gather_make(struct ops_case *c, int index)
{
  if (index >= 4 * NGATHER)
    return 0;
  const struct gather_shape *s = c->shape = &gather_shapes[index / 4];
  c->flag[0] = index % 2 ? MT_BF16 : MT_F32;
  c->flag[1] = index / 2 % 2 ? MT_BF16 : MT_F32;
  ops_label(c, "rows=%lld width=%lld from %s to %s", (long long)s->rows, (long long)s->width,
            c->flag[0] ? "bf16" : "f32", c->flag[1] ? "bf16" : "f32");
  ops_add(c, GA_FROM, "from", c->flag[0] ? OPS_BF16 : OPS_F32, OPS_IN, s->from * s->width);
  ops_fill_below(ops_add(c, GA_INDEX, "index", OPS_I32, OPS_IN, s->rows), s->from);
  ops_add(c, GA_TO, "to", c->flag[1] ? OPS_BF16 : OPS_F32, OPS_OUT, s->rows * s->width);
  return 1;
}

static void gather_run(const struct ops_case *c, struct mt_device *device)
{
  const struct gather_shape *s = c->shape;
  device->kernels->gather(device, ops_at(c, GA_TO), (enum mt_dtype)c->flag[1], ops_at(c, GA_FROM),
                          (enum mt_dtype)c->flag[0], ops_at(c, GA_INDEX), s->rows, s->width);
}

const struct ops_test ops_gather = {.name = "gather", .make = gather_make, .run = gather_run, .bound = 0};

/* ---- combine ---- */

static const struct combine_shape {
  int64_t n, width, most, spare, start; /* 0..most triples a token; rows that no triple names; first[0] */
} combine_shapes[] = {{0, 5, 2, 3, 0},    {1, 1, 1, 0, 0},    {3, 2, 0, 4, 0},     {2, 3, 2, 1, 0},
                      {5, 7, 3, 0, 2},    {7, 17, 2, 5, 0},   {17, 33, 1, 0, 0},   {33, 65, 4, 7, 3},
                      {65, 63, 2, 0, 0},  {130, 33, 2, 1, 0}, {63, 130, 7, 17, 1}, {127, 2, 2, 0, 0},
                      {3, 257, 33, 0, 0}, {4, 0, 2, 0, 0}};
enum { NCOMBINE = sizeof combine_shapes / sizeof *combine_shapes };
enum { C_FIRST, C_PLACE, C_WEIGHT, C_ROW, C_Y, C_DROW, C_DWEIGHT, C_DY };

/* flag[0]: type of rows; flag[1]: add, or in back: dweight is wanted; flag[2]: with weights. */
static int combine_case(struct ops_case *c, int index, int back)
{
  if (index >= 8 * NCOMBINE)
    return 0;
  const struct combine_shape *s = c->shape = &combine_shapes[index / 8];
  c->flag[0] = index % 2 ? MT_BF16 : MT_F32;
  c->flag[1] = index / 2 % 2;
  c->flag[2] = index / 4 % 2;
  ops_label(c, "n=%lld width=%lld most=%lld rows %s %s=%d weights=%d", (long long)s->n, (long long)s->width,
            (long long)s->most, c->flag[0] ? "bf16" : "f32", back ? "dweight" : "add", c->flag[1],
            c->flag[2]);
  struct ops_buffer *first = ops_add(c, C_FIRST, "first", OPS_I32, OPS_IN, s->n + 1);
  int64_t triples = s->start;
  for (int64_t t = 0; t <= s->n; t++) {
    ops_set(first, t, (double)triples);
    triples += t < s->n ? (int64_t)(ops_bits() % (uint64_t)(s->most + 1)) : 0;
  }
  int64_t rows = triples + s->spare;
  struct ops_buffer *place = ops_add(c, C_PLACE, "place", OPS_I32, OPS_IN, triples);
  int32_t *order = MT_NEW(MT_TAG_MISC, int32_t, rows); /* a random order of rows: no place twice */
  for (int64_t i = 0; i < rows; i++) {
    int64_t j = (int64_t)(ops_bits() % (uint64_t)(i + 1));
    order[i] = order[j];
    order[j] = (int32_t)i;
  }
  for (int64_t i = 0; i < triples; i++)
    ops_set(place, i, order[i]);
  mt_free(order);
  if (c->flag[2])
    ops_add(c, C_WEIGHT, "weight", OPS_F32, OPS_IN, triples);
  else
    ops_none(c, C_WEIGHT, "weight");
  enum ops_type type = c->flag[0] ? OPS_BF16 : OPS_F32;
  ops_add(c, C_ROW, "row", type, OPS_IN, rows * s->width);
  ops_add(c, C_Y, "y", OPS_CTYPE, back ? OPS_SAVED : c->flag[1] ? OPS_ADD : OPS_OUT, s->n * s->width);
  if (!back)
    return 1;
  /* Differences need rows in f32. */
  ops_add_of(c, C_DROW, "drow", type, OPS_SPARSE, rows * s->width, type == OPS_F32 ? C_ROW : -1);
  if (c->flag[1])
    ops_add_of(c, C_DWEIGHT, "dweight", OPS_F32, OPS_SPARSE, triples, c->flag[2] ? C_WEIGHT : -1);
  else
    ops_none(c, C_DWEIGHT, "dweight");
  ops_add_of(c, C_DY, "dy", OPS_CTYPE, OPS_IN, s->n * s->width, C_Y);
  return 1;
}

static int combine_make(struct ops_case *c, int index)
{
  return combine_case(c, index, 0);
}

static int combine_back_make(struct ops_case *c, int index)
{
  return combine_case(c, index, 1);
}

static void combine_forward(const struct ops_case *c, struct mt_device *device)
{
  const struct combine_shape *s = c->shape;
  device->kernels->combine(device, ops_at(c, C_Y), 0, ops_at(c, C_ROW), (enum mt_dtype)c->flag[0],
                           ops_at(c, C_FIRST), ops_at(c, C_PLACE), ops_at(c, C_WEIGHT), s->n, s->width);
}

static void combine_run(const struct ops_case *c, struct mt_device *device)
{
  const struct combine_shape *s = c->shape;
  device->kernels->combine(device, ops_at(c, C_Y), c->flag[1], ops_at(c, C_ROW), (enum mt_dtype)c->flag[0],
                           ops_at(c, C_FIRST), ops_at(c, C_PLACE), ops_at(c, C_WEIGHT), s->n, s->width);
}

static void combine_back_run(const struct ops_case *c, struct mt_device *device)
{
  const struct combine_shape *s = c->shape;
  device->kernels->combine_back(device, ops_at(c, C_DROW), ops_at(c, C_DWEIGHT), ops_at(c, C_DY),
                                c->flag[1] ? ops_at(c, C_ROW) : NULL, (enum mt_dtype)c->flag[0],
                                ops_at(c, C_FIRST), ops_at(c, C_PLACE), ops_at(c, C_WEIGHT), s->n, s->width);
}

const struct ops_test ops_combine = {
    .name = "combine", .make = combine_make, .run = combine_run, .bound = 1e-6};
const struct ops_test ops_combine_back = {.name = "combine_back",
                                          .make = combine_back_make,
                                          .forward = combine_forward,
                                          .run = combine_back_run,
                                          .bound = 1e-6};
