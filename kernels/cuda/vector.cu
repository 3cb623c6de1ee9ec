/* Vectors and the loss: sums, conversions, the optimizer, softmax with cross-entropy.
 *
 * The loss reads a row of logits twice (largest, sum) and writes its gradient in place: nothing else is stored. The sum
 * of squares is a grid of partial sums whose number depends on n only, added by one block. */
#include "cuda.cuh"

/* ---- loss ---- */

template <typename T>
__global__ static void cross_entropy_kernel(float *loss, T *logits, const int32_t *target, const float *scale,
                                            int64_t V, int back)
{
  int64_t r = blockIdx.x;
  float by = scale[r];
  logits += r * V;
  if (by == 0) { /* the same for all threads of the block */
    if (threadIdx.x == 0)
      loss[r] = 0;
    for (int64_t v = threadIdx.x; v < V && back; v += blockDim.x)
      mt_put(logits, v, 0.0f);
    return;
  }
  float top = -INFINITY, sum = 0;
  for (int64_t v = threadIdx.x; v < V; v += blockDim.x)
    top = fmaxf(top, mt_get(logits, v));
  top = mt_block_fold(top, mt_larger{});
  for (int64_t v = threadIdx.x; v < V; v += blockDim.x)
    sum += expf(mt_get(logits, v) - top);
  sum = mt_block_fold(sum, mt_plus{});
  int64_t wanted = target[r];
  if (threadIdx.x == 0)
    loss[r] = logf(sum) + (top - mt_get(logits, wanted));
  __syncthreads(); /* the wanted logit is overwritten below */
  for (int64_t v = threadIdx.x; v < V && back; v += blockDim.x)
    mt_put(logits, v, by * (expf(mt_get(logits, v) - top) / sum - (v == wanted ? 1.0f : 0.0f)));
}

template <typename T>
static void cross_entropy_of(struct mt_device *device, float *loss, void *logits, const int32_t *target,
                             const float *scale, int64_t n, int64_t V, int back)
{
  if (n > 0)
    MT_LAUNCH(cross_entropy_kernel<T>, (unsigned)n, mt_row_threads(V), 0, mt_math(device), loss, (T *)logits, target,
              scale, V, back);
}

static void cross_entropy(struct mt_device *device, float *loss, void *logits, const int32_t *target,
                          const float *scale, int64_t n, int64_t V, int back)
{
  MT_BY_TYPE(device->ctype, cross_entropy_of, device, loss, logits, target, scale, n, V, back);
}

/* ---- elements ---- */

template <typename T> __global__ static void add_kernel(T *y, const T *x, int64_t n)
{
  MT_FOR_EACH (i, n)
    mt_put_add(y, i, mt_get(x, i), 1);
}

template <typename T> static void add_of(struct mt_device *device, void *y, const void *x, int64_t n)
{
  if (n > 0)
    MT_LAUNCH(add_kernel<T>, mt_grid(n), MT_BLOCK, 0, mt_math(device), (T *)y, (const T *)x, n);
}

static void add(struct mt_device *device, float *y, const float *x, int64_t n)
{
  add_of<float>(device, y, x, n);
}

static void add_act(struct mt_device *device, void *y, const void *x, int64_t n)
{
  MT_BY_TYPE(device->ctype, add_of, device, y, x, n);
}

template <typename To, typename From> __global__ static void convert_kernel(To *to, const From *from, int64_t n)
{
  MT_FOR_EACH (i, n)
    mt_put(to, i, mt_get(from, i));
}

template <typename To, typename From>
static void convert_of(struct mt_device *device, void *to, const void *from, int64_t n)
{
  if (n > 0)
    MT_LAUNCH((convert_kernel<To, From>), mt_grid(n), MT_BLOCK, 0, mt_math(device), (To *)to, (const From *)from, n);
}

static void convert(struct mt_device *device, void *to, enum mt_dtype to_type, const void *from,
                    enum mt_dtype from_type, int64_t n)
{
  MT_BY_TYPES(to_type, from_type, convert_of, device, to, from, n);
}

__global__ static void zero_kernel(char *to, int64_t head, int64_t words, int64_t bytes)
{
  MT_FOR_EACH (i, words)
    ((uint4 *)(to + head))[i] = make_uint4(0, 0, 0, 0);
  if (blockIdx.x > 0)
    return;
  for (int64_t i = threadIdx.x; i < head; i += blockDim.x)
    to[i] = 0;
  for (int64_t i = head + words * 16 + threadIdx.x; i < bytes; i += blockDim.x)
    to[i] = 0;
}

cudaError_t mt_cuda_loads()
{
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, zero_kernel);
}

void mt_cuda_zero(cudaStream_t stream, void *to, int64_t bytes)
{
  if (bytes <= 0)
    return;
  int64_t head = (int64_t)(-(uintptr_t)to & 15);
  head = head < bytes ? head : bytes;
  int64_t words = (bytes - head) / 16;
  MT_LAUNCH(zero_kernel, mt_grid(words > 0 ? words : 1), MT_BLOCK, 0, stream, (char *)to, head, words, bytes);
}

/* ---- sum of squares ---- */

__global__ static void squares_kernel(double *partial, const float *x, int64_t n)
{
  double sum = 0;
  MT_FOR_EACH (i, n)
    sum += (double)x[i] * x[i];
  sum = mt_block_fold(sum, mt_plus{});
  if (threadIdx.x == 0)
    partial[blockIdx.x] = sum;
}

__global__ static void total_kernel(double *total, const double *partial, int n)
{
  double sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    sum += partial[i];
  sum = mt_block_fold(sum, mt_plus{});
  if (threadIdx.x == 0)
    *total = sum;
}

static void sum_squares(struct mt_device *device, double *sum, const float *x, int64_t n)
{
  struct mt_cuda *cuda = mt_cuda_of(device);
  *sum = 0;
  if (n == 0)
    return;
  int64_t blocks = mt_divide_up(n, 8 * MT_BLOCK);
  blocks = blocks > MT_CUDA_PARTIALS ? (int64_t)MT_CUDA_PARTIALS : blocks;
  MT_LAUNCH(squares_kernel, (unsigned)blocks, MT_BLOCK, 0, mt_math(device), cuda->partial, x, n);
  MT_LAUNCH(total_kernel, 1, MT_BLOCK, 0, mt_math(device), cuda->total, cuda->partial, (int)blocks);
  MT_CUDA(cudaStreamSynchronize(mt_math(device)));
  *sum = *cuda->total;
}

/* ---- optimizer ---- */

__global__ static void adamw_kernel(float *w, float *m, float *v, const float *grad, int64_t n, struct mt_adamw a)
{
  MT_FOR_EACH (i, n) {
    float g = grad[i] * a.grad_scale;
    float first = a.beta1 * m[i] + (1.0f - a.beta1) * g, second = a.beta2 * v[i] + (1.0f - a.beta2) * g * g;
    m[i] = first;
    v[i] = second;
    float step = first / a.correction1 / (sqrtf(second / a.correction2) + a.eps);
    w[i] -= a.lr * (step + a.weight_decay * w[i]);
  }
}

static void adamw(struct mt_device *device, float *w, float *m, float *v, const float *grad, int64_t n,
                  const struct mt_adamw *a)
{
  if (n > 0)
    MT_LAUNCH(adamw_kernel, mt_grid(n), MT_BLOCK, 0, mt_math(device), w, m, v, grad, n, *a);
}

void mt_cuda_vector(struct mt_kernels *kernels)
{
  kernels->cross_entropy = cross_entropy;
  kernels->add = add;
  kernels->add_act = add_act;
  kernels->convert = convert;
  kernels->sum_squares = sum_squares;
  kernels->adamw = adamw;
}
