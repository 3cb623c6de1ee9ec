/* Which device each rank drives: what parallel.device comes to on the hosts at hand. */
#ifndef MT_DEVICES_H
#define MT_DEVICES_H
#include <stddef.h>
#include "base/config.h"
#include "comm/comm.h"
#include "comm/exchange.h"

/* `wish` is this rank's: "auto", "cpu", "cuda", "cuda:N", "emulated" or "emulated:N" (ranks may differ). Ranks of a
 * host show each other the GPUs that they can use (after CUDA_VISIBLE_DEVICES, which CUDA itself reads) and deal them
 * out: auto takes a GPU of its own or, if none is left, stays on the CPU; cuda shares one if need be, with a warning.
 * name[size] becomes what mt_device_open understands, without a precision; kinds, devices and memories enter
 * comm->cluster. *report, if not NULL, is one line for each rank that has a GPU and for each GPU that nobody took, or
 * one that says why there is none, on rank 0; NULL elsewhere, and where nobody looked for one; the caller frees. Collective.
 * MT_USAGE, said once and agreed, where a GPU was asked for that is not there. */
enum mt_status mt_devices_choose(struct mt_comm *comm, const char *wish, char *name, size_t size, char **report);
/* How MPI gets at rows of this rank's device, and the longest message of an exchange then: what mt_exchange_of wants. With auto
 * rows of GPUs go directly where MPI takes their memory on all ranks that have one, else through pinned memory. say = 1: rank 0
 * says which, if a rank has a GPU. Collective, agreed: MT_USAGE, said once, if direct is wanted and MPI does not do it. */
enum mt_status mt_devices_reach(struct mt_comm *comm, const struct mt_device *device, enum mt_device_memory wish, int say,
                                enum mt_reach *reach, int64_t *chunk);
/* One line for each network card of each host, on rank 0; NULL elsewhere and where there are none. The caller frees.
 * Collective. */
char *mt_devices_nics(struct mt_comm *comm);

#endif
