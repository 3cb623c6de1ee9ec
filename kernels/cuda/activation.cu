/* SwiGLU and GELU, forward and backward: a thread for an element. dx may be dy. */
#include "cuda.cuh"

__device__ __forceinline__ static float sigmoid(float x)
{
  return 1.0f / (1.0f + expf(-x));
}

template <typename T> __global__ static void swiglu_kernel(T *h, const T *gu, int64_t f)
{
  h += (int64_t)blockIdx.x * f;
  gu += (int64_t)blockIdx.x * 2 * f;
  for (int64_t i = threadIdx.x; i < f; i += blockDim.x) {
    float g = mt_get(gu, i);
    mt_put(h, i, g * sigmoid(g) * mt_get(gu, f + i));
  }
}

template <typename T> __global__ static void swiglu_back_kernel(T *dgu, const T *dh, const T *gu, int64_t f)
{
  dgu += (int64_t)blockIdx.x * 2 * f;
  dh += (int64_t)blockIdx.x * f;
  gu += (int64_t)blockIdx.x * 2 * f;
  for (int64_t i = threadIdx.x; i < f; i += blockDim.x) {
    float g = mt_get(gu, i), u = mt_get(gu, f + i), d = mt_get(dh, i), s = sigmoid(g);
    mt_put(dgu, i, d * u * s * (1.0f + g * (1.0f - s)));
    mt_put(dgu, f + i, d * g * s);
  }
}

/* Hendrycks and Gimpel, 2016: x (1 + tanh(r (x + 0.044715 x^3))) / 2, r = sqrt(2 / pi). */
#define GELU_ROOT 0.79788456080286535588f
#define GELU_CUBE 0.044715f

template <typename T> __global__ static void gelu_kernel(T *y, const T *x, int64_t n)
{
  MT_FOR_EACH (i, n) {
    float v = mt_get(x, i);
    mt_put(y, i, v * (1.0f + tanhf(GELU_ROOT * (v + GELU_CUBE * v * v * v))) * 0.5f);
  }
}

template <typename T> __global__ static void gelu_back_kernel(T *dx, const T *dy, const T *x, int64_t n)
{
  MT_FOR_EACH (i, n) {
    float v = mt_get(x, i), t = tanhf(GELU_ROOT * (v + GELU_CUBE * v * v * v));
    float slope = (1.0f + t) * 0.5f + v * (1.0f - t * t) * GELU_ROOT * (1.0f + 3.0f * GELU_CUBE * v * v) * 0.5f;
    mt_put(dx, i, mt_get(dy, i) * slope);
  }
}

template <typename T> static void swiglu_of(struct mt_device *device, void *h, const void *gu, int64_t n, int64_t f)
{
  if (n > 0 && f > 0)
    MT_LAUNCH(swiglu_kernel<T>, (unsigned)n, mt_row_threads(f), 0, mt_math(device), (T *)h, (const T *)gu, f);
}

static void swiglu(struct mt_device *device, void *h, const void *gu, int64_t n, int64_t f)
{
  MT_BY_TYPE(device->ctype, swiglu_of, device, h, gu, n, f);
}

template <typename T>
static void swiglu_back_of(struct mt_device *device, void *dgu, const void *dh, const void *gu, int64_t n, int64_t f)
{
  if (n > 0 && f > 0)
    MT_LAUNCH(swiglu_back_kernel<T>, (unsigned)n, mt_row_threads(f), 0, mt_math(device), (T *)dgu, (const T *)dh,
              (const T *)gu, f);
}

static void swiglu_back(struct mt_device *device, void *dgu, const void *dh, const void *gu, int64_t n, int64_t f)
{
  MT_BY_TYPE(device->ctype, swiglu_back_of, device, dgu, dh, gu, n, f);
}

template <typename T> static void gelu_of(struct mt_device *device, void *y, const void *x, int64_t n)
{
  if (n > 0)
    MT_LAUNCH(gelu_kernel<T>, mt_grid(n), MT_BLOCK, 0, mt_math(device), (T *)y, (const T *)x, n);
}

static void gelu(struct mt_device *device, void *y, const void *x, int64_t n)
{
  MT_BY_TYPE(device->ctype, gelu_of, device, y, x, n);
}

template <typename T>
static void gelu_back_of(struct mt_device *device, void *dx, const void *dy, const void *x, int64_t n)
{
  if (n > 0)
    MT_LAUNCH(gelu_back_kernel<T>, mt_grid(n), MT_BLOCK, 0, mt_math(device), (T *)dx, (const T *)dy, (const T *)x, n);
}

static void gelu_back(struct mt_device *device, void *dx, const void *dy, const void *x, int64_t n)
{
  MT_BY_TYPE(device->ctype, gelu_back_of, device, dx, dy, x, n);
}

void mt_cuda_activation(struct mt_kernels *kernels)
{
  kernels->swiglu = swiglu;
  kernels->swiglu_back = swiglu_back;
  kernels->gelu = gelu;
  kernels->gelu_back = gelu_back;
}
