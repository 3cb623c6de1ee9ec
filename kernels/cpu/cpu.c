/* The CPU device: host memory, and the kernels of the build that fits the processor; see cpu.h.
 *
 * The trap: this file is compiled for every processor, and so must be what it calls before it has chosen. */
#include "config.h"
#include "cpu.h"
#include "device_host.h"
#include "base/log.h"
#include <stdlib.h>
#include <string.h>
#ifdef MT_CPU_X86
#include <cpuid.h>
#endif

static int every_processor(void)
{
  return 1;
}

#ifdef MT_CPU_X86
/* The levels of the x86-64 psABI. The builtin knows whether the system saves the wide registers too; of what
 * is rarer it knows too little in some compilers. */
static int is_v3(void)
{
  unsigned a, b, c, d, extended;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !__get_cpuid(0x80000001, &a, &b, &extended, &d))
    return 0;
  return (c & bit_F16C) && (c & bit_MOVBE) && (extended & bit_LZCNT) && __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

static int is_v4(void)
{
  return is_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

static const struct build {
  const char *name;
  int (*runs)(void);
  void (*fill)(struct mt_kernels *kernels);
} builds[] = {
    {"cpu-plain", every_processor, mt_cpu_kernels_plain},
#ifdef MT_CPU_X86
    {"cpu-v3", is_v3, mt_cpu_kernels_v3},
    {"cpu-v4", is_v4, mt_cpu_kernels_v4},
#endif
};
enum { NBUILD = sizeof builds / sizeof *builds };

const char *mt_device_cpu_build(int i, int *runs)
{
  if (i >= NBUILD)
    return NULL;
  *runs = builds[i].runs();
  return builds[i].name;
}

/* The build of that name (without "cpu-"; NULL: the best) that this processor runs, or -1. */
static int find_build(const char *name)
{
  for (int i = NBUILD - 1; i >= 0; i--)
    if ((!name || !strcmp(builds[i].name + strlen("cpu-"), name)) && builds[i].runs())
      return i;
  return -1;
}

enum mt_status mt_device_cpu_open(const char *name, int threads, struct mt_device **device)
{
  static struct mt_kernels kernels[NBUILD]; /* the same for every device of the process */
  const char *wanted = strcmp(name, "cpu") ? name + strlen("cpu-") : getenv("MOTLEY_TEST_CPU");
  int i = find_build(wanted);
  if (i < 0) {
    mt_error("CPU kernels \"%s\": not in this program or not for this processor, the best here are %s",
             wanted, builds[find_build(NULL)].name);
    return MT_USAGE;
  }
  kernels[i] = mt_kernels_ref;
  builds[i].fill(&kernels[i]);
  *device = mt_device_host_new(builds[i].name, &kernels[i], threads);
  return MT_OK;
}
