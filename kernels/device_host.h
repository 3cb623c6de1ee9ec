/* What backends in host memory share: memory and lanes for which all three spaces are one and every lane is
 * the caller. */
#ifndef MT_DEVICE_HOST_H
#define MT_DEVICE_HOST_H
#include "device.h"

/* Counted host memory for every space; copies are done when they return, so marks, waits and syncs do
 * nothing. `close` frees the workspace and the device, not device->state: a backend that has one copies this
 * table and overrides close, which ends with mt_device_host_close. */
extern const struct mt_device_ops mt_device_host_ops;

/* A device in host memory with ctype f32 and no workspace. Local. threads < 1 counts as 1; name and kernels
 * are borrowed. The caller closes it with ops->close. */
struct mt_device *mt_device_host_new(const char *name, const struct mt_kernels *kernels, int threads);
void mt_device_host_close(struct mt_device *device);

#endif
