/* What the sources of the CPU backend share: the names of a build and the size of a team.
 *
 * The idea: the same sources are compiled once per instruction set with other flags (kernels.am), and
 * MT_CPU_BUILD makes the names differ: every source exports one function that enters its kernels into the
 * table, everything else in it is static. */
#ifndef MT_CPU_BUILD_H
#define MT_CPU_BUILD_H
#include "ops.h"

#ifndef MT_CPU_BUILD
#error "compiled once per build, with its name: see kernels.am"
#endif
#define MT_CPU_GLUE2(stem, build) stem##_##build
#define MT_CPU_GLUE(stem, build) MT_CPU_GLUE2(stem, build)
#define MT_CPU_NAME(stem) MT_CPU_GLUE(stem, MT_CPU_BUILD)

void MT_CPU_NAME(mt_cpu_kernels)(struct mt_kernels *kernels);
void MT_CPU_NAME(mt_cpu_linear)(struct mt_kernels *kernels);
void MT_CPU_NAME(mt_cpu_attention)(struct mt_kernels *kernels);
void MT_CPU_NAME(mt_cpu_norm)(struct mt_kernels *kernels);
void MT_CPU_NAME(mt_cpu_rows)(struct mt_kernels *kernels);
void MT_CPU_NAME(mt_cpu_activation)(struct mt_kernels *kernels);
void MT_CPU_NAME(mt_cpu_router)(struct mt_kernels *kernels);
void MT_CPU_NAME(mt_cpu_vector)(struct mt_kernels *kernels);

/* The team for a loop that touches `work` elements: everybody, or the caller alone where waking the others
 * costs more than it brings. Nothing between: some runtimes end and restart threads when the size of a team
 * changes. */
static inline int mt_team(const struct mt_device *device, int64_t work)
{
  return work < 16384 ? 1 : device->threads;
}

static inline int64_t mt_min(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

static inline int64_t mt_max(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

/* n things in pieces of at most `size`: how many, and where piece i starts. Pieces are even, and start at
 * multiples of 16 (a cache line of floats) so that neighbours do not share lines. size is a multiple of 16.
 */
static inline int64_t mt_pieces(int64_t n, int64_t size)
{
  return (n + size - 1) / size;
}

static inline int64_t mt_piece(int64_t n, int64_t pieces, int64_t i)
{
  int64_t lines = (n + 15) / 16;
  return mt_min(n, i * lines / pieces * 16);
}

#endif
