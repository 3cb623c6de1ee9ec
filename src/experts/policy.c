/* Policies: what they share; see policy.h. */
#include "experts/policy.h"
#include "experts/policy_parts.h"
#include <string.h>
#include "base/memory.h"

static const char *const names[] = {
    [MT_LAYOUT_STATIC] = "static", [MT_LAYOUT_RANDOM] = "random", [MT_LAYOUT_LAER] = "laer",
    [MT_LAYOUT_EPLB] = "eplb", [MT_LAYOUT_FLEXMOE] = "flexmoe", [MT_LAYOUT_MOTLEY] = "motley"};

const char *mt_policy_name(enum mt_layout_policy kind)
{
  return names[kind];
}

struct mt_policy *mt_policy_new(const struct mt_cluster *cluster, int nexpert, const int *slots)
{
  struct mt_policy *policy = MT_ZNEW(MT_TAG_PLAN, struct mt_policy, 1);
  policy->P = cluster->nplace;
  policy->E = nexpert;
  policy->nnode = cluster->nnode;
  for (int p = 0; p < policy->P; p++)
    policy->S += slots[p];
  MT_CHECK(policy->S >= nexpert, "%d slots for %d experts", policy->S, nexpert);
  policy->load = MT_NEW(MT_TAG_PLAN, int64_t, nexpert);
  policy->replica = MT_NEW(MT_TAG_PLAN, int, nexpert);
  policy->shares = mt_shares_new(cluster, nexpert, policy->S);
  return policy;
}

void mt_policy_free(struct mt_policy *policy)
{
  if (!policy)
    return;
  mt_free(policy->load);
  mt_free(policy->replica);
  mt_shares_free(policy->shares);
  mt_free(policy);
}

void mt_policy_static(const struct mt_policy *policy, int *slot_expert)
{
  for (int i = 0; i < policy->S; i++)
    slot_expert[i] = (int)((int64_t)i * policy->E / policy->S);
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
  switch (kind) {
  case MT_LAYOUT_RANDOM:
    mt_layout_random(layout, problem->cluster, 1, problem->key);
    break;
  default:
    mt_policy_static(policy, layout->slot_expert);
  }
  int same = !memcmp(layout->slot_expert, before->slot_expert, sizeof *layout->slot_expert * (size_t)policy->S);
  mt_layout_index(layout, problem->cluster, before->revision + !same);
}
