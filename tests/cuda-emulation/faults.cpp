/* Programs that break a rule of CUDA's, each in a way that a real GPU would often let pass; and the same done right.
 * cuda_faults CASE: the emulation must end it with code 1 and one line, or a result must differ between the three orders of
 * threads (code 2). test_emulation.sh says what is expected of each. */
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 256 };

#define LAUNCH EMULATED_LAUNCH
#define SHARED EMULATED_SHARED

/* ---- kernels ---- */

/* Every thread takes its neighbour's value through shared memory. */
static void rotate(float *x, int barrier)
{
  SHARED(float, part, N);
  part[threadIdx.x] = x[threadIdx.x];
  if (barrier)
    __syncthreads();
  x[threadIdx.x] = part[(threadIdx.x + 1) % N];
}

/* Two warps use one place in turn: what a warp barrier cannot order. */
static void two_warps(float *x, int barrier)
{
  SHARED(float, place, 1);
  int warp = threadIdx.x / 32;
  if (warp == 0)
    *place = 1;
  __syncthreads();
  float seen = *place;
  if (barrier)
    __syncthreads();
  else
    __syncwarp();
  if (warp == 1)
    *place = 2;
  __syncthreads();
  x[threadIdx.x] = seen + *place;
}

static void ends_early(float *x)
{
  if (threadIdx.x > 9)
    return;
  __syncthreads();
  x[threadIdx.x] = 1;
}

static void split_warp(float *x)
{
  float value = threadIdx.x % 2 ? __shfl_xor_sync(0xffffffffu, 1.0f, 1) : 0.0f;
  x[threadIdx.x] = value;
}

static void write_at(float *x, int64_t at)
{
  if (threadIdx.x == 0)
    x[at] = 1;
}

static void write_shared(float *x, int at)
{
  SHARED(float, part, N);
  SHARED(float, other, 1);
  part[threadIdx.x] = other[0] = 0;
  __syncthreads();
  if (threadIdx.x == 0)
    part[at] = 3;
  __syncthreads();
  x[threadIdx.x] = part[threadIdx.x];
}

static void write_dynamic(float *x, int at)
{
  float *part = (float *)emulated_shared_dynamic();
  part[threadIdx.x == 0 ? at : (int)threadIdx.x] = 3;
  __syncthreads();
  x[threadIdx.x] = part[0];
}

static void sum(float *total, const float *x)
{
  float value = x[threadIdx.x];
  for (int bits = 16; bits > 0; bits /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, bits);
  if (threadIdx.x == 0)
    *total = value;
}

static void large(float *x)
{
  SHARED(char, part, 49 << 10);
  x[threadIdx.x] = part[threadIdx.x];
}

/* ---- the device ---- */

static cudaStream_t math, copies;

static float *device_memory(size_t n)
{
  void *memory;
  cudaMalloc(&memory, n * sizeof(float));
  return (float *)memory;
}

static void fill(float *x, cudaStream_t stream)
{
  static float host[N];
  for (int i = 0; i < N; i++)
    host[i] = (float)(i * i % 97);
  cudaMemcpyAsync(x, host, sizeof host, cudaMemcpyDefault, stream);
}

/* A hash of what the device holds. */
static unsigned result(float *x)
{
  static float host[N];
  cudaMemcpyAsync(host, x, sizeof host, cudaMemcpyDefault, math);
  cudaStreamSynchronize(math);
  unsigned hash = 0;
  for (int i = 0; i < N; i++) {
    unsigned bits;
    memcpy(&bits, &host[i], sizeof bits);
    hash = hash * 31 + bits;
  }
  return hash;
}

/* ---- cases; what they return is compared between the orders ---- */

typedef unsigned run(float *x);

static unsigned rotate_right(float *x) { fill(x, math); LAUNCH(rotate, 1, N, 0, math, x, 1); return result(x); }
static unsigned no_barrier(float *x) { fill(x, math); LAUNCH(rotate, 1, N, 0, math, x, 0); return result(x); }
static unsigned warps_right(float *x) { LAUNCH(two_warps, 1, N, 0, math, x, 1); return result(x); }
static unsigned warp_race(float *x) { LAUNCH(two_warps, 1, N, 0, math, x, 0); return result(x); }
static unsigned early(float *x) { LAUNCH(ends_early, 1, 64, 0, math, x); return result(x); }
static unsigned half_warp(float *x) { LAUNCH(split_warp, 1, 64, 0, math, x); return result(x); }
static unsigned host_reads(float *x) { fill(x, math); cudaStreamSynchronize(math); return (unsigned)x[3]; }
static unsigned host_writes(float *x) { x[3] = 1; return 0; }
static unsigned host_pointer(float *) { static float host[N]; LAUNCH(write_at, 1, 32, 0, math, host, (int64_t)1); return 0; }
static unsigned behind(float *x) { LAUNCH(write_at, 1, 32, 0, math, x, (int64_t)N); return result(x); }
static unsigned just_behind(float *) /* inside the last 64 bytes of alignment */
{
  float *odd = device_memory(N + 1);
  LAUNCH(write_at, 1, 32, 0, math, odd, (int64_t)(N + 1));
  return result(odd);
}
static unsigned before(float *x) { LAUNCH(write_at, 1, 32, 0, math, x, (int64_t)-1); return result(x); }
static unsigned far_behind(float *x) { LAUNCH(write_at, 1, 32, 0, math, x, (int64_t)1 << 20); return result(x); }
static unsigned behind_shared(float *x) { LAUNCH(write_shared, 1, N, 0, math, x, N + 2); return result(x); }
static unsigned behind_dynamic(float *x) { LAUNCH(write_dynamic, 1, N, N * 4, math, x, N); return result(x); }
static unsigned use_after_free(float *)
{
  float *other = device_memory(N);
  LAUNCH(write_at, 1, 32, 0, math, other, (int64_t)0);
  cudaFree(other);
  cudaStreamSynchronize(math);
  return 0;
}
static unsigned no_wait(float *x) /* the copy is on another stream, and nobody waits for it */
{
  float *total = device_memory(N);
  LAUNCH(write_at, 1, 32, 0, math, total, (int64_t)0);
  fill(x, copies);
  LAUNCH(sum, 1, 32, 0, math, total, (const float *)x);
  static float host;
  cudaMemcpyAsync(&host, total, sizeof host, cudaMemcpyDefault, math);
  cudaStreamSynchronize(math);
  cudaStreamSynchronize(copies);
  cudaFree(total);
  if (!(host == host)) {
    fprintf(stderr, "the sum is not a number\n");
    exit(3);
  }
  return 0;
}
static unsigned wait_right(float *x)
{
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  fill(x, copies);
  cudaEventRecord(event, copies);
  cudaStreamWaitEvent(math, event, 0);
  LAUNCH(sum, 1, 32, 0, math, x, (const float *)x);
  cudaEventDestroy(event);
  return result(x);
}
static unsigned no_host_wait(float *x) /* the host reads before the copy to it is done */
{
  static float host[N];
  fill(x, math);
  cudaMemcpyAsync(host, x, sizeof host, cudaMemcpyDefault, math);
  float early = host[3];
  cudaStreamSynchronize(math);
  if (early != host[3]) {
    fprintf(stderr, "the copy was not there yet\n");
    exit(3);
  }
  return 0;
}
static unsigned leak(float *) { device_memory(3); return 0; }
static unsigned threads(float *x) { LAUNCH(write_at, 1, 1025, 0, math, x, (int64_t)0); return 0; }
static unsigned threads_z(float *x) { LAUNCH(write_at, 1, dim3(1, 1, 65), 0, math, x, (int64_t)0); return 0; }
static unsigned no_blocks(float *x) { LAUNCH(write_at, 0, 32, 0, math, x, (int64_t)0); return 0; }
static unsigned blocks(float *x) { LAUNCH(write_at, dim3(1, 65536), 32, 0, math, x, (int64_t)0); return 0; }
static unsigned shared_static(float *x) { LAUNCH(large, 1, N, 0, math, x); return result(x); }
static unsigned shared_dynamic(float *x) { LAUNCH(write_dynamic, 1, N, 49 << 10, math, x, 0); return result(x); }
static unsigned asked(float *x, int bytes, size_t used)
{
  if (cudaFuncSetAttribute(write_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) {
    fprintf(stderr, "%d bytes are refused\n", bytes);
    exit(3);
  }
  LAUNCH(write_dynamic, 1, N, used, math, x, 0);
  return result(x);
}
static unsigned asked_right(float *x) { fill(x, math); return asked(x, 99 << 10, 99 << 10); }
static unsigned asked_less(float *x) { return asked(x, 60 << 10, 61 << 10); }
static unsigned asked_more(float *x) { return asked(x, (99 << 10) + 1, 99 << 10); }
static unsigned long_copy(float *x) { static float host[2 * N]; cudaMemcpyAsync(host, x, sizeof host, cudaMemcpyDefault, math); return 0; }
static unsigned bad_product(float *x)
{
  cublasHandle_t blas;
  float one = 1;
  cublasCreate(&blas);
  cublasSetStream(blas, math);
  cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, x, CUDA_R_32F, 3, x, CUDA_R_32F, 4, &one, x, CUDA_R_32F, 4,
               CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  return 0;
}

static const struct {
  const char *name;
  run *go;
} cases[] = {
    {"rotate_right", rotate_right}, {"no_barrier", no_barrier}, {"warps_right", warps_right}, {"warp_race", warp_race},
    {"early", early}, {"half_warp", half_warp}, {"host_reads", host_reads}, {"host_writes", host_writes},
    {"host_pointer", host_pointer}, {"behind", behind}, {"just_behind", just_behind}, {"before", before},
    {"far_behind", far_behind}, {"behind_shared", behind_shared}, {"behind_dynamic", behind_dynamic},
    {"use_after_free", use_after_free}, {"no_wait", no_wait}, {"wait_right", wait_right}, {"no_host_wait", no_host_wait},
    {"leak", leak}, {"threads", threads}, {"threads_z", threads_z},
    {"no_blocks", no_blocks}, {"blocks", blocks}, {"shared_static", shared_static},
    {"shared_dynamic", shared_dynamic}, {"asked_right", asked_right}, {"asked_less", asked_less},
    {"asked_more", asked_more}, {"long_copy", long_copy}, {"bad_product", bad_product},
};

int main(int argc, char **argv)
{
  unsigned hash[3];
  run *go = nullptr;
  for (const auto &c : cases)
    if (argc == 2 && !strcmp(argv[1], c.name))
      go = c.go;
  if (!go)
    return 99;
  for (int order = 0; order < 3; order++) {
    cudaSetDevice(order);
    cudaStreamCreateWithFlags(&math, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking);
    float *x = device_memory(N);
    hash[order] = go(x);
    cudaStreamSynchronize(math);
    cudaFree(x);
    cudaStreamDestroy(copies);
    cudaStreamDestroy(math);
  }
  if (hash[0] == hash[1] && hash[0] == hash[2])
    return 0;
  fprintf(stderr, "results differ between the orders of threads\n");
  return 2;
}
