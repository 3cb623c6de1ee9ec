/* Policies: what they share; see policy.h. */
#include "experts/policy.h"
#include "experts/policy_parts.h"
#include <string.h>
#include "base/memory.h"

static const char *const names[] = {
    [MT_LAYOUT_STATIC] = "static", [MT_LAYOUT_RANDOM] = "random",   [MT_LAYOUT_LAER] = "laer",
    [MT_LAYOUT_EPLB] = "eplb",     [MT_LAYOUT_FLEXMOE] = "flexmoe", [MT_LAYOUT_MOTLEY] = "motley"};

const char *mt_policy_name(enum mt_layout_policy kind)
{
  return names[kind];
}

struct mt_policy *mt_policy_new(const struct mt_cluster *cluster, int nexpert, const int *slots)
{
  struct mt_policy *policy = MT_ZNEW(MT_TAG_PLAN, struct mt_policy, 1);
  const int P = cluster->nplace, nnode = cluster->nnode;
  policy->P = P;
  policy->E = nexpert;
  policy->nnode = nnode;
  policy->slot_first = MT_ZNEW(MT_TAG_PLAN, int, P + 1);
  for (int p = 0; p < P; p++)
    policy->slot_first[p + 1] = policy->slot_first[p] + slots[p];
  policy->S = policy->slot_first[P];
  MT_CHECK(policy->S >= nexpert, "%d slots for %d experts", policy->S, nexpert);
  policy->load = MT_NEW(MT_TAG_PLAN, int64_t, nexpert);
  policy->ps = MT_NEW(MT_TAG_PLAN, int64_t, P);
  policy->replica = MT_NEW(MT_TAG_PLAN, int, nexpert);
  policy->order = MT_NEW(MT_TAG_PLAN, int, policy->S);
  policy->copy = MT_NEW(MT_TAG_PLAN, int, policy->S);
  policy->other = MT_NEW(MT_TAG_PLAN, int, policy->S);
  policy->device_load = MT_NEW(MT_TAG_PLAN, int64_t, P);
  policy->used = MT_NEW(MT_TAG_PLAN, int, P);
  policy->device = MT_NEW(MT_TAG_PLAN, int, P);
  policy->node_copies = MT_NEW(MT_TAG_PLAN, int, nnode);
  policy->node_device = MT_NEW(MT_TAG_PLAN, int, nnode);
  policy->node_order = MT_NEW(MT_TAG_PLAN, int, nnode);
  policy->relative = MT_NEW(MT_TAG_PLAN, int64_t, P);
  policy->node_speed = MT_NEW(MT_TAG_PLAN, int64_t, nnode);
  policy->node_load = MT_NEW(MT_TAG_PLAN, int64_t, nnode);
  policy->trial = mt_layout_new(cluster, nexpert, slots);
  policy->shares = mt_shares_new(cluster, nexpert, policy->S);
  policy->motley = mt_motley_new(policy, cluster);
  return policy;
}

void mt_policy_free(struct mt_policy *policy)
{
  if (!policy)
    return;
  void *owned[] = {policy->slot_first, policy->load,      policy->ps,          policy->replica,
                   policy->order,      policy->copy,      policy->other,       policy->device_load,
                   policy->used,       policy->device,    policy->node_copies, policy->node_device,
                   policy->node_order, policy->node_load, policy->node_speed,  policy->relative};
  for (int i = 0; i < (int)(sizeof owned / sizeof *owned); i++)
    mt_free(owned[i]);
  mt_layout_free(policy->trial);
  mt_shares_free(policy->shares);
  mt_motley_free(policy->motley);
  mt_free(policy);
}

int mt_policy_hotter(const struct mt_policy *policy, int a, int b)
{
  __int128 x = (__int128)policy->load[a] * policy->replica[b], y = (__int128)policy->load[b] * policy->replica[a];
  return x != y ? x > y : a < b;
}

void mt_heap_sink(int *heap, int n, int i, mt_before *before, const struct mt_policy *policy)
{
  for (int child = 2 * i + 1; child < n; i = child, child = 2 * i + 1) {
    child += child + 1 < n && before(policy, heap[child + 1], heap[child]);
    if (before(policy, heap[i], heap[child]))
      return;
    int swap = heap[i];
    heap[i] = heap[child];
    heap[child] = swap;
  }
}

void mt_heap_make(int *heap, int n, mt_before *before, const struct mt_policy *policy)
{
  for (int i = n / 2 - 1; i >= 0; i--)
    mt_heap_sink(heap, n, i, before, policy);
}

struct mt_layout_cost mt_policy_cost(struct mt_policy *policy, const struct mt_policy_problem *problem,
                                     const int *slot_expert)
{
  memcpy(policy->trial->slot_expert, slot_expert, sizeof *slot_expert * (size_t)policy->S);
  mt_layout_index(policy->trial, problem->cluster, 0);
  mt_shares_deal(policy->shares, problem->dispatch, problem->cluster, &problem->work, policy->trial, problem->counts);
  struct mt_layout_cost cost = mt_layout_cost(problem->cluster, &problem->work, policy->trial, policy->shares);
  /* Weights cross in each of the micro-steps that the counts are a sum of. */
  cost.compute_ps /= problem->nstep;
  cost.exchange_ps /= problem->nstep;
  mt_layout_cost_total(&cost, &problem->work);
  return cost;
}

int64_t mt_policy_window(int64_t *sum, int64_t n, const int64_t *const *counts, const int64_t *micros, int nstep)
{
  int64_t all = 0;
  memset(sum, 0, sizeof *sum * (size_t)n);
  for (int i = 0; i < nstep; i++) {
    const int64_t weight = (int64_t)1 << (nstep - 1 - i);
    for (int64_t k = 0; k < n; k++)
      sum[k] += weight * counts[i][k];
    all += weight * (micros ? micros[i] : 1);
  }
  return all;
}

void mt_policy_plan(struct mt_policy *policy, enum mt_layout_policy kind, const struct mt_policy_problem *problem,
                    struct mt_layout *layout)
{
  const struct mt_layout *before = problem->before;
  MT_ASSERT(layout != before);
  memset(policy->load, 0, sizeof *policy->load * (size_t)policy->E);
  for (int p = 0; p < policy->P; p++)
    for (int e = 0; e < policy->E; e++)
      policy->load[e] += problem->counts[(int64_t)p * policy->E + e];
  mt_work_row_ps(&problem->work, problem->cluster, policy->ps);
  switch (kind) {
  case MT_LAYOUT_STATIC:
    mt_layout_static(layout->slot_expert, policy->E, policy->S);
    break;
  case MT_LAYOUT_RANDOM:
    mt_layout_random(layout, problem->cluster, 1, problem->key);
    break;
  case MT_LAYOUT_LAER:
    mt_policy_laer(policy, problem, layout->slot_expert);
    break;
  case MT_LAYOUT_EPLB:
    mt_policy_eplb(policy, problem, layout->slot_expert);
    break;
  case MT_LAYOUT_FLEXMOE:
    mt_policy_flexmoe(policy, problem, layout->slot_expert);
    break;
  case MT_LAYOUT_MOTLEY:
    mt_policy_motley(policy, problem, layout->slot_expert);
    break;
  }
  int same = !memcmp(layout->slot_expert, before->slot_expert, sizeof *layout->slot_expert * (size_t)policy->S);
  mt_layout_index(layout, problem->cluster, before->revision + !same);
}
