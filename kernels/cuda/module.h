/* What the program and the CUDA module (motley-cuda.so) know of each other.
 *
 * The problem: one executable must run on nodes with and without CUDA's libraries, so it links none of them. The idea:
 * the backend is a module that the program opens at run time (device.c). It exports one symbol, the table below, and
 * reaches the program through another table: nothing else is shared, so neither needs the other to be linked. The trap:
 * both must come from one build, since they share struct mt_kernels; `build` says so. */
#ifndef MT_CUDA_MODULE_H
#define MT_CUDA_MODULE_H
#include "ops.h"

/* What the module calls in the program. */
struct mt_cuda_host {
  void *(*alloc)(enum mt_tag tag, int64_t bytes);
  void (*free)(void *memory);
  void (*account)(enum mt_tag tag, enum mt_space space, int64_t bytes, int blocks);
  void (*die)(const char *file, int line, const char *format, ...); /* does not return */
};

enum mt_precision { MT_PRECISION_F32, MT_PRECISION_TF32, MT_PRECISION_BF16 };

/* A device as CUDA numbers it: after CUDA_VISIBLE_DEVICES. */
struct mt_cuda_info {
  char name[64];
  unsigned char uuid[16];
  int domain, bus, slot; /* its PCI address */
  int64_t mem_bytes;
};

struct mt_cuda_module {
  char build[64]; /* MT_CUDA_BUILD of the module */
  /* Devices that can be used; 0 where there is no driver or no GPU, with why in text[size]. Local. */
  int (*count)(char *text, int size);
  void (*describe)(int device, struct mt_cuda_info *info);
  /* Opens one. NULL, with why in text[size], if it cannot be had. The caller closes it with ops->close. */
  struct mt_device *(*open)(const struct mt_cuda_host *host, int device, enum mt_precision precision, char *text,
                            int size);
};

#define MT_CUDA_SYMBOL "mt_cuda_module"
/* Version, and sizes of what is shared: another version's module is refused. */
#define MT_CUDA_BUILD(text)                                                                                            \
  snprintf(text, sizeof(text), "%s/%d/%d/%d/%d", PACKAGE_VERSION, (int)sizeof(struct mt_kernels),                      \
           (int)sizeof(struct mt_device), (int)sizeof(struct mt_device_ops), (int)sizeof(struct mt_cuda_info))

#endif
