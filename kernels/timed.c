/* Kernels with a clock; see timed.h. Each line of KERNELS is a member of struct mt_kernels. */
#include "timed.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define D struct mt_device *device
#define KERNELS(K)                                                                                                     \
  K(linear, (D, const struct mt_linear *l, void *y, const void *x, const void *w, const void *b, int add),             \
    (device, l, y, x, w, b, add))                                                                                      \
  K(linear_dx, (D, const struct mt_linear *l, void *dx, const void *dy, const void *w, int add),                       \
    (device, l, dx, dy, w, add))                                                                                       \
  K(linear_dw, (D, const struct mt_linear *l, float *dw, float *db, const void *dy, const void *x),                    \
    (device, l, dw, db, dy, x))                                                                                        \
  K(norm, (D, enum mt_norm_kind kind, void *y, float *mean, float *rstd, const void *x, const float *w,                \
           const float *b, int64_t n, int64_t c, float eps), (device, kind, y, mean, rstd, x, w, b, n, c, eps))        \
  K(norm_back, (D, enum mt_norm_kind kind, void *dx, int add, float *dw, float *db, const void *dy, const void *x,     \
                const float *mean, const float *rstd, const float *w, int64_t n, int64_t c),                           \
    (device, kind, dx, add, dw, db, dy, x, mean, rstd, w, n, c))                                                       \
  K(embed, (D, void *x, const int32_t *token, const int32_t *position, const void *wte, const void *wpe, int64_t n,    \
            int64_t c), (device, x, token, position, wte, wpe, n, c))                                                  \
  K(embed_back, (D, float *dwte, float *dwpe, const void *dx, const int32_t *token, const int32_t *position,           \
                 int64_t n, int64_t c), (device, dwte, dwpe, dx, token, position, n, c))                               \
  K(rope, (D, void *x, int64_t n, int64_t stride, int64_t heads, int64_t d, const int32_t *position,                   \
           const float *table, int inverse), (device, x, n, stride, heads, d, position, table, inverse))               \
  K(attention, (D, const struct mt_attention *a, void *out, float *lse, const void *qkv), (device, a, out, lse, qkv))  \
  K(attention_back, (D, const struct mt_attention *a, void *dqkv, const void *dout, const void *qkv,                   \
                     const void *out, const float *lse), (device, a, dqkv, dout, qkv, out, lse))                       \
  K(swiglu, (D, void *h, const void *gu, int64_t n, int64_t f), (device, h, gu, n, f))                                 \
  K(swiglu_back, (D, void *dgu, const void *dh, const void *gu, int64_t n, int64_t f), (device, dgu, dh, gu, n, f))    \
  K(gelu, (D, void *y, const void *x, int64_t n), (device, y, x, n))                                                   \
  K(gelu_back, (D, void *dx, const void *dy, const void *x, int64_t n), (device, dx, dy, x, n))                        \
  K(gate_logits, (D, float *logits, const void *x, const float *w, int64_t n, int64_t c, int64_t e),                   \
    (device, logits, x, w, n, c, e))                                                                                   \
  K(gate_logits_back, (D, void *dx, float *dw, const float *dlogits, const void *x, const float *w, int64_t n,         \
                       int64_t c, int64_t e), (device, dx, dw, dlogits, x, w, n, c, e))                                \
  K(gate_topk, (D, float *p, float *lse, int32_t *expert, float *weight, const float *logits, int64_t n, int64_t e,    \
                int64_t k, int balanced), (device, p, lse, expert, weight, logits, n, e, k, balanced))                 \
  K(gate_topk_back, (D, float *dlogits, const float *dweight, const float *p, const float *lse,                        \
                     const int32_t *expert, const float *weight, const float *aux, float z, int64_t n, int64_t t,      \
                     int64_t e, int64_t k), (device, dlogits, dweight, p, lse, expert, weight, aux, z, n, t, e, k))    \
  K(gate_sums, (D, double *psum, double *zsum, const float *p, const float *lse, int64_t b, int64_t t, int64_t e),     \
    (device, psum, zsum, p, lse, b, t, e))                                                                             \
  K(gather, (D, void *to, enum mt_dtype to_type, const void *from, enum mt_dtype from_type, const int32_t *index,      \
             int64_t rows, int64_t width), (device, to, to_type, from, from_type, index, rows, width))                 \
  K(combine, (D, void *y, int add, const void *row, enum mt_dtype row_type, const int32_t *first,                      \
              const int32_t *place, const float *weight, int64_t n, int64_t width),                                    \
    (device, y, add, row, row_type, first, place, weight, n, width))                                                   \
  K(combine_back, (D, void *drow, float *dweight, const void *dy, const void *row, enum mt_dtype row_type,             \
                   const int32_t *first, const int32_t *place, const float *weight, int64_t n, int64_t width),         \
    (device, drow, dweight, dy, row, row_type, first, place, weight, n, width))                                        \
  K(cross_entropy, (D, float *loss, void *logits, const int32_t *target, const float *scale, int64_t n, int64_t v,     \
                    int back), (device, loss, logits, target, scale, n, v, back))                                      \
  K(add, (D, float *y, const float *x, int64_t n), (device, y, x, n))                                                  \
  K(add_act, (D, void *y, const void *x, int64_t n), (device, y, x, n))                                                \
  K(convert, (D, void *to, enum mt_dtype to_type, const void *from, enum mt_dtype from_type, int64_t n),               \
    (device, to, to_type, from, from_type, n))                                                                         \
  K(sum_squares, (D, double *sum, const float *x, int64_t n), (device, sum, x, n))                                     \
  K(adamw, (D, float *w, float *m, float *v, const float *grad, int64_t n, const struct mt_adamw *a),                  \
    (device, w, m, v, grad, n, a))

#define NUMBER(name, parameters, arguments) AT_##name,
enum { KERNELS(NUMBER) NKERNEL };
_Static_assert((int)NKERNEL <= (int)MT_MOST_TIMED, "room for all");
/* attention_work is no kernel: it computes nothing. */
_Static_assert((NKERNEL + 1) * sizeof(void (*)(void)) == sizeof(struct mt_kernels), "all are timed");

static const struct mt_kernels *inner; /* what is timed */
static struct mt_timed counts;         /* by number */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double now(struct mt_device *device)
{
  struct timespec t;
  device->ops->sync(device, MT_DEV_MATH);
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void count(int kernel, double seconds)
{
  pthread_mutex_lock(&lock);
  counts.kernel[kernel].calls++;
  counts.kernel[kernel].seconds += seconds;
  pthread_mutex_unlock(&lock);
}

#define WRAP(name, parameters, arguments)                                                                              \
  static void timed_##name parameters                                                                                  \
  {                                                                                                                    \
    double begin = now(device);                                                                                        \
    inner->name arguments;                                                                                             \
    count(AT_##name, now(device) - begin);                                                                             \
  }
KERNELS(WRAP)

static struct mt_kernels table;

void mt_timed_begin(struct mt_device *device)
{
#define ENTRY(name, parameters, arguments)                                                                             \
  table.name = timed_##name;                                                                                           \
  counts.kernel[AT_##name] = (struct mt_timed_kernel){#name, 0, 0};
  KERNELS(ENTRY)
  inner = device->kernels;
  table.attention_work = inner->attention_work;
  device->kernels = &table;
}

static int longer(const void *a, const void *b)
{
  double x = ((const struct mt_timed_kernel *)a)->seconds, y = ((const struct mt_timed_kernel *)b)->seconds;
  return (x < y) - (x > y);
}

struct mt_timed mt_timed_end(struct mt_device *device)
{
  struct mt_timed result = {0};
  device->kernels = inner;
  for (int i = 0; i < NKERNEL; i++)
    if (counts.kernel[i].calls)
      result.kernel[result.n++] = counts.kernel[i];
  qsort(result.kernel, (size_t)result.n, sizeof *result.kernel, longer);
  return result;
}
