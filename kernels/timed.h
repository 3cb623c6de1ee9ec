/* How long a device's kernels take, by kernel: its table replaced by one that waits and counts.
 *
 * The trap: a GPU's kernels return before they are done, so each is waited for, before and after; what is timed so does
 * not overlap, and its sum is more than the same work takes otherwise. */
#ifndef MT_TIMED_H
#define MT_TIMED_H
#include "ops.h"

enum { MT_MOST_TIMED = 40 };
struct mt_timed {
  int n;
  struct mt_timed_kernel {
    const char *name; /* of ops.h */
    int64_t calls;
    double seconds;
  } kernel[MT_MOST_TIMED]; /* those that were called, the longest first */
};

/* From here on the device's kernels are timed, on whatever thread they run. One device at a time. Local. */
void mt_timed_begin(struct mt_device *device);
/* No more; what they took. Local. */
struct mt_timed mt_timed_end(struct mt_device *device);

#endif
