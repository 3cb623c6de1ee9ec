/* What a row and an expert of a MoE layer cost on a cluster, in integers, so that all ranks plan the same.
 *
 * Times are picoseconds: small models have rows of less than a microsecond, and unlike speeds must stay unlike after
 * rounding. Sums of a layer's micro-step stay far below 64 bit (100 days). */
#ifndef MT_WORK_H
#define MT_WORK_H
#include <stdint.h>
#include "base/config.h"
#include "topology/cluster.h"

/* Of one layer in one micro-step, forward and backward. */
struct mt_work {
  int64_t row_flops;    /* of a row in an expert, all passes (forward + backward = 3 forwards; recomputed: 4); >= 1 */
  int64_t row_bytes;    /* of a row on the wire, one way */
  int row_trips;        /* ways of a row: 4 = there and back, forward and backward */
  int64_t expert_bytes; /* of an expert's weights, or their gradients, between ranks */
  int expert_trips;     /* times a slot is filled or emptied: 3 = unshard, unshard for the backward pass, reshard */
  int hidden;           /* 1: weights travel while experts compute, and cost what does not fit beside it */
  int keep;             /* 1: solved shares take no row out of its node that has a slot there, at any price */
  enum mt_sharding sharding;
};

/* The work of the experts of a model: C width, F of an expert, gated: SwiGLU (three matrices, else two); wire bytes per
 * element of a row; recompute: the forward pass runs twice. Pure. */
struct mt_work mt_work_of(int64_t C, int64_t F, int gated, int wire_bytes, int recompute, enum mt_sharding sharding);
/* The work of layer l of n: the last two layers' slots are still filled when the backward pass begins (moe.h), so these are
 * unsharded once. Pure. */
struct mt_work mt_work_of_layer(const struct mt_work *work, int l, int n);
/* ps[P]: picoseconds a row at each place. From the speeds measured; if one of them is 0, all places count as equal (50
 * GFLOP/s). At least 1. Pure. */
void mt_work_row_ps(const struct mt_work *work, const struct mt_cluster *cluster, int64_t *ps);
/* What planning takes for granted of a cluster that was not measured, as a line; NULL where it was. The caller frees. Pure. */
char *mt_work_assumed(const struct mt_cluster *cluster);
/* Picoseconds that a row's ways cost on a link of this level: between nodes, of both nodes' uplinks. From the links
 * measured, or what is usual; with `keep` more than any wait between nodes. Pure. */
int64_t mt_work_link_ps(const struct mt_work *work, const struct mt_cluster *cluster, enum mt_level level);

#endif
