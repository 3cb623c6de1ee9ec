/* The part of the CUDA runtime that kernels/cuda/ uses, run on the host: so that the backend's own sources can be
 * tested where there is no GPU. Tests only; no speed, no timing, but every rule that can be checked is.
 *
 * The idea: the same .cu files, compiled as C++ against this folder. A block's threads are fibers that run until they
 * meet a barrier or a warp-wide operation; which of them goes first is the device's number (0 forward, 1 reverse, 2
 * shuffled), so whatever misses a barrier gives other results on one of the three devices. Work of a stream is put off
 * until somebody waits for it, so a missing wait reads poison. Device memory cannot be touched while the host runs.
 * The trap: arguments are captured when a kernel is launched, but what pointers lead to is read when it runs. */
#ifndef EMULATED_CUDA_RUNTIME_H
#define EMULATED_CUDA_RUNTIME_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <functional>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
  {
  }
};

/* ---- threads (threads.cpp) ---- */

struct emulated_thread;
struct emulated_block {
  dim3 grid, block, index;
};
extern emulated_block emulated_now;
extern dim3 emulated_thread_index;
#define threadIdx (emulated_thread_index)
#define blockIdx (emulated_now.index)
#define blockDim (emulated_now.block)
#define gridDim (emulated_now.grid)

void __syncthreads();
int __syncthreads_or(int value);
void __syncwarp(unsigned mask = 0xffffffffu);
unsigned __ballot_sync(unsigned mask, int predicate);

enum { EMULATED_LANE_BYTES = 64 };
/* Every lane leaves `bytes` and gets a view of what all lanes left: 32 times EMULATED_LANE_BYTES, valid until its next
 * warp-wide operation but one. The last lane to come calls `last`, if given, on it. */
const char *emulated_warp_exchange(unsigned mask, const void *mine, int bytes, void (*last)(char *lanes) = nullptr);
int emulated_lane();

template <typename T> T __shfl_xor_sync(unsigned mask, T value, int bits)
{
  T result;
  const char *all = emulated_warp_exchange(mask, &value, sizeof value);
  memcpy(&result, all + (emulated_lane() ^ bits) * EMULATED_LANE_BYTES, sizeof result);
  return result;
}
static inline int __popc(unsigned value)
{
  return __builtin_popcount(value);
}

/* The memory of one __shared__ variable: `place` tells one from another. Poisoned when a block begins, with a guard
 * behind it that is checked when the block ends. */
void *emulated_shared(const void *place, int64_t bytes);
void *emulated_shared_dynamic();

/* ---- errors, devices, memory, streams (runtime.cpp) ---- */

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorInvalidDevice, cudaErrorInsufficientDriver };
enum cudaMemcpyKind { cudaMemcpyDefault };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
typedef struct emulated_stream *cudaStream_t;
typedef struct emulated_event *cudaEvent_t;
struct cudaDeviceProp {
  char name[256];
  struct {
    char bytes[16];
  } uuid;
  size_t totalGlobalMem;
};

const char *cudaGetErrorString(cudaError_t);
static inline cudaError_t cudaGetLastError()
{
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *);
cudaError_t cudaDriverGetVersion(int *);
cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *, int);
cudaError_t cudaDeviceGetPCIBusId(char *, int, int);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaHostAlloc(void **, size_t, unsigned);
cudaError_t cudaFreeHost(void *);
cudaError_t cudaMemcpyAsync(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *, unsigned);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *, unsigned);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t emulated_set_shared_limit(const void *kernel, int bytes);
template <typename F> cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute, int bytes)
{
  return emulated_set_shared_limit((const void *)kernel, bytes);
}
struct cudaFuncAttributes {
};
template <typename F> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, F *)
{
  return cudaSuccess;
}

/* Work for a stream; `name` is told when it goes wrong. */
void emulated_enqueue(cudaStream_t, const char *name, std::function<void()> work);
/* Ends the process with one line. */
[[noreturn]] void emulated_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Faults unless `pointer`, an argument of `kernel`, is NULL or in memory that a GPU can reach. */
void emulated_check_pointer(const char *kernel, const void *pointer);
template <typename T> void emulated_check_argument(const char *, const T &)
{
}
template <typename T> void emulated_check_argument(const char *kernel, T *const &pointer)
{
  emulated_check_pointer(kernel, (const void *)pointer);
}

/* Runs all blocks of a grid, here and now. */
void emulated_run(const char *name, dim3 grid, dim3 block, size_t shared, const std::function<void()> &body);
void emulated_check_launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared);

template <typename... P, typename... A>
void emulated_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                     A... argument)
{
  std::tuple<P...> arguments(argument...);
  std::apply([name](const P &...p) { (emulated_check_argument(name, p), ...); }, arguments);
  emulated_check_launch(name, (const void *)kernel, grid, block, shared);
  emulated_enqueue(stream, name,
                   [=]() { emulated_run(name, grid, block, shared, [&]() { std::apply(kernel, arguments); }); });
}
#define EMULATED_LAUNCH(kernel, grid, block, shared, stream, ...)                                                      \
  emulated_launch(#kernel, kernel, grid, block, shared, stream, __VA_ARGS__)
#define EMULATED_SHARED(type, name, n)                                                                                 \
  static const char emulated_place_##name = 0;                                                                         \
  type *const name = (type *)emulated_shared(&emulated_place_##name, (int64_t)sizeof(type) * (n))

struct uint4 {
  unsigned x, y, z, w;
};
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
  return uint4{x, y, z, w};
}
#endif
