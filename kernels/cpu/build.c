/* Enters one build's kernels into the table. */
#include "build.h"

void MT_CPU_NAME(mt_cpu_kernels)(struct mt_kernels *kernels)
{
  MT_CPU_NAME(mt_cpu_linear)(kernels);
  MT_CPU_NAME(mt_cpu_attention)(kernels);
  MT_CPU_NAME(mt_cpu_norm)(kernels);
  MT_CPU_NAME(mt_cpu_rows)(kernels);
  MT_CPU_NAME(mt_cpu_activation)(kernels);
  MT_CPU_NAME(mt_cpu_router)(kernels);
  MT_CPU_NAME(mt_cpu_vector)(kernels);
}
