/* A CUDA device: memory, lanes and the module's table; see module.h.
 *
 * Lanes are streams. A mark is an event; each lane has a ring of them, and where a mark's event has been recorded again
 * since, waiting for it is waiting longer, never shorter, since both are points of one lane. What memory is given out is
 * remembered for its size. Two threads may use a device at once, each its lanes' marks. Wire memory is pinned, and kernels
 * reach it over the bus. The trap: memory of CUDA's stream-ordered pools cannot be shown to another process, which an MPI that
 * takes device memory does within a node; so it is cudaMalloc's, which waits for the device, but allocating is rare. */
#include "config.h"
#include "cuda.cuh"
#include <mutex>
#include <new>
#include <stdlib.h>
#include <string.h>
#include <unordered_map>

const struct mt_cuda_host *mt_cuda_host;

struct given {
  int64_t bytes;
  enum mt_tag tag;
};
struct table {
  std::mutex lock; /* of all that follows */
  std::unordered_map<void *, given> all;
};

enum { RING = 64 };
struct ring {
  cudaEvent_t event[MT_NDEVLANE][RING];
  int64_t next[MT_NDEVLANE];
};

#ifdef MT_CUDA_EMULATED
static const size_t BLAS_BYTES = 4096;
#else
static const size_t BLAS_BYTES = (size_t)32 << 20;
#endif

/* ---- memory ---- */

static void *cuda_alloc(struct mt_device *device, enum mt_tag tag, enum mt_space space, int64_t bytes)
{
  struct mt_cuda *cuda = mt_cuda_of(device);
  if (space == MT_HOST)
    return mt_cuda_host->alloc(tag, bytes);
  mt_cuda_here(device);
  void *memory = NULL;
  size_t size = bytes > 0 ? (size_t)bytes : 1;
  cudaError_t error;
  if (space == MT_WIRE)
    error = cudaHostAlloc(&memory, size, cudaHostAllocDefault);
  else
    error = cudaMalloc(&memory, size);
  if (error != cudaSuccess)
    mt_cuda_host->die(__FILE__, __LINE__, "CUDA device %d: %s: %lld more bytes of %s memory", cuda->ordinal,
                      cudaGetErrorString(error), (long long)bytes, space == MT_WIRE ? "pinned" : "device");
  table *given_out = (table *)cuda->allocations;
  given_out->lock.lock();
  given_out->all[memory] = given{bytes, tag};
  given_out->lock.unlock();
  mt_cuda_host->account(tag, space, bytes, 1);
  return memory;
}

static void cuda_free(struct mt_device *device, enum mt_space space, void *memory)
{
  struct mt_cuda *cuda = mt_cuda_of(device);
  if (!memory)
    return;
  if (space == MT_HOST) {
    mt_cuda_host->free(memory);
    return;
  }
  table *given_out = (table *)cuda->allocations;
  given_out->lock.lock();
  auto it = given_out->all.find(memory);
  if (it == given_out->all.end())
    mt_cuda_host->die(__FILE__, __LINE__, "CUDA device %d: freeing memory that is not allocated", cuda->ordinal);
  const given was = it->second;
  given_out->all.erase(it);
  given_out->lock.unlock();
  mt_cuda_host->account(was.tag, space, -was.bytes, -1);
  for (int lane = 0; lane < MT_NDEVLANE; lane++)
    MT_CUDA(cudaStreamSynchronize(cuda->lane[lane]));
  if (space == MT_WIRE)
    MT_CUDA(cudaFreeHost(memory));
  else
    MT_CUDA(cudaFree(memory));
}

/* ---- lanes ---- */

static void cuda_copy(struct mt_device *device, enum mt_dev_lane lane, void *to, const void *from, int64_t bytes)
{
  if (bytes > 0)
    MT_CUDA(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, mt_cuda_here(device)->lane[lane]));
}

static void cuda_zero(struct mt_device *device, enum mt_dev_lane lane, void *to, int64_t bytes)
{
  mt_cuda_zero(mt_cuda_here(device)->lane[lane], to, bytes);
}

static int64_t cuda_mark(struct mt_device *device, enum mt_dev_lane lane)
{
  struct ring *ring = (struct ring *)mt_cuda_of(device)->marks;
  int64_t number = ring->next[lane]++;
  MT_CUDA(cudaEventRecord(ring->event[lane][number % RING], mt_cuda_of(device)->lane[lane]));
  return number * MT_NDEVLANE + lane;
}

static cudaEvent_t event_of(const struct mt_device *device, int64_t mark)
{
  const struct ring *ring = (const struct ring *)mt_cuda_of(device)->marks;
  return ring->event[mark % MT_NDEVLANE][mark / MT_NDEVLANE % RING];
}

static void cuda_wait(struct mt_device *device, enum mt_dev_lane lane, int64_t mark)
{
  MT_CUDA(cudaStreamWaitEvent(mt_cuda_here(device)->lane[lane], event_of(device, mark), 0));
}

static void cuda_reach(struct mt_device *device, int64_t mark)
{
  MT_CUDA(cudaEventSynchronize(event_of(device, mark)));
}

static void cuda_sync(struct mt_device *device, enum mt_dev_lane lane)
{
  MT_CUDA(cudaStreamSynchronize(mt_cuda_of(device)->lane[lane]));
}

/* What was given out must have come back by now, but for the device's own. */
static void cuda_close(struct mt_device *device)
{
  struct mt_cuda *cuda = mt_cuda_of(device);
  cuda_free(device, MT_DEVICE, device->work);
  cuda_free(device, MT_DEVICE, cuda->blas_work);
  cuda_free(device, MT_DEVICE, cuda->pointers);
  cuda_free(device, MT_DEVICE, cuda->partial);
  cuda_free(device, MT_WIRE, cuda->total);
  struct ring *ring = (struct ring *)cuda->marks;
  MT_CUBLAS(cublasDestroy(cuda->blas));
  for (int lane = 0; lane < MT_NDEVLANE; lane++) {
    for (int i = 0; i < RING; i++)
      MT_CUDA(cudaEventDestroy(ring->event[lane][i]));
    MT_CUDA(cudaStreamDestroy(cuda->lane[lane]));
  }
  if (device->host)
    device->host->ops->close(device->host);
  delete (table *)cuda->allocations;
  mt_cuda_host->free(ring);
  mt_cuda_host->free(cuda);
  mt_cuda_host->free(device);
}

static const struct mt_device_ops cuda_ops = {cuda_alloc, cuda_free, cuda_copy, cuda_zero, cuda_mark,
                                              cuda_wait,  cuda_reach, cuda_sync, cuda_close};

/* ---- the module ---- */

static int cuda_count(char *text, int size)
{
  int n = 0;
  cudaError_t error = cudaGetDeviceCount(&n);
  if (error == cudaSuccess && n > 0)
    return n;
  int driver = 0;
  if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
    snprintf(text, (size_t)size, "no NVIDIA driver is installed");
  else
    snprintf(text, (size_t)size, "%s", error == cudaSuccess ? "no devices" : cudaGetErrorString(error));
  return 0;
}

static void cuda_describe(int device, struct mt_cuda_info *info)
{
  memset(info, 0, sizeof *info);
  cudaDeviceProp properties;
  char bus[32] = "";
  if (cudaGetDeviceProperties(&properties, device) == cudaSuccess) {
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, properties.name);
    info->mem_bytes = (int64_t)properties.totalGlobalMem;
    memcpy(info->uuid, properties.uuid.bytes, sizeof info->uuid);
  }
  info->domain = info->bus = info->slot = -1;
  if (cudaDeviceGetPCIBusId(bus, sizeof bus, device) == cudaSuccess &&
      sscanf(bus, "%x:%x:%x", (unsigned *)&info->domain, (unsigned *)&info->bus, (unsigned *)&info->slot) != 3)
    info->domain = info->bus = info->slot = -1;
}

static struct mt_kernels kernels;

static struct mt_device *cuda_open(const struct mt_cuda_host *host, int ordinal, enum mt_precision precision,
                                   char *text, int size)
{
  mt_cuda_host = host;
  cudaGetLastError(); /* what could not be told of a device is no error of a launch */
  cudaError_t error = cudaSetDevice(ordinal);
  cudaStream_t first = NULL;
  if (error == cudaSuccess) /* the first call that needs the device itself */
    error = cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
  if (error == cudaSuccess)
    error = mt_cuda_loads();
  if (error != cudaSuccess) {
    snprintf(text, (size_t)size, "%s", cudaGetErrorString(error));
    return NULL;
  }
  struct mt_cuda *cuda = (struct mt_cuda *)host->alloc(MT_TAG_MISC, sizeof *cuda);
  struct mt_device *device = (struct mt_device *)host->alloc(MT_TAG_MISC, sizeof *device);
  struct ring *ring = (struct ring *)host->alloc(MT_TAG_MISC, sizeof *ring);
  memset(cuda, 0, sizeof *cuda);
  memset(device, 0, sizeof *device);
  memset(ring, 0, sizeof *ring);
  cuda->ordinal = ordinal;
  cuda->compute = precision == MT_PRECISION_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  cuda->allocations = new table;
  cuda->marks = ring;
  cuda->lane[0] = first;
  for (int lane = 1; lane < MT_NDEVLANE; lane++)
    MT_CUDA(cudaStreamCreateWithFlags(&cuda->lane[lane], cudaStreamNonBlocking));
  for (int lane = 0; lane < MT_NDEVLANE; lane++)
    for (int i = 0; i < RING; i++)
      MT_CUDA(cudaEventCreateWithFlags(&ring->event[lane][i], cudaEventDisableTiming));
  device->ops = &cuda_ops;
  device->ctype = precision == MT_PRECISION_BF16 ? MT_BF16 : MT_F32;
  device->threads = 1;
  device->state = cuda;
#ifdef MT_CUDA_EMULATED
  static const char kind[] = "emulated";
#else
  static const char kind[] = "cuda";
#endif
  static const char *const suffix[] = {"", "-tf32", "-bf16"};
  snprintf(cuda->name, sizeof cuda->name, "%s%s", kind, suffix[precision]);
  device->name = cuda->name;
  mt_cuda_linear(&kernels);
  mt_cuda_norm(&kernels);
  mt_cuda_rows(&kernels);
  mt_cuda_activation(&kernels);
  mt_cuda_attention(&kernels);
  mt_cuda_router(&kernels);
  mt_cuda_vector(&kernels);
  device->kernels = &kernels;

  MT_CUBLAS(cublasCreate(&cuda->blas));
  MT_CUBLAS(cublasSetStream(cuda->blas, mt_math(device)));
  /* Sums in f32 also where a product is cut along k and its parts are added. */
  MT_CUBLAS(cublasSetMathMode(cuda->blas, (cublasMath_t)(CUBLAS_DEFAULT_MATH |
                                                         CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
  /* A workspace of its own: with it cuBLAS gives the same bits in every run. */
  cuda->blas_work = cuda_alloc(device, MT_TAG_ACTIVATION, MT_DEVICE, (int64_t)BLAS_BYTES);
  MT_CUBLAS(cublasSetWorkspace(cuda->blas, cuda->blas_work, BLAS_BYTES));
  cuda->pointers = (void **)cuda_alloc(device, MT_TAG_PLAN, MT_DEVICE, 3 * MT_CUDA_GROUPS * (int64_t)sizeof(void *));
  cuda->partial = (double *)cuda_alloc(device, MT_TAG_PLAN, MT_DEVICE, MT_CUDA_PARTIALS * (int64_t)sizeof(double));
  cuda->total = (double *)cuda_alloc(device, MT_TAG_PLAN, MT_WIRE, (int64_t)sizeof(double));
  return device;
}

/* The name below is all that leaves this module. */
static struct mt_cuda_module make_module()
{
  struct mt_cuda_module module;
  memset(&module, 0, sizeof module);
  MT_CUDA_BUILD(module.build);
  module.count = cuda_count;
  module.describe = cuda_describe;
  module.open = cuda_open;
  return module;
}

extern "C" __attribute__((visibility("default"))) const struct mt_cuda_module mt_cuda_module;
const struct mt_cuda_module mt_cuda_module = make_module();
