/* motley's own policy (experiment) */
#include <string.h>
#include <stdlib.h>
#include "base/memory.h"
#include "base/random.h"
#include "experts/policy_parts.h"

/* chain on devices [low, high) of loads l[E] */
static int chain(struct mt_policy *policy, int low, int high, const int64_t *load, int *slot_expert, int rot)
{
  const int E = policy->E;
  int64_t rem[E], total = 0, part[E];
  int64_t vsum = 0, cover[E];
  int nrem = 0, slots = 0;
  for (int e = 0; e < E; e++) { rem[e] = load[e] << 12; total += rem[e]; nrem++; cover[e] = 0; }
  (void)part;
  for (int p = low; p < high; p++) { slots += policy->slot_first[p+1]-policy->slot_first[p]; vsum += ((int64_t)1 << 50) / policy->ps[p]; }
  if (slots < E) return 0;
  int done[E]; memset(done, 0, sizeof done);
  int drem = high - low, srem = slots;
  for (int p = low; p < high; p++, drem--) {
    int k = policy->slot_first[p+1]-policy->slot_first[p], used = 0;
    int *s = slot_expert + policy->slot_first[p];
    int64_t v = ((int64_t)1 << 50) / policy->ps[p];
    int64_t cap = (int64_t)((__int128)total * v / vsum);
    srem -= k;
    /* must finish so that the rest fits */
    int finish = nrem - srem > 0 ? nrem - srem : 0;
    int want = (nrem - 1 + drem - 1) / drem;
    if (want < finish) want = finish;
    for (int j = 0; used < k && nrem > 0; j++) {
      /* smallest or largest remaining */
      int lastslot = used == k - 1;
      int best = -1;
      if (!lastslot && j < want) {
        for (int e = 0; e < E; e++) if (!done[e]) { int dup=0; for(int i=0;i<used;i++) dup|=s[i]==e; if(dup) continue; if (best < 0 || rem[e] < rem[best]) best = e; }
        if (best >= 0 && rem[best] > cap && finish <= 0) best = -1;
      }
      int main = best < 0;
      if (main) { for (int i = 0; i < E; i++) { int e=(i+rot)%E; if (!done[e]) { int dup=0; for(int i2=0;i2<used;i2++) dup|=s[i2]==e; if(dup) continue; if (best < 0 || rem[e] > rem[best]) best = e; } } }
      if (best < 0) break;
      int64_t take = rem[best] < cap ? rem[best] : cap;
      if (drem == 1) take = rem[best];
      s[used++] = best; cover[best] += v;
      rem[best] -= take; cap -= take;
      if (rem[best] == 0 || (!main && finish > 0)) { done[best] = 1; nrem--; finish--; }
      if (main) break;
    }
    for (int i = used; i < k; i++) s[i] = -1;
  }
  /* free slots: the expert with most load per speed */
  for (int p = low; p < high; p++) for (int i = policy->slot_first[p]; i < policy->slot_first[p+1]; i++) if (slot_expert[i] < 0) {
    int best = -1;
    for (int e = 0; e < E; e++) { int dup = 0; for (int j = policy->slot_first[p]; j < policy->slot_first[p+1]; j++) dup |= slot_expert[j] == e; if (dup) continue;
      if (best < 0 || (cover[e] == 0 && cover[best] != 0) || (__int128)load[e]*cover[best] > (__int128)load[best]*cover[e]) best = e; }
    if (best < 0) best = slot_expert[policy->slot_first[p]];
    slot_expert[i] = best; cover[best] += ((int64_t)1 << 50) / policy->ps[p];
  }
  for (int e = 0; e < E; e++) if (!cover[e]) return 0;
  return 1;
}

/* robust objective */
static int64_t robust(struct mt_policy *policy, const struct mt_policy_problem *problem, const int *slot_expert, int nscen, int64_t *base)
{
  int64_t sum = 0;
  struct mt_policy_problem pr = *problem;
  int64_t *c = malloc(8 * policy->P * policy->E);
  *base = mt_policy_cost(policy, problem, slot_expert).total_ps;
  for (int k = 1; k <= nscen; k++) {
    for (int p = 0; p < policy->P; p++) for (int e = 0; e < policy->E; e++) {
      int64_t x = problem->counts[p * policy->E + e];
      c[p*policy->E+e] = x + (__builtin_popcount(k & e) & 1 ? -x/4 : x/4);
    }
    pr.counts = c;
    sum += mt_policy_cost(policy, &pr, slot_expert).total_ps;
  }
  free(c);
  return sum;
}

void mt_policy_motley(struct mt_policy *policy, const struct mt_policy_problem *problem, int *slot_expert)
{
  const struct mt_cluster *cluster = problem->cluster;
  const int E = policy->E, S = policy->S;
  const char *m = getenv("MO"); int mode = m ? atoi(m) : 0;
  int ok = 1, *x = malloc(4 * S);
  for (int q = 0; q < policy->nnode && ok; q++) {
    int64_t l[E];
    memset(l, 0, sizeof l);
    for (int p = cluster->node_first[q]; p < cluster->node_first[q + 1]; p++)
      for (int e = 0; e < E; e++) l[e] += problem->counts[(int64_t)p * E + e];
    ok &= chain(policy, cluster->node_first[q], cluster->node_first[q + 1], l, x, q);
  }
  if (mode == 1) { memcpy(slot_expert, x, 4 * S); free(x); return; }
  /* local search from laer */
  mt_policy_laer(policy, problem, slot_expert);
  int64_t b0, b1, r0 = robust(policy, problem, slot_expert, 7, &b0), r1;
  if (ok) { r1 = robust(policy, problem, x, 7, &b1); if (r1 < r0) { r0 = r1; b0 = b1; memcpy(slot_expert, x, 4 * S); } }
  int moves = getenv("MV") ? atoi(getenv("MV")) : 100;
  for (int i = 0; i < moves; i++) {
    memcpy(x, slot_expert, 4 * S);
    uint64_t h = mt_random_bits(7, 9, i);
    if (h % 4) { int q = (h >> 2) % policy->nnode, lo = policy->slot_first[cluster->node_first[q]], n = policy->slot_first[cluster->node_first[q+1]] - lo;
      int a = lo + (h >> 10) % n, b = lo + (h >> 30) % n; int t = x[a]; x[a] = x[b]; x[b] = t; if (x[a]==x[b]) continue; }
    else { int a = (h >> 10) % S; x[a] = (h >> 40) % E; int any = 0; for (int s = 0; s < S; s++) any |= x[s] == slot_expert[a]; if (!any || x[a]==slot_expert[a]) continue; }
    r1 = robust(policy, problem, x, 7, &b1);
    if (r1 < r0) { r0 = r1; memcpy(slot_expert, x, 4 * S); }
  }
  free(x);
}
