/* Memory, streams and events of the emulated device; see cuda_runtime.h.
 *
 * The idea: device memory is inaccessible pages that open only while work of a stream runs, so the host faults where a
 * real GPU's memory would not be there at all. Streams are queues; a wait runs the queue up to where it must be, and
 * what that depends on in others. Each allocation ends at an inaccessible page; the rest of its pages is poison that is
 * checked after every kernel. Freed memory is never used again. Threads of the host take turns, and each has its own
 * current device, from which alone a stream of that device may get work. */
#include <cuda_runtime.h>
#include "emulation.h"
#include <deque>
#include <map>
#include <mutex>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

static const int64_t PAGE = 4096, ARENA = (int64_t)1 << 38;
static const int DEVICES = 3;
static const uint16_t POISON = 0x7ff1;
static std::recursive_mutex lock; /* of everything here and of whatever runs */
#define ONE_AT_A_TIME const std::lock_guard<std::recursive_mutex> one_at_a_time(lock)

void emulated_fault(const char *format, ...)
{
  char text[600];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  fprintf(stderr, "emulated GPU: %s\n", text);
  fflush(stderr);
  _exit(1);
}

void emulated_poison(void *at, int64_t bytes)
{
  char *p = (char *)at;
  for (; bytes > 0 && (uintptr_t)p % 8; p++, bytes--)
    *p = ((const char *)&POISON)[(uintptr_t)p % 2];
  for (; bytes >= 8; p += 8, bytes -= 8)
    *(uint64_t *)p = POISON * (uint64_t)0x0001000100010001;
  for (; bytes > 0; p++, bytes--)
    *p = ((const char *)&POISON)[(uintptr_t)p % 2];
}

int emulated_is_poison(const void *at, int64_t bytes)
{
  for (const char *p = (const char *)at, *end = p + bytes; p < end; p++)
    if (*p != ((const char *)&POISON)[(uintptr_t)p % 2])
      return 0;
  return 1;
}

void *emulated_pages(int64_t bytes)
{
  int64_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
  char *at = (char *)mmap(nullptr, (size_t)(whole + 2 * PAGE), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED || mprotect(at + PAGE, (size_t)whole, PROT_READ | PROT_WRITE))
    emulated_fault("out of memory: %lld bytes", (long long)bytes);
  return at + PAGE;
}

/* ---- memory ---- */

struct allocation {
  char *first; /* its pages: [first, end) */
  char *end;
  int64_t bytes;
  int device;
};
static std::map<char *, allocation> allocations; /* by address */
static char *arena, *next_page;
static int open_depth, order;
static thread_local int current_device;
static const char *running;

int emulated_order()
{
  return order;
}

const char *emulated_running()
{
  return running;
}

/* The allocation that holds the pointer or ends there, or NULL. */
static const allocation *find(const void *pointer)
{
  auto it = allocations.upper_bound((char *)pointer);
  if (it == allocations.begin())
    return nullptr;
  --it;
  return (char *)pointer <= it->first + it->second.bytes ? &it->second : nullptr;
}

/* Where the processor has memory keys, opening and closing costs nothing; else a system call for each allocation. */
static int key = -1;

static void protect(int how)
{
  if (key >= 0) {
    pkey_set(key, how == PROT_NONE ? PKEY_DISABLE_ACCESS : 0);
    return;
  }
  for (auto &a : allocations)
    if (a.second.device && mprotect(a.second.first, (size_t)(a.second.end - a.second.first), how))
      emulated_fault("mprotect fails");
}

static void check_guards(const char *name)
{
  for (auto &a : allocations) {
    char *end = a.first + a.second.bytes;
    if (!emulated_is_poison(end, a.second.end - end))
      emulated_fault("%s wrote behind %lld bytes of memory", name, (long long)a.second.bytes);
    int64_t before = a.first - a.second.first;
    before = before > 64 ? 64 : before;
    if (!emulated_is_poison(a.first - before, before))
      emulated_fault("%s wrote before %lld bytes of memory", name, (long long)a.second.bytes);
  }
}

/* Says who touched what; the default action then ends the process. */
static void on_fault(int signal, siginfo_t *info, void *)
{
  const char *at = (const char *)info->si_addr;
  char text[400];
  int n = 0;
  if (at >= arena && at < arena + ARENA) {
    const char *what =
        find(at) && find(at + 1) ? "device memory" : "memory that is not allocated (out of bounds, or freed)";
    n = snprintf(text, sizeof text, "emulated GPU: %s touched %s at %p\n", emulated_where(), what, (const void *)at);
  } else if (emulated_running())
    n = snprintf(text, sizeof text, "emulated GPU: %s touched %p, which is no memory of the GPU's\n", emulated_where(),
                 (const void *)at);
  if (n > 0 && write(2, text, (size_t)n) < 0)
    _exit(1);
  ::signal(signal, SIG_DFL);
  if (n > 0)
    _exit(1);
}

static void begin()
{
  if (arena)
    return;
  arena = (char *)mmap(nullptr, (size_t)ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED)
    emulated_fault("no address space");
  next_page = arena + PAGE;
  if (!getenv("MOTLEY_TEST_NO_KEYS"))
    key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  stack_t stack = {};
  if (!sigaltstack(nullptr, &stack) && (stack.ss_flags & SS_DISABLE)) {
    stack.ss_sp = emulated_pages(64 << 10);
    stack.ss_size = 64 << 10;
    stack.ss_flags = 0;
    sigaltstack(&stack, nullptr);
  }
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

/* Ends at a page's end, but for what alignment to 64 bytes needs. */
static cudaError_t allocate(void **result, size_t bytes, int device)
{
  ONE_AT_A_TIME;
  begin();
  int64_t need = ((int64_t)bytes + 63) / 64 * 64, whole = (need + PAGE - 1) / PAGE * PAGE;
  char *first = next_page;
  next_page += whole + PAGE;
  if (next_page > arena + ARENA)
    return cudaErrorMemoryAllocation;
  if (mprotect(first, (size_t)whole, PROT_READ | PROT_WRITE))
    return cudaErrorMemoryAllocation;
  emulated_poison(first, whole);
  char *at = first + whole - need;
  allocations[at] = allocation{first, first + whole, (int64_t)bytes, device};
  if (device && key >= 0)
    pkey_mprotect(first, (size_t)whole, PROT_READ | PROT_WRITE, key);
  else if (device && !open_depth)
    mprotect(first, (size_t)whole, PROT_NONE);
  *result = at;
  return cudaSuccess;
}

static cudaError_t release(void *memory, int device)
{
  ONE_AT_A_TIME;
  auto it = allocations.find((char *)memory);
  if (it == allocations.end() || it->second.device != device)
    emulated_fault("freeing %p, which is no such memory", memory);
  size_t whole = (size_t)(it->second.end - it->second.first);
  if (device && !open_depth)
    protect(PROT_READ | PROT_WRITE);
  char *end = it->first + it->second.bytes;
  if (!emulated_is_poison(end, it->second.end - end) ||
      !emulated_is_poison(it->second.first, it->first - it->second.first))
    emulated_fault("something wrote before or behind %lld bytes of memory", (long long)it->second.bytes);
  mmap(it->second.first, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  allocations.erase(it);
  if (device && !open_depth)
    protect(PROT_NONE);
  return cudaSuccess;
}

void emulated_check_pointer(const char *kernel, const void *pointer)
{
  ONE_AT_A_TIME;
  if (pointer && !find(pointer))
    emulated_fault("%s is given %p, which is no memory of the GPU's", kernel, pointer);
}

cudaError_t cudaHostAlloc(void **result, size_t bytes, unsigned)
{
  return allocate(result, bytes, 0);
}
cudaError_t cudaFreeHost(void *memory)
{
  return release(memory, 0);
}

/* ---- streams ---- */

struct emulated_stream {
  struct work {
    const char *name;
    std::function<void()> run;
  };
  std::deque<work> queue;
  int64_t issued, done;
  int device;
};
struct emulated_event {
  cudaStream_t stream;
  int64_t issued;
};
static int nstream;

void emulated_enqueue(cudaStream_t stream, const char *name, std::function<void()> run)
{
  ONE_AT_A_TIME;
  if (current_device != stream->device && !running)
    emulated_fault("%s for a stream of device %d, where %d is current", name ? name : "a wait", stream->device, current_device);
  stream->queue.push_back({name, run});
  stream->issued++;
}

static void run_until(cudaStream_t stream, int64_t number)
{
  if (stream->done >= number)
    return;
  if (!open_depth++)
    protect(PROT_READ | PROT_WRITE);
  while (stream->done < number) {
    emulated_stream::work work = stream->queue.front();
    stream->queue.pop_front();
    const char *outer = running;
    running = work.name;
    order = stream->device;
    work.run();
    if (work.name)
      check_guards(work.name);
    running = outer;
    stream->done++;
  }
  if (!--open_depth)
    protect(PROT_NONE);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
  ONE_AT_A_TIME;
  *stream = new emulated_stream();
  (*stream)->device = current_device;
  nstream++;
  return cudaSuccess;
}

/* The last stream of a process: what is still allocated was forgotten. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
  ONE_AT_A_TIME;
  run_until(stream, stream->issued);
  delete stream;
  int64_t bytes = 0;
  for (auto &a : allocations)
    bytes += a.second.bytes;
  if (!--nstream && !allocations.empty())
    emulated_fault("%zu allocations were not freed, %lld bytes together", allocations.size(), (long long)bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
  ONE_AT_A_TIME;
  run_until(stream, stream->issued);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
  *event = new emulated_event();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
  ONE_AT_A_TIME;
  *event = {stream, stream->issued};
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
  ONE_AT_A_TIME;
  if (event->stream)
    run_until(event->stream, event->issued);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
  ONE_AT_A_TIME;
  emulated_event at = *event;
  if (at.stream)
    emulated_enqueue(stream, nullptr, [at]() { run_until(at.stream, at.issued); });
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **result, size_t bytes)
{
  return allocate(result, bytes, 1);
}

/* A GPU's waits for all streams first; nobody should need that. */
cudaError_t cudaFree(void *memory)
{
  return release(memory, 1);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream)
{
  if (bytes == 0)
    return cudaSuccess;
  ONE_AT_A_TIME;
  const allocation *a = find(to), *b = find(from);
  if ((a && find((char *)to + bytes) != a) || (b && find((const char *)from + bytes) != b))
    emulated_fault("a copy of %zu bytes beyond an allocation's end", bytes);
  emulated_enqueue(stream, "a copy", [=]() { memmove(to, from, bytes); });
  return cudaSuccess;
}

/* ---- devices and launches ---- */

const char *cudaGetErrorString(cudaError_t error)
{
  static const char *const text[] = {"no error", "invalid argument", "out of memory", "invalid device ordinal",
                                     "no driver"};
  return text[error];
}
cudaError_t cudaGetDeviceCount(int *n)
{
  *n = DEVICES;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version)
{
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device)
{
  if (device < 0 || device >= DEVICES)
    return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
  *p = cudaDeviceProp();
  snprintf(p->name, sizeof p->name, "emulated GPU %d", device);
  p->uuid.bytes[0] = (char)(device + 1);
  p->totalGlobalMem = (size_t)1 << 30;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
  snprintf(text, (size_t)size, "0000:%02X:00.0", device + 1);
  return cudaSuccess;
}

static std::map<const void *, int> shared_limit;

cudaError_t emulated_set_shared_limit(const void *kernel, int bytes)
{
  ONE_AT_A_TIME;
  if (bytes > EMULATED_SHARED_MOST)
    return cudaErrorInvalidValue;
  shared_limit[kernel] = bytes;
  return cudaSuccess;
}

void emulated_check_launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared)
{
  ONE_AT_A_TIME;
  auto it = shared_limit.find(kernel);
  size_t limit = it == shared_limit.end() ? (size_t)EMULATED_SHARED_DEFAULT : (size_t)it->second;
  if (block.x < 1 || block.y < 1 || block.z < 1 || (int64_t)block.x * block.y * block.z > 1024 || block.z > 64)
    emulated_fault("%s: blocks of %u x %u x %u threads", name, block.x, block.y, block.z);
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
    emulated_fault("%s: a grid of %u x %u x %u blocks", name, grid.x, grid.y, grid.z);
  if (shared > limit)
    emulated_fault("%s: %zu bytes of dynamic shared memory, allowed are %zu", name, shared, limit);
}
