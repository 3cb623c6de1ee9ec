/* motley's own policy: layouts for solved shares, on devices and links that are not alike.
 *
 * The problem: when the layout is used, the loads are no longer those it was planned on. Shares are solved from the counts at
 * hand (solver.h), so what matters is not how well replicas' planned loads add up, but how far a shift of load can flow: from
 * an expert to any device that holds it, from there, by what that device gives up, to the next. The idea is the chain of
 * flexible manufacturing (Jordan and Graves, "Principles on the benefits of manufacturing process flexibility", 1995): few
 * links suffice if they join all plants and products.
 *   chain   Devices are filled one after another, each up to its part of the load by its speed. A device takes the smallest
 *           experts left, whole, as many as must be finished there for the rest to fit into the slots; its last slot goes to
 *           the largest, and what the device has no room for goes on to the next. Slots left over go to the experts with most
 *           load for the devices they have. Once for each node, where every node has slots for all experts (rows may then
 *           stay), and once over all devices.
 *   rivals  static, laer's two, the same placed by finish times, and the layout in force. Of all, the one is taken that
 *           costs least on the counts and on a few distortions of them, and not more on the counts than static or laer.
 *           In large problems rivals that can be better than a chain by a 250th at most are not weighed.
 *   search  In small problems slots are then exchanged at random as long as a distorted load gets done earlier: within nodes
 *           that hold all experts each, or over all; and, where experts have homes, from the static layout on. Within a
 *           budget of operations, not of time, so that the result is a function of the problem.
 * The trap: everything here must be the same on any machine, so no doubles and no clocks. */
#include <string.h>
#include "base/memory.h"
#include "comm/way.h"
#include "experts/policy_parts.h"
#include "experts/solver.h"

enum {
  SCENES = 8,        /* distortions that the search weighs, the counts themselves among them */
  FEW_SCENES = 4,    /* those for rivals */
  SMALL = 1 << 11,   /* size of problems that are weighed so, see size_of */
  TRIES = 6,         /* of the search, for a slot */
  BUDGET = 150000,   /* and at most: size of the parts solved, all tries together */
  NOT_WORTH = 250,   /* part of the cost that a rival must be able to save in large problems */
  GOOD_ENOUGH = 500, /* part of the time by which a layout may miss what no layout beats */
};

struct mt_motley {
  struct mt_solver *solver;
  struct mt_cluster part; /* some nodes, as a cluster; places borrowed */
  struct mt_layout layout;
  int64_t *counts;       /* [P, E] distorted */
  int64_t *demand;       /* [SCENES, E nnode] */
  int64_t *left, *cover; /* [E] */
  int *on, *copies;      /* [E] */
  int *best, *trial;     /* [S] */
};

struct mt_motley *mt_motley_new(const struct mt_policy *policy, const struct mt_cluster *cluster)
{
  struct mt_motley *m = MT_ZNEW(MT_TAG_PLAN, struct mt_motley, 1);
  const int P = policy->P, E = policy->E, S = policy->S, nnode = policy->nnode;
  m->solver = mt_solver_new(cluster, E, S);
  m->part.node_of = MT_NEW(MT_TAG_PLAN, int, P);
  m->part.node_first = MT_NEW(MT_TAG_PLAN, int, nnode + 1);
  m->layout = (struct mt_layout){.nexpert = E,
                                 .slot_first = MT_NEW(MT_TAG_PLAN, int, P + 1),
                                 .slot_expert = MT_NEW(MT_TAG_PLAN, int, S),
                                 .slot_rank = MT_NEW(MT_TAG_PLAN, int, S),
                                 .by_expert = MT_NEW(MT_TAG_PLAN, int, S),
                                 .expert_first = MT_NEW(MT_TAG_PLAN, int, (int64_t)E * nnode + 1)};
  m->counts = MT_NEW(MT_TAG_PLAN, int64_t, (int64_t)P * E);
  m->demand = MT_NEW(MT_TAG_PLAN, int64_t, (int64_t)SCENES * E * nnode);
  m->left = MT_NEW(MT_TAG_PLAN, int64_t, E);
  m->cover = MT_NEW(MT_TAG_PLAN, int64_t, E);
  m->on = MT_NEW(MT_TAG_PLAN, int, E);
  m->copies = MT_NEW(MT_TAG_PLAN, int, E);
  m->best = MT_NEW(MT_TAG_PLAN, int, S);
  m->trial = MT_NEW(MT_TAG_PLAN, int, S);
  return m;
}

void mt_motley_free(struct mt_motley *m)
{
  if (!m)
    return;
  void *owned[] = {m->part.node_of,
                   m->part.node_first,
                   m->layout.slot_first,
                   m->layout.slot_expert,
                   m->layout.slot_rank,
                   m->layout.by_expert,
                   m->layout.expert_first,
                   m->counts,
                   m->demand,
                   m->left,
                   m->cover,
                   m->on,
                   m->copies,
                   m->best,
                   m->trial};
  mt_solver_free(m->solver);
  for (int i = 0; i < (int)(sizeof owned / sizeof *owned); i++)
    mt_free(owned[i]);
  mt_free(m);
}

/* ---- the chain ---- */

/* Speeds that can be added up. */
static int64_t speed_of(const struct mt_policy *policy, int p)
{
  return ((int64_t)1 << 50) / policy->ps[p];
}

/* The expert of those left with the smallest or the largest load; -1 if none is left. */
static int extreme(const struct mt_motley *m, int E, int largest)
{
  int best = -1;
  int64_t at_best = 0;
  for (int e = 0; e < E; e++) {
    const int64_t left = m->left[e];
    if (left >= 0 && (best < 0 || (largest ? left > at_best : left < at_best))) {
      best = e;
      at_best = left;
    }
  }
  return best;
}

/* Load for the speed of the devices that hold an expert. */
static int64_t crowded(int64_t load, int64_t cover)
{
  return (load << MT_LOAD_SHIFT) / (cover >> 10);
}

/* Slots of devices [low, high) that are -1: to the expert with most load for the speed of the devices that hold it. */
static void fill_up(const struct mt_policy *policy, const int64_t *load, int low, int high, int *slot_expert)
{
  struct mt_motley *m = policy->motley;
  int64_t *crowd = m->left; /* the chain is done with it */
  for (int e = 0; e < policy->E; e++)
    crowd[e] = crowded(load[e], m->cover[e]);
  for (int p = low; p < high; p++) {
    const int from = policy->slot_first[p], to = policy->slot_first[p + 1];
    int s = from;
    while (s < to && slot_expert[s] >= 0)
      s++;
    if (s == to)
      continue;
    /* those that are here already, out of the way */
    for (int i = from; i < s; i++)
      crowd[slot_expert[i]] -= INT64_MAX / 2;
    const int64_t speed = speed_of(policy, p);
    for (; s < to; s++) {
      int64_t most = -1;
      int best = -1;
      for (int e = 0; e < policy->E; e++)
        if (crowd[e] > most) {
          most = crowd[e];
          best = e;
        }
      if (best < 0) { /* all are here */
        slot_expert[s] = slot_expert[from];
        continue;
      }
      slot_expert[s] = best;
      m->cover[best] += speed;
      crowd[best] -= INT64_MAX / 2;
    }
    for (int i = from; i < to; i++)
      crowd[slot_expert[i]] = crowded(load[slot_expert[i]], m->cover[slot_expert[i]]);
  }
}

/* Chains all experts over the devices [low, high), which must have slots for them; load[E] is what they have to do. */
static void chain(const struct mt_policy *policy, const int64_t *load, int low, int high, int *slot_expert)
{
  struct mt_motley *m = policy->motley;
  const int E = policy->E;
  int experts = E, slots = policy->slot_first[high] - policy->slot_first[low], devices = 0;
  int64_t total = 0, speed = 0; /* of devices that have slots */
  for (int e = 0; e < E; e++) {
    m->left[e] = load[e] << MT_LOAD_SHIFT / 2; /* -1: finished */
    m->cover[e] = 0;
    total += m->left[e];
  }
  for (int p = low; p < high; p++)
    if (policy->slot_first[p + 1] > policy->slot_first[p]) {
      devices++;
      speed += speed_of(policy, p);
    }
  for (int p = low; p < high; p++) {
    const int from = policy->slot_first[p], to = policy->slot_first[p + 1];
    if (from == to)
      continue;
    int64_t room = (int64_t)((__int128)total * speed_of(policy, p) / speed);
    slots -= to - from;
    devices--;
    int finish = experts > slots ? experts - slots : 0; /* here, or the others have no slots later */
    int whole = devices ? (experts - 1 + devices) / (devices + 1) : experts; /* that go here as a rule */
    int s = from;
    for (; s < to && experts > 0; s++) {
      int e = extreme(m, E, s == to - 1);
      const int small = s < to - 1 && (finish > 0 || (whole > 0 && m->left[e] <= room));
      e = small ? e : extreme(m, E, 1);
      slot_expert[s] = e;
      m->cover[e] += speed_of(policy, p);
      int64_t taken = m->left[e] < room ? m->left[e] : room;
      m->left[e] -= taken;
      room -= taken;
      whole--;
      if (m->left[e] == 0 || finish > 0) {
        m->left[e] = -1;
        experts--;
        finish--;
      } else {
        s++;
        break; /* the largest goes on at the next device */
      }
    }
    for (; s < to; s++)
      slot_expert[s] = -1;
  }
  /* Rounding may leave crumbs of the last expert, which has a slot. */
  fill_up(policy, load, low, high, slot_expert);
}

/* ---- what a layout costs when loads shift ---- */

/* x rows of expert e in distortion k: a quarter more or less, in patterns that no two experts among eight share. */
static int64_t distorted(int64_t x, int e, int k)
{
  return __builtin_parity((unsigned)(k & (e + 3 * (e / 8)))) ? x - x * 3 / 8 : x + x * 3 / 8;
}

static int64_t size_of(int P, int E, int S, int nnode)
{
  return (int64_t)P + 2 * S + (int64_t)E * nnode;
}

/* The predicted time of a candidate on the counts; *shifted: the sum of that and those of distortions. */
static int64_t weigh(struct mt_policy *policy, const struct mt_policy_problem *problem, const int *slot_expert,
                     int scenes, int64_t *shifted)
{
  struct mt_motley *m = policy->motley;
  struct mt_policy_problem other = *problem;
  const int P = policy->P, E = policy->E;
  const int64_t plain = mt_policy_cost(policy, problem, slot_expert).total_ps;
  *shifted = plain;
  other.counts = m->counts;
  for (int k = 1; k < scenes; k++) {
    for (int p = 0; p < P; p++)
      for (int e = 0; e < E; e++)
        m->counts[(int64_t)p * E + e] = distorted(problem->counts[(int64_t)p * E + e], e, k);
    *shifted += mt_policy_cost(policy, &other, slot_expert).total_ps;
  }
  return plain;
}

/* ---- the search ---- */

/* Makes the nodes [q, end) and their slots a cluster and a layout of their own, with distorted demands. Returns the sum over
 * distortions of a time that no layout beats. */
static int64_t take_part(struct mt_policy *policy, const struct mt_policy_problem *problem, int q, int end,
                         const int *slot_expert)
{
  struct mt_motley *m = policy->motley;
  const struct mt_cluster *cluster = problem->cluster;
  const int low = cluster->node_first[q], high = cluster->node_first[end], E = policy->E, nnode = end - q;
  m->part.nplace = high - low;
  m->part.nnode = nnode;
  m->part.place = cluster->place + low;
  for (int i = q; i <= end; i++)
    m->part.node_first[i - q] = cluster->node_first[i] - low;
  m->layout.nrank = high - low;
  m->layout.nnode = nnode;
  for (int p = low; p <= high; p++)
    m->layout.slot_first[p - low] = policy->slot_first[p] - policy->slot_first[low];
  memcpy(m->layout.slot_expert, slot_expert + policy->slot_first[low],
         sizeof *slot_expert * (size_t)m->layout.slot_first[high - low]);
  memset(m->demand, 0, sizeof *m->demand * SCENES * (size_t)E * (size_t)nnode);
  int64_t speed = 0, total = 0;
  for (int p = low; p < high; p++) {
    m->part.node_of[p - low] = cluster->node_of[p] - q;
    speed += policy->slot_first[p + 1] > policy->slot_first[p] ? speed_of(policy, p) : 0;
    for (int e = 0; e < E; e++)
      for (int k = 0; k < SCENES; k++) {
        int64_t rows = problem->counts[(int64_t)p * E + e];
        rows = k ? distorted(rows, e, k) : rows;
        m->demand[(int64_t)k * E * nnode + e * nnode + cluster->node_of[p] - q] += rows;
        total += rows;
      }
  }
  return (int64_t)(((__int128)total << 50) / speed);
}

/* What the part's layout costs over all distortions. */
static int64_t part_cost(struct mt_policy *policy, const struct mt_policy_problem *problem, int64_t net_ps)
{
  struct mt_motley *m = policy->motley;
  const int nnode = m->part.nnode, first = (int)(m->part.place - problem->cluster->place);
  int64_t sum = 0;
  mt_layout_index(&m->layout, &m->part, 0);
  for (int k = 0; k < SCENES; k++) {
    const struct mt_flow *flow = mt_solver_solve(
        m->solver, &m->part, &m->layout, m->demand + (int64_t)k * policy->E * nnode, policy->ps + first, net_ps);
    sum += flow->last_ps + net_ps * flow->most_rows;
  }
  if (nnode > 1 && nnode == policy->nnode)
    sum += SCENES * problem->nstep * mt_layout_weights(problem->cluster, &problem->work, &m->layout, policy->shares);
  return sum;
}

static int holds(const struct mt_layout *layout, int rank, int e)
{
  for (int s = layout->slot_first[rank]; s < layout->slot_first[rank + 1]; s++)
    if (layout->slot_expert[s] == e)
      return 1;
  return 0;
}

static uint64_t next_random(uint64_t *state)
{
  /* xorshift64*, Vigna 2016 */
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * 0x2545f4914f6cdd1d;
}

/* Improves slot_expert on the nodes [q, end): swaps two slots, or gives one to another expert, where that helps. */
static void search_part(struct mt_policy *policy, const struct mt_policy_problem *problem, int q, int end,
                        int64_t budget, int *slot_expert)
{
  struct mt_motley *m = policy->motley;
  const int64_t net_ps = mt_work_link_ps(&problem->work, problem->cluster, MT_LEVEL_NET);
  const int64_t bound = take_part(policy, problem, q, end, slot_expert);
  struct mt_layout *layout = &m->layout;
  const int n = layout->slot_first[layout->nrank], base = policy->slot_first[problem->cluster->node_first[q]];
  const int64_t size = SCENES * size_of(layout->nrank, policy->E, n, end - q);
  budget = budget < TRIES * n * size ? budget : TRIES * n * size;
  int64_t least = part_cost(policy, problem, net_ps);
  uint64_t state = 0x9e3779b97f4a7c15 + (uint64_t)q;
  memset(m->copies, 0, sizeof *m->copies * (size_t)policy->E);
  for (int s = 0; s < n; s++)
    m->copies[layout->slot_expert[s]]++;
  for (; budget >= size && least > bound + bound / GOOD_ENOUGH; budget -= size) {
    const uint64_t bits = next_random(&state);
    const int a = (int)((bits >> 8) % (uint64_t)n), b = (int)((bits >> 32) % (uint64_t)n);
    const int x = layout->slot_expert[a],
              y = bits & 3 ? layout->slot_expert[b] : (int)((bits >> 32) % (uint64_t)policy->E);
    const int swap = (bits & 3) != 0;
    if (x == y || holds(layout, layout->slot_rank[a], y) || (swap && holds(layout, layout->slot_rank[b], x)) ||
        (!swap && m->copies[x] < 2)) {
      budget += size - size / 16; /* little was spent */
      continue;
    }
    layout->slot_expert[a] = y;
    if (swap)
      layout->slot_expert[b] = x;
    int64_t cost = part_cost(policy, problem, net_ps);
    if (cost < least) {
      least = cost;
      m->copies[x] -= !swap;
      m->copies[y] += !swap;
    } else {
      layout->slot_expert[a] = x;
      if (swap)
        layout->slot_expert[b] = y;
    }
  }
  memcpy(slot_expert + base, layout->slot_expert, sizeof *slot_expert * (size_t)n);
}

/* 1 if every node holds every expert. */
static int covers(const struct mt_policy *policy, const struct mt_cluster *cluster, const int *slot_expert)
{
  struct mt_motley *m = policy->motley;
  for (int e = 0; e < policy->E; e++)
    m->on[e] = -1;
  for (int q = 0; q < cluster->nnode; q++) {
    int n = 0;
    for (int s = policy->slot_first[cluster->node_first[q]]; s < policy->slot_first[cluster->node_first[q + 1]]; s++) {
      n += m->on[slot_expert[s]] != q;
      m->on[slot_expert[s]] = q;
    }
    if (n < policy->E)
      return 0;
  }
  return 1;
}

/* ---- the choice ---- */

/* What any time T and the rows that nodes cannot do by then cost: T + c max(must, rows of a node - what it can do by T). */
static int64_t with_uplinks(const struct mt_policy *policy, const struct mt_cluster *cluster, int64_t time,
                            int64_t must, int64_t c)
{
  const int64_t *rows = policy->node_load, *speed = policy->node_speed;
  int64_t most = must;
  for (int q = 0; q < cluster->nnode; q++) {
    int64_t left = rows[q] - (int64_t)((__int128)time * speed[q] >> 50);
    most = left > most ? left : most;
  }
  return time + c * most;
}

/* What a layout costs at least, whatever the shares. A device takes no less than the rows allow that all devices share, or
 * those of one expert that its holders share; what a node cannot do in time, and what it has no slot for, leaves it; what a
 * rank has no slot for leaves the rank, and of that no more leaves the node than its uplink carries. */
static int64_t at_least(struct mt_policy *policy, const struct mt_policy_problem *problem, const int *slot_expert)
{
  struct mt_motley *m = policy->motley;
  const struct mt_cluster *cluster = problem->cluster;
  const int E = policy->E, nnode = policy->nnode;
  struct mt_layout *trial = policy->trial;
  memcpy(trial->slot_expert, slot_expert, sizeof *slot_expert * (size_t)policy->S);
  mt_layout_index(trial, cluster, 0);
  int64_t speed = 0, total = 0, low = 0, high = 0, must = 0, missing = 0;
  memset(m->cover, 0, sizeof *m->cover * (size_t)E);
  for (int e = 0; e < E; e++)
    m->on[e] = -1;
  for (int q = 0; q < nnode; q++) {
    int64_t homeless = 0;
    policy->node_load[q] = policy->node_speed[q] = 0;
    for (int p = cluster->node_first[q]; p < cluster->node_first[q + 1]; p++) {
      int64_t elsewhere = 0;
      const int64_t *counts = problem->counts + (int64_t)p * E;
      policy->node_speed[q] += trial->slot_first[p + 1] > trial->slot_first[p] ? speed_of(policy, p) : 0;
      for (int s = trial->slot_first[p]; s < trial->slot_first[p + 1]; s++) {
        m->cover[slot_expert[s]] += m->on[slot_expert[s]] != p ? speed_of(policy, p) : 0;
        m->on[slot_expert[s]] = p;
      }
      for (int e = 0; e < E; e++) {
        policy->node_load[q] += counts[e];
        elsewhere += m->on[e] != p ? counts[e] : 0;
        homeless += trial->expert_first[e * nnode + q] == trial->expert_first[e * nnode + q + 1] ? counts[e] : 0;
      }
      missing = elsewhere > missing ? elsewhere : missing;
    }
    must = homeless > must ? homeless : must;
    speed += policy->node_speed[q];
    total += policy->node_load[q];
    int64_t alone =
        policy->node_speed[q] ? (int64_t)(((__int128)policy->node_load[q] << 50) / policy->node_speed[q]) : 0;
    high = alone > high ? alone : high;
  }
  low = (int64_t)(((__int128)total << 50) / speed);
  for (int e = 0; e < E; e++) {
    int64_t time = (int64_t)(((__int128)policy->load[e] << 50) / m->cover[e]);
    low = time > low ? time : low;
  }
  const int64_t node_ps = mt_work_link_ps(&problem->work, cluster, MT_LEVEL_NODE);
  const int64_t more =
      problem->work.row_bytes * problem->work.row_trips * mt_link_usual(cluster, MT_LEVEL_NET).beta_ps -
      node_ps; /* of a row that leaves its node */
  high = high > low ? high : low;
  for (const int64_t first = low; more > 0 && high - low > first / 4096 + 2;) { /* the sum has one minimum */
    const int64_t a = low + (high - low) / 3, b = high - (high - low) / 3;
    if (with_uplinks(policy, cluster, a, must, more) <= with_uplinks(policy, cluster, b, must, more))
      high = b;
    else
      low = a;
  }
  /* Within the last interval no time is earlier than its beginning, and no row fewer than at its end. */
  const int64_t rows = more > 0 ? with_uplinks(policy, cluster, high, must, 1) - high : 0;
  struct mt_layout_cost cost = {.compute_ps = low / problem->nstep,
                                .exchange_ps = (rows * (more > 0 ? more : 0) + missing * (more > 0 ? node_ps : 0)) /
                                               problem->nstep,
                                .weights_ps = mt_layout_weights(cluster, &problem->work, trial, policy->shares)};
  mt_layout_cost_total(&cost, &problem->work);
  return cost.total_ps;
}

struct choice {
  int scenes;
  int64_t limit;          /* the least that static or laer costs on the counts */
  int any;                /* there is a best so far, in motley->best: */
  int64_t plain, shifted; /* what it costs on the counts, and on all distortions */
  int64_t bound;          /* in large problems: what it costs at least */
};

/* Takes a candidate if it is the best so far; a rival (static, laer) sets the limit. `bound`: what it costs at least. */
static void consider_above(struct mt_policy *policy, const struct mt_policy_problem *problem, struct choice *c, int rival,
                           const int *slot_expert, int64_t bound)
{
  /* In large problems a flow takes its time, and what can be hardly better is not weighed. A chain comes as near to its
   * bound as another to its own; a rival may come nearer. */
  const int64_t better = rival ? c->plain : c->bound;
  if (c->scenes == 1 && c->any && bound >= better - better / NOT_WORTH)
    return;
  int64_t shifted, plain = weigh(policy, problem, slot_expert, c->scenes, &shifted);
  if (rival && plain < c->limit)
    c->limit = plain;
  c->any &= c->plain <= c->limit;
  if (plain > c->limit || (c->any && shifted >= c->shifted))
    return;
  c->any = 1;
  c->plain = plain;
  c->shifted = shifted;
  c->bound = bound;
  memcpy(policy->motley->best, slot_expert, sizeof *slot_expert * (size_t)policy->S);
}

static void consider(struct mt_policy *policy, const struct mt_policy_problem *problem, struct choice *c, int rival,
                     const int *slot_expert)
{
  consider_above(policy, problem, c, rival, slot_expert, c->scenes == 1 ? at_least(policy, problem, slot_expert) : 0);
}

/* The chain of each node, on the rows that are there. 0 if some node has too few slots. */
static int chain_nodes(struct mt_policy *policy, const struct mt_policy_problem *problem, int *slot_expert)
{
  const struct mt_cluster *cluster = problem->cluster;
  int64_t *load = policy->motley->demand;
  for (int q = 0; q < cluster->nnode; q++) {
    const int low = cluster->node_first[q], high = cluster->node_first[q + 1];
    if (policy->slot_first[high] - policy->slot_first[low] < policy->E)
      return 0;
    memset(load, 0, sizeof *load * (size_t)policy->E);
    for (int p = low; p < high; p++)
      for (int e = 0; e < policy->E; e++)
        load[e] += problem->counts[(int64_t)p * policy->E + e];
    chain(policy, load, low, high, slot_expert);
  }
  return 1;
}

static void consider_rivals(struct mt_policy *policy, const struct mt_policy_problem *problem, struct choice *c, int *x)
{
  mt_layout_static(x, policy->E, policy->S);
  consider(policy, problem, c, 1, x);
  mt_policy_laer(policy, problem, x);
  consider(policy, problem, c, 1, x);
}

/* Where that counts, the one that promises more comes first: the other is then seldom weighed. */
static void consider_chains(struct mt_policy *policy, const struct mt_policy_problem *problem, struct choice *c, int *x)
{
  int *nodes = policy->motley->trial;
  const int both = chain_nodes(policy, problem, nodes), bounds = c->scenes == 1;
  chain(policy, policy->load, 0, policy->P, x);
  const int64_t above = bounds ? at_least(policy, problem, x) : 0;
  const int64_t nodes_above = both && bounds ? at_least(policy, problem, nodes) : 0;
  if (both && nodes_above <= above)
    consider_above(policy, problem, c, 0, nodes, nodes_above);
  consider_above(policy, problem, c, 0, x, above);
  if (both && nodes_above > above)
    consider_above(policy, problem, c, 0, nodes, nodes_above);
}

void mt_policy_motley(struct mt_policy *policy, const struct mt_policy_problem *problem, int *slot_expert)
{
  struct mt_motley *m = policy->motley;
  const struct mt_cluster *cluster = problem->cluster;
  const int P = policy->P, E = policy->E, S = policy->S;
  const int small = size_of(P, E, S, policy->nnode) + (int64_t)P * E <= SMALL;
  struct choice c = {.scenes = small ? FEW_SCENES : 1, .limit = INT64_MAX};
  if (small) {
    consider_rivals(policy, problem, &c, slot_expert);
    consider_chains(policy, problem, &c, slot_expert);
    mt_laer_replicas(policy);
    mt_policy_by_finish(policy, cluster, slot_expert);
    consider(policy, problem, &c, 0, slot_expert);
    consider(policy, problem, &c, 0, problem->before->slot_expert);
    memcpy(m->trial, m->best, sizeof *slot_expert * (size_t)S);
    const int parts = covers(policy, cluster, m->trial) ? policy->nnode : 1;
    for (int i = 0; i < parts; i++)
      search_part(policy, problem, i, parts > 1 ? i + 1 : policy->nnode, BUDGET / parts, m->trial);
    consider(policy, problem, &c, 0, m->trial);
    if (problem->work.sharding != MT_SHARDING_FULL) { /* also from where experts are at home, and weights cost nothing */
      mt_layout_static(m->trial, E, S);
      search_part(policy, problem, 0, policy->nnode, BUDGET, m->trial);
      consider(policy, problem, &c, 0, m->trial);
    }
  } else {
    /* A chain is seldom beaten, and then most rivals need not be weighed. */
    consider_chains(policy, problem, &c, slot_expert);
    consider_rivals(policy, problem, &c, slot_expert);
  }
  memcpy(slot_expert, m->best, sizeof *slot_expert * (size_t)S);
}
