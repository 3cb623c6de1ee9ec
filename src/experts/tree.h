/* The tree between shards and slots: experts rebuilt where they are used, their gradients summed back.
 *
 * The problem: every rank must get whole experts into its slots before use, and bring the slots' gradients home to the
 * shards after it; between nodes bytes are dear. The idea: one tree for both ways. Within node q each piece of an expert
 * has a "home" among the ranks that hold the expert there (its holders): the owner itself if it is one, else the owners'
 * pieces are spread over the holders. Unshard: an owner sends its piece once per node, to the home; homes pass pieces on to
 * the other holders. Reshard: holders send each home its pieces; the home adds them up; one sum per node goes to the owner.
 * So a distinct expert is fetched once per node, and a node sends one gradient sum per expert.
 * The trap: sums must have one order whatever carries them: by (rank, slot) within a node, then by node. */
#ifndef MT_TREE_H
#define MT_TREE_H
#include "experts/layout.h"
#include "experts/shard.h"
#include "kernels/device.h"

/* The messages of nplan layouts for vectors under one cut: who sends which piece where. Layers that share a layout share a
 * plan; where each has its own, each keeps its own, since planning takes longer than small messages do. */
struct mt_tree;
/* `cut` is borrowed. Local. */
struct mt_tree *mt_tree_new(struct mt_comm *comm, struct mt_device *device, const struct mt_cut *cut, int nplan);
void mt_tree_free(struct mt_tree *tree);
/* Makes `layout` the one that the calls below work on, and plan `which` its plan: planned anew unless it is that already
 * (same address and revision). Local and deterministic; allocates only where buffers are too small (counted growths). */
void mt_tree_plan(struct mt_tree *tree, int which, const struct mt_layout *layout);

/* slot[j][length] (j = my j-th slot, `stride` elements apart) := the expert that slot j holds, from this rank's pieces of
 * the layout's experts, which lie one behind the other at `piece`. A slot may be the piece itself (owner sharding): then
 * nothing is copied. Collective in effect; no allocation. The two stages can be separate tasks: between nodes (and owner
 * to home), then within the node. */
void mt_tree_unshard_inter(struct mt_tree *tree, const float *piece, float *slot, int64_t stride);
void mt_tree_unshard_intra(struct mt_tree *tree, float *slot, int64_t stride);
/* Both stages for a range alone: elements [first, end), where element i of vector v counts as number v * period + i. */
void mt_tree_unshard_range(struct mt_tree *tree, int64_t first, int64_t end, int64_t period, const float *piece, float *slot,
                           int64_t stride);
/* pieces += the sum of the gradients in all slots of the expert, by (rank, slot) within a node, then by node; slot's contents
 * are used up. Where a slot is the piece itself and the expert has no other slot, nothing happens. Collective in effect; no
 * allocation. */
void mt_tree_reshard_intra(struct mt_tree *tree, float *slot, int64_t stride);
void mt_tree_reshard_inter(struct mt_tree *tree, float *piece, float *slot, int64_t stride);
/* Both stages for such a range alone: the sums have the same bits whatever the ranges, and nothing
 * else of slots and pieces is read or written, so that it may be in use. Collective in effect; no allocation. */
void mt_tree_reshard_range(struct mt_tree *tree, int64_t first, int64_t end, int64_t period, float *piece, float *slot,
                           int64_t stride);
/* Bytes this rank sends per unshard (tests and costs). */
int64_t mt_tree_unshard_bytes(const struct mt_tree *tree, enum mt_level level);
/* Bytes of staging that this rank's plans have needed so far (forecasts). */
int64_t mt_tree_staging_bytes(const struct mt_tree *tree);

#endif
