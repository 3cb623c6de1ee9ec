/* `motley bench unshard`. */
#ifndef MT_BENCH_UNSHARD_H
#define MT_BENCH_UNSHARD_H
#include "base/config.h"
#include "comm/comm.h"

/* Rebuilds one layer's experts from their shards and sums their gradients home, in turns, as the configuration's
 * sharding, slots and layout have it; prints messages, bytes, times, and what the measured links allow. Collective.
 * MT_USAGE for a model without experts. */
enum mt_status mt_bench_unshard(struct mt_comm *comm, const struct mt_config *config);

#endif
