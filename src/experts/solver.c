/* The split that finishes earliest; see solver.h. */
#include "experts/solver.h"
#include <string.h>
#include "base/memory.h"

/* Vertices 0 .. E nnode - 1 are the rows of (expert, node); then one hub an expert; then the devices. */
struct mt_solver {
  int most_rank, most_node; /* that there is room for */
  int P, E, S, nnode;
  int nrow, nsource; /* E nnode; that and the hubs */
  int narc;
  int32_t *arc_first;  /* [nsource + 1]: a source's arcs, to devices */
  int32_t *arc_device; /* [2 S] */
  int32_t *arc_slot;   /* [2 S] */
  int64_t *flow;       /* [2 S] */
  int32_t *back_first; /* [P + 1]: a device's arcs, backwards */
  int32_t *back;       /* [2 S] arcs */
  int32_t *back_tail;  /* [2 S] their sources */
  int64_t *to_hub;     /* [E nnode] rows that went to the expert's hub */
  int64_t *excess;     /* [nsource] rows not placed yet */
  int64_t *cap, *spare; /* [P] rows a device takes by the time in question; what of it is free */
  const int64_t *ps;   /* [P] borrowed */
  int between;         /* rows may go to hubs */
  int32_t *level, *queue, *next; /* [nsource + P] of the search; next: the arc to be tried next */
  int64_t *node_out, *node_in;   /* [nnode] rows over uplinks */
  int32_t *order;      /* [nsource] those with few arcs first */
  struct mt_flow result;
};

struct mt_solver *mt_solver_new(const struct mt_cluster *cluster, int nexpert, int nslot)
{
  struct mt_solver *v = MT_ZNEW(MT_TAG_PLAN, struct mt_solver, 1);
  v->P = v->most_rank = cluster->nplace;
  v->E = nexpert;
  v->S = nslot;
  v->nnode = v->most_node = cluster->nnode;
  v->nrow = nexpert * v->nnode;
  v->nsource = v->nrow + nexpert;
  const int nvertex = v->nsource + v->P;
  v->arc_first = MT_NEW(MT_TAG_PLAN, int32_t, v->nsource + 1);
  v->arc_device = MT_NEW(MT_TAG_PLAN, int32_t, 2 * nslot);
  v->arc_slot = MT_NEW(MT_TAG_PLAN, int32_t, 2 * nslot);
  v->flow = MT_NEW(MT_TAG_PLAN, int64_t, 2 * nslot);
  v->back_first = MT_NEW(MT_TAG_PLAN, int32_t, v->P + 1);
  v->back = MT_NEW(MT_TAG_PLAN, int32_t, 2 * nslot);
  v->back_tail = MT_NEW(MT_TAG_PLAN, int32_t, 2 * nslot);
  v->to_hub = MT_NEW(MT_TAG_PLAN, int64_t, v->nrow);
  v->excess = MT_NEW(MT_TAG_PLAN, int64_t, v->nsource);
  v->cap = MT_NEW(MT_TAG_PLAN, int64_t, v->P);
  v->spare = MT_NEW(MT_TAG_PLAN, int64_t, v->P);
  v->level = MT_NEW(MT_TAG_PLAN, int32_t, nvertex);
  v->queue = MT_NEW(MT_TAG_PLAN, int32_t, nvertex);
  v->next = MT_NEW(MT_TAG_PLAN, int32_t, nvertex);
  v->node_out = MT_NEW(MT_TAG_PLAN, int64_t, v->nnode);
  v->node_in = MT_NEW(MT_TAG_PLAN, int64_t, v->nnode);
  v->order = MT_NEW(MT_TAG_PLAN, int32_t, v->nsource);
  v->result.first = MT_NEW(MT_TAG_PLAN, int32_t, v->nrow + 1);
  v->result.slot = MT_NEW(MT_TAG_PLAN, int32_t, v->nrow + 2 * nslot);
  v->result.rows = MT_NEW(MT_TAG_PLAN, int64_t, v->nrow + 2 * nslot);
  return v;
}

void mt_solver_free(struct mt_solver *v)
{
  if (!v)
    return;
  void *owned[] = {v->arc_first, v->arc_device, v->arc_slot, v->flow, v->back_first, v->back, v->back_tail,
                   v->to_hub, v->excess, v->cap, v->spare, v->level, v->queue, v->next, v->node_out, v->node_in,
                   v->order, v->result.first, v->result.slot, v->result.rows};
  for (int i = 0; i < (int)(sizeof owned / sizeof *owned); i++)
    mt_free(owned[i]);
  mt_free(v);
}

/* ---- the graph ---- */

/* Arcs of one source to the devices of by_expert[from .. to), a device once. */
static int add_arcs(struct mt_solver *v, const struct mt_layout *layout, int n, int from, int to)
{
  int last = -1;
  for (int i = from; i < to; i++) {
    int slot = layout->by_expert[i], device = layout->slot_rank[slot];
    if (device == last)
      continue;
    last = device;
    v->arc_slot[n] = slot;
    v->arc_device[n++] = device;
  }
  return n;
}

/* A source's arcs, many = `most`. */
static int degree(const struct mt_solver *v, int i, int most)
{
  int n = v->arc_first[i + 1] - v->arc_first[i];
  return n < most ? n : most;
}

static void build(struct mt_solver *v, const struct mt_layout *layout)
{
  int n = 0;
  for (int i = 0; i < v->nrow; i++) {
    v->arc_first[i] = n;
    if (v->nnode > 1) /* of one node the hubs' arcs are all */
      n = add_arcs(v, layout, n, layout->expert_first[i], layout->expert_first[i + 1]);
  }
  for (int e = 0; e < v->E; e++) {
    v->arc_first[v->nrow + e] = n;
    n = add_arcs(v, layout, n, layout->expert_first[e * v->nnode], layout->expert_first[(e + 1) * v->nnode]);
  }
  v->arc_first[v->nsource] = v->narc = n;
  memset(v->back_first, 0, sizeof *v->back_first * (size_t)(v->P + 1));
  for (int a = 0; a < n; a++)
    v->back_first[v->arc_device[a] + 1]++;
  for (int p = 0; p < v->P; p++)
    v->back_first[p + 1] += v->back_first[p];
  for (int i = 0; i < v->nsource; i++)
    for (int a = v->arc_first[i]; a < v->arc_first[i + 1]; a++) {
      int at = v->back_first[v->arc_device[a]]++;
      v->back[at] = a;
      v->back_tail[at] = i;
    }
  for (int p = v->P; p > 0; p--)
    v->back_first[p] = v->back_first[p - 1];
  v->back_first[0] = 0;
  /* Those with few arcs have no choice, so they are placed first. */
  enum { MANY = 32 };
  int at[MANY + 2] = {0};
  for (int i = 0; i < v->nsource; i++)
    at[1 + degree(v, i, MANY)]++;
  for (int d = 0; d <= MANY; d++)
    at[d + 1] += at[d];
  for (int i = 0; i < v->nsource; i++)
    v->order[at[degree(v, i, MANY)]++] = i;
}

/* ---- a maximum flow ---- */

/* Levels from all sources with rows left; 1 if a device with room was reached. */
static int search(struct mt_solver *v)
{
  const int nvertex = v->nsource + v->P;
  int head = 0, tail = 0, found = 0;
  for (int i = 0; i < nvertex; i++)
    v->level[i] = -1;
  for (int i = 0; i < v->nsource; i++)
    if (v->excess[i] > 0) {
      v->level[i] = 0;
      v->queue[tail++] = i;
    }
  while (head < tail) {
    int i = v->queue[head++], level = v->level[i] + 1;
    if (found && level > found)
      break;
    if (i >= v->nsource) { /* a full device: rows that others could take back */
      int p = i - v->nsource;
      for (int b = v->back_first[p]; b < v->back_first[p + 1]; b++)
        if (v->flow[v->back[b]] > 0 && v->level[v->back_tail[b]] < 0) {
          v->level[v->back_tail[b]] = level;
          v->queue[tail++] = v->back_tail[b];
        }
      continue;
    }
    for (int a = v->arc_first[i]; a < v->arc_first[i + 1]; a++) {
      int to = v->nsource + v->arc_device[a];
      if (v->level[to] >= 0)
        continue;
      v->level[to] = level;
      v->queue[tail++] = to;
      if (v->spare[v->arc_device[a]] > 0)
        found = level;
    }
    if (v->between && i < v->nrow) {
      int hub = v->nrow + i / v->nnode;
      if (v->level[hub] < 0) {
        v->level[hub] = level;
        v->queue[tail++] = hub;
      }
    } else if (v->between) {
      for (int r = (i - v->nrow) * v->nnode; r < (i - v->nrow + 1) * v->nnode; r++)
        if (v->to_hub[r] > 0 && v->level[r] < 0) {
          v->level[r] = level;
          v->queue[tail++] = r;
        }
    }
  }
  return found > 0;
}

/* Pushes up to `rows` from vertex i along rising levels to devices with room; returns how many found one. next[] counts a
 * vertex's ways: a source's arcs, then its hub, or a hub's arcs, then its rows; a device's arcs backwards. */
static int64_t push(struct mt_solver *v, int i, int64_t rows)
{
  int64_t done = 0;
  const int level = v->level[i] + 1;
  if (i >= v->nsource) {
    const int p = i - v->nsource;
    done = v->spare[p] < rows ? v->spare[p] : rows;
    v->spare[p] -= done;
    for (; done < rows && v->next[i] < v->back_first[p + 1]; v->next[i]++) {
      int a = v->back[v->next[i]], tail = v->back_tail[v->next[i]];
      if (v->flow[a] <= 0 || v->level[tail] != level)
        continue;
      int64_t most = rows - done < v->flow[a] ? rows - done : v->flow[a], moved = push(v, tail, most);
      v->flow[a] -= moved;
      done += moved;
      if (done == rows)
        break;
    }
    return done;
  }
  const int narc = v->arc_first[i + 1];
  for (; v->next[i] < narc; v->next[i]++) {
    int a = v->next[i], to = v->nsource + v->arc_device[a];
    if (v->level[to] != level)
      continue;
    int64_t moved = push(v, to, rows - done);
    v->flow[a] += moved;
    done += moved;
    if (done == rows)
      return done;
  }
  if (!v->between)
    return done;
  if (i < v->nrow) {
    int hub = v->nrow + i / v->nnode;
    if (v->next[i] == narc && v->level[hub] == level) {
      int64_t moved = push(v, hub, rows - done);
      v->to_hub[i] += moved;
      done += moved;
      v->next[i] += done < rows;
    }
    return done;
  }
  for (; v->next[i] < narc + v->nnode; v->next[i]++) {
    int r = (i - v->nrow) * v->nnode + v->next[i] - narc;
    if (v->to_hub[r] <= 0 || v->level[r] != level)
      continue;
    int64_t most = rows - done < v->to_hub[r] ? rows - done : v->to_hub[r], moved = push(v, r, most);
    v->to_hub[r] -= moved;
    done += moved;
    if (done == rows)
      return done;
  }
  return done;
}

/* Places what it can of the rows left. Returns those that remain. */
static int64_t maximise(struct mt_solver *v)
{
  int64_t left = 0;
  for (int i = 0; i < v->nsource; i++)
    left += v->excess[i];
  while (left > 0 && search(v)) {
    for (int i = 0; i < v->nsource; i++)
      v->next[i] = v->arc_first[i];
    for (int p = 0; p < v->P; p++)
      v->next[v->nsource + p] = v->back_first[p];
    for (int i = 0; i < v->nsource; i++)
      if (v->excess[i] > 0) {
        int64_t moved = push(v, i, v->excess[i]);
        v->excess[i] -= moved;
        left -= moved;
      }
  }
  return left;
}

/* ---- the time ---- */

static int64_t rows_by(const struct mt_solver *v, int64_t time)
{
  int64_t rows = 0;
  for (int p = 0; p < v->P; p++)
    rows += v->level[v->nsource + p] >= 0 ? time / v->ps[p] : 0;
  return rows;
}

/* The least time, later than `time`, by which the devices that have a level take `more` rows more than by `time`. */
static int64_t later(const struct mt_solver *v, int64_t time, int64_t more)
{
  int64_t n = 0, least = INT64_MAX, most = 0;
  for (int p = 0; p < v->P; p++) {
    if (v->level[v->nsource + p] < 0)
      continue;
    n++;
    least = v->ps[p] < least ? v->ps[p] : least;
    most = v->ps[p] > most ? v->ps[p] : most;
  }
  MT_CHECK(n > 0, "rows of an expert that has no slot");
  const int64_t each = (more + n - 1) / n, need = rows_by(v, time) + more;
  if (least == most)
    return (time / most + each) * most;
  /* Each device takes `each` more within this time, and none with less than each - 1 times the shortest. */
  int64_t low = time + (each - 1) * least, high = time + (each + 1) * most;
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (rows_by(v, middle) >= need)
      high = middle;
    else
      low = middle;
  }
  return high;
}

/* Nothing placed; devices may take what they can do by `time`. */
static void reset(struct mt_solver *v, int64_t time)
{
  memset(v->flow, 0, sizeof *v->flow * (size_t)v->narc);
  memset(v->to_hub, 0, sizeof *v->to_hub * (size_t)v->nrow);
  for (int p = 0; p < v->P; p++)
    v->spare[p] = v->cap[p] = time / v->ps[p];
}

/* What fits at the first try: even parts, so that no link within a node gets all, then what is left. */
static void fill(struct mt_solver *v)
{
  for (int k = 0; k < v->nsource; k++) {
    const int i = v->order[k], from = v->arc_first[i], to = v->arc_first[i + 1];
    int64_t most = from < to ? v->excess[i] / (to - from) + 1 : 0;
    for (int pass = 0; pass < 2; pass++, most = INT64_MAX)
      for (int a = from; v->excess[i] > 0 && a < to; a++) {
        int p = v->arc_device[a];
        int64_t rows = v->spare[p] < v->excess[i] ? v->spare[p] : v->excess[i];
        rows = rows < most ? rows : most;
        v->flow[a] += rows;
        v->spare[p] -= rows;
        v->excess[i] -= rows;
      }
  }
}

/* The earliest time, not before `time`, by which all rows left are done, and a flow for it. */
static int64_t earliest(struct mt_solver *v, int64_t time)
{
  int64_t left;
  reset(v, time);
  fill(v);
  while ((left = maximise(v)) > 0) {
    time = later(v, time, left);
    for (int p = 0; p < v->P; p++) {
      int64_t cap = time / v->ps[p];
      v->spare[p] += cap - v->cap[p];
      v->cap[p] = cap;
    }
  }
  return time;
}

/* A time before which all devices together cannot be done. */
static int64_t at_least(struct mt_solver *v, const int64_t *demand)
{
  int64_t total = 0;
  for (int i = 0; i < v->nrow; i++)
    total += demand[i];
  for (int p = 0; p < v->P; p++)
    v->level[v->nsource + p] = v->back_first[p + 1] > v->back_first[p] ? 0 : -1;
  return later(v, 0, total);
}

/* The earliest time if rows may go anywhere, and a flow for it, all out of the hubs. */
static int64_t earliest_anywhere(struct mt_solver *v, const int64_t *demand, int64_t bound)
{
  memset(v->excess, 0, sizeof *v->excess * (size_t)v->nrow);
  for (int e = 0; e < v->E; e++) {
    int64_t rows = 0;
    for (int q = 0; q < v->nnode; q++)
      rows += demand[e * v->nnode + q];
    v->excess[v->nrow + e] = rows;
  }
  v->between = 0;
  return earliest(v, bound);
}

/* Rows of (expert, node) i that have no slot in their node. */
static int64_t homeless(const struct mt_solver *v, const int64_t *demand, int i)
{
  return v->arc_first[i + 1] == v->arc_first[i] ? demand[i] : 0;
}

/* Nothing placed: rows in their node, those that have no slot there in the hub. */
static void start_at_home(struct mt_solver *v, const int64_t *demand)
{
  memset(v->excess + v->nrow, 0, sizeof *v->excess * (size_t)v->E);
  for (int i = 0; i < v->nrow; i++) {
    int64_t away = homeless(v, demand, i);
    v->excess[i] = demand[i] - away;
    v->excess[v->nrow + i / v->nnode] += away;
  }
  v->between = 0;
}

/* Rows over the busiest uplink. Those that have no slot in their node are counted among to_hub's from here on. */
static int64_t uplinks(struct mt_solver *v, const int64_t *demand)
{
  const int nnode = v->nnode;
  memset(v->node_out, 0, sizeof *v->node_out * (size_t)nnode);
  memset(v->node_in, 0, sizeof *v->node_in * (size_t)nnode);
  for (int e = 0; e < v->E; e++) {
    int a = v->arc_first[v->nrow + e];
    for (int q = 0; q < nnode; q++) {
      int i = e * nnode + q, n = v->arc_first[i + 1] - v->arc_first[i];
      int64_t in = 0, out = v->to_hub[i] += homeless(v, demand, i);
      for (; n > 0; n--)
        in += v->flow[a++];
      int64_t own = in < out ? in : out; /* they need not leave */
      v->node_out[q] += out - own;
      v->node_in[q] += in - own;
    }
  }
  int64_t most = 0;
  for (int q = 0; q < nnode; q++) {
    most = v->node_out[q] > most ? v->node_out[q] : most;
    most = v->node_in[q] > most ? v->node_in[q] : most;
  }
  return most;
}

/* A flow that is done by `time` (not before the earliest), nodes first taking their own rows. Returns the rows over the
 * busiest uplink. */
static int64_t keep(struct mt_solver *v, const int64_t *demand, int64_t time)
{
  start_at_home(v, demand);
  reset(v, time);
  fill(v);
  if (maximise(v) > 0) {
    v->between = 1;
    int64_t left = maximise(v);
    MT_CHECK(!left, "%lld rows found no place by a time that is late enough", (long long)left);
  }
  return uplinks(v, demand);
}

/* The time by which the last device is done, at which that time and the uplinks together cost least, and the flow for it.
 * One falls and the other rises steadily with the time, so a golden section finds it. `bound`: no flow is done earlier. */
static int64_t with_links(struct mt_solver *v, const int64_t *demand, int64_t bound, int64_t net_ps)
{
  enum { PROBES = 6, ENOUGH = 1000 };
  start_at_home(v, demand);
  const int64_t home = earliest(v, bound);
  int64_t rows = uplinks(v, demand), best = home, least = home + net_ps * rows;
  v->result.most_rows = rows;
  if (home - bound <= bound / ENOUGH)
    return home; /* nodes on their own are as good as all together */
  const int64_t first = earliest_anywhere(v, demand, bound);
  /* What must leave a node leaves in any case, so the later end is where the rest no longer pays. */
  int64_t at = first, cost[2] = {-1, -1}, low = first, high = home; /* cost: of left and right */
  const int64_t all = keep(v, demand, first);
  if (first + net_ps * all < least) {
    best = first;
    least = first + net_ps * all;
  }
  v->result.most_rows = all;
  const int64_t pays = net_ps * (all > rows ? all - rows : 0);
  high = high - first > pays ? first + pays : high;
  int64_t left = high - (high - low) / 1000 * 618, right = low + (high - low) / 1000 * 618;
  for (int k = 0; k < PROBES && high - low > bound / ENOUGH; k++) {
    const int side = cost[0] >= 0;
    at = side ? right : left;
    rows = v->result.most_rows = keep(v, demand, at);
    cost[side] = at + net_ps * rows;
    if (cost[side] < least) {
      least = cost[side];
      best = at;
    }
    if (cost[0] < 0 || cost[1] < 0)
      continue;
    if (cost[0] <= cost[1]) {
      high = right;
      right = left;
      cost[1] = cost[0];
      left = high - (high - low) / 1000 * 618;
      cost[0] = -1;
    } else {
      low = left;
      left = right;
      cost[0] = cost[1];
      right = low + (high - low) / 1000 * 618;
      cost[1] = -1;
    }
  }
  if (at != best)
    v->result.most_rows = keep(v, demand, best);
  return best;
}

/* ---- the result ---- */

static int emit(struct mt_solver *v, int n, int arc, int64_t rows)
{
  if (rows > 0) {
    v->result.slot[n] = v->arc_slot[arc];
    v->result.rows[n++] = rows;
  }
  return n;
}

static void write_result(struct mt_solver *v)
{
  const int nnode = v->nnode;
  int n = 0;
  for (int e = 0; e < v->E; e++) {
    const int hub = v->nrow + e;
    int own = v->arc_first[hub], at = own; /* the hub's arcs into the node; those that are used up */
    for (int q = 0; q < nnode; q++) { /* first what comes back into its own node: it is no other node's */
      int i = e * nnode + q, narc = v->arc_first[i + 1] - v->arc_first[i];
      for (int k = 0; k < narc; k++, own++) {
        int64_t rows = v->flow[own] < v->to_hub[i] ? v->flow[own] : v->to_hub[i];
        v->flow[own] -= rows;
        v->to_hub[i] -= rows;
        v->flow[v->arc_first[i] + k] += rows;
      }
    }
    for (int q = 0; q < nnode; q++) {
      int i = e * nnode + q;
      v->result.first[i] = n;
      for (int a = v->arc_first[i]; a < v->arc_first[i + 1]; a++)
        n = emit(v, n, a, v->flow[a]);
      while (v->to_hub[i] > 0) {
        while (!v->flow[at])
          at++;
        int64_t rows = v->flow[at] < v->to_hub[i] ? v->flow[at] : v->to_hub[i];
        n = emit(v, n, at, rows);
        v->flow[at] -= rows;
        v->to_hub[i] -= rows;
      }
    }
  }
  v->result.first[v->nrow] = n;
}

const struct mt_flow *mt_solver_solve(struct mt_solver *v, const struct mt_cluster *cluster,
                                      const struct mt_layout *layout, const int64_t *demand, const int64_t *ps,
                                      int64_t net_ps)
{
  MT_CHECK(layout->nexpert == v->E && layout->slot_first[layout->nrank] <= v->S && cluster->nplace <= v->most_rank &&
               cluster->nnode <= v->most_node,
           "a solver for %d experts, %d slots, %d ranks on %d nodes got %d, %d, %d on %d", v->E, v->S, v->most_rank,
           v->most_node, layout->nexpert, layout->slot_first[layout->nrank], cluster->nplace, cluster->nnode);
  v->P = cluster->nplace;
  v->nnode = cluster->nnode;
  v->nrow = v->E * v->nnode;
  v->nsource = v->nrow + v->E;
  v->ps = ps;
  v->result.last_ps = v->result.most_rows = 0;
  int any = 0;
  for (int i = 0; i < v->nrow; i++)
    any |= demand[i] > 0;
  if (!any) {
    memset(v->result.first, 0, sizeof *v->result.first * (size_t)(v->nrow + 1));
    return &v->result;
  }
  build(v, layout);
  const int64_t bound = at_least(v, demand);
  if (v->nnode > 1) {
    v->result.last_ps = with_links(v, demand, bound, net_ps);
  } else {
    v->result.last_ps = earliest_anywhere(v, demand, bound);
    for (int e = 0; e < v->E; e++)
      v->to_hub[e] = demand[e];
  }
  write_result(v);
  return &v->result;
}
