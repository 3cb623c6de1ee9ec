/* The CPU backend where test_ops does not reach: sizes at which work is cut into several blocks, what a call
 * leaves alone (memory, the number of threads), and the exponential. ranks: 1
 *
 * The idea: ref computes the same with plain loops, so sizes are as small as the cuts allow: blocks of 256
 * rows, of 512 columns and of 64 queries by 512 keys. */
#include "test.h"
#include "cpu/cpu.h"
#include "cpu/simd.h"
#include "ops.h"
#include <math.h>
#include <omp.h>
#include <string.h>

enum { NDEVICE = 4 }; /* ref, and a build with 1, 2, 3 threads */
static struct mt_device *device[NDEVICE];
static const char *build; /* NULL: the best of this processor */

static void open_devices(void)
{
  for (int i = 0; i < NDEVICE; i++)
    ck_assert_int_eq(mt_device_open(!i ? "ref" : build ? build : "cpu", i ? i : 1, &device[i]), MT_OK);
}

static void close_devices(void)
{
  for (int i = 0; i < NDEVICE; i++)
    device[i]->ops->close(device[i]);
}

/* n numbers in [-1, 1). The caller frees. */
static float *numbers(int64_t n)
{
  static uint32_t state = 1;
  float *x = MT_NEW(MT_TAG_MISC, float, n);
  for (int64_t i = 0; i < n; i++) {
    state = state * 1664525u + 1013904223u;
    x[i] = (float)(state >> 8) / (float)(1 << 23) - 1;
  }
  return x;
}

/* One output of a call, [n] for each device. */
struct result {
  int64_t n;
  float *x[NDEVICE]; /* owned */
};

static struct result result_new(int64_t n)
{
  struct result r = {n, {0}};
  float *start = numbers(n);
  for (int i = 0; i < NDEVICE; i++)
    r.x[i] = memcpy(MT_NEW(MT_TAG_MISC, float, n), start, (size_t)n * sizeof *start);
  mt_free(start);
  return r;
}

/* Within `bound` of ref norm-wise, and the same bits for every number of threads. Frees the result. */
static void result_check(struct result *r, const char *what, double bound)
{
  double error = 0, size = 0;
  for (int64_t i = 0; i < r->n; i++) {
    double d = (double)r->x[1][i] - r->x[0][i];
    error += d * d;
    size += (double)r->x[0][i] * r->x[0][i];
  }
  ck_assert_msg(size > 0 && sqrt(error / size) <= bound, "%s: error %g", what, sqrt(error / size));
  for (int i = 2; i < NDEVICE; i++)
    ck_assert_msg(!memcmp(r->x[i], r->x[1], (size_t)r->n * sizeof(float)), "%s: other bits with %d threads",
                  what, i);
  for (int i = 0; i < NDEVICE; i++)
    mt_free(r->x[i]);
}

/* Experts with nothing, with little, and with more than one block of rows; more than one block of columns. */
static const int64_t ROWS[] = {0, 0, 3, 612, 612, 641};
enum { NGROUP = 5, NROW = 641 };

START_TEST(test_linear_blocks)
{
  int64_t in = _i ? 600 : 24, out = _i ? 24 : 600;
  struct mt_linear l = {NGROUP, ROWS, in, out, in * out, out};
  float *x = numbers(NROW * in), *w = numbers(NGROUP * in * out), *b = numbers(NGROUP * out),
        *dy = numbers(NROW * out);
  struct result y = result_new(NROW * out), dx = result_new(NROW * in), dw = result_new(NGROUP * in * out),
                db = result_new(NGROUP * out);
  for (int i = 0; i < NDEVICE; i++) {
    const struct mt_kernels *k = device[i]->kernels;
    k->linear(device[i], &l, y.x[i], x, w, b, _i);
    k->linear_dx(device[i], &l, dx.x[i], dy, w, _i);
    k->linear_dw(device[i], &l, dw.x[i], db.x[i], dy, x);
  }
  result_check(&y, "linear", 1e-6);
  result_check(&dx, "linear_dx", 1e-6);
  result_check(&dw, "linear_dw", 1e-6);
  result_check(&db, "linear_dw's db", 1e-6);
  mt_free(x), mt_free(w), mt_free(b), mt_free(dy);
}
END_TEST

/* Several blocks of keys, so that the running maximum changes; masks that hide whole blocks, first ones
 * included. */
static const struct {
  int causal;
  int64_t window;
  int segments; /* 0: none, 1: in order, 2: every other position */
} MASKS[] = {{0, 0, 0}, {1, 0, 0}, {1, 100, 0}, {0, 30, 0}, {1, 0, 1}, {0, 0, 1}, {0, 0, 2}, {1, 70, 2}};

START_TEST(test_attention_blocks)
{
  enum { T = 1100, H = 2, KV = 1, D = 4, WIDTH = (H + 2 * KV) * D };
  struct mt_attention a = {1, T, H, KV, D, MASKS[_i].causal, MASKS[_i].window, NULL, 2.0f};
  int32_t *segment = MT_NEW(MT_TAG_MISC, int32_t, T);
  for (int t = 0; t < T; t++)
    segment[t] = MASKS[_i].segments == 1 ? (t < 900 ? t / 90 : -1) : t % 2;
  if (MASKS[_i].segments)
    a.segment = segment;
  float *qkv = numbers(T * WIDTH), *dout = numbers(T * H * D);
  for (int64_t i = 0; i < T * WIDTH; i++)
    qkv[i] *= 1 + (float)i / (T * WIDTH); /* later keys have larger scores */
  struct result out = result_new(T * H * D), lse = result_new(H * T), dqkv = result_new(T * WIDTH);
  for (int i = 0; i < NDEVICE; i++) {
    const struct mt_kernels *k = device[i]->kernels;
    mt_device_reserve(device[i], k->attention_work(device[i], &a));
    k->attention(device[i], &a, out.x[i], lse.x[i], qkv);
    k->attention_back(device[i], &a, dqkv.x[i], dout, qkv, out.x[i], lse.x[i]);
  }
  result_check(&out, "attention", 2e-6);
  result_check(&lse, "attention's lse", 2e-6);
  result_check(&dqkv, "attention_back", 2e-6);
  mt_free(qkv), mt_free(dout), mt_free(segment);
}
END_TEST

/* Copies and clears that several threads share: whole, no more, and where the two overlap as one would have it. */
START_TEST(test_long_copies)
{
  enum { N = 3 << 18, EDGE = 5, SHIFT = 1000 };
  static const int64_t bytes[] = {1 << 18, 2 << 18, (2 << 18) + 1, N - EDGE};
  unsigned char *from = MT_NEW(MT_TAG_MISC, unsigned char, N), *to = MT_NEW(MT_TAG_MISC, unsigned char, N + 2 * EDGE);
  for (int64_t i = 0; i < N; i++)
    from[i] = (unsigned char)(1 + i * 2654435761u % 251);
  for (int i = 0; i < NDEVICE; i++)
    for (int k = 0; k < 4; k++) {
      const struct mt_device_ops *ops = device[i]->ops;
      int64_t n = bytes[k], wrong = 0;
      memset(to, 0xee, N + 2 * EDGE);
      ops->copy(device[i], MT_DEV_MATH, to + EDGE, from, n);
      wrong += memcmp(to + EDGE, from, (size_t)n) != 0;
      ops->copy(device[i], MT_DEV_MATH, to + EDGE + SHIFT, to + EDGE, n - SHIFT);
      wrong += memcmp(to + EDGE + SHIFT, from, (size_t)(n - SHIFT)) || memcmp(to + EDGE, from, SHIFT);
      ops->zero(device[i], MT_DEV_MATH, to + EDGE, n);
      for (int64_t j = 0; j < n + 2 * EDGE; j++)
        wrong += to[j] != (j < EDGE || j >= EDGE + n ? 0xee : 0);
      ck_assert_msg(!wrong, "%s with %d threads, %lld bytes: %lld wrong", device[i]->name, device[i]->threads,
                    (long long)n, (long long)wrong);
    }
  mt_free(from), mt_free(to);
}
END_TEST

/* A call allocates nothing that is counted, and oneDNN's one thread is not left behind. */
START_TEST(test_leaves_alone)
{
  enum { N = 300, C = 64 };
  const int64_t first[] = {0, N};
  struct mt_linear l = {1, first, C, C, 0, 0};
  float *x = numbers(N * C), *w = numbers(C * C), *y = numbers(N * C);
  int threads = omp_get_max_threads();
  int64_t allocations = mt_memory_allocations();
  for (int i = 1; i < NDEVICE; i++) {
    device[i]->kernels->linear(device[i], &l, y, x, w, NULL, 0);
    ck_assert_int_eq(omp_get_max_threads(), threads);
  }
  ck_assert_int_eq(mt_memory_allocations(), allocations);
  mt_free(x), mt_free(w), mt_free(y);
}
END_TEST

START_TEST(test_exponential)
{
  double worst = 0;
  for (int64_t i = -868000; i <= 887000; i++) {
    float x = (float)i * 1e-4f;
    double exact = exp((double)x), ulp = ldexp(1.0, ilogb(exact) - 23);
    worst = fmax(worst, fabs(mt_exp(x) - exact) / ulp);
  }
  ck_assert_msg(worst < 2, "%g ulp", worst);
  ck_assert(mt_exp(0.0f) == 1.0f && mt_exp(-1000.0f) == 0.0f && mt_exp(-INFINITY) == 0.0f &&
            mt_exp(-1e30f) == 0.0f);
  ck_assert(mt_exp(89.0f) == INFINITY && mt_exp(INFINITY) == INFINITY && isnan(mt_exp(NAN)));
  ck_assert(mt_sigmoid(-1e30f) == 0.0f && mt_sigmoid(1e30f) == 1.0f && mt_sigmoid(0.0f) == 0.5f &&
            isnan(mt_sigmoid(NAN)));
}
END_TEST

/* Every length and position, so that whole vectors and rests are met. */
START_TEST(test_largest_and_sum)
{
  enum { N = 100 };
  float a[N];
  for (int n = 1; n < N; n++)
    for (int at = 0; at < n; at++) {
      for (int i = 0; i < n; i++)
        a[i] = (float)(-100 - i % 7);
      a[at] = -3.0f;
      double sum = 0;
      for (int i = 0; i < n; i++)
        sum += a[i];
      ck_assert(mt_largest(a, n) == -3.0f);
      ck_assert(mt_sum(a, n) == (float)sum); /* small integers: exact */
    }
  ck_assert(mt_largest(a, 0) == -INFINITY && mt_sum(a, 0) == 0.0f);
}
END_TEST

/* The environment chooses among the builds, and a name that is not there is refused. */
START_TEST(test_choice)
{
  struct mt_device *d;
  int runs, last = -1;
  for (int i = 0; mt_device_cpu_build(i, &runs); i++)
    last = runs ? i : last;
  ck_assert_int_ge(last, 0);
  unsetenv("MOTLEY_TEST_CPU");
  ck_assert_int_eq(mt_device_open("cpu", 1, &d), MT_OK);
  ck_assert_str_eq(d->name, mt_device_cpu_build(last, &runs));
  d->ops->close(d);
  setenv("MOTLEY_TEST_CPU", "plain", 1);
  ck_assert_int_eq(mt_device_open("cpu", 1, &d), MT_OK);
  ck_assert_str_eq(d->name, "cpu-plain");
  d->ops->close(d);
  setenv("MOTLEY_TEST_CPU", "v9", 1);
  ck_assert_int_eq(mt_device_open("cpu", 1, &d), MT_USAGE);
  unsetenv("MOTLEY_TEST_CPU");
  ck_assert_int_eq(mt_device_open("cpu-", 1, &d), MT_USAGE);
}
END_TEST

static void open_build_0(void)
{
  int runs;
  build = mt_device_cpu_build(0, &runs);
  open_devices();
}

/* The other builds of this processor; the last is what "cpu" opens. */
static void open_build_1(void)
{
  int runs;
  build = mt_device_cpu_build(1, &runs);
  build = build && runs ? build : NULL;
  open_devices();
}

static void open_best(void)
{
  build = NULL;
  open_devices();
}

int main(void)
{
  Suite *suite = suite_create("cpu");
  void (*const open[])(void) = {open_build_0, open_build_1, open_best};
  for (int i = 0; i < 3; i++) {
    TCase *kernels = tcase_create("kernels");
    tcase_set_timeout(kernels, 120);
    tcase_add_checked_fixture(kernels, open[i], close_devices);
    tcase_add_loop_test(kernels, test_linear_blocks, 0, 2);
    tcase_add_loop_test(kernels, test_attention_blocks, 0, sizeof MASKS / sizeof *MASKS);
    tcase_add_test(kernels, test_long_copies);
    tcase_add_test(kernels, test_leaves_alone);
    suite_add_tcase(suite, kernels);
  }
  TCase *pieces = tcase_create("simd");
  tcase_add_test(pieces, test_exponential);
  tcase_add_test(pieces, test_largest_and_sum);
  tcase_add_test(pieces, test_choice);
  suite_add_tcase(suite, pieces);
  return mt_test_run(suite);
}
