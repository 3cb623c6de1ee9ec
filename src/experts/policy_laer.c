/* LAER-MoE's layout tuner, for nodes of any size and any slots.
 *
 * Replicas: a priority queue gives the next copy to the expert with the largest load per copy, one for each node at a time
 * once it has as many copies as there are nodes; or the same number for all. Placement: replicas in falling load, each to the
 * least loaded device with a free slot among the nodes with the fewest copies of that expert. Of the two the cheaper under
 * lite dispatch is taken. (LAER-MoE, ASPLOS 2026; greedy_balancer.cpp of its code.)
 * Ties go to the lower expert and the lower device. */
#include <string.h>
#include "base/memory.h"
#include "comm/way.h"
#include "experts/policy_parts.h"

/* All experts into a heap by load per copy. */
static void heap_of_all(struct mt_policy *policy)
{
  for (int e = 0; e < policy->E; e++)
    policy->order[e] = e;
  mt_heap_make(policy->order, policy->E, mt_policy_hotter, policy);
}

void mt_laer_replicas(struct mt_policy *policy)
{
  const int E = policy->E, S = policy->S, nnode = policy->nnode;
  const int base = (int64_t)nnode * E <= S ? nnode : 1;
  int used = base * E, n = E;
  for (int e = 0; e < E; e++)
    policy->replica[e] = base;
  heap_of_all(policy);
  while (used < S && n > 0) {
    int e = policy->order[0], step = policy->replica[e] >= nnode ? nnode : 1;
    if (used + step <= S) {
      policy->replica[e] += step;
      used += step;
    } else {
      policy->order[0] = policy->order[--n];
    }
    mt_heap_sink(policy->order, n, 0, mt_policy_hotter, policy);
  }
  /* Slots that are fewer than nodes: one copy at a time. */
  for (heap_of_all(policy); used < S; used++) {
    policy->replica[policy->order[0]]++;
    mt_heap_sink(policy->order, E, 0, mt_policy_hotter, policy);
  }
}

int mt_laer_even(struct mt_policy *policy)
{
  for (int e = 0; e < policy->E; e++)
    policy->replica[e] = policy->S / policy->E;
  return policy->S % policy->E == 0;
}

/* What device p is loaded with once it has `weight` more; by finish time: in rows of the fastest. */
static int64_t loaded(const struct mt_policy *policy, int p, int64_t weight)
{
  return policy->device_load[p] +
         (policy->by_finish ? (int64_t)((__int128)weight * policy->relative[p] >> 20) : weight);
}

/* The device of node q with a free slot that will be the least loaded, or -1. */
static int device_of(const struct mt_policy *policy, const struct mt_cluster *cluster, int q, int64_t weight)
{
  int best = -1;
  int64_t least = 0;
  for (int p = cluster->node_first[q]; p < cluster->node_first[q + 1]; p++) {
    if (policy->used[p] >= policy->slot_first[p + 1] - policy->slot_first[p])
      continue;
    int64_t load = loaded(policy, p, weight);
    if (best < 0 || load < least) {
      best = p;
      least = load;
    }
  }
  return best;
}

static void look_at(struct mt_policy *policy, const struct mt_cluster *cluster, int q, int64_t weight)
{
  policy->node_device[q] = device_of(policy, cluster, q, weight);
  policy->node_load[q] = policy->node_device[q] < 0 ? 0 : loaded(policy, policy->node_device[q], weight);
}

/* A replica of e to node q's best device. */
static void put(struct mt_policy *policy, const struct mt_cluster *cluster, int e, int q, int64_t weight, int *slot_expert)
{
  const int p = policy->node_device[q];
  slot_expert[policy->slot_first[p] + policy->used[p]++] = e;
  policy->device_load[p] = loaded(policy, p, weight);
  policy->node_copies[q]++;
  look_at(policy, cluster, q, weight);
}

/* Whose best device comes first. */
static int sooner(const struct mt_policy *policy, int q, int r)
{
  int a = policy->node_device[q], b = policy->node_device[r];
  return policy->node_load[q] != policy->node_load[r] ? policy->node_load[q] < policy->node_load[r] : a < b;
}

int64_t mt_laer_place(struct mt_policy *policy, const struct mt_cluster *cluster, int *slot_expert)
{
  const int E = policy->E, nnode = policy->nnode;
  memset(policy->device_load, 0, sizeof *policy->device_load * (size_t)policy->P);
  memset(policy->used, 0, sizeof *policy->used * (size_t)policy->P);
  heap_of_all(policy);
  for (int n = E; n > 0;) {
    const int e = policy->order[0];
    const int64_t weight = (policy->load[e] << MT_LOAD_SHIFT) / policy->replica[e];
    policy->order[0] = policy->order[--n];
    mt_heap_sink(policy->order, n, 0, mt_policy_hotter, policy);
    for (int q = 0; q < nnode; q++) {
      policy->node_copies[q] = 0;
      look_at(policy, cluster, q, weight);
    }
    int any = 0; /* 1 once nodes without room have the fewest copies: then all devices are candidates */
    for (int left = policy->replica[e], copies = 0; left > 0; copies++) {
      /* One round: the nodes with the fewest copies get one each, as long as there are copies. */
      int m = 0;
      for (int q = 0; q < nnode; q++) {
        int full = policy->node_device[q] < 0;
        any |= full && policy->node_copies[q] < copies;
        if (!full && (any || policy->node_copies[q] == copies))
          policy->node_order[m++] = q;
      }
      MT_CHECK(m > 0 || !any, "no slot left for a replica of expert %d", e);
      if (!any && m <= left) { /* all of them get one: in any order */
        for (int i = 0; i < m; i++)
          put(policy, cluster, e, policy->node_order[i], weight, slot_expert);
        left -= m;
        continue;
      }
      mt_heap_make(policy->node_order, m, sooner, policy);
      while (m > 0 && left > 0) {
        const int q = policy->node_order[0];
        put(policy, cluster, e, q, weight, slot_expert);
        left--;
        if (!any || policy->node_device[q] < 0)
          policy->node_order[0] = policy->node_order[--m];
        mt_heap_sink(policy->node_order, m, 0, sooner, policy);
      }
    }
  }
  int64_t most = 0;
  for (int p = 0; p < policy->P; p++)
    most = policy->device_load[p] > most ? policy->device_load[p] : most;
  return most;
}

void mt_policy_by_finish(struct mt_policy *policy, const struct mt_cluster *cluster, int *slot_expert)
{
  int64_t least = INT64_MAX;
  for (int p = 0; p < policy->P; p++)
    least = policy->ps[p] < least ? policy->ps[p] : least;
  for (int p = 0; p < policy->P; p++)
    policy->relative[p] = (int64_t)(((__int128)policy->ps[p] << 20) / least);
  policy->by_finish = 1;
  mt_laer_place(policy, cluster, slot_expert);
  policy->by_finish = 0;
}

int64_t mt_laer_score(struct mt_policy *policy, const struct mt_policy_problem *problem, const int *slot_expert)
{
  const struct mt_cluster *cluster = problem->cluster;
  const int P = policy->P, E = policy->E, nnode = policy->nnode;
  struct mt_layout *trial = policy->trial;
  struct mt_shares *shares = policy->shares;
  memcpy(trial->slot_expert, slot_expert, sizeof *slot_expert * (size_t)policy->S);
  mt_layout_index(trial, cluster, 0);
  mt_shares_lite_sums(shares, cluster, trial, problem->counts, policy->device_load, shares->node_rows,
                      shares->node_rows + nnode);
  int64_t compute = 0, across = 0, within = 0;
  for (int p = 0; p < P; p++) {
    compute = policy->device_load[p] * policy->ps[p] > compute ? policy->device_load[p] * policy->ps[p] : compute;
    within += policy->device_load[p];
  }
  for (int q = 0; q < nnode; q++)
    across += shares->node_rows[q];
  within -= across;
  /* what stays on its rank */
  for (int p = 0; p < P; p++)
    for (int s = trial->slot_first[p]; s < trial->slot_first[p + 1]; s++) {
      const int *bin = trial->expert_first + slot_expert[s] * nnode + cluster->node_of[p], n = bin[1] - bin[0];
      const int64_t rows = problem->counts[(int64_t)p * E + slot_expert[s]];
      int i = 0;
      while (trial->by_expert[bin[0] + i] != s)
        i++;
      within -= rows / n + (i < rows % n);
    }
  return compute + within * mt_work_link_ps(&problem->work, cluster, MT_LEVEL_NODE) +
         across * mt_work_link_ps(&problem->work, cluster, MT_LEVEL_NET);
}

void mt_policy_laer(struct mt_policy *policy, const struct mt_policy_problem *problem, int *slot_expert)
{
  mt_laer_replicas(policy);
  mt_laer_place(policy, problem->cluster, slot_expert);
  if (!mt_laer_even(policy))
    return;
  int64_t by_load = mt_laer_score(policy, problem, slot_expert);
  mt_laer_place(policy, problem->cluster, policy->other);
  if (mt_laer_score(policy, problem, policy->other) < by_load)
    memcpy(slot_expert, policy->other, sizeof *slot_expert * (size_t)policy->S);
}
