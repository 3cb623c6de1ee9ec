/* Sharded vectors: how they are cut over ranks, and what a rank keeps of them.
 *
 * The idea: an expert is one flat vector; master weights, moments and summed gradients exist only in the pieces that ranks
 * own, and never move. The cut is data: over all ranks (full: LAER-MoE's FSEP), over the ranks of one node (node), or
 * whole on one rank (owner: classic expert parallelism). tree.h brings pieces together and gradients home under any cut. */
#ifndef MT_SHARD_H
#define MT_SHARD_H
#include <stdint.h>
#include "base/config.h"
#include "comm/comm.h"
#include "comm/part.h"
#include "experts/layout.h"

/* Vector i is cut by part[i % npart]. */
struct mt_cut {
  int npart;
  struct mt_part *part; /* [npart], owned */
  int64_t *before;      /* [npart + 1], owned: this rank's elements of the vectors before i within a period */
};

/* One cut for all vectors, over all ranks: in proportion to weight[P], NULL = evenly. Local. */
struct mt_cut mt_cut_full(const struct mt_comm *comm, int64_t length, const int64_t *weight);
/* nexpert cuts, by sharding: full (one cut), node (expert e over the ranks of node e mod nodes), owner (expert e whole on
 * the rank of its first slot in `layout`). In proportion to weight[P] of those ranks; evenly if it is NULL, or zero on all of
 * them. Local, the same on all ranks. */
struct mt_cut mt_cut_experts(const struct mt_comm *comm, enum mt_sharding sharding, int64_t length,
                             const struct mt_layout *layout, const int64_t *weight);
void mt_cut_free(struct mt_cut *cut);

/* This rank's pieces of nitem vectors of one length, one behind the other, and what the optimizer keeps of them. */
struct mt_shard {
  int64_t nitem, length;
  int rank;
  struct mt_cut cut;            /* owned */
  int64_t total;                /* elements of each array */
  float *master, *m, *v, *grad; /* [total] each, owned, host memory; all but master empty without training */
};
/* Zeros. Takes the cut. training = 0: master weights only. Local. */
struct mt_shard mt_shard_new(const struct mt_comm *comm, int64_t nitem, int64_t length, struct mt_cut cut, int training);
void mt_shard_free(struct mt_shard *shard);
/* Where the piece of vector `item` begins in the arrays. Pure, like the next. */
static inline int64_t mt_shard_at(const struct mt_shard *shard, int64_t item)
{
  const struct mt_cut *cut = &shard->cut;
  return item / cut->npart * cut->before[cut->npart] + cut->before[item % cut->npart];
}
/* The piece itself: elements [*first, *first + result) of the vector. */
static inline int64_t mt_shard_piece(const struct mt_shard *shard, int64_t item, int64_t *first)
{
  const struct mt_part *part = &shard->cut.part[item % shard->cut.npart];
  *first = part->first[shard->rank];
  return part->first[shard->rank + 1] - *first;
}

#endif
