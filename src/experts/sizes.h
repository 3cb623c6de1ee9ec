/* How much of the sharded vectors each rank owns (parallel.shard_sizes).
 *
 * The problem: of unlike nodes the one with the least memory, or with the most ranks behind one uplink, decides whether
 * a model fits and how long an unshard takes. The idea: weights that only depart from an even cut where that helps:
 *
 *   wanted   evenly over the ranks, or, if that costs less, evenly over the nodes and over the ranks of each. Unsharding
 *            sends what a node owns to every other one, and resharding brings as much back, so with the links measured the
 *            costs are   3 * 4 * (nodes - 1) * (most elements of a node) * beta(net)    twice out for the two passes, once in
 *                      + 28 * (most elements of a rank) * beta(self)                    the update's memory traffic
 *   room     3/4 of the place's memory (of a CPU rank: its part of the node's), the rest being for activations and rows,
 *            less the shared parameters and the experts in slots: 8 and 12 bytes an element. Unknown memory is boundless.
 *   weight   what is wanted, but no more than there is room for at 16 bytes an element (master, moments, gradient); what does
 *            not fit goes to the others in proportion. If nothing helps, weights are the rooms.
 *
 * The trap: weights change the rounding of the gradient's norm, so they are a function of integers that all ranks agree on
 * and the checkpoint keeps. */
#ifndef MT_SIZES_H
#define MT_SIZES_H
#include "base/config.h"
#include "experts/param.h"
#include "experts/shard.h"

/* MT_USAGE, with one message, if parallel.shard_sizes is a list that does not fit the cluster's ranks. Local and pure. */
enum mt_status mt_sizes_check(const struct mt_config *config, const struct mt_cluster *cluster);
/* weight[P] of the ranks; returns 0 if all are the same. parallel.slots must fit the cluster. Local and pure. */
int mt_sizes(const struct mt_config *config, const struct mt_params *params, const struct mt_cluster *cluster, int64_t *weight);
/* The shared vector is cut over the ranks in blocks, so that what is a part of it, a layer's say, has an owner everywhere, and
 * not one rank sends or receives all of it: so many, 1 where blocks would be small. They divide its length. Pure. */
/* Bytes below which a rank's piece of a block would be small; tests make it smaller. */
extern int64_t mt_sizes_least_piece;
int mt_sizes_blocks(const struct mt_params *params, const struct mt_comm *comm);
/* A block's cut over all ranks, and the experts' as parallel.sharding says (see mt_cut_experts), both with these
 * weights. Local, the same on all ranks. */
struct mt_cut mt_sizes_shared(const struct mt_config *config, const struct mt_params *params, const struct mt_comm *comm);
struct mt_cut mt_sizes_experts(const struct mt_config *config, const struct mt_params *params, const struct mt_comm *comm,
                               const struct mt_layout *layout);

#endif
