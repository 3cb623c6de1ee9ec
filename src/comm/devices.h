/* Which device each rank drives: what parallel.device comes to on the hosts at hand. */
#ifndef MT_DEVICES_H
#define MT_DEVICES_H
#include <stddef.h>
#include "comm/comm.h"

/* `wish` is this rank's: "auto", "cpu", "cuda", "cuda:N", "emulated" or "emulated:N" (ranks may differ). Ranks of a
 * host show each other the GPUs that they can use (after CUDA_VISIBLE_DEVICES, which CUDA itself reads) and deal them
 * out: auto takes a GPU of its own or, if none is left, stays on the CPU; cuda shares one if need be, with a warning.
 * name[size] becomes what mt_device_open understands, without a precision; kinds, devices and memories enter
 * comm->cluster. *report, if not NULL, is one line for each rank that has a GPU and for each GPU that nobody took, or
 * one that says why there is none, on rank 0; NULL elsewhere, and where nobody looked for one; the caller frees. Collective. MT_USAGE, said once and agreed, where
 * a GPU was asked for that is not there. */
enum mt_status mt_devices_choose(struct mt_comm *comm, const char *wish, char *name, size_t size, char **report);
/* One line for each network card of each host, on rank 0; NULL elsewhere and where there are none. The caller frees.
 * Collective. */
char *mt_devices_nics(struct mt_comm *comm);

#endif
