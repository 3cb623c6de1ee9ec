/* DeepSeek's expert-parallel load balancer (EPLB).
 *
 * Packing: items in falling weight, each to the lightest pack that has room. Replicas: each next copy to the expert with the
 * most load a copy. Globally, replicas are packed onto devices; hierarchically, groups of experts are packed onto nodes first,
 * and each node replicates and packs its own. (deepseek-ai/EPLB, eplb.py.) Loads only: no speeds, links or sources.
 * Ties go to the lower item and the lower pack. */
#include <string.h>
#include "experts/policy_parts.h"

/* One copy of each of n experts (ids at expert[]), then one more at a time until there are `slots`: copies' experts into
 * copy[slots] in that order, the experts' numbers of copies into policy->replica. */
static void replicate(struct mt_policy *policy, const int *expert, int n, int slots, int *copy)
{
  int *heap = policy->order;
  for (int i = 0; i < n; i++) {
    heap[i] = copy[i] = expert[i];
    policy->replica[expert[i]] = 1;
  }
  mt_heap_make(heap, n, mt_policy_hotter, policy);
  for (int i = n; i < slots; i++) {
    copy[i] = heap[0];
    policy->replica[heap[0]]++;
    mt_heap_sink(heap, n, 0, mt_policy_hotter, policy);
  }
}

/* Which replica of policy->copy is heavier, which device lighter. */
static int heavier_copy(const struct mt_policy *policy, int a, int b)
{
  const int e = policy->copy[a], f = policy->copy[b];
  __int128 x = (__int128)policy->load[e] * policy->replica[f], y = (__int128)policy->load[f] * policy->replica[e];
  return x != y ? x > y : a < b;
}

static int lighter_device(const struct mt_policy *policy, int a, int b)
{
  return policy->device_load[a] != policy->device_load[b] ? policy->device_load[a] < policy->device_load[b] : a < b;
}

/* Copies [first, first + n) onto the devices [low, high), which have as many slots. Where all have one slot, copies stay in
 * their order, as in the original. */
static void pack(struct mt_policy *policy, int first, int n, int low, int high, int *slot_expert)
{
  int *queue = policy->order, *device = policy->device, ndevice = 0, single = 1;
  for (int p = low; p < high; p++) {
    policy->device_load[p] = policy->used[p] = 0;
    single &= policy->slot_first[p + 1] - policy->slot_first[p] == 1;
    if (policy->slot_first[p + 1] > policy->slot_first[p])
      device[ndevice++] = p;
  }
  for (int i = 0; i < n; i++)
    queue[i] = first + i;
  if (single) {
    for (int i = 0; i < n; i++)
      slot_expert[policy->slot_first[low] + i] = policy->copy[first + i];
    return;
  }
  mt_heap_make(queue, n, heavier_copy, policy);
  mt_heap_make(device, ndevice, lighter_device, policy);
  while (n > 0) {
    const int e = policy->copy[queue[0]], p = device[0];
    queue[0] = queue[--n];
    mt_heap_sink(queue, n, 0, heavier_copy, policy);
    slot_expert[policy->slot_first[p] + policy->used[p]++] = e;
    policy->device_load[p] += (policy->load[e] << MT_LOAD_SHIFT) / policy->replica[e];
    if (policy->used[p] == policy->slot_first[p + 1] - policy->slot_first[p])
      device[0] = device[--ndevice];
    mt_heap_sink(device, ndevice, 0, lighter_device, policy);
  }
}

/* Groups of `size` consecutive experts onto nodes: expert[] gets each node's, node by node. */
static void pack_groups(struct mt_policy *policy, int groups, int *expert)
{
  const int size = policy->E / groups, nnode = policy->nnode, each = groups / nnode;
  int64_t group_load[groups];
  int done[groups];
  memset(group_load, 0, sizeof group_load);
  memset(done, 0, sizeof done);
  for (int e = 0; e < policy->E; e++)
    group_load[e / size] += policy->load[e];
  for (int q = 0; q < nnode; q++)
    policy->device_load[q] = policy->node_copies[q] = 0;
  for (int k = 0; k < groups; k++) {
    int g = -1, best = -1;
    for (int i = 0; i < groups; i++)
      if (!done[i] && (g < 0 || (each > 1 && group_load[i] > group_load[g])))
        g = i;
    for (int q = 0; q < nnode; q++)
      if (policy->node_copies[q] < each &&
          (best < 0 || (each > 1 && policy->device_load[q] < policy->device_load[best])))
        best = q;
    done[g] = 1;
    for (int i = 0; i < size; i++)
      expert[(best * each + policy->node_copies[best]) * size + i] = g * size + i;
    policy->node_copies[best]++;
    policy->device_load[best] += group_load[g];
  }
}

int mt_eplb_place(struct mt_policy *policy, const struct mt_cluster *cluster, int groups, int *slot_expert)
{
  const int E = policy->E, S = policy->S, nnode = policy->nnode;
  const int nodes = groups > 1 ? nnode : 1, size = cluster->node_first[1], slots = policy->slot_first[1];
  if (nodes > 1) {
    if (groups % nodes || E % groups || S / nodes < E / nodes)
      return 0;
    for (int p = 0; p < policy->P; p++)
      if (policy->slot_first[p + 1] != (p + 1) * slots || cluster->node_first[cluster->node_of[p]] % size ||
          cluster->node_first[cluster->node_of[p] + 1] % size)
        return 0;
    if (policy->P != nodes * size)
      return 0;
  }
  int expert[E];
  for (int e = 0; e < E; e++)
    expert[e] = e;
  if (nodes > 1)
    pack_groups(policy, groups, expert);
  for (int q = 0; q < nodes; q++) {
    const int n = S / nodes;
    replicate(policy, expert + q * (E / nodes), E / nodes, n, policy->copy + q * n);
    pack(policy, q * n, n, nodes > 1 ? q * size : 0, nodes > 1 ? (q + 1) * size : policy->P, slot_expert);
  }
  return 1;
}

void mt_policy_eplb(struct mt_policy *policy, const struct mt_policy_problem *problem, int *slot_expert)
{
  mt_eplb_place(policy, problem->cluster, 1, slot_expert);
  /* Without a router that keeps to groups, hierarchical means: each expert on one node. Where that is cheaper it is taken. */
  if (policy->nnode == 1 || !mt_eplb_place(policy, problem->cluster, policy->nnode, policy->other))
    return;
  if (mt_policy_cost(policy, problem, policy->other).total_ps < mt_policy_cost(policy, problem, slot_expert).total_ps)
    memcpy(slot_expert, policy->other, sizeof *slot_expert * (size_t)policy->S);
}
