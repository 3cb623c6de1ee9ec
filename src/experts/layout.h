/* A layout says which slot of which rank holds which expert of one MoE layer, for one use of it.
 *
 * The idea: experts are rebuilt from shards before every use, so a layout is just data and may change at every step. Slots
 * are numbered through the ranks; an expert may fill several slots, even of one rank; every expert fills at least one. A
 * policy is a pure function that returns a layout; all ranks compute the same. */
#ifndef MT_LAYOUT_H
#define MT_LAYOUT_H
#include <stdint.h>
#include "base/status.h"
#include "topology/cluster.h"

struct mt_layout {
  int64_t revision;  /* changes when the contents do; equal revisions of a layer have equal contents */
  int nexpert, nrank, nnode;
  int *slot_first;   /* [nrank + 1]: rank r has slots [slot_first[r], slot_first[r + 1]) */
  int *slot_expert;  /* [S] */
  int *slot_rank;    /* [S], derived */
  int *by_expert;    /* [S] slots ordered by (expert, slot), derived */
  int *expert_first; /* [nexpert * nnode + 1]: the slots of expert e on node q are by_expert[expert_first[e * nnode + q] ..
                        expert_first[e * nnode + q + 1]), derived; those of e everywhere: from e * nnode to (e+1) * nnode */
};

/* Slots per rank from `text`: "" = by the static policy (E >= P: an even part of E each; P > E: one each), "n" = n each,
 * "n0,n1,..." one a rank; slots[nrank] is filled. Local and pure; MT_USAGE, one message, if the text is bad or the sum is
 * below nexpert. */
enum mt_status mt_layout_slots(const char *text, int nexpert, int nrank, int *slots);
/* The static policy: slot i of S holds expert floor(i E / S). Pure. */
void mt_layout_static(int *slot_expert, int nexpert, int nslot);
/* Space for a layout of these slots, with the static contents. The caller frees. */
struct mt_layout *mt_layout_new(const struct mt_cluster *cluster, int nexpert, const int *slots);
/* n vectors, each in one slot on every rank, in their order. Local; the caller frees. */
struct mt_layout *mt_layout_everywhere(const struct mt_cluster *cluster, int n);
void mt_layout_free(struct mt_layout *layout);
/* Recomputes the derived arrays after slot_expert was written, and sets the revision. No allocation. */
void mt_layout_index(struct mt_layout *layout, const struct mt_cluster *cluster, int64_t revision);
/* Random contents, a function of (seed, key): every expert somewhere, the other slots at random. For tests. No allocation.*/
void mt_layout_random(struct mt_layout *layout, const struct mt_cluster *cluster, uint64_t seed, uint64_t key);

#endif
