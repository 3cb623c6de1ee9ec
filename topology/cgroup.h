/* What the control group of this process grants: the limits that neither the affinity mask nor /proc/meminfo
 * shows.
 *
 * A container with a quota of two cores on a machine of 64 still sees 64; a program that starts 64 threads
 * there is stopped most of the time. Linux, cgroup versions 2 and 1; elsewhere, or where nothing can be read,
 * there is no limit. */
#ifndef MT_CGROUP_H
#define MT_CGROUP_H
#include <stdint.h>

/* The tightest limit among the process's group and those above it. `root` is "" or, in tests, a folder that
 * holds proc/ and sys/. Local; never fail: 0 = no limit known. */
int64_t mt_cgroup_memory(const char *root); /* bytes */
int64_t mt_cgroup_cores(const char *root);  /* whole cores of the quota, >= 1 */

#endif
