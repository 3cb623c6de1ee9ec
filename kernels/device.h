/* A device: memory and lanes (mt_device_ops) and arithmetic (mt_kernels, ops.h).
 *
 * The idea: nothing above kernels/ knows what a GPU is. A backend fills two small tables; the table of
 * kernels starts as a copy of the reference's (ref.c) and overrides what it does better, so a backend is
 * never incomplete, only slow. The trap: on a CPU all spaces are one memory, so a missing copy or wait goes
 * unnoticed there. Code above must behave as if MT_DEVICE memory could not be touched by the host: move data
 * with ops->copy, and sync before reading the result. */
#ifndef MT_DEVICE_H
#define MT_DEVICE_H
#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"

/* Element types. Activations and compute weights have the device's ctype; statistics, router, loss, gradients
 * of parameters and the optimizer are f32. */
enum mt_dtype { MT_F32, MT_BF16 };
static inline int64_t mt_dtype_size(enum mt_dtype type)
{
  return type == MT_F32 ? 4 : 2;
}

/* Kernels; copies to the host and copies from it, which a bus carries at once. */
enum mt_dev_lane { MT_DEV_MATH, MT_DEV_OUT, MT_DEV_IN, MT_NDEVLANE };

struct mt_device;
struct mt_kernels; /* ops.h */

/* All entries are set in every backend. Local. None fails: exhausted memory and device errors end the job. Two threads may call
 * at once, each marking lanes of its own; kernels but `convert` are one thread's. */
struct mt_device_ops {
  /* bytes >= 0 of a space; 64-byte aligned; uninitialised. Freed by free with the same space. */
  void *(*alloc)(struct mt_device *device, enum mt_tag tag, enum mt_space space, int64_t bytes);
  void (*free)(struct mt_device *device, enum mt_space space, void *memory);
  /* Copies between any two spaces, in order with the lane's other work; returns before it is done. */
  void (*copy)(struct mt_device *device, enum mt_dev_lane lane, void *to, const void *from, int64_t bytes);
  void (*zero)(struct mt_device *device, enum mt_dev_lane lane, void *to, int64_t bytes);
  /* mark notes the lane's present end under a number; wait makes a lane wait for it, without blocking the
   * host. */
  int64_t (*mark)(struct mt_device *device, enum mt_dev_lane lane);
  void (*wait)(struct mt_device *device, enum mt_dev_lane lane, int64_t mark);
  /* Blocks the host until a mark is reached. */
  void (*reach)(struct mt_device *device, int64_t mark);
  /* Blocks the host until the lane has done everything. */
  void (*sync)(struct mt_device *device, enum mt_dev_lane lane);
  void (*close)(struct mt_device *device); /* frees the device itself */
};

struct mt_device {
  const struct mt_device_ops *ops;
  const struct mt_kernels *kernels;
  const char *name;    /* "ref", "cpu-v4": the build that was chosen */
  enum mt_dtype ctype; /* MT_F32 on a CPU */
  struct mt_device *host; /* computes on the host's memory: on a CPU the device itself, else one beside it, owned */
  int threads;         /* compute threads, >= 1 */
  void *work;          /* workspace of the kernels, owned; see mt_device_reserve */
  int64_t work_bytes;
  void *state; /* the backend's own */
};

/* Opens a backend: "ref" (plain loops, for tests and comparison; "ref-bf16" with that ctype) or "cpu" (the best of its builds; "cpu-plain",
 * "cpu-v3", "cpu-v4" for one of them: cpu/cpu.h), with threads < 1 counting as 1. Local. The caller closes with
 * device->ops->close(device). MT_USAGE, said once, and NULL if there is no such backend. */
enum mt_status mt_device_open(const char *name, int threads, struct mt_device **device);
/* Makes the workspace at least `bytes` large (kernels tell how much they need: *_work in ops.h); its contents
 * are lost. Local; before hot calls. */
void mt_device_reserve(struct mt_device *device, int64_t bytes);
/* Makes *memory (NULL = none yet), of which *held bytes are there, hold `bytes`; its contents are lost. What is too small grows
 * by half, or to what is needed: a counted growth. Local; before hot calls. */
void mt_device_grow(struct mt_device *device, enum mt_tag tag, enum mt_space space, void **memory, int64_t *held,
                    int64_t bytes);

/* Pointer to element `index` of an array of the device's ctype. */
static inline void *mt_at(const struct mt_device *device, const void *base, int64_t index)
{
  return (char *)base + index * mt_dtype_size(device->ctype);
}

#endif
