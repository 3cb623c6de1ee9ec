/* RMS and layer norm, forward and backward: a block for a row, and for dw and db a block for 32 columns.
 *
 * The trap: dx may overwrite dy, so dw and db are summed first. They are sums over rows: eight rows of threads each add
 * every eighth row, then the eight are added in order. */
#include "cuda.cuh"

template <typename T>
__global__ static void norm_kernel(enum mt_norm_kind kind, T *y, float *mean, float *rstd, const T *x, const float *w,
                                   const float *b, int64_t c, float eps)
{
  int64_t r = blockIdx.x;
  x += r * c;
  y += r * c;
  float mu = 0, square = 0;
  if (kind == MT_NORM_LAYER) {
    for (int64_t i = threadIdx.x; i < c; i += blockDim.x)
      mu += mt_get(x, i);
    mu = mt_block_fold(mu, mt_plus{}) / (float)c;
  }
  for (int64_t i = threadIdx.x; i < c; i += blockDim.x) {
    float d = mt_get(x, i) - mu;
    square += d * d;
  }
  float s = 1.0f / sqrtf(mt_block_fold(square, mt_plus{}) / (float)c + eps);
  if (threadIdx.x == 0) {
    rstd[r] = s;
    if (kind == MT_NORM_LAYER)
      mean[r] = mu;
  }
  for (int64_t i = threadIdx.x; i < c; i += blockDim.x)
    mt_put(y, i, (mt_get(x, i) - mu) * s * w[i] + (kind == MT_NORM_LAYER ? b[i] : 0.0f));
}

/* With g = dy w and u = (x - mean) rstd, dx = rstd (g - mean(g) - u mean(g u)); RMS has no mean(g). */
template <typename T>
__global__ static void dx_kernel(enum mt_norm_kind kind, T *dx, int add, const T *dy, const T *x, const float *mean,
                                 const float *rstd, const float *w, int64_t c)
{
  int64_t r = blockIdx.x;
  x += r * c;
  dx += r * c;
  dy += r * c;
  float mu = kind == MT_NORM_LAYER ? mean[r] : 0.0f, s = rstd[r], g_sum = 0, gu_sum = 0;
  for (int64_t i = threadIdx.x; i < c; i += blockDim.x) {
    float g = mt_get(dy, i) * w[i];
    g_sum += g;
    gu_sum += g * ((mt_get(x, i) - mu) * s);
  }
  g_sum = kind == MT_NORM_LAYER ? mt_block_fold(g_sum, mt_plus{}) / (float)c : 0.0f;
  gu_sum = mt_block_fold(gu_sum, mt_plus{}) / (float)c;
  for (int64_t i = threadIdx.x; i < c; i += blockDim.x)
    mt_put_add(dx, i, s * (mt_get(dy, i) * w[i] - g_sum - (mt_get(x, i) - mu) * s * gu_sum), add);
}

template <typename T>
__global__ static void dw_kernel(enum mt_norm_kind kind, float *dw, float *db, const T *dy, const T *x,
                                 const float *mean, const float *rstd, int64_t n, int64_t c)
{
  int line = threadIdx.x / MT_COLUMNS;
  int64_t i = (int64_t)blockIdx.x * MT_COLUMNS + threadIdx.x % MT_COLUMNS;
  float sum[2] = {}; /* of db, of dw */
  for (int64_t r = line; r < n && i < c; r += MT_LINES) {
    float g = mt_get(dy, r * c + i), mu = kind == MT_NORM_LAYER ? mean[r] : 0.0f;
    sum[0] += g;
    sum[1] += g * ((mt_get(x, r * c + i) - mu) * rstd[r]);
  }
  mt_add_lines(sum);
  if (line > 0 || i >= c)
    return;
  dw[i] += sum[1];
  if (kind == MT_NORM_LAYER)
    db[i] += sum[0];
}

template <typename T>
static void norm_of(struct mt_device *device, enum mt_norm_kind kind, void *y, float *mean, float *rstd, const void *x,
                    const float *w, const float *b, int64_t n, int64_t c, float eps)
{
  if (n > 0)
    MT_LAUNCH(norm_kernel<T>, (unsigned)n, mt_row_threads(c), 0, mt_math(device), kind, (T *)y, mean, rstd,
              (const T *)x, w, b, c, eps);
}

static void norm(struct mt_device *device, enum mt_norm_kind kind, void *y, float *mean, float *rstd, const void *x,
                 const float *w, const float *b, int64_t n, int64_t c, float eps)
{
  MT_BY_TYPE(device->ctype, norm_of, device, kind, y, mean, rstd, x, w, b, n, c, eps);
}

template <typename T>
static void back_of(struct mt_device *device, enum mt_norm_kind kind, void *dx, int add, float *dw, float *db,
                    const void *dy, const void *x, const float *mean, const float *rstd, const float *w, int64_t n,
                    int64_t c)
{
  if (n == 0)
    return;
  MT_LAUNCH(dw_kernel<T>, (unsigned)mt_divide_up(c, MT_COLUMNS), MT_COLUMNS * MT_LINES, 0, mt_math(device), kind, dw,
            db, (const T *)dy, (const T *)x, mean, rstd, n, c);
  MT_LAUNCH(dx_kernel<T>, (unsigned)n, mt_row_threads(c), 0, mt_math(device), kind, (T *)dx, add, (const T *)dy,
            (const T *)x, mean, rstd, w, c);
}

static void norm_back(struct mt_device *device, enum mt_norm_kind kind, void *dx, int add, float *dw, float *db,
                      const void *dy, const void *x, const float *mean, const float *rstd, const float *w, int64_t n,
                      int64_t c)
{
  MT_BY_TYPE(device->ctype, back_of, device, kind, dx, add, dw, db, dy, x, mean, rstd, w, n, c);
}

void mt_cuda_norm(struct mt_kernels *kernels)
{
  kernels->norm = norm;
  kernels->norm_back = norm_back;
}
