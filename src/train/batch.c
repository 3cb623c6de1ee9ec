/* The global batch cut over ranks; see batch.h. */
#include "train/batch.h"
#include <string.h>
#include "base/memory.h"

enum mt_status mt_batch_check(const struct mt_config *config, const struct mt_cluster *cluster)
{
  return mt_part_listed(config->parallel.shares) ? mt_part_weights("parallel.shares", config->parallel.shares, cluster->nplace, NULL) : MT_OK;
}

/* What sequences are dealt in proportion to; 0 = evenly. */
static int weights(const struct mt_config *config, const struct mt_cluster *cluster, int64_t *weight)
{
  if (mt_part_listed(config->parallel.shares)) {
    MT_CHECK(mt_part_weights("parallel.shares", config->parallel.shares, cluster->nplace, weight) == MT_OK,
             "shares that nobody has checked");
    return 1;
  }
  int64_t low = INT64_MAX, high = 0;
  for (int p = 0; p < cluster->nplace; p++) {
    weight[p] = cluster->place[p].speed;
    low = weight[p] < low ? weight[p] : low;
    high = weight[p] > high ? weight[p] : high;
  }
  return !strcmp(config->parallel.shares, "auto") && low > 0 && high - low > low / 10;
}

struct mt_batch mt_batch_cut(const struct mt_config *config, const struct mt_cluster *cluster, int64_t n)
{
  int64_t *weight = MT_NEW(MT_TAG_PLAN, int64_t, cluster->nplace);
  struct mt_batch batch = {0};
  batch.share = weights(config, cluster, weight) ? mt_part_weighted(n, cluster->nplace, weight)
                                                 : mt_part_even(n, cluster->nplace);
  mt_free(weight);
  for (int r = 0; r < cluster->nplace; r++) {
    int64_t need = (mt_part_count(&batch.share, r) + config->train.micro_batch - 1) / config->train.micro_batch;
    batch.nmicro = need > batch.nmicro ? need : batch.nmicro;
  }
  return batch;
}

int64_t mt_batch_most(const struct mt_batch *batch, int rank)
{
  int64_t mine = mt_part_count(&batch->share, rank);
  return mine > 0 ? (mine + batch->nmicro - 1) / batch->nmicro : 1;
}

int64_t mt_batch_max_B(const struct mt_config *config, const struct mt_cluster *cluster, int rank)
{
  struct mt_batch batch = mt_batch_cut(config, cluster, config->train.global_batch);
  int64_t most = mt_batch_most(&batch, rank);
  mt_part_free(&batch.share);
  return most;
}
