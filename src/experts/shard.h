/* Sharded vectors: cut over all ranks, rebuilt where they are used, their gradients summed back to the shards.
 *
 * The problem: every rank owns a piece of every expert (and of the shared parameters) and must get whole experts into its
 * slots before use, and bring the slots' gradients home after it. Between nodes bytes are dear. The idea: one tree for
 * both ways. Within node q each expert's pieces are divided over the ranks that hold it there (its holders): the "home" of
 * a piece. Unshard: the owner sends its piece once per node, to the home; homes pass their pieces on to the other holders.
 * Reshard: holders send each home its pieces; the home adds them up; one sum per node goes to the owner. So a distinct
 * expert is fetched once per node, and a node sends one gradient sum per expert (LAER-MoE's FSEP made hierarchical).
 * The trap: sums must have one order whatever carries them: by (rank, slot) within a node, then by node. */
#ifndef MT_SHARD_H
#define MT_SHARD_H
#include <stdint.h>
#include "comm/comm.h"
#include "comm/part.h"
#include "experts/layout.h"
#include "kernels/device.h"

/* This rank's pieces of nitem vectors of the same length, and what the optimizer keeps of them. */
struct mt_shard {
  int64_t nitem, length;
  struct mt_part part;          /* of one vector over all ranks */
  int64_t first, count;         /* mine */
  float *master, *m, *v, *grad; /* [nitem][count] each, owned, host memory */
};
/* Zeros. training = 0: master weights only, the other arrays are empty. Local; freed by mt_shard_free. */
struct mt_shard mt_shard_new(const struct mt_comm *comm, int64_t nitem, int64_t length, int training);
void mt_shard_free(struct mt_shard *shard);

/* The messages of one layout for vectors cut by one part: who sends which piece where. Reused for all layers that have
 * this layout; planning again reuses the memory. */
struct mt_tree;
struct mt_tree *mt_tree_new(struct mt_comm *comm, struct mt_device *device, const struct mt_part *part);
void mt_tree_free(struct mt_tree *tree);
/* Plans for a layout (does nothing if it is the layout planned last: same address and revision). Local and deterministic;
 * allocates only where its buffers are too small (a counted growth). */
void mt_tree_plan(struct mt_tree *tree, const struct mt_layout *layout);

/* slot[j][length] (j = my j-th slot, `stride` elements apart) := the expert that slot j holds, from
 * piece[nexpert][count]. Collective in effect; no allocation. The two stages can be separate tasks:
 * between nodes (and owner to home), then within the node. */
void mt_tree_unshard_inter(struct mt_tree *tree, const float *piece, float *slot, int64_t stride);
void mt_tree_unshard_intra(struct mt_tree *tree, float *slot, int64_t stride);
/* piece[nexpert][count] += the sum of the gradients in all slots of the expert, by (rank, slot) within a node, then by
 * node. slot's contents are used up. Collective in effect; no allocation. */
void mt_tree_reshard_intra(struct mt_tree *tree, float *slot, int64_t stride);
void mt_tree_reshard_inter(struct mt_tree *tree, float *piece, float *slot, int64_t stride);
/* Bytes this rank sends per unshard (tests and costs). */
int64_t mt_tree_unshard_bytes(const struct mt_tree *tree, enum mt_level level);

#endif
