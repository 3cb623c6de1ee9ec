/* FlexMoE's planner as LAER-MoE's artifact runs it on sharded experts: hot experts take slots from cold ones.
 *
 * It starts from the layout in force. In each round the expert with the largest load a copy gets slots of the one with the
 * smallest among those that have copies to spare: in every node one copy that the node can spare, or, where there are not
 * slots enough for a copy in every node, one copy. A round counts if the most loaded device has less to do, or is nearer to the
 * least loaded; else the planner stops. (Nie et al., "FlexMoE", SIGMOD 2023; solver.py of LAER-MoE's artifact.)
 * Loads are thought to be split evenly over copies. Moving costs nothing here: experts are rebuilt from shards anyway. */
#include <string.h>
#include "experts/policy_parts.h"

enum { ROUNDS = 10 };

/* Planned loads of the devices that have slots; the largest and the smallest. */
static void loads(struct mt_policy *policy, const int *slot_expert, int64_t *most, int64_t *least)
{
  *most = 0;
  *least = INT64_MAX;
  for (int p = 0; p < policy->P; p++) {
    int64_t sum = 0;
    for (int s = policy->slot_first[p]; s < policy->slot_first[p + 1]; s++)
      sum += (policy->load[slot_expert[s]] << MT_LOAD_SHIFT) / policy->replica[slot_expert[s]];
    policy->device_load[p] = sum;
    if (policy->slot_first[p + 1] == policy->slot_first[p])
      continue;
    *most = sum > *most ? sum : *most;
    *least = sum < *least ? sum : *least;
  }
}

/* The slot of the devices [low, high) that holds `cold` on the least loaded device, or -1; *copies counts those that hold it. */
static int spare_slot(const struct mt_policy *policy, const int *slot_expert, int cold, int low, int high, int *copies)
{
  int best = -1, at = -1;
  *copies = 0;
  for (int p = low; p < high; p++)
    for (int s = policy->slot_first[p]; s < policy->slot_first[p + 1]; s++) {
      if (slot_expert[s] != cold)
        continue;
      ++*copies;
      if (best < 0 || policy->device_load[p] < policy->device_load[best]) {
        best = p;
        at = s;
      }
    }
  return at;
}

void mt_policy_flexmoe(struct mt_policy *policy, const struct mt_policy_problem *problem, int *slot_expert)
{
  const struct mt_cluster *cluster = problem->cluster;
  const int E = policy->E, S = policy->S, nnode = policy->nnode;
  const int cover = (int64_t)nnode * E <= S; /* copies in every node */
  memcpy(slot_expert, problem->before->slot_expert, sizeof *slot_expert * (size_t)S);
  memset(policy->replica, 0, sizeof *policy->replica * (size_t)E);
  for (int s = 0; s < S; s++)
    policy->replica[slot_expert[s]]++;
  int64_t most, least;
  loads(policy, slot_expert, &most, &least);
  for (int round = 0; round < ROUNDS && most > least; round++) {
    int hot = 0, cold = -1, changed = 0;
    for (int e = 0; e < E; e++) {
      const int64_t n = policy->replica[e], load = policy->load[e];
      if ((__int128)load * policy->replica[hot] > (__int128)policy->load[hot] * n)
        hot = e;
      if (n > (cover ? nnode : 1) &&
          (cold < 0 || (__int128)load * policy->replica[cold] < (__int128)policy->load[cold] * n))
        cold = e;
    }
    if (cold < 0 || cold == hot)
      break;
    int *next = policy->other;
    memcpy(next, slot_expert, sizeof *next * (size_t)S);
    for (int q = 0; q < (cover ? nnode : 1); q++) {
      int copies, s = spare_slot(policy, next, cold, cover ? cluster->node_first[q] : 0,
                                 cover ? cluster->node_first[q + 1] : policy->P, &copies);
      if (copies < 2)
        continue;
      next[s] = hot;
      policy->replica[hot]++;
      policy->replica[cold]--;
      changed++;
    }
    int64_t new_most, new_least;
    loads(policy, next, &new_most, &new_least);
    if (!changed || (new_most >= most && (__int128)new_most * least >= (__int128)most * new_least))
      break;
    most = new_most;
    least = new_least;
    memcpy(slot_expert, next, sizeof *next * (size_t)S);
  }
}
