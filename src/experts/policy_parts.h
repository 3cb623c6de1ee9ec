/* What the policies share; for policy*.c only. */
#ifndef MT_POLICY_PARTS_H
#define MT_POLICY_PARTS_H
#include "experts/layout_cost.h"
#include "experts/policy.h"
#include "experts/shares.h"

struct mt_policy {
  int P, E, S, nnode;
  int64_t *load;           /* [E] rows of each expert, all sources */
  int *replica;            /* [E] slots of each expert */
  struct mt_shares *shares; /* for scores */
};

/* static, into slot_expert[S]. */
void mt_policy_static(const struct mt_policy *policy, int *slot_expert);

#endif
