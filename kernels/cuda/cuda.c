/* Finding and opening the CUDA module; see cuda.h. Linked into the program, without any of CUDA's headers or libraries.
 *
 * The trap: a library that is found but cannot be loaded (no driver, another version of CUDA) is no failure of the
 * program. It is a reason, told to who asked for a GPU. A module stays loaded once it is: CUDA's libraries do not like
 * to be unloaded. */
#include "config.h"
#include "cuda/cuda.h"
#include "cpu/cpu.h"
#include "base/log.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind { CUDA, EMULATED, NKIND };
static const char *const kind_name[NKIND] = {"cuda", "emulated"};
static const char *const file_name[NKIND] = {"motley-cuda.so", "motley-cuda-emulated.so"};
static const char *const precision_name[] = {"-f32", "-tf32", "-bf16"};
enum { NPRECISION = sizeof precision_name / sizeof *precision_name };

static const struct mt_cuda_host host = {mt_alloc, mt_free, mt_memory_account, mt_die};

/* Takes a name apart; 0 if it is none. */
static int parse(const char *name, enum kind *kind, int *ordinal, enum mt_precision *precision)
{
  *ordinal = 0;
  *precision = MT_PRECISION_F32;
  for (int k = 0; k < NKIND; k++) {
    size_t n = strlen(kind_name[k]);
    if (strncmp(name, kind_name[k], n))
      continue;
    *kind = (enum kind)k;
    const char *rest = name + n;
    if (*rest == ':') {
      char *end;
      long value = strtol(rest + 1, &end, 10);
      if (rest[1] < '0' || rest[1] > '9' || value > 1 << 16)
        return 0;
      *ordinal = (int)value;
      rest = end;
    }
    for (int p = 0; p < NPRECISION; p++)
      if (!strcmp(rest, precision_name[p])) {
        *precision = (enum mt_precision)p;
        return 1;
      }
    return !*rest;
  }
  return 0;
}

int mt_device_cuda_knows(const char *name)
{
  enum kind kind;
  int ordinal;
  enum mt_precision precision;
  return parse(name, &kind, &ordinal, &precision);
}

/* The places to look, in turn: a program that is not installed uses its own build's module. */
static int place(int i, enum kind kind, char *path, size_t size)
{
  static const char *const beside[] = {"", "/tests", "/.."};
  enum { NBESIDE = sizeof beside / sizeof *beside };
  char self[3000];
  if (i == NBESIDE) {
    snprintf(path, size, "%s/%s", MT_MODULE_DIR, file_name[kind]);
    return 1;
  }
  ssize_t n = i < NBESIDE ? readlink("/proc/self/exe", self, sizeof self - 1) : -1;
  *path = 0;
  if (n > 0) {
    self[n] = 0;
    *strrchr(self, '/') = 0;
    snprintf(path, size, "%s%s/%s", self, beside[i], file_name[kind]);
  }
  return i < NBESIDE;
}

/* The module of a kind, or NULL with why. */
static const struct mt_cuda_module *load(enum kind kind, char *why, size_t size)
{
  static const struct mt_cuda_module *loaded[NKIND];
  if (loaded[kind])
    return loaded[kind];
  char path[4096], build[sizeof loaded[0]->build];
  snprintf(why, size, "%s is not installed%s", file_name[kind],
           kind == EMULATED ? "; make check TESTS= in the build folder builds it" : "");
  for (int i = 0; place(i, kind, path, sizeof path); i++) {
    if (access(path, F_OK))
      continue;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct mt_cuda_module *module = library ? dlsym(library, MT_CUDA_SYMBOL) : NULL;
    if (!module) {
      snprintf(why, size, "%s", dlerror());
      return NULL;
    }
    MT_CUDA_BUILD(build);
    if (strcmp(build, module->build)) {
      snprintf(why, size, "%s is of build %s, the program of %s", path, module->build, build);
      return NULL;
    }
    return loaded[kind] = module;
  }
  return NULL;
}

enum mt_status mt_device_cuda_open(const char *name, int threads, struct mt_device **device)
{
  enum kind kind;
  int ordinal;
  enum mt_precision precision;
  char why[4300] = "";
  *device = NULL;
  if (!parse(name, &kind, &ordinal, &precision)) {
    mt_error("device \"%s\": expected %s:N", name, kind_name[CUDA]);
    return MT_USAGE;
  }
  const struct mt_cuda_module *module = load(kind, why, sizeof why);
  int n = module ? module->count(why, sizeof why) : 0;
  if (n > 0 && ordinal >= n) {
    mt_error("device \"%s\": found %d devices, expected a number below that", name, n);
    return MT_USAGE;
  }
  if (n > 0)
    *device = module->open(&host, ordinal, precision, why, sizeof why);
  if (!*device) {
    mt_error("device \"%s\" cannot be used: %s", name, why);
    return MT_USAGE;
  }
  enum mt_status status = mt_device_cpu_open("cpu", threads, &(*device)->host);
  if (status != MT_OK) {
    (*device)->ops->close(*device);
    *device = NULL;
  }
  return status;
}

int mt_device_cuda_list(const char *kind, struct mt_cuda_info *info, int most, char *why, int size)
{
  const struct mt_cuda_module *module = load(!strcmp(kind, kind_name[EMULATED]) ? EMULATED : CUDA, why, (size_t)size);
  int n = module ? module->count(why, size) : 0;
  for (int i = 0; i < n && i < most; i++)
    module->describe(i, &info[i]);
  return n;
}
