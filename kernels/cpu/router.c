/* The router: logits, softmax with top-k, their gradients, and the sums of the balance loss.
 *
 * The trap: the choice must be that of every other device, so logits are compared as they are, not the
 * rounded probabilities, and NaNs must still give K different experts. */
#include "build.h"
#include "gemm.h"
#include "simd.h"

static void gate_logits(struct mt_device *device, float *logits, const void *x_, const float *w, int64_t n,
                        int64_t c, int64_t E)
{
  const float *x = x_;
  int64_t pieces = mt_pieces(n, 128);
#pragma omp parallel num_threads(mt_team(device, n *c *E / 16))
  {
    mt_gemm_region();
#pragma omp for schedule(static)
    for (int64_t k = 0; k < pieces; k++) {
      int64_t r0 = mt_piece(n, pieces, k), r1 = mt_piece(n, pieces, k + 1);
      mt_gemm('N', 'T', r1 - r0, E, c, 1.0f, x + r0 * c, c, w, c, 0.0f, logits + r0 * E, E);
    }
  }
}

static void gate_logits_back(struct mt_device *device, void *dx_, float *dw, const float *dlogits,
                             const void *x_, const float *w, int64_t n, int64_t c, int64_t E)
{
  float *dx = dx_;
  const float *x = x_;
  int64_t pieces = mt_pieces(n, 128), columns = mt_pieces(c, 128);
#pragma omp parallel num_threads(mt_team(device, n *c *E / 16))
  {
    mt_gemm_region();
#pragma omp for schedule(static) nowait
    for (int64_t k = 0; k < pieces; k++) {
      int64_t r0 = mt_piece(n, pieces, k), r1 = mt_piece(n, pieces, k + 1);
      mt_gemm('N', 'N', r1 - r0, c, E, 1.0f, dlogits + r0 * E, E, w, c, 1.0f, dx + r0 * c, c);
    }
#pragma omp for schedule(static)
    for (int64_t k = 0; k < columns; k++) {
      int64_t c0 = mt_piece(c, columns, k), c1 = mt_piece(c, columns, k + 1);
      mt_gemm('T', 'N', E, c1 - c0, n, 1.0f, dlogits, E, x + c0, c, 1.0f, dw + c0, c);
    }
  }
}

static int contains(const int32_t *list, int64_t n, int64_t value)
{
  for (int64_t i = 0; i < n; i++)
    if (list[i] == value)
      return 1;
  return 0;
}

/* One row: the K experts with the largest logits. */
static void choose(int32_t *chosen, const float *logits, int64_t E, int64_t K)
{
  for (int64_t k = 0; k < K; k++) {
    int64_t best = -1;
    for (int64_t e = 0; e < E; e++)
      if ((best < 0 || logits[e] > logits[best]) && !contains(chosen, k, e))
        best = e;
    chosen[k] = (int32_t)best;
  }
}

static void gate_topk(struct mt_device *device, float *p, float *lse, int32_t *expert, float *weight,
                      const float *logits, int64_t n, int64_t E, int64_t K, int balanced)
{
#pragma omp parallel for num_threads(mt_team(device, n *E *(2 + K))) schedule(static)
  for (int64_t t = 0; t < n; t++) {
    const float *l = logits + t * E;
    int32_t *chosen = expert + t * K;
    float *pt = p + t * E, *wt = weight + t * K, top = mt_largest(l, E);
#pragma omp simd
    for (int64_t e = 0; e < E; e++)
      pt[e] = mt_exp_low(l[e] - top);
    float sum = mt_sum(pt, E);
    lse[t] = top + logf(sum);
#pragma omp simd
    for (int64_t e = 0; e < E; e++)
      pt[e] /= sum;
    if (balanced) {
      for (int64_t k = 0; k < K; k++)
        chosen[k] = (int32_t)(((t + balanced - 1) * K + k) % E);
    } else {
      choose(chosen, l, E, K);
    }
    /* The softmax of the chosen: their p may all be 0 in f32 where balanced. */
    float chosen_top = -INFINITY, chosen_sum = 0.0f;
    for (int64_t k = 0; k < K; k++)
      chosen_top = l[chosen[k]] > chosen_top ? l[chosen[k]] : chosen_top;
    for (int64_t k = 0; k < K; k++) {
      wt[k] = mt_exp_low(l[chosen[k]] - chosen_top);
      chosen_sum += wt[k];
    }
    for (int64_t k = 0; k < K; k++)
      wt[k] /= chosen_sum;
  }
}

static void gate_topk_back(struct mt_device *device, float *dlogits, const float *dweight, const float *p,
                           const float *lse, const int32_t *expert, const float *weight, const float *aux,
                           float z, int64_t n, int64_t T, int64_t E, int64_t K)
{
#pragma omp parallel for num_threads(mt_team(device, n *E * 2)) schedule(static)
  for (int64_t t = 0; t < n; t++) {
    const float *a = aux + t / T * E, *pt = p + t * E, *wt = weight + t * K, *dwt = dweight + t * K;
    float *d = dlogits + t * E, mean_w = 0.0f;
    float rest = 2.0f * z * lse[t] - mt_dot(pt, a, E);
    for (int64_t k = 0; k < K; k++)
      mean_w += wt[k] * dwt[k];
#pragma omp simd
    for (int64_t e = 0; e < E; e++)
      d[e] = pt[e] * (a[e] + rest);
    for (int64_t k = 0; k < K; k++)
      d[expert[t * K + k]] += wt[k] * (dwt[k] - mean_w);
  }
}

/* Columns of experts are dealt out; each is summed over the rows of its sequence in order. */
static void gate_sums(struct mt_device *device, double *psum, double *zsum, const float *p, const float *lse,
                      int64_t B, int64_t T, int64_t E)
{
  int64_t pieces = mt_pieces(E, 64);
#pragma omp parallel for num_threads(mt_team(device, B *T *E)) schedule(static)
  for (int64_t k = 0; k < B * pieces; k++) {
    int64_t b = k / pieces, e0 = mt_piece(E, pieces, k % pieces), e1 = mt_piece(E, pieces, k % pieces + 1);
    double sum[64] = {0}, z = 0.0;
    for (int64_t t = b * T; t < (b + 1) * T; t++) {
#pragma omp simd
      for (int64_t e = e0; e < e1; e++)
        sum[e - e0] += p[t * E + e];
      z += (double)lse[t] * lse[t];
    }
    memcpy(psum + b * E + e0, sum, (size_t)(e1 - e0) * sizeof *sum);
    if (e0 == 0)
      zsum[b] = z;
  }
}

void MT_CPU_NAME(mt_cpu_router)(struct mt_kernels *kernels)
{
  kernels->gate_logits = gate_logits;
  kernels->gate_logits_back = gate_logits_back;
  kernels->gate_topk = gate_topk;
  kernels->gate_topk_back = gate_topk_back;
  kernels->gate_sums = gate_sums;
}
