/* How much of the sharded vectors each rank owns; see sizes.h. */
#include "experts/sizes.h"
#include <string.h>
#include "base/memory.h"

enum { OWNED = 16, IN_SLOT = 12, SHARED = 8, TRAFFIC = 28 }; /* bytes an element */

static int is_auto(const struct mt_config *config)
{
  return !strcmp(config->parallel.shard_sizes, "auto");
}

enum mt_status mt_sizes_check(const struct mt_config *config, const struct mt_cluster *cluster)
{
  return mt_part_listed(config->parallel.shard_sizes) ? mt_part_weights("parallel.shard_sizes", config->parallel.shard_sizes, cluster->nplace, NULL) : MT_OK;
}

static int node_size(const struct mt_cluster *cluster, int p)
{
  const int *first = cluster->node_first + cluster->node_of[p];
  return first[1] - first[0];
}

/* Elements that a rank has room for; INT64_MAX = any number. */
static int64_t room(const struct mt_params *params, const struct mt_cluster *cluster, int p, int slots)
{
  const struct mt_place *place = &cluster->place[p];
  if (place->mem_bytes <= 0)
    return INT64_MAX;
  int64_t bytes = place->mem_bytes / 4 * 3 / (place->kind == MT_DEVICE_CPU ? node_size(cluster, p) : 1);
  bytes -= SHARED * params->shared_length + IN_SLOT * slots * params->expert_length;
  return bytes > 0 ? bytes / OWNED : 0;
}

/* 1 if a cut that is even over nodes costs less than one that is even over ranks. */
static int even_over_nodes(const struct mt_cluster *cluster)
{
  const int64_t net = cluster->link[MT_LEVEL_NET].beta_ps, self = cluster->link[MT_LEVEL_SELF].beta_ps;
  if (cluster->nnode == 1 || !net || !self)
    return 0;
  int64_t most = 0, least = cluster->nplace, n = cluster->nnode, P = cluster->nplace;
  for (int q = 0; q < n; q++) {
    int64_t size = cluster->node_first[q + 1] - cluster->node_first[q];
    most = size > most ? size : most;
    least = size < least ? size : least;
  }
  /* of the whole, times n P least: over ranks a node owns at most most / P, a rank 1 / P; over nodes 1 / n, 1 / (n least) */
  __int128 link = (__int128)12 * (n - 1) * net, work = (__int128)TRAFFIC * self;
  return link * P * least + work * P < link * most * n * least + work * n * least;
}

/* Fills weight[] with what is wanted of `total` elements, within the rooms. */
static void fill(int64_t total, int P, const int64_t *want, const int64_t *most, int64_t *weight)
{
  for (int p = 0; p < P; p++)
    weight[p] = -1; /* open */
  for (int full = 1; full;) {
    int64_t rest = total, wanted = 0;
    full = 0;
    for (int p = 0; p < P; p++) {
      rest -= weight[p] >= 0 ? weight[p] : 0;
      wanted += weight[p] < 0 ? want[p] : 0;
    }
    for (int p = 0; p < P; p++) /* the same rest for all: those that are full leave theirs to the next round */
      if (weight[p] < 0 && (__int128)rest * want[p] / wanted > most[p]) {
        weight[p] = most[p];
        full = 1;
      }
    for (int p = 0; p < P && !full; p++)
      if (weight[p] < 0)
        weight[p] = (int64_t)((__int128)rest * want[p] / wanted);
  }
}

int mt_sizes(const struct mt_config *config, const struct mt_params *params, const struct mt_cluster *cluster, int64_t *weight)
{
  const int P = cluster->nplace, E = params->nmoe ? params->nexpert : 0;
  int64_t any = 0;
  int uneven = 0;
  if (mt_part_listed(config->parallel.shard_sizes)) {
    MT_CHECK(mt_part_weights("parallel.shard_sizes", config->parallel.shard_sizes, P, weight) == MT_OK,
             "shard sizes that nobody has checked");
  } else if (is_auto(config)) {
    int64_t *want = MT_NEW(MT_TAG_PLAN, int64_t, P), *most = MT_NEW(MT_TAG_PLAN, int64_t, P);
    int *slots = MT_ZNEW(MT_TAG_PLAN, int, P);
    MT_CHECK(!E || mt_layout_slots(config->parallel.slots, E, P, slots) == MT_OK, "slots that nobody has checked");
    int nodes = even_over_nodes(cluster);
    for (int p = 0; p < P; p++) {
      want[p] = ((int64_t)1 << 30) / (nodes ? node_size(cluster, p) : 1);
      most[p] = room(params, cluster, p, slots[p]);
    }
    fill(params->shared_length + (int64_t)params->nmoe * E * params->expert_length, P, want, most, weight);
    mt_free(slots);
    mt_free(most);
    mt_free(want);
  } else {
    return 0;
  }
  for (int p = 0; p < P; p++) {
    any |= weight[p];
    uneven |= weight[p] != weight[0];
  }
  return any && uneven;
}

int64_t mt_sizes_least_piece = 8 << 10;

int mt_sizes_blocks(const struct mt_params *params, const struct mt_comm *comm)
{
  int n = MT_SHARED_BLOCKS;
  while (n > 1 && params->shared_length * 4 / n / comm->size < mt_sizes_least_piece)
    n /= 2;
  return comm->size > 1 ? n : 1;
}

struct mt_cut mt_sizes_shared(const struct mt_config *config, const struct mt_params *params, const struct mt_comm *comm)
{
  int64_t *weight = MT_NEW(MT_TAG_PLAN, int64_t, comm->size);
  struct mt_cut cut = mt_cut_full(comm, params->shared_length / mt_sizes_blocks(params, comm), mt_sizes(config, params, comm->cluster, weight) ? weight : NULL);
  mt_free(weight);
  return cut;
}

struct mt_cut mt_sizes_experts(const struct mt_config *config, const struct mt_params *params, const struct mt_comm *comm,
                               const struct mt_layout *layout)
{
  int64_t *weight = MT_NEW(MT_TAG_PLAN, int64_t, comm->size);
  int uneven = mt_sizes(config, params, comm->cluster, weight);
  struct mt_cut cut = mt_cut_experts(comm, config->parallel.sharding, params->expert_length, layout, uneven ? weight : NULL);
  mt_free(weight);
  return cut;
}
