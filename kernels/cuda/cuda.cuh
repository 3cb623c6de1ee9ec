/* What all files of the CUDA backend share: launching, checking, element types, sums over warps and blocks.
 *
 * The same sources are built by nvcc for GPUs and by a C++ compiler against an emulation of the CUDA runtime
 * (tests/cuda-emulation), which has its own way to launch a kernel and to share memory; MT_LAUNCH and MT_SHARED hide
 * that. Kernels come in blocks of whole warps, and all threads of a block reach every barrier. No atomics: every sum is
 * formed in an order that depends on shapes only. */
#ifndef MT_CUDA_CUH
#define MT_CUDA_CUH
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>

#define _Noreturn /* C's word in the headers below */
extern "C" {
#include "cuda/module.h"
}
#undef _Noreturn

#ifdef MT_CUDA_EMULATED
#define MT_LAUNCH EMULATED_LAUNCH
#define MT_SHARED EMULATED_SHARED
#define MT_SHARED_DYNAMIC() ((char *)emulated_shared_dynamic())
#define MT_UNROLL
#define MT_UNROLL_SOME
#else
#define MT_LAUNCH(kernel, grid, block, shared, stream, ...)                                                            \
  do {                                                                                                                 \
    kernel<<<grid, block, shared, stream>>>(__VA_ARGS__);                                                              \
    MT_CUDA(cudaGetLastError());                                                                                       \
  } while (0)
#define MT_SHARED(type, name, n) __shared__ type name[n]
extern __shared__ __align__(16) char mt_cuda_dynamic[];
#define MT_SHARED_DYNAMIC() mt_cuda_dynamic
#define MT_UNROLL _Pragma("unroll")
#define MT_UNROLL_SOME _Pragma("unroll 4")
#endif

typedef __nv_bfloat16 mt_bf16;
enum { MT_WARP = 32, MT_BLOCK = 256 };

/* What a device of this backend is, beside struct mt_device. */
struct mt_cuda {
  int ordinal;
  cublasComputeType_t compute;
  cudaStream_t lane[MT_NDEVLANE];
  cublasHandle_t blas;
  void *blas_work;
  void **pointers; /* device [3][MT_CUDA_GROUPS]: matrices of a grouped product */
  double *partial; /* device [MT_CUDA_PARTIALS] */
  double *total;   /* pinned [1] */
  char name[32];
  void *allocations; /* memory that is given out, see device.cu */
  void *marks;
};
enum { MT_CUDA_GROUPS = 128, MT_CUDA_PARTIALS = 1024 };

static inline struct mt_cuda *mt_cuda_of(const struct mt_device *device)
{
  return (struct mt_cuda *)device->state;
}
extern const struct mt_cuda_host *mt_cuda_host; /* the program */

/* Ends the job with CUDA's or cuBLAS's word. */
#define MT_CUDA(call)                                                                                                  \
  do {                                                                                                                 \
    cudaError_t mt_error_ = (call);                                                                                    \
    if (mt_error_ != cudaSuccess)                                                                                      \
      mt_cuda_host->die(__FILE__, __LINE__, "CUDA: %s in %s", cudaGetErrorString(mt_error_), #call);                   \
  } while (0)
#define MT_CUBLAS(call)                                                                                                \
  do {                                                                                                                 \
    cublasStatus_t mt_status_ = (call);                                                                                \
    if (mt_status_ != CUBLAS_STATUS_SUCCESS)                                                                           \
      mt_cuda_host->die(__FILE__, __LINE__, "cuBLAS: %s in %s", cublasGetStatusString(mt_status_), #call);             \
  } while (0)

/* Makes the device this thread's: CUDA keeps one for each, and launches and allocates there. */
static inline struct mt_cuda *mt_cuda_here(const struct mt_device *device)
{
  struct mt_cuda *cuda = mt_cuda_of(device);
  MT_CUDA(cudaSetDevice(cuda->ordinal));
  return cuda;
}
static inline cudaStream_t mt_math(const struct mt_device *device)
{
  return mt_cuda_here(device)->lane[MT_DEV_MATH];
}

/* Calls f<T>(...) with the device's ctype as T. */
#define MT_BY_TYPE(type, f, ...)                                                                                       \
  do {                                                                                                                 \
    if ((type) == MT_F32)                                                                                              \
      f<float>(__VA_ARGS__);                                                                                           \
    else                                                                                                               \
      f<mt_bf16>(__VA_ARGS__);                                                                                         \
  } while (0)
/* Calls f<T, U>(...) with two ctypes as T and U. */
#define MT_BY_TYPES(type, other, f, ...)                                                                               \
  do {                                                                                                                 \
    if ((type) == MT_F32 && (other) == MT_F32)                                                                         \
      f<float, float>(__VA_ARGS__);                                                                                    \
    else if ((type) == MT_F32)                                                                                         \
      f<float, mt_bf16>(__VA_ARGS__);                                                                                  \
    else if ((other) == MT_F32)                                                                                        \
      f<mt_bf16, float>(__VA_ARGS__);                                                                                  \
    else                                                                                                               \
      f<mt_bf16, mt_bf16>(__VA_ARGS__);                                                                                \
  } while (0)

static inline int64_t mt_divide_up(int64_t n, int64_t by)
{
  return (n + by - 1) / by;
}
/* Threads for a row of `width` elements: whole warps, a block at most. */
static inline unsigned mt_row_threads(int64_t width)
{
  return (unsigned)(width >= MT_BLOCK ? (int64_t)MT_BLOCK
                    : width < 1       ? (int64_t)MT_WARP
                                      : mt_divide_up(width, MT_WARP) * MT_WARP);
}
/* Blocks for n elements that their threads deal out among them. */
static inline unsigned mt_grid(int64_t n)
{
  int64_t blocks = mt_divide_up(n, MT_BLOCK);
  return (unsigned)(blocks > 65536 ? 65536 : blocks);
}
#define MT_FOR_EACH(i, n)                                                                                              \
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (int64_t)gridDim.x * blockDim.x)

/* ---- values ---- */

__device__ __forceinline__ float mt_get(const float *x, int64_t i)
{
  return x[i];
}
__device__ __forceinline__ float mt_get(const mt_bf16 *x, int64_t i)
{
  return __bfloat162float(x[i]);
}
__device__ __forceinline__ void mt_put(float *x, int64_t i, float value)
{
  x[i] = value;
}
__device__ __forceinline__ void mt_put(mt_bf16 *x, int64_t i, float value)
{
  x[i] = __float2bfloat16_rn(value);
}
template <typename T> __device__ __forceinline__ void mt_put_add(T *x, int64_t i, float value, int add)
{
  mt_put(x, i, add ? mt_get(x, i) + value : value);
}

/* ---- sums: the same bits in every lane and thread ---- */

#define MT_ALL_LANES 0xffffffffu

struct mt_plus {
  template <typename V> __device__ __forceinline__ V operator()(V a, V b) const
  {
    return a + b;
  }
};
struct mt_larger {
  __device__ __forceinline__ float operator()(float a, float b) const
  {
    return fmaxf(a, b);
  }
};
template <typename V, typename F> __device__ __forceinline__ V mt_warp_fold(V value, F fold)
{
  for (int bits = 16; bits > 0; bits /= 2)
    value = fold(value, __shfl_xor_sync(MT_ALL_LANES, value, bits));
  return value;
}
/* Over the block; every thread must call it. */
template <typename V, typename F> __device__ __forceinline__ V mt_block_fold(V value, F fold)
{
  MT_SHARED(V, part, MT_WARP);
  int warp = threadIdx.x / MT_WARP, nwarp = blockDim.x / MT_WARP;
  value = mt_warp_fold(value, fold);
  if (threadIdx.x % MT_WARP == 0)
    part[warp] = value;
  __syncthreads();
  V all = part[0];
  for (int w = 1; w < nwarp; w++)
    all = fold(all, part[w]);
  __syncthreads(); /* part may be written again */
  return all;
}

/* Sums over rows: MT_LINES lines of MT_COLUMNS threads for as many columns, each line having summed its share of the
 * rows into K sums a column. Line 0 gets what all lines have, added in order. Every thread must call it, once. */
enum { MT_COLUMNS = 32, MT_LINES = 8 };
template <typename V, int K> __device__ __forceinline__ void mt_add_lines(V (&sum)[K])
{
  MT_SHARED(V, part, MT_LINES * K * MT_COLUMNS);
  int column = threadIdx.x % MT_COLUMNS, line = threadIdx.x / MT_COLUMNS;
  for (int k = 0; k < K; k++)
    part[(line * MT_COLUMNS + column) * K + k] = sum[k];
  __syncthreads();
  for (int l = 1; l < MT_LINES && line == 0; l++)
    for (int k = 0; k < K; k++)
      sum[k] += part[(l * MT_COLUMNS + column) * K + k];
}

/* ---- the files' entries ---- */

void mt_cuda_linear(struct mt_kernels *kernels);
void mt_cuda_norm(struct mt_kernels *kernels);
void mt_cuda_rows(struct mt_kernels *kernels);
void mt_cuda_activation(struct mt_kernels *kernels);
void mt_cuda_attention(struct mt_kernels *kernels);
void mt_cuda_router(struct mt_kernels *kernels);
void mt_cuda_vector(struct mt_kernels *kernels);
/* Success if the device at hand can run what this module was built for. */
cudaError_t mt_cuda_loads();
/* Overwrites bytes of memory that the GPU can reach with zeros. */
void mt_cuda_zero(cudaStream_t stream, void *to, int64_t bytes);

#endif
