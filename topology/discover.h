/* Finds out, with hwloc, where this process runs. */
#ifndef MT_DISCOVER_H
#define MT_DISCOVER_H
#include "topology/cluster.h"
#include "topology/gpu.h"

/* Fills *place for the calling process: host, CPU model, packages, NUMA domains, allowed cores (its binding, its
 * control group's set and quota), memory (the control group's limit, if lower); launch_rank (0), threads (1) and speed (0) are
 * the caller's to set. Local, never fails: if the topology cannot be read (broken /sys, restricted container), one
 * warning and a flat node (flat = 1) with the processors that sched_getaffinity reports; the warning comes from the
 * node's first rank alone where the launcher says which that is. Honours hwloc's own environment (HWLOC_XMLFILE,
 * HWLOC_SYNTHETIC): a machine described there is taken whole, since no binding and no control group belongs to it. Call
 * before threads are started: it sets HWLOC_HIDE_ERRORS unless it is set. */
void mt_discover(struct mt_place *place);

/* "hwloc 2.9.0". The caller frees. Local. */
char *mt_discover_library(void);

/* Sets package and numa of n GPUs, known by their PCI addresses, to those of the cores near them, numbered as in struct
 * mt_place; what cannot be found stays as it is. GPUs are looked for among NVIDIA's display controllers, by class and vendor,
 * so hwloc needs no plug-ins. Local, never fails. */
void mt_discover_gpus(struct mt_gpu *gpu, int n);

/* A network card on the bus. Fixed size: ranks exchange it as bytes. */
struct mt_nic {
  char name[64];                       /* what the system calls it: "eth0", "ib0, mlx5_0"; "" = it has no name for it */
  int32_t domain, bus, slot, function; /* PCI address */
  int32_t package, numa;               /* as in struct mt_gpu */
  int32_t mb_per_s;                    /* that its slot carries, MB/s each way; 0 = unknown */
};
/* Up to `most` of this host's cards for Ethernet and InfiniBand, by class, in the bus's order. Returns how many. Local,
 * never fails. */
int mt_discover_nics(struct mt_nic *nic, int most);

#endif
