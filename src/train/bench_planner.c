/* `motley bench planner`; see bench_planner.h. */
#include "train/bench_planner.h"
#include <stdio.h>
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "experts/policy.h"
#include "experts/shares.h"
#include "train/turns.h"

enum { E = 32, NODE = 8, TURNS = 5 };

static const struct {
  int ranks, slots;
} sizes[] = {{8, 8},    {64, 1},   {64, 4},    {64, 16},  {256, 4},  {256, 16},
             {1024, 1}, {1024, 4}, {1024, 16}, {4096, 4}, {16384, 2}};

struct bench {
  struct mt_cluster *cluster;
  struct mt_policy *policy;
  struct mt_shares *shares;
  struct mt_layout *before, *after;
  struct mt_policy_problem problem;
};

/* Median of some turns: of a policy, or (kind < 0) of the shares under the layout planned last. */
static double median_ms(struct bench *b, int kind)
{
  double ms[TURNS];
  for (int i = 0; i < TURNS; i++) {
    const double start = mt_processor_ms();
    if (kind < 0)
      mt_shares_deal(b->shares, MT_DISPATCH_SOLVED, b->cluster, &b->problem.work, b->after, b->problem.counts);
    else
      mt_policy_plan(b->policy, (enum mt_layout_policy)kind, &b->problem, b->after);
    ms[i] = mt_processor_ms() - start;
  }
  return mt_spread_of(ms, TURNS).median;
}

static enum mt_status one_size(int ranks, int each)
{
  struct bench b = {0};
  struct mt_text_buffer nodes = {0};
  for (int q = 0; q < ranks / NODE; q++)
    mt_text_add(&nodes, "%s%d", q ? "," : "", NODE);
  enum mt_status status = mt_cluster_from_sizes(nodes.text, &b.cluster);
  mt_free(nodes.text);
  if (status)
    return status;
  int *slots = MT_NEW(MT_TAG_PLAN, int, ranks);
  int64_t *counts = MT_NEW(MT_TAG_PLAN, int64_t, (int64_t)ranks * E);
  for (int p = 0; p < ranks; p++) {
    slots[p] = each;
    b.cluster->place[p].speed = 20000 + (int64_t)(mt_random_bits(1, MT_STREAM_TEST, (uint64_t)p) % 60000);
    for (int e = 0; e < E; e++)
      counts[(int64_t)p * E + e] =
          (int64_t)(8192 / (e + 1) * (0.5 + mt_random_uniform(2, MT_STREAM_TEST, (uint64_t)p * E + (uint64_t)e)));
  }
  b.policy = mt_policy_new(b.cluster, E, slots);
  b.shares = mt_shares_new(b.cluster, E, ranks * each);
  b.before = mt_layout_new(b.cluster, E, slots);
  b.after = mt_layout_new(b.cluster, E, slots);
  b.problem = (struct mt_policy_problem){.cluster = b.cluster,
                                         .work = mt_work_of(1024, 3584, 1, 4, 0, MT_SHARDING_FULL),
                                         .dispatch = MT_DISPATCH_SOLVED,
                                         .nstep = 1,
                                         .counts = counts,
                                         .before = b.before};
  const double eplb = median_ms(&b, MT_LAYOUT_EPLB), laer = median_ms(&b, MT_LAYOUT_LAER);
  const double motley = median_ms(&b, MT_LAYOUT_MOTLEY), solved = median_ms(&b, -1);
  mt_info("%6d %6d %6d  %9.3f %9.3f %9.3f  %9.3f", ranks, each, E, eplb, laer, motley, solved);
  mt_layout_free(b.before);
  mt_layout_free(b.after);
  mt_shares_free(b.shares);
  mt_policy_free(b.policy);
  mt_cluster_free(b.cluster);
  mt_free(slots);
  mt_free(counts);
  return MT_OK;
}

enum mt_status mt_bench_planner(struct mt_comm *comm, const struct mt_config *config)
{
  (void)config;
  if (comm->rank != 0)
    return MT_OK;
  mt_info("processor time in ms, median of %d; nodes of %d ranks of unlike speed", TURNS, NODE);
  mt_info("%6s %6s %6s  %9s %9s %9s  %9s", "ranks", "slots", "expert", "eplb", "laer", "motley", "shares");
  for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++)
    MT_TRY(one_size(sizes[i].ranks, sizes[i].slots));
  return MT_OK;
}
