/* Cuts and pieces; see shard.h. */
#include "experts/shard.h"
#include "base/memory.h"
#include <string.h>

static struct mt_cut cut_new(int npart)
{
  return (struct mt_cut){npart, MT_ZNEW(MT_TAG_PLAN, struct mt_part, npart), MT_ZNEW(MT_TAG_PLAN, int64_t, npart + 1)};
}

static struct mt_cut cut_index(struct mt_cut cut, int rank)
{
  for (int i = 0; i < cut.npart; i++)
    cut.before[i + 1] = cut.before[i] + mt_part_count(&cut.part[i], rank);
  return cut;
}

struct mt_cut mt_cut_full(const struct mt_comm *comm, int64_t length, const int64_t *weight)
{
  struct mt_cut cut = cut_new(1);
  cut.part[0] = weight ? mt_part_weighted(length, comm->size, weight) : mt_part_even(length, comm->size);
  return cut_index(cut, comm->rank);
}

struct mt_cut mt_cut_experts(const struct mt_comm *comm, enum mt_sharding sharding, int64_t length,
                             const struct mt_layout *layout, const int64_t *weight)
{
  if (sharding == MT_SHARDING_FULL)
    return mt_cut_full(comm, length, weight);
  struct mt_cut cut = cut_new(layout->nexpert);
  int64_t here[comm->size];
  for (int e = 0; e < layout->nexpert; e++) {
    int owner = layout->slot_rank[layout->by_expert[layout->expert_first[e * layout->nnode]]];
    const int *node = comm->node_first + e % comm->nnode;
    int64_t any = 0;
    memset(here, 0, sizeof here);
    if (sharding == MT_SHARDING_OWNER)
      any = here[owner] = 1;
    for (int r = node[0]; r < node[1] && sharding == MT_SHARDING_NODE; r++)
      any |= here[r] = weight ? weight[r] : 1;
    for (int r = node[0]; r < node[1] && !any; r++)
      here[r] = 1;
    cut.part[e] = mt_part_weighted(length, comm->size, here);
  }
  return cut_index(cut, comm->rank);
}

void mt_cut_free(struct mt_cut *cut)
{
  for (int i = 0; i < cut->npart; i++)
    mt_part_free(&cut->part[i]);
  mt_free(cut->part);
  mt_free(cut->before);
  memset(cut, 0, sizeof *cut);
}

struct mt_shard mt_shard_new(const struct mt_comm *comm, int64_t nitem, int64_t length, struct mt_cut cut, int training)
{
  struct mt_shard shard = {.nitem = nitem, .length = length, .rank = comm->rank, .cut = cut};
  shard.total = mt_shard_at(&shard, nitem);
  int64_t more = training ? shard.total : 0;
  shard.master = MT_ZNEW(MT_TAG_PARAM, float, shard.total);
  shard.m = MT_ZNEW(MT_TAG_OPTIMIZER, float, more);
  shard.v = MT_ZNEW(MT_TAG_OPTIMIZER, float, more);
  shard.grad = MT_ZNEW(MT_TAG_OPTIMIZER, float, more);
  return shard;
}

void mt_shard_free(struct mt_shard *shard)
{
  mt_cut_free(&shard->cut);
  mt_free(shard->master);
  mt_free(shard->m);
  mt_free(shard->v);
  mt_free(shard->grad);
  memset(shard, 0, sizeof *shard);
}
