/* Cases of attention: grouped heads, windows, segments with padding, both directions. */
#include "ops_tests.h"
#include <math.h>
#include <stddef.h>

static const struct shape {
  int64_t B, T, H, KV, D;
  int causal;
  int64_t window;
  int segments; /* > 0: that many segments of uneven length, then padding; -1: everything is padding */
  double size;  /* of queries and keys */
} shapes[] = {
    {0, 5, 2, 1, 8, 1, 0, 0, 1},     {2, 0, 2, 1, 8, 1, 0, 0, 1},     {1, 1, 1, 1, 2, 1, 0, 0, 1},
    {2, 1, 2, 2, 8, 0, 0, 0, 1},     {1, 2, 2, 1, 2, 1, 0, 0, 1},     {1, 5, 2, 1, 2, 1, 0, 0, 1},
    {1, 5, 2, 2, 2, 0, 0, 0, 1},     {1, 7, 2, 1, 2, 1, 3, 0, 1},     {1, 7, 4, 2, 2, 1, 0, 2, 1},
    {1, 6, 2, 1, 4, 0, 2, 0, 1},     {2, 7, 1, 1, 2, 0, 0, 2, 1},     {1, 9, 3, 1, 2, 1, 1, 0, 1},
    {1, 3, 2, 1, 2, 1, 0, -1, 1},    {2, 17, 4, 2, 8, 1, 0, 0, 1},    {3, 17, 6, 2, 8, 1, 5, 3, 1},
    {1, 17, 2, 1, 64, 0, 0, 0, 1},   {2, 33, 3, 3, 8, 1, 0, 0, 1},    {1, 64, 4, 1, 8, 1, 0, 0, 1},
    {1, 64, 2, 2, 64, 1, 17, 0, 1},  {1, 65, 2, 1, 80, 1, 0, 4, 1},   {1, 130, 2, 1, 64, 1, 0, 0, 1},
    {1, 130, 4, 2, 8, 0, 0, 3, 1},   {1, 130, 2, 2, 80, 1, 64, 0, 1}, {1, 130, 2, 1, 2, 1, 200, 0, 1},
    {2, 63, 2, 1, 8, 1, 0, 0, 8},    {1, 130, 2, 1, 64, 1, 0, 0, 4},  {1, 64, 2, 1, 8, 0, 0, 0, 0},
    {2, 17, 4, 2, 8, 1, 0, 0, 0},    {2, 17, 4, 2, 8, 1, 5, 3, 0},    {2, 33, 6, 2, 2, 0, 7, 2, 0},
    {1, 130, 2, 1, 8, 1, 64, 3, 0},  {1, 257, 1, 1, 7, 1, 0, 0, 1},   {1, 600, 1, 1, 4, 1, 0, 0, 1},
    {1, 1100, 2, 1, 4, 0, 0, 0, 2},  {1, 600, 2, 1, 2, 1, 530, 0, 1}, {1, 700, 1, 1, 4, 0, 30, 3, 1},
    {1, 600, 1, 1, 4, 1, 100, 4, 0}, {1, 530, 1, 1, 2, 1, 0, 1, 0},   {1, 0, 2, 2, 8, 0, 3, 1, 1},
};
enum { NSHAPE = sizeof shapes / sizeof *shapes };
enum { QKV, SEGMENT, OUT, LSE, DQKV, DOUT };

static struct mt_attention problem(const struct ops_case *c)
{
  const struct shape *s = c->shape;
  return (struct mt_attention){.B = s->B,
                               .T = s->T,
                               .H = s->H,
                               .KV = s->KV,
                               .D = s->D,
                               .causal = s->causal,
                               .window = s->window,
                               .segment = ops_at(c, SEGMENT),
                               .scale = 1 / sqrtf((float)s->D)};
}

/* Segment s of a sequence of T has about 2 (s + 1) / (n + 1)^2 of it, the rest is padding; padding also comes
 * first in sequence 1. */
static int32_t segment_at(const struct shape *s, int64_t b, int64_t t)
{
  double at = (double)t / (double)s->T;
  if (s->segments < 0 || (b == 1 && t == 0))
    return -1;
  for (int i = 0; i < s->segments; i++) {
    at -= 2.0 * (i + 1) / ((s->segments + 1) * (s->segments + 1));
    if (at < 0)
      return i;
  }
  return -1 - (int32_t)(t % 2);
}

static int make(struct ops_case *c, int index, int back)
{
  if (index >= NSHAPE)
    return 0;
  const struct shape *s = c->shape = &shapes[index];
  int64_t n = s->B * s->T, width = (s->H + 2 * s->KV) * s->D;
  ops_label(c, "B=%lld T=%lld H=%lld KV=%lld D=%lld causal=%d window=%lld segments=%d size=%g",
            (long long)s->B, (long long)s->T, (long long)s->H, (long long)s->KV, (long long)s->D, s->causal,
            (long long)s->window, s->segments, s->size);
  c->slack =
      s->size > 2 ? 20 : 0; /* scores of some hundred carry that many units of rounding into exponentials */
  /* Tensor cores take the probabilities in bf16, and backward their gradients, and out as it was rounded; where one
   * probability is nearly 1, what is left of its gradient has that rounding's size. */
  c->roundings = !back ? 2 : s->size > 1 ? 12 : 4;
  struct ops_buffer *qkv = ops_add(c, QKV, "qkv", OPS_CTYPE, OPS_IN, n * width);
  for (int64_t i = 0; i < n * width; i++)
    if (i % width < (s->H + s->KV) * s->D)
      ops_set(qkv, i, s->size * ops_get(qkv, qkv->start, i));
  if (s->segments) {
    struct ops_buffer *segment = ops_add(c, SEGMENT, "segment", OPS_I32, OPS_IN, n);
    for (int64_t i = 0; i < n; i++)
      ops_set(segment, i, segment_at(s, i / s->T, i % s->T));
    for (int64_t i = 0; i < n * width; i++) /* nothing of padding may be used */
      if (ops_get(segment, segment->start, i / width) < 0 && i % 3)
        ops_set(qkv, i, 1e15);
  } else
    ops_none(c, SEGMENT, "segment");
  ops_add(c, OUT, "out", OPS_CTYPE, back ? OPS_SAVED : OPS_OUT, n * s->H * s->D);
  ops_add(c, LSE, "lse", OPS_F32, back ? OPS_SAVED : OPS_OUT, s->B * s->H * s->T);
  if (back) {
    ops_add_of(c, DQKV, "dqkv", OPS_CTYPE, OPS_OUT, n * width, QKV);
    ops_add_of(c, DOUT, "dout", OPS_CTYPE, OPS_IN, n * s->H * s->D, OUT);
  }
  return 1;
}

static int make_forward(struct ops_case *c, int index)
{
  return make(c, index, 0);
}

static int make_back(struct ops_case *c, int index)
{
  return make(c, index, 1);
}

static int64_t work(const struct ops_case *c, const struct mt_device *device)
{
  struct mt_attention a = problem(c);
  return device->kernels->attention_work(device, &a);
}

static void run_forward(const struct ops_case *c, struct mt_device *device)
{
  struct mt_attention a = problem(c);
  device->kernels->attention(device, &a, ops_at(c, OUT), ops_at(c, LSE), ops_at(c, QKV));
}

static void run_back(const struct ops_case *c, struct mt_device *device)
{
  struct mt_attention a = problem(c);
  device->kernels->attention_back(device, &a, ops_at(c, DQKV), ops_at(c, DOUT), ops_at(c, QKV),
                                  ops_at(c, OUT), ops_at(c, LSE));
}

/* Padding gives zeros. With equal scores (size 0) the output is the plain mean of the values that are seen
 * and lse the logarithm of their number: masks and heads, counted independently. */
static const char *check_row(const struct ops_case *c, int64_t b, int64_t i, int64_t h)
{
  const struct shape *s = c->shape;
  const struct ops_buffer *out = &c->buffer[OUT], *lse = &c->buffer[LSE], *qkv = &c->buffer[QKV],
                          *seg = &c->buffer[SEGMENT];
  double mine = seg->n > 0 ? ops_get(seg, seg->start, b * s->T + i) : 0;
  if (mine >= 0 && s->size != 0)
    return NULL;
  int64_t width = (s->H + 2 * s->KV) * s->D, value = (s->H + s->KV + h / (s->H / s->KV)) * s->D, seen = 0;
  for (int64_t d = 0; d < s->D; d++) {
    double sum = 0;
    seen = 0;
    for (int64_t j = 0; j < s->T && mine >= 0; j++) {
      int64_t back = i - j;
      if ((s->causal && back < 0) || (s->window && back >= s->window))
        continue;
      if (seg->n > 0 && ops_get(seg, seg->start, b * s->T + j) != mine)
        continue;
      sum += ops_get(qkv, qkv->start, (b * s->T + j) * width + value + d);
      seen++;
    }
    double got = ops_get(out, out->result, ((b * s->T + i) * s->H + h) * s->D + d),
           mean = seen ? sum / (double)seen : 0;
    if (!(fabs(got - mean) <= (c->ctype == MT_F32 ? 1e-5 : 1e-2)) || (mine < 0 && got != 0))
      return "out is not the mean of the values that are seen";
  }
  double got = ops_get(lse, lse->result, (b * s->H + h) * s->T + i);
  return fabs(got - (seen ? log((double)seen) : 0)) <= 1e-5 ? NULL
                                                            : "lse is not the logarithm of how many are seen";
}

static const char *check_forward(const struct ops_case *c)
{
  const struct shape *s = c->shape;
  const char *wrong = NULL;
  for (int64_t i = 0; i < s->B * s->T * s->H && !wrong; i++)
    wrong = check_row(c, i / s->H / s->T, i / s->H % s->T, i % s->H);
  return wrong;
}

static const char *check_back(const struct ops_case *c)
{
  const struct shape *s = c->shape;
  const struct ops_buffer *dqkv = &c->buffer[DQKV], *segment = &c->buffer[SEGMENT];
  int64_t width = (s->H + 2 * s->KV) * s->D;
  for (int64_t i = 0; segment->n > 0 && i < dqkv->n; i++)
    if (ops_get(segment, segment->start, i / width) < 0 && ops_get(dqkv, dqkv->result, i) != 0)
      return "dqkv of padding is not 0";
  return NULL;
}

const struct ops_test ops_attention = {.name = "attention",
                                       .make = make_forward,
                                       .work = work,
                                       .run = run_forward,
                                       .check = check_forward,
                                       .bound = 5e-6};
const struct ops_test ops_attention_back = {.name = "attention_back",
                                            .make = make_back,
                                            .work = work,
                                            .forward = run_forward,
                                            .run = run_back,
                                            .check = check_back,
                                            .bound = 5e-6};
