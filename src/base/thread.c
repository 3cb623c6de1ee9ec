/* See thread.h. */
#include "config.h"
#include "base/thread.h"
#include <sched.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

void mt_thread_hurry(void)
{
  enum { SLACK_NS = 1000, SLICE_NS = 100 * 1000 }; /* the kernel grants no shorter slices */
  prctl(PR_SET_TIMERSLACK, SLACK_NS);
#ifdef SYS_sched_setattr
  struct { /* the kernel's struct sched_attr, first version */
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attr = {.size = sizeof attr};
  if (syscall(SYS_sched_getattr, 0, &attr, (unsigned)sizeof attr, 0U) == 0 && attr.policy == SCHED_OTHER) {
    attr.runtime = SLICE_NS;
    (void)syscall(SYS_sched_setattr, 0, &attr, 0U);
  }
#endif
}
