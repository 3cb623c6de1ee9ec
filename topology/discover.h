/* Finds out, with hwloc, where this process runs. */
#ifndef MT_DISCOVER_H
#define MT_DISCOVER_H
#include "topology/cluster.h"

/* Fills *place for the calling process: host, CPU model, packages, NUMA domains, allowed cores (its binding and its
 * cgroup), memory; launch_rank, threads and speed are the caller's to set. Local, never fails: if the topology cannot be
 * read (broken /sys, restricted container), one warning and a flat node (flat = 1) with the cores that
 * sched_getaffinity reports. Honours hwloc's own environment (HWLOC_XMLFILE, HWLOC_SYNTHETIC). */
void mt_discover(struct mt_place *place);

#endif
