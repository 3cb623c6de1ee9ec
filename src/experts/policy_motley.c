#include "experts/policy_parts.h"
void mt_policy_motley(struct mt_policy *policy, const struct mt_policy_problem *problem, int *slot_expert)
{
  mt_policy_laer(policy, problem, slot_expert);
}
