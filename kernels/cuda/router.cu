/* The router: logits, softmax with top-k, their gradients, and the sums of the balance loss.
 *
 * Experts are few and rows many. Logits: a warp takes TOKENS rows and EXPERTS experts at a time, its lanes the columns.
 * Choosing: a warp for a row; the next choice is the largest logit behind the one before in the order (larger, then
 * lower expert), so nothing needs to be remembered, and NaNs, taken as -infinity, still give different experts. */
#include "cuda.cuh"

enum { TOKENS = 4, EXPERTS = 8, WARPS = MT_BLOCK / MT_WARP };

/* ---- logits ---- */

template <typename T>
__global__ static void logits_kernel(float *logits, const T *x, const float *w, int64_t n, int64_t c, int64_t E)
{
  int64_t t0 = ((int64_t)blockIdx.x * WARPS + threadIdx.x / MT_WARP) * TOKENS;
  int lane = threadIdx.x % MT_WARP;
  if (t0 >= n) /* the whole warp; no barrier follows */
    return;
  for (int64_t e0 = 0; e0 < E; e0 += EXPERTS) {
    float sum[TOKENS][EXPERTS] = {};
    for (int64_t i = lane; i < c; i += MT_WARP) {
      float value[TOKENS];
      MT_UNROLL
      for (int k = 0; k < TOKENS; k++)
        value[k] = t0 + k < n ? mt_get(x, (t0 + k) * c + i) : 0.0f;
      MT_UNROLL
      for (int e = 0; e < EXPERTS; e++) {
        float weight = e0 + e < E ? w[(e0 + e) * c + i] : 0.0f;
        MT_UNROLL
        for (int k = 0; k < TOKENS; k++)
          sum[k][e] += value[k] * weight;
      }
    }
    MT_UNROLL
    for (int k = 0; k < TOKENS; k++)
      MT_UNROLL
      for (int e = 0; e < EXPERTS; e++) {
        float total = mt_warp_fold(sum[k][e], mt_plus{});
        if (lane == 0 && t0 + k < n && e0 + e < E)
          logits[(t0 + k) * E + e0 + e] = total;
      }
  }
}

/* dx += dlogits w: a block for a row. */
template <typename T>
__global__ static void logits_dx_kernel(T *dx, const float *dlogits, const float *w, int64_t c, int64_t E)
{
  int64_t t = blockIdx.x;
  dlogits += t * E;
  for (int64_t i = threadIdx.x; i < c; i += blockDim.x) {
    float sum = 0;
    for (int64_t e = 0; e < E; e++)
      sum += dlogits[e] * w[e * c + i];
    mt_put_add(dx, t * c + i, sum, 1);
  }
}

/* dw += dlogits^T x: a block for 32 columns and EXPERTS experts, eight lines of threads for the rows. */
template <typename T>
__global__ static void logits_dw_kernel(float *dw, const float *dlogits, const T *x, int64_t n, int64_t c, int64_t E)
{
  MT_SHARED(float, part, MT_LINES *EXPERTS *MT_COLUMNS);
  int column = threadIdx.x % MT_COLUMNS, line = threadIdx.x / MT_COLUMNS;
  int64_t i = (int64_t)blockIdx.x * MT_COLUMNS + column, e0 = (int64_t)blockIdx.y * EXPERTS;
  float sum[EXPERTS] = {};
  for (int64_t t = line; t < n && i < c; t += MT_LINES) {
    float value = mt_get(x, t * c + i);
    MT_UNROLL
    for (int e = 0; e < EXPERTS; e++)
      sum[e] += e0 + e < E ? dlogits[t * E + e0 + e] * value : 0.0f;
  }
  MT_UNROLL
  for (int e = 0; e < EXPERTS; e++)
    part[(line * EXPERTS + e) * MT_COLUMNS + column] = sum[e];
  __syncthreads();
  /* As many lines as experts: line e adds expert e's. */
  float total = part[line * MT_COLUMNS + column];
  for (int k = 1; k < MT_LINES; k++)
    total += part[(k * EXPERTS + line) * MT_COLUMNS + column];
  if (i < c && e0 + line < E)
    dw[(e0 + line) * c + i] += total;
}

template <typename T>
static void logits_of(struct mt_device *device, float *logits, const void *x, const float *w, int64_t n, int64_t c,
                      int64_t E)
{
  if (n > 0 && E > 0)
    MT_LAUNCH(logits_kernel<T>, (unsigned)mt_divide_up(n, TOKENS * WARPS), MT_BLOCK, 0, mt_math(device), logits,
              (const T *)x, w, n, c, E);
}

static void gate_logits(struct mt_device *device, float *logits, const void *x, const float *w, int64_t n, int64_t c,
                        int64_t E)
{
  MT_BY_TYPE(device->ctype, logits_of, device, logits, x, w, n, c, E);
}

template <typename T>
static void logits_back_of(struct mt_device *device, void *dx, float *dw, const float *dlogits, const void *x,
                           const float *w, int64_t n, int64_t c, int64_t E)
{
  static_assert((int)MT_LINES == (int)EXPERTS, "a line for an expert");
  if (n == 0 || c == 0 || E == 0)
    return;
  MT_LAUNCH(logits_dx_kernel<T>, (unsigned)n, mt_row_threads(c), 0, mt_math(device), (T *)dx, dlogits, w, c, E);
  MT_LAUNCH(logits_dw_kernel<T>, dim3((unsigned)mt_divide_up(c, MT_COLUMNS), (unsigned)mt_divide_up(E, EXPERTS)),
            MT_COLUMNS * MT_LINES, 0, mt_math(device), dw, dlogits, (const T *)x, n, c, E);
}

static void gate_logits_back(struct mt_device *device, void *dx, float *dw, const float *dlogits, const void *x,
                             const float *w, int64_t n, int64_t c, int64_t E)
{
  MT_BY_TYPE(device->ctype, logits_back_of, device, dx, dw, dlogits, x, w, n, c, E);
}

/* ---- softmax and choice ---- */

__device__ __forceinline__ static float key_of(float logit)
{
  return logit == logit ? logit : -INFINITY;
}

/* The largest of the row's logits that comes behind (before, at) in the order: its value and expert, in every lane. */
__device__ __forceinline__ static void next_choice(const float *l, int64_t E, float *before, int *at)
{
  int lane = threadIdx.x % MT_WARP;
  float best = -INFINITY;
  int which = INT32_MAX;
  for (int64_t e = lane; e < E; e += MT_WARP) {
    float key = key_of(l[e]);
    int behind = *at < 0 || key < *before || (key == *before && (int)e > *at);
    if (behind && (which == INT32_MAX || key > best)) {
      best = key;
      which = (int)e;
    }
  }
  for (int bits = 16; bits > 0; bits /= 2) {
    float other = __shfl_xor_sync(MT_ALL_LANES, best, bits);
    int where = __shfl_xor_sync(MT_ALL_LANES, which, bits);
    if (where != INT32_MAX && (which == INT32_MAX || other > best || (other == best && where < which))) {
      best = other;
      which = where;
    }
  }
  *before = best;
  *at = which;
}

__global__ static void topk_kernel(float *p, float *lse, int32_t *expert, float *weight, const float *logits, int64_t n,
                                   int64_t E, int64_t K, int balanced)
{
  int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / MT_WARP;
  int lane = threadIdx.x % MT_WARP;
  if (t >= n)
    return;
  const float *l = logits + t * E;
  float top = -INFINITY, sum = 0;
  for (int64_t e = lane; e < E; e += MT_WARP)
    top = fmaxf(top, l[e]);
  top = mt_warp_fold(top, mt_larger{});
  for (int64_t e = lane; e < E; e += MT_WARP)
    sum += expf(l[e] - top);
  sum = mt_warp_fold(sum, mt_plus{});
  if (lane == 0)
    lse[t] = top + logf(sum);
  for (int64_t e = lane; e < E; e += MT_WARP)
    p[t * E + e] = expf(l[e] - top) / sum;

  /* The chosen and their softmax: every lane computes it all, lane 0 writes. */
  float chosen_top = -INFINITY, chosen_sum = 0, before = INFINITY;
  int at = -1;
  for (int64_t k = 0; k < K; k++) {
    if (balanced)
      at = (int)(((t + balanced - 1) * K + k) % E);
    else
      next_choice(l, E, &before, &at);
    if (lane == 0)
      expert[t * K + k] = at;
    chosen_top = fmaxf(chosen_top, l[at]);
  }
  __syncwarp();
  for (int64_t k = 0; k < K; k++)
    chosen_sum += expf(l[expert[t * K + k]] - chosen_top);
  for (int64_t k = lane; k < K; k += MT_WARP)
    weight[t * K + k] = expf(l[expert[t * K + k]] - chosen_top) / chosen_sum;
}

__global__ static void topk_back_kernel(float *dlogits, const float *dweight, const float *p, const float *lse,
                                        const int32_t *expert, const float *weight, const float *aux, float z,
                                        int64_t n, int64_t T, int64_t E, int64_t K)
{
  int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / MT_WARP;
  int lane = threadIdx.x % MT_WARP;
  if (t >= n)
    return;
  const float *a = aux + t / T * E;
  p += t * E;
  expert += t * K;
  weight += t * K;
  dweight += t * K;
  float mean_w = 0, mean_a = 0;
  for (int64_t k = 0; k < K; k++)
    mean_w += weight[k] * dweight[k];
  for (int64_t e = lane; e < E; e += MT_WARP)
    mean_a += p[e] * a[e];
  float rest = 2.0f * z * lse[t] - mt_warp_fold(mean_a, mt_plus{});
  for (int64_t e = lane; e < E; e += MT_WARP) {
    float d = p[e] * (a[e] + rest);
    for (int64_t k = 0; k < K; k++)
      if (expert[k] == e)
        d += weight[k] * (dweight[k] - mean_w);
    dlogits[t * E + e] = d;
  }
}

/* ---- sums over a sequence ---- */

__global__ static void sums_kernel(double *psum, const float *p, int64_t T, int64_t E)
{
  int line = threadIdx.x / MT_COLUMNS;
  int64_t b = blockIdx.x, e = (int64_t)blockIdx.y * MT_COLUMNS + threadIdx.x % MT_COLUMNS;
  double sum[1] = {};
  for (int64_t t = line; t < T && e < E; t += MT_LINES)
    sum[0] += p[(b * T + t) * E + e];
  mt_add_lines(sum);
  if (line == 0 && e < E)
    psum[b * E + e] = sum[0];
}

__global__ static void squares_kernel(double *zsum, const float *lse, int64_t T)
{
  int64_t b = blockIdx.x;
  double sum = 0;
  for (int64_t t = threadIdx.x; t < T; t += blockDim.x)
    sum += (double)lse[b * T + t] * lse[b * T + t];
  sum = mt_block_fold(sum, mt_plus{});
  if (threadIdx.x == 0)
    zsum[b] = sum;
}

static void gate_topk(struct mt_device *device, float *p, float *lse, int32_t *expert, float *weight,
                      const float *logits, int64_t n, int64_t E, int64_t K, int balanced)
{
  if (n > 0)
    MT_LAUNCH(topk_kernel, (unsigned)mt_divide_up(n, WARPS), MT_BLOCK, 0, mt_math(device), p, lse, expert, weight,
              logits, n, E, K, balanced);
}

static void gate_topk_back(struct mt_device *device, float *dlogits, const float *dweight, const float *p,
                           const float *lse, const int32_t *expert, const float *weight, const float *aux, float z,
                           int64_t n, int64_t T, int64_t E, int64_t K)
{
  if (n > 0)
    MT_LAUNCH(topk_back_kernel, (unsigned)mt_divide_up(n, WARPS), MT_BLOCK, 0, mt_math(device), dlogits, dweight, p,
              lse, expert, weight, aux, z, n, T, E, K);
}

static void gate_sums(struct mt_device *device, double *psum, double *zsum, const float *p, const float *lse, int64_t B,
                      int64_t T, int64_t E)
{
  if (B == 0)
    return;
  if (E > 0)
    MT_LAUNCH(sums_kernel, dim3((unsigned)B, (unsigned)mt_divide_up(E, MT_COLUMNS)), MT_COLUMNS * MT_LINES, 0,
              mt_math(device), psum, p, T, E);
  MT_LAUNCH(squares_kernel, (unsigned)B, MT_BLOCK, 0, mt_math(device), zsum, lse, T);
}

void mt_cuda_router(struct mt_kernels *kernels)
{
  kernels->gate_logits = gate_logits;
  kernels->gate_logits_back = gate_logits_back;
  kernels->gate_topk = gate_topk;
  kernels->gate_topk_back = gate_topk_back;
  kernels->gate_sums = gate_sums;
}
