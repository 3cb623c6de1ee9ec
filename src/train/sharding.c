/* parallel.sharding = auto; see sharding.h. */
#include "train/sharding.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experts/forced.h"
#include "experts/layout_cost.h"
#include "experts/policy.h"
#include "experts/relayout.h"
#include "model/model.h"
#include "train/batch.h"
#include "train/forecast.h"

static const double SKEW = 0.5, WORTH = 0.9; /* worth saying */
static const char *const names[] = {"full", "node", "owner", "auto"};

const char *mt_sharding_name(enum mt_sharding sharding)
{
  return names[sharding];
}

enum mt_sharding mt_sharding_named(const char *name)
{
  for (int s = MT_SHARDING_FULL; s <= MT_SHARDING_OWNER; s++)
    if (!strcmp(name, names[s]))
      return (enum mt_sharding)s;
  return MT_SHARDING_FULL;
}

/* counts[P][E] of a mean micro-step under the nominal skew. */
static void nominal(const struct mt_config *config, const struct mt_cluster *cluster, const struct mt_batch *batch,
                    int64_t *counts)
{
  const int E = (int)config->model.num_local_experts;
  double share[E];
  struct mt_forced forced = {.E = E, .K = 1, .skew = SKEW, .seed = 1};
  mt_forced_shares(&forced, 0, 0, share);
  for (int p = 0; p < cluster->nplace; p++)
    for (int e = 0; e < E; e++)
      counts[p * E + e] = (int64_t)(share[e] * (double)(mt_part_count(&batch->share, p) * config->data.seq_length *
                                                        config->model.num_experts_per_tok) / (double)batch->nmicro + 0.5);
}

/* Predicted seconds of all MoE layers in a step, config's sharding being no longer auto. */
static double predict(const struct mt_config *config, const struct mt_cluster *cluster, const int *slots)
{
  const int P = cluster->nplace, E = (int)config->model.num_local_experts;
  struct mt_arch arch;
  struct mt_params params = {0};
  mt_family_build(config, &arch, &params);
  const struct mt_work work = mt_work_of(arch.C, arch.F, arch.gated, config->parallel.wire == MT_WIRE_BF16 ? 2 : 4,
                                         config->train.recompute, config->parallel.sharding);
  struct mt_batch batch = mt_batch_cut(config, cluster, config->train.global_batch);
  struct mt_layout *before = mt_layout_new(cluster, E, slots), *after = mt_layout_new(cluster, E, slots);
  const int S = before->slot_first[P];
  int64_t *counts = MT_NEW(MT_TAG_PLAN, int64_t, (int64_t)P * E);
  nominal(config, cluster, &batch, counts);
  enum mt_layout_policy kind = mt_relayout_policy(config, P, S, 1);
  struct mt_policy *policy = mt_policy_new(cluster, E, slots);
  struct mt_shares *shares = mt_shares_new(cluster, E, S);
  double seconds = 0;
  for (int l = params.nmoe - 1, trips = 0; l >= 0; l--) { /* under loads that are alike layers differ in trips alone */
    const struct mt_work one = mt_work_of_layer(&work, l, params.nmoe);
    if (one.expert_trips != trips) {
      mt_policy_plan(policy, kind, &(struct mt_policy_problem){.cluster = cluster, .work = one, .counts = counts, .nstep = 1,
                                                               .dispatch = config->parallel.dispatch, .before = before}, after);
      mt_shares_deal(shares, config->parallel.dispatch, cluster, &one, after, counts);
      trips = one.expert_trips;
    }
    seconds += 1e-12 * (double)mt_layout_cost(cluster, &one, after, shares).total_ps * (double)batch.nmicro;
  }
  mt_shares_free(shares);
  mt_policy_free(policy);
  mt_free(counts);
  mt_layout_free(before);
  mt_layout_free(after);
  mt_part_free(&batch.share);
  mt_params_free(&params);
  mt_free(arch.block);
  return seconds;
}

enum mt_status mt_sharding_weigh(const struct mt_config *config, const struct mt_cluster *cluster,
                                 enum mt_sharding *sharding, struct mt_text_buffer *why)
{
  const int P = cluster->nplace, E = (int)config->model.num_local_experts;
  int slots[P];
  double least = INFINITY;
  *sharding = config->parallel.sharding;
  if (*sharding != MT_SHARDING_AUTO)
    return MT_OK;
  *sharding = MT_SHARDING_FULL;
  if (!E || P == 1)
    return MT_OK;
  MT_TRY(mt_layout_slots(config->parallel.slots, E, P, slots));
  for (int s = MT_SHARDING_FULL; s <= MT_SHARDING_OWNER; s++) {
    if (s == MT_SHARDING_NODE && cluster->nnode == 1)
      continue; /* the same as full */
    struct mt_config one = *config;
    one.parallel.sharding = (enum mt_sharding)s;
    double seconds = predict(&one, cluster, slots);
    int fits = mt_forecast_fits(&one, cluster);
    mt_text_add(why, "%s %s %.3g%s", why->text ? "," : "", mt_sharding_name((enum mt_sharding)s), seconds,
                fits ? "" : " (too little memory)");
    if (fits && seconds < least) {
      least = seconds;
      *sharding = (enum mt_sharding)s;
    }
  }
  return MT_OK;
}

/* Would twice the slots, which the default leaves to the user, be worth it? Only said: what they need of memory, and lose
 * where experts are computed on their owners in place, is spent whatever the routing, what they gain depends on it. */
static void advise_slots(const struct mt_config *config, const struct mt_cluster *cluster, enum mt_sharding sharding)
{
  const int P = cluster->nplace, E = (int)config->model.num_local_experts;
  const int64_t even = (E + P - 1) / P, more = 2 * even < E ? 2 * even : E;
  int slots[P];
  char text[32];
  struct mt_config one = *config;
  one.parallel.sharding = sharding;
  if (*config->parallel.slots || more == even || config->parallel.layout == MT_LAYOUT_STATIC ||
      mt_layout_slots("", E, P, slots) != MT_OK)
    return;
  const double now = predict(&one, cluster, slots);
  for (int p = 0; p < P; p++)
    slots[p] = (int)more;
  snprintf(text, sizeof text, "%lld", (long long)more);
  one.parallel.slots = text;
  const double then = predict(&one, cluster, slots);
  if (then < WORTH * now && mt_forecast_fits(&one, cluster))
    mt_info("parallel.slots = %s would fit, and take %.3g seconds under that skew", text, then);
}

enum mt_status mt_sharding_choose(const struct mt_config *config, const struct mt_cluster *cluster,
                                  enum mt_sharding *sharding)
{
  struct mt_text_buffer why = {0};
  MT_TRY(mt_sharding_weigh(config, cluster, sharding, &why));
  if (why.text)
    mt_info("sharding: %s; predicted seconds of the experts in a step under a moderate skew:%s", mt_sharding_name(*sharding),
            why.text);
  if (why.text)
    advise_slots(config, cluster, *sharding);
  mt_free(why.text);
  return MT_OK;
}
