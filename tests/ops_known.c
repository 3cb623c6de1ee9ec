/* The reference against values worked out by hand, and what no comparison can tell: routing of rows with
 * NaNs. */
#include "ops_tests.h"
#include "bf16.h"
#include <check.h>
#include <math.h>
#include <string.h>

static void near(const char *what, int64_t index, double got, double expected)
{
  ck_assert_msg(fabs(got - expected) <= 1e-6 * fmax(1, fabs(expected)), "%s[%lld] is %.9g, expected %.9g",
                what, (long long)index, got, expected);
}

#define NEAR(got, ...)                                                                                       \
  do {                                                                                                       \
    const double expected_[] = {__VA_ARGS__};                                                                \
    for (int i_ = 0; i_ < (int)(sizeof expected_ / sizeof *expected_); i_++)                                 \
      near(#got, i_, (got)[i_], expected_[i_]);                                                              \
  } while (0)

static void known_dense(struct mt_device *ref, const struct mt_kernels *k)
{
  const int64_t first[] = {0, 1, 2};
  const struct mt_linear l = {2, first, 2, 2, 4, 2};
  const float x[] = {1, 2, 1, 0}, w[] = {3, 4, 5, 6, 7, 8, 9, 10}, b[] = {0.5f, -1, 0, 0};
  float y[4];
  k->linear(ref, &l, y, x, w, b, 0);
  NEAR(y, 11.5, 16, 7, 9);
  k->linear(ref, &l, y, x, w, NULL, 1);
  NEAR(y, 22.5, 33, 14, 18);

  const float v[] = {3, 4}, weight[] = {1, 2}, bias[] = {10, 20};
  float mean[1], rstd[1];
  k->norm(ref, MT_NORM_RMS, y, NULL, rstd, v, weight, NULL, 1, 2, 0);
  NEAR(y, 0.848528137, 2.262741700);
  NEAR(rstd, 0.282842712);
  k->norm(ref, MT_NORM_LAYER, y, mean, rstd, v, weight, bias, 1, 2, 0.75f);
  NEAR(y, 9.5, 21);
  NEAR(mean, 3.5);
  NEAR(rstd, 1);

  const int32_t token[] = {1, 0}, position[] = {0, 1};
  k->embed(ref, y, token, position, w, b, 2, 2);
  NEAR(y, 5.5, 5, 3, 4);
  const float table[] = {1, 0, 0, 1}; /* position 1: a quarter turn of the only pair */
  float pairs[] = {1, 2, 3, 4};
  k->rope(ref, pairs, 2, 2, 1, 2, position, table, 0);
  NEAR(pairs, 1, 2, -4, 3);
  k->rope(ref, pairs, 2, 2, 1, 2, position, table, 1);
  NEAR(pairs, 1, 2, 3, 4);

  const float gu[] = {1, 2}, at[] = {1, -2, 0, 40};
  k->swiglu(ref, y, gu, 1, 1);
  NEAR(y, 1.462117157);
  k->gelu(ref, y, at, 4);
  NEAR(y, 0.841191991, -0.045402306, 0, 40);
}

static void known_router(struct mt_device *ref, const struct mt_kernels *k)
{
  const float logits[] = {0, 0.693147181f, 1.098612289f, 0.693147181f}, rows[] = {1, 2, 3, 4, 5, 6},
              w[] = {2, 3, -1};
  float p[4], lse[1], weight[2], y[4], dweight[3], drow[6];
  int32_t expert[2];
  k->gate_topk(ref, p, lse, expert, weight, logits, 1, 4, 2, 0);
  NEAR(p, 0.125, 0.25, 0.375, 0.25);
  NEAR(lse, 2.079441542);
  NEAR(expert, 2, 1);
  NEAR(weight, 0.6, 0.4);
  const float four[] = {1, 2, 3, 4}, two[] = {1, 2};
  double psum[4], zsum[2];
  k->gate_sums(ref, psum, zsum, four, two, 1, 2, 2);
  NEAR(psum, 4, 6);
  NEAR(zsum, 5);
  k->gate_sums(ref, psum, zsum, four, two, 2, 1, 2);
  NEAR(psum, 1, 2, 3, 4);
  NEAR(zsum, 1, 4);

  const int32_t first[] = {0, 2, 3}, place[] = {2, 0, 1}; /* token 0: rows 2 and 0; token 1: row 1 */
  k->gather(ref, drow, MT_F32, rows, MT_F32, place, 3, 2);
  NEAR(drow, 5, 6, 1, 2, 3, 4);
  k->combine(ref, y, 0, rows, MT_F32, first, place, w, 2, 2);
  NEAR(y, 13, 18, -3, -4);
  k->combine(ref, y, 1, rows, MT_F32, first, place, NULL, 2, 2);
  NEAR(y, 19, 26, 0, 0);
  k->combine_back(ref, drow, dweight, four, rows, MT_F32, first, place, w, 2, 2);
  NEAR(drow, 3, 6, -3, -4, 2, 4);
  NEAR(dweight, 17, 5, 25);
}

static void known_vectors(struct mt_device *ref, const struct mt_kernels *k)
{
  float logits[] = {0, 1.098612289f, 5, 5, 1, 2}, loss[3];
  const int32_t target[] = {0, 1, -1};
  const float scale[] = {2, 1, 0};
  k->cross_entropy(ref, loss, logits, target, scale, 3, 2, 1);
  NEAR(loss, 1.386294361, 0.693147181, 0);
  NEAR(logits, -1.5, 1.5, 0.5, -0.5, 0, 0);

  float w[] = {1}, m[] = {0}, v[] = {0};
  const float grad[] = {4};
  const struct mt_adamw step = {.lr = 0.1f,
                                .beta1 = 0.9f,
                                .beta2 = 0.999f,
                                .eps = 0,
                                .weight_decay = 0.5f,
                                .correction1 = 0.1f,
                                .correction2 = 0.001f,
                                .grad_scale = 0.5f};
  k->adamw(ref, w, m, v, grad, 1, &step);
  NEAR(w, 0.85);
  NEAR(m, 0.2);
  NEAR(v, 0.004);
  const float x[] = {3, -4};
  double sum;
  k->sum_squares(ref, &sum, x, 2);
  NEAR(&sum, 25);

  const uint32_t from[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff,
                           0x7f7fffff, 0xff800000, 0x80000001};
  const uint16_t to[] = {0x3f80, 0x3f82, 0x3f81, 0x3f80, 0x7f80, 0xff80, 0x8000};
  uint16_t got[7], nan_half;
  k->convert(ref, got, MT_BF16, from, MT_F32, 7);
  for (int i = 0; i < 7; i++)
    ck_assert_msg(got[i] == to[i], "%08x is rounded to %04x, expected %04x", from[i], got[i], to[i]);
  const uint32_t nans[] = {0x7f800001, 0xffffffff, 0x7fc00000};
  for (int i = 0; i < 3; i++) {
    k->convert(ref, &nan_half, MT_BF16, &nans[i], MT_F32, 1);
    ck_assert_msg((nan_half & 0x7fff) > 0x7f80, "the NaN %08x became %04x", nans[i], nan_half);
  }
}

void ops_known_values(void)
{
  struct mt_device *ref;
  ck_assert_int_eq(mt_device_open("ref", 1, &ref), MT_OK);
  known_dense(ref, ref->kernels);
  known_router(ref, ref->kernels);
  known_vectors(ref, ref->kernels);
  ref->ops->close(ref);
}

/* A row with NaNs must still be routed somewhere: the step that meets it ends later, by the norm of its
 * gradient. */
void ops_nan_routing(struct mt_device *device)
{
  enum { N = 9, E = 7, K = 3 };
  const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
  float logits[N * E];
  for (int i = 0; i < N * E; i++)
    logits[i] = i / E < 4 ? bad[i / E] : (float)ops_uniform();
  for (int t = 4; t < N; t++)
    logits[t * E + (t * 3) % E] = bad[t % 4];
  const struct mt_device_ops *ops = device->ops;
  float *l = ops->alloc(device, MT_TAG_MISC, MT_DEVICE, sizeof logits), *p, *lse, *weight;
  p = ops->alloc(device, MT_TAG_MISC, MT_DEVICE, sizeof logits);
  lse = ops->alloc(device, MT_TAG_MISC, MT_DEVICE, N * 4);
  weight = ops->alloc(device, MT_TAG_MISC, MT_DEVICE, N * K * 4);
  int32_t *expert = ops->alloc(device, MT_TAG_MISC, MT_DEVICE, N * K * 4), got[N * K];
  ops->copy(device, MT_DEV_MATH, l, logits, sizeof logits);
  device->kernels->gate_topk(device, p, lse, expert, weight, l, N, E, K, 0);
  ops->copy(device, MT_DEV_MATH, got, expert, sizeof got);
  ops->sync(device, MT_DEV_MATH);
  for (int t = 0; t < N; t++)
    for (int k = 0; k < K; k++) {
      int32_t e = got[t * K + k];
      ck_assert_msg(e >= 0 && e < E, "%s: row %d with NaNs has expert %d of %d", device->name, t, e, E);
      for (int other = 0; other < k; other++)
        ck_assert_msg(got[t * K + other] != e, "%s: row %d with NaNs has expert %d twice", device->name, t,
                      e);
    }
  void *all[] = {l, p, lse, weight, expert};
  for (int i = 0; i < 5; i++)
    ops->free(device, MT_DEVICE, all[i]);
}

void ops_table(const char *name)
{
  struct mt_device *device;
  ck_assert_int_eq(mt_device_open(name, 2, &device), MT_OK);
  ck_assert_str_eq(device->name, name);
  ck_assert_int_ge(device->threads, 1);
  for (int j = 0; j < OPS_COUNT; j++) {
    void (*entry)(void);
    memcpy(&entry, (const char *)device->kernels + j * (int)sizeof entry, sizeof entry);
    ck_assert_msg(entry != NULL, "%s has no kernel number %d", name, j);
  }
  device->ops->close(device);
}

void ops_memory(const char *name)
{
  struct mt_device *device;
  int64_t before = mt_memory_bytes();
  ck_assert_int_eq(mt_device_open(name, 0, &device), MT_OK);
  const struct mt_device_ops *ops = device->ops;
  for (int space = 0; space < MT_NSPACE; space++) {
    char from[70], to[72];
    memset(from, 7, sizeof from);
    memset(to, 1, sizeof to);
    char *memory = ops->alloc(device, MT_TAG_MISC, (enum mt_space)space, 70);
    ck_assert_int_eq((uintptr_t)memory % 64, 0);
    ops->copy(device, MT_DEV_IN, memory, from, 70);
    ops->wait(device, MT_DEV_MATH, ops->mark(device, MT_DEV_IN));
    if (space != MT_HOST || device->host == device)
      ops->zero(device, MT_DEV_MATH, memory + 3, 5);
    ops->copy(device, MT_DEV_MATH, to + 1, memory, 70);
    ops->copy(device, MT_DEV_MATH, to, from, 0);
    int64_t mark = ops->mark(device, MT_DEV_MATH);
    for (int i = 0; i < 100; i++) /* more than are remembered singly */
      ops->mark(device, MT_DEV_OUT);
    ops->reach(device, mark);
    if (space != MT_HOST || device->host == device)
      memset(from + 3, 0, 5);
    ck_assert_int_eq(memcmp(to + 1, from, 70), 0);
    ck_assert(to[0] == 1 && to[71] == 1);
    ops->free(device, (enum mt_space)space, memory);
    ops->free(device, (enum mt_space)space, ops->alloc(device, MT_TAG_MISC, (enum mt_space)space, 0));
  }
  mt_device_reserve(device, 100);
  ck_assert_int_ge(device->work_bytes, 100);
  void *work = device->work;
  mt_device_reserve(device, 50);
  ck_assert_ptr_eq(device->work, work);
  ops->close(device);
  ck_assert_int_eq(mt_memory_bytes(), before);
}
