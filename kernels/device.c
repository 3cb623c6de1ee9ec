/* Opening devices, and the memory of those that live in the host's; see device.h and device_host.h. */
#include "device.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "device_host.h"
#include "ops.h"
#include "base/log.h"
#include <string.h>

static void *host_alloc(struct mt_device *device, enum mt_tag tag, enum mt_space space, int64_t bytes)
{
  (void)device, (void)space;
  return mt_alloc(tag, bytes);
}

static void host_free(struct mt_device *device, enum mt_space space, void *memory)
{
  (void)device, (void)space;
  mt_free(memory);
}

/* Long ones are shared by the device's threads, in pieces; below, waking them costs more than it brings. */
enum { PIECE = 1 << 18 };

static int team(const struct mt_device *device, int64_t bytes)
{
  return bytes > 2 * PIECE ? device->threads : 1;
}

static int64_t piece_at(int64_t i, int64_t bytes)
{
  return bytes - i < PIECE ? bytes - i : PIECE;
}

static void host_copy(struct mt_device *device, enum mt_dev_lane lane, void *to, const void *from,
                      int64_t bytes)
{
  (void)lane;
  char *t = to;
  const char *f = from;
  if (t < f + bytes && f < t + bytes) {
    memmove(t, f, (size_t)bytes);
    return;
  }
#pragma omp parallel for num_threads(team(device, bytes)) schedule(static)
  for (int64_t i = 0; i < bytes; i += PIECE)
    memcpy(t + i, f + i, (size_t)piece_at(i, bytes));
}

static void host_zero(struct mt_device *device, enum mt_dev_lane lane, void *to, int64_t bytes)
{
  (void)lane;
  char *t = to;
#pragma omp parallel for num_threads(team(device, bytes)) schedule(static)
  for (int64_t i = 0; i < bytes; i += PIECE)
    memset(t + i, 0, (size_t)piece_at(i, bytes));
}

static int64_t host_mark(struct mt_device *device, enum mt_dev_lane lane)
{
  (void)device, (void)lane;
  return 0;
}

static void host_wait(struct mt_device *device, enum mt_dev_lane lane, int64_t mark)
{
  (void)device, (void)lane, (void)mark;
}

static void host_reach(struct mt_device *device, int64_t mark)
{
  (void)device, (void)mark;
}

static void host_sync(struct mt_device *device, enum mt_dev_lane lane)
{
  (void)device, (void)lane;
}

void mt_device_host_close(struct mt_device *device)
{
  mt_free(device->work);
  mt_free(device);
}

const struct mt_device_ops mt_device_host_ops = {
    .alloc = host_alloc,
    .free = host_free,
    .copy = host_copy,
    .zero = host_zero,
    .mark = host_mark,
    .wait = host_wait,
    .reach = host_reach,
    .sync = host_sync,
    .close = mt_device_host_close,
};

struct mt_device *mt_device_host_new(const char *name, const struct mt_kernels *kernels, int threads)
{
  struct mt_device *device = MT_ZNEW(MT_TAG_MISC, struct mt_device, 1);
  device->ops = &mt_device_host_ops;
  device->kernels = kernels;
  device->name = name;
  device->ctype = MT_F32;
  device->host = device;
  device->threads = threads < 1 ? 1 : threads;
  return device;
}

enum mt_status mt_device_open(const char *name, int threads, struct mt_device **device)
{
  *device = NULL;
  if (!strcmp(name, "ref") || !strcmp(name, "ref-bf16")) {
    *device = mt_device_host_new(name[3] ? "ref-bf16" : "ref", &mt_kernels_ref, threads);
    (*device)->ctype = name[3] ? MT_BF16 : MT_F32;
    return MT_OK;
  }
  if (!strcmp(name, "cpu") || !strncmp(name, "cpu-", 4))
    return mt_device_cpu_open(name, threads < 1 ? 1 : threads, device);
  if (mt_device_cuda_knows(name))
    return mt_device_cuda_open(name, threads < 1 ? 1 : threads, device);
  mt_error("device \"%s\" is not known: expected cpu, cuda, cuda:N or ref", name);
  return MT_USAGE;
}

void mt_device_grow(struct mt_device *device, enum mt_tag tag, enum mt_space space, void **memory, int64_t *held,
                    int64_t bytes)
{
  if (*memory && bytes <= *held)
    return;
  if (*memory) {
    mt_memory_count_growth();
    device->ops->free(device, space, *memory);
  }
  const int64_t more = *held + *held / 2;
  *held = bytes > more ? bytes : more;
  *memory = device->ops->alloc(device, tag, space, *held);
}

void mt_device_reserve(struct mt_device *device, int64_t bytes)
{
  if (bytes <= device->work_bytes)
    return;
  device->ops->sync(device, MT_DEV_MATH); /* the old workspace may still be in use */
  device->ops->free(device, MT_DEVICE, device->work);
  device->work = device->ops->alloc(device, MT_TAG_ACTIVATION, MT_DEVICE, bytes);
  device->work_bytes = bytes;
}
