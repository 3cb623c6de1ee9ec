/* Routing that is made up; see forced.h. */
#include "experts/forced.h"
#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "experts/replay.h"

enum mt_status mt_forced_new(const struct mt_config *config, struct mt_forced **result)
{
  struct mt_replay *replay = NULL;
  if (config->moe.router == MT_ROUTER_REPLAY) {
    int64_t slots = 0; /* those of the devices that a file of devices is from */
    mt_text_integer(config->parallel.slots, &slots);
    replay = MT_ZNEW(MT_TAG_PLAN, struct mt_replay, 1);
    enum mt_status status =
        mt_replay_read(config->moe.loads, NULL, (int)config->model.num_local_experts, (int)slots, replay);
    if (status) {
      mt_free(replay);
      return status;
    }
  }
  struct mt_forced *forced = *result = MT_ZNEW(MT_TAG_PLAN, struct mt_forced, 1);
  *forced = (struct mt_forced){.E = (int)config->model.num_local_experts, .K = (int)config->model.num_experts_per_tok,
                               .skew = config->moe.skew, .drift = config->moe.drift, .seed = (uint64_t)config->train.seed,
                               .replay = replay};
  forced->share = MT_NEW(MT_TAG_PLAN, double, forced->E);
  return MT_OK;
}

void mt_forced_free(struct mt_forced *forced)
{
  if (!forced)
    return;
  if (forced->replay)
    mt_replay_free(forced->replay);
  mt_free(forced->replay);
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

/* chance[E] of being among K, in proportion to counts, but none above 1; the sum is K. */
static void chances_of(const int64_t *counts, int E, int K, double *chance)
{
  double left = 0;
  int k = K, open = E;
  for (int e = 0; e < E; e++) {
    chance[e] = -1; /* open */
    left += (double)counts[e];
  }
  while (k > 0 && left > 0) {
    int most = -1;
    for (int e = 0; e < E; e++)
      if (chance[e] < 0 && (most < 0 || counts[e] > counts[most]))
        most = e;
    if ((double)counts[most] * k <= left)
      break;
    chance[most] = 1;
    left -= (double)counts[most];
    k--;
    open--;
  }
  for (int e = 0; e < E; e++)
    if (chance[e] < 0)
      chance[e] = left > 0 ? (double)counts[e] * k / left : (double)k / open;
}

static void replayed_picks(struct mt_forced *forced, int64_t step, int layer, int64_t tokens, int64_t first, int64_t n,
                           int32_t *expert)
{
  const struct mt_replay *replay = forced->replay;
  const int E = forced->E, K = forced->K;
  int64_t rank = -1;
  for (int64_t t = 0; t < n; t++) {
    const int64_t like = (first + t) * replay->P / tokens;
    if (like != rank)
      chances_of(mt_replay_at(replay, (int)((step + replay->nstep - 1) % replay->nstep), layer % replay->nlayer) + like * E, E,
                 K, forced->share);
    rank = like;
    const double start = mt_random_uniform(forced->seed, MT_STREAM_ROUTE + 256 * (uint64_t)layer,
                                           (uint64_t)(step * tokens + first + t));
    double end = 0; /* of the experts so far */
    int k = 0;
    for (int e = 0; e < E && k < K; e++) {
      end += forced->share[e];
      if (end > start + k || E - e <= K - k) /* the latter where rounding leaves something over */
        expert[t * K + k++] = e;
    }
  }
}

void mt_forced_picks(struct mt_forced *forced, int64_t step, int layer, int64_t tokens, int64_t first, int64_t n,
                     int32_t *expert)
{
  const int E = forced->E, K = forced->K;
  if (forced->replay) {
    replayed_picks(forced, step, layer, tokens, first, n, expert);
    return;
  }
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
