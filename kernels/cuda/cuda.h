/* GPUs, as the program sees them: through a module that is opened where one is wanted; see module.h.
 *
 * A name is KIND[:N][-PRECISION]: KIND cuda (motley-cuda.so, in the package's library folder or beside the program) or
 * emulated (tests only: motley-cuda-emulated.so, beside the program or in its folder tests/); N the device as CUDA
 * numbers it, after CUDA_VISIBLE_DEVICES (0 if it is not named); PRECISION tf32 (products in TF32) or bf16 (activations
 * and compute weights in bf16). */
#ifndef MT_CUDA_H
#define MT_CUDA_H
#include "cuda/module.h"

/* 1 if this is a name of a GPU. Pure. */
int mt_device_cuda_knows(const char *name);
/* Opens it, with a CPU device of `threads` >= 1 beside it (device->host). Local. The caller closes it with
 * device->ops->close(device). MT_USAGE, said once, if there is no module, driver or device, or the module is not of
 * this program's build. */
enum mt_status mt_device_cuda_open(const char *name, int threads, struct mt_device **device);
/* What KIND (cuda, emulated) can use here: up to `most` devices are described in info[]. Returns how many there are; 0,
 * with the reason in why[size], where there is none. Local; never fails, says nothing. */
int mt_device_cuda_list(const char *kind, struct mt_cuda_info *info, int most, char *why, int size);

#endif
