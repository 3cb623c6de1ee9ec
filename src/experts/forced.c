/* Routing that is made up; see forced.h. */
#include "experts/forced.h"
#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "base/random.h"

struct mt_forced *mt_forced_new(const struct mt_config *config)
{
  struct mt_forced *forced = MT_ZNEW(MT_TAG_PLAN, struct mt_forced, 1);
  *forced = (struct mt_forced){.E = (int)config->model.num_local_experts, .K = (int)config->model.num_experts_per_tok,
                               .skew = config->moe.skew, .drift = config->moe.drift, .seed = (uint64_t)config->train.seed};
  forced->share = MT_NEW(MT_TAG_PLAN, double, forced->E);
  return forced;
}

void mt_forced_free(struct mt_forced *forced)
{
  if (!forced)
    return;
  mt_free(forced->share);
  mt_free(forced);
}

void mt_forced_shares(const struct mt_forced *forced, int64_t step, int layer, double *share)
{
  const int E = forced->E;
  const double moved = forced->drift > 0 ? (double)step / forced->drift : 0, whole = floor(moved), part = moved - whole;
  double sum = 0;
  for (int i = 0; i < E; i++)
    sum += pow(i + 1, -forced->skew);
  for (int e = 0; e < E; e++) {
    /* place 0 is the most popular; who leaves the last place comes in at the first */
    int place = (int)mt_random_permute(forced->seed, MT_STREAM_ROUTE + (uint64_t)layer, (uint64_t)E, (uint64_t)e);
    int now = (int)fmod(place + whole, E), next = (now + 1) % E;
    share[e] = ((1 - part) * pow(now + 1, -forced->skew) + part * pow(next + 1, -forced->skew)) / sum;
  }
}

void mt_forced_picks(struct mt_forced *forced, int64_t step, int layer, int64_t tokens, int64_t first, int64_t n,
                     int32_t *expert)
{
  const int E = forced->E, K = forced->K;
  mt_forced_shares(forced, step, layer, forced->share);
  for (int64_t t = 0; t < n; t++) {
    int32_t *picked = expert + t * K;
    double left = 1;
    for (int k = 0; k < K; k++) {
      uint64_t index = (uint64_t)((step * tokens + first + t) * K + k);
      double at = left * mt_random_uniform(forced->seed, MT_STREAM_ROUTE + 256 * (uint64_t)layer, index);
      int best = -1; /* the last one that is free, where rounding leaves something over */
      for (int e = 0; e < E && (best < 0 || at >= 0); e++) {
        int taken = 0;
        for (int i = 0; i < k; i++)
          taken |= picked[i] == e;
        if (taken)
          continue;
        best = e;
        at -= forced->share[e];
      }
      picked[k] = best;
      left -= forced->share[best];
    }
  }
}
