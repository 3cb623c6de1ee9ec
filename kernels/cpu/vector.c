/* Loss, sums and the optimizer: one pass over long vectors.
 *
 * The trap: the sum of squares decides clipping, so its bits must not depend on the threads: it is formed by
 * pieces whose number depends on the length alone, and the pieces are added in order. */
#include "build.h"
#include "simd.h"

static void cross_entropy(struct mt_device *device, float *loss, void *logits_, const int32_t *target,
                          const float *scale, int64_t n, int64_t V, int back)
{
  float *logits = logits_;
#pragma omp parallel for num_threads(mt_team(device, 4 * n * V)) schedule(static)
  for (int64_t r = 0; r < n; r++) {
    enum { PIECE = 1024 };
    float *l = logits + r * V, piece[PIECE], sum = 0.0f;
    if (scale[r] == 0.0f) {
      loss[r] = 0.0f;
      if (back)
        memset(l, 0, (size_t)V * sizeof *l);
      continue;
    }
    float top = mt_largest(l, V), chosen = l[target[r]] - top;
    for (int64_t v0 = 0; v0 < V; v0 += PIECE) {
      int64_t width = mt_min(PIECE, V - v0);
      float *e = back ? l + v0 : piece;
#pragma omp simd
      for (int64_t v = 0; v < width; v++)
        e[v] = mt_exp_low(l[v0 + v] - top);
      sum += mt_sum(e, width);
    }
    loss[r] = logf(sum) - chosen;
    if (back) {
      float factor = scale[r] / sum;
#pragma omp simd
      for (int64_t v = 0; v < V; v++)
        l[v] *= factor;
      l[target[r]] -= scale[r];
    }
  }
}

/* y[i0, i1) of each of the pieces of n */
static void add(struct mt_device *device, float *y, const float *x, int64_t n)
{
  int64_t pieces = mt_pieces(n, 4096);
#pragma omp parallel for num_threads(mt_team(device, n)) schedule(static)
  for (int64_t k = 0; k < pieces; k++)
#pragma omp simd
    for (int64_t i = mt_piece(n, pieces, k); i < mt_piece(n, pieces, k + 1); i++)
      y[i] += x[i];
}

static void add_act(struct mt_device *device, void *y, const void *x, int64_t n)
{
  add(device, y, x, n);
}

/* In double: vectors of sums, joined by a fixed tree. */
static double squares(const float *x, int64_t n)
{
  mt_vd sum = {0}, more = {0};
  int64_t i = 0;
  for (; i + 2 * MT_W <= n; i += 2 * MT_W) {
    mt_vd a = __builtin_convertvector(MT_LOAD(x + i), mt_vd);
    mt_vd b = __builtin_convertvector(MT_LOAD(x + i + MT_W), mt_vd);
    sum += a * a;
    more += b * b;
  }
  sum += more;
  double lane[MT_W];
  memcpy(lane, &sum, sizeof sum);
  for (int half = MT_W / 2; half > 0; half /= 2)
    for (int k = 0; k < half; k++)
      lane[k] += lane[k + half];
  for (; i < n; i++)
    lane[0] += (double)x[i] * x[i];
  return lane[0];
}

static void sum_squares(struct mt_device *device, double *sum, const float *x, int64_t n)
{
  enum { PIECES = 256 };
  double part[PIECES];
  int64_t pieces = mt_min(PIECES, mt_pieces(n, 4096));
#pragma omp parallel for num_threads(mt_team(device, n)) schedule(static)
  for (int64_t k = 0; k < pieces; k++) {
    int64_t i = mt_piece(n, pieces, k);
    part[k] = squares(x + i, mt_piece(n, pieces, k + 1) - i);
  }
  *sum = 0.0;
  for (int64_t k = 0; k < pieces; k++)
    *sum += part[k];
}

static void adamw(struct mt_device *device, float *w, float *m, float *v, const float *grad, int64_t n,
                  const struct mt_adamw *a)
{
  const float beta1 = a->beta1, beta2 = a->beta2, rest1 = 1.0f - a->beta1, rest2 = 1.0f - a->beta2;
  const float scale = a->grad_scale, eps = a->eps, decay = a->lr * a->weight_decay;
  const float rate = a->lr / a->correction1, root = 1.0f / sqrtf(a->correction2);
  int64_t pieces = mt_pieces(n, 4096);
#pragma omp parallel for num_threads(mt_team(device, n)) schedule(static)
  for (int64_t k = 0; k < pieces; k++)
#pragma omp simd
    for (int64_t i = mt_piece(n, pieces, k); i < mt_piece(n, pieces, k + 1); i++) {
      float g = grad[i] * scale;
      m[i] = beta1 * m[i] + rest1 * g;
      v[i] = beta2 * v[i] + rest2 * g * g;
      w[i] -= rate * m[i] / (sqrtf(v[i]) * root + eps) + decay * w[i];
    }
}

void MT_CPU_NAME(mt_cpu_vector)(struct mt_kernels *kernels)
{
  kernels->cross_entropy = cross_entropy;
  kernels->add = add;
  kernels->add_act = add_act;
  kernels->sum_squares = sum_squares;
  kernels->adamw = adamw;
}
