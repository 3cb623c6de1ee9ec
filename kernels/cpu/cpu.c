/* The CPU device: host memory, and the kernels of the build that fits the processor; see cpu.h. */
#include "cpu.h"
#include "device_host.h"

enum mt_status mt_device_cpu_open(int threads, struct mt_device **device)
{
  static struct mt_kernels kernels; /* the same for every device of the process */
  kernels = mt_kernels_ref;
  mt_cpu_kernels_plain(&kernels);
  *device = mt_device_host_new("cpu", &kernels, threads);
  return MT_OK;
}
