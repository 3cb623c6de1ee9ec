/* The split that finishes earliest; see solver.h. */
#include "experts/solver.h"
#include <string.h>
#include "base/memory.h"

/* Vertices 0 .. E nnode - 1 are the rows of (node, expert), a node's together; then one hub an expert; then the devices. */
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
  int64_t *demand;     /* [E nnode] */
  /* what the search looks at: the sources [source, source_end), the devices [device, device_end) */
  int source, source_end, device, device_end;
  int between;         /* rows may go to hubs */
  int32_t *level, *queue, *next; /* [nsource + P] of the search; next: the arc to be tried next */
  int64_t *node_out, *node_in;   /* [nnode] rows over uplinks */
  int32_t *order;      /* [nsource] each node's sources, then the hubs: those with few arcs first */
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
  v->demand = MT_NEW(MT_TAG_PLAN, int64_t, v->nrow);
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
                   v->to_hub, v->excess, v->cap, v->spare, v->demand, v->level, v->queue, v->next, v->node_out, v->node_in,
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
    const int bin = i % v->E * v->nnode + i / v->E;
    v->arc_first[i] = n;
    if (v->nnode > 1) /* of one node the hubs' arcs are all */
      n = add_arcs(v, layout, n, layout->expert_first[bin], layout->expert_first[bin + 1]);
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
  /* Those with few arcs have no choice, so they are placed first: a counting sort of each node's sources, and of the hubs. */
  enum { MANY = 32 };
  for (int from = 0; from < v->nsource; from += v->E) {
    int at[MANY + 2] = {0};
    for (int i = from; i < from + v->E; i++)
      at[1 + degree(v, i, MANY)]++;
    for (int d = 0; d <= MANY; d++)
      at[d + 1] += at[d];
    for (int i = from; i < from + v->E; i++)
      v->order[from + at[degree(v, i, MANY)]++] = i;
  }
}

/* The search looks at node q alone. */
static void look_at_node(struct mt_solver *v, const struct mt_cluster *cluster, int q)
{
  v->source = q * v->E;
  v->source_end = v->source + v->E;
  v->device = cluster->node_first[q];
  v->device_end = cluster->node_first[q + 1];
  v->between = 0;
}

static void look_at_all(struct mt_solver *v, int between)
{
  v->source = v->device = 0;
  v->source_end = v->nsource;
  v->device_end = v->P;
  v->between = between;
}

/* ---- a maximum flow ---- */

/* Levels from all sources with rows left; 1 if a device with room was reached. */
static int search(struct mt_solver *v)
{
  int head = 0, tail = 0, found = 0;
  for (int p = v->device; p < v->device_end; p++)
    v->level[v->nsource + p] = -1;
  for (int i = v->source; i < v->source_end; i++) {
    v->level[i] = -1;
    if (v->excess[i] > 0) {
      v->level[i] = 0;
      v->queue[tail++] = i;
    }
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
      int hub = v->nrow + i % v->E;
      if (v->level[hub] < 0) {
        v->level[hub] = level;
        v->queue[tail++] = hub;
      }
    } else if (v->between) {
      for (int r = i - v->nrow; r < v->nrow; r += v->E)
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
    int hub = v->nrow + i % v->E;
    if (v->next[i] == narc && v->level[hub] == level) {
      int64_t moved = push(v, hub, rows - done);
      v->to_hub[i] += moved;
      done += moved;
      v->next[i] += done < rows;
    }
    return done;
  }
  for (; v->next[i] < narc + v->nnode; v->next[i]++) {
    int r = i - v->nrow + (v->next[i] - narc) * v->E;
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
  for (int i = v->source; i < v->source_end; i++)
    left += v->excess[i];
  while (left > 0 && search(v)) {
    for (int i = v->source; i < v->source_end; i++)
      v->next[i] = v->arc_first[i];
    for (int p = v->device; p < v->device_end; p++)
      v->next[v->nsource + p] = v->back_first[p];
    for (int i = v->source; i < v->source_end; i++)
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
  for (int p = v->device; p < v->device_end; p++)
    rows += v->level[v->nsource + p] >= 0 ? time / v->ps[p] : 0;
  return rows;
}

/* The least time, later than `time`, by which the devices that have a level take `more` rows more than by `time`. */
static int64_t later(const struct mt_solver *v, int64_t time, int64_t more)
{
  int64_t n = 0, least = INT64_MAX, most = 0;
  for (int p = v->device; p < v->device_end; p++) {
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

/* A time before which the devices cannot do `rows` rows. */
static int64_t at_least(struct mt_solver *v, int64_t rows)
{
  for (int p = v->device; p < v->device_end; p++)
    v->level[v->nsource + p] = v->back_first[p + 1] > v->back_first[p] ? 0 : -1;
  return rows ? later(v, 0, rows) : 0;
}

static void place_nothing(struct mt_solver *v)
{
  memset(v->flow, 0, sizeof *v->flow * (size_t)v->narc);
  memset(v->to_hub, 0, sizeof *v->to_hub * (size_t)v->nrow);
  memset(v->cap, 0, sizeof *v->cap * (size_t)v->P);
  memset(v->spare, 0, sizeof *v->spare * (size_t)v->P);
}

/* Devices may take what they can do by `time`, no earlier than the last. */
static void allow(struct mt_solver *v, int64_t time)
{
  for (int p = v->device; p < v->device_end; p++) {
    int64_t cap = time / v->ps[p];
    v->spare[p] += cap - v->cap[p];
    v->cap[p] = cap;
  }
}

/* What fits at the first try: even parts, so that no link within a node gets all, then what is left. */
static void fill(struct mt_solver *v)
{
  for (int k = v->source; k < v->source_end; k++) {
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
  allow(v, time);
  fill(v);
  for (int64_t left; (left = maximise(v)) > 0;) {
    time = later(v, time, left);
    allow(v, time);
  }
  return time;
}

/* Rows of source i that have no slot in their node. */
static int64_t homeless(const struct mt_solver *v, int i)
{
  return v->arc_first[i + 1] == v->arc_first[i] ? v->demand[i] : 0;
}

/* The earliest time if rows may go anywhere, and a flow for it, all out of the hubs. */
static int64_t earliest_anywhere(struct mt_solver *v, int64_t bound)
{
  place_nothing(v);
  memset(v->excess, 0, sizeof *v->excess * (size_t)v->nsource);
  for (int i = 0; i < v->nrow; i++)
    v->excess[v->nrow + i % v->E] += v->demand[i];
  look_at_all(v, 0);
  return earliest(v, bound);
}

/* Nothing placed: rows in their node, those that have no slot there in the hub. Returns the latter. */
static int64_t start_at_home(struct mt_solver *v)
{
  int64_t all = 0;
  place_nothing(v);
  memset(v->excess + v->nrow, 0, sizeof *v->excess * (size_t)v->E);
  for (int i = 0; i < v->nrow; i++) {
    int64_t away = homeless(v, i);
    v->excess[i] = v->demand[i] - away;
    v->excess[v->nrow + i % v->E] += away;
    all += away;
  }
  return all;
}

/* Rows over the busiest uplink. Those that have no slot in their node are counted among to_hub's from here on. */
static int64_t uplinks(struct mt_solver *v)
{
  const int nnode = v->nnode;
  memset(v->node_out, 0, sizeof *v->node_out * (size_t)nnode);
  memset(v->node_in, 0, sizeof *v->node_in * (size_t)nnode);
  for (int e = 0; e < v->E; e++) {
    int a = v->arc_first[v->nrow + e];
    for (int q = 0; q < nnode; q++) {
      int i = q * v->E + e, n = v->arc_first[i + 1] - v->arc_first[i];
      int64_t in = 0, out = v->to_hub[i] += homeless(v, i);
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

/* The earliest time if rows leave their node only where it has no slot for them: node by node, then the others' rows. */
static int64_t earliest_at_home(struct mt_solver *v, const struct mt_cluster *cluster)
{
  int64_t time = 0, away = start_at_home(v);
  for (int q = 0; q < v->nnode; q++) {
    int64_t rows = 0, done;
    look_at_node(v, cluster, q);
    for (int i = v->source; i < v->source_end; i++)
      rows += v->excess[i];
    done = rows ? earliest(v, at_least(v, rows)) : 0;
    time = done > time ? done : time;
  }
  look_at_all(v, 0);
  return away ? earliest(v, time) : time;
}

/* A flow that is done by `time` (not before the earliest), nodes first taking their own rows. Returns the rows over the
 * busiest uplink. */
static int64_t keep(struct mt_solver *v, const struct mt_cluster *cluster, int64_t time)
{
  start_at_home(v);
  for (int q = 0; q < v->nnode; q++) {
    look_at_node(v, cluster, q);
    allow(v, time);
    fill(v);
    maximise(v);
  }
  look_at_all(v, 0);
  fill(v);
  if (maximise(v) > 0) {
    look_at_all(v, 1);
    int64_t left = maximise(v);
    MT_CHECK(!left, "%lld rows found no place by a time that is late enough", (long long)left);
  }
  return uplinks(v);
}

/* The time by which the last device is done, at which that time and the uplinks together cost least, and the flow for it.
 * One falls and the other rises steadily with the time, so a golden section finds it. `bound`: no flow is done earlier. */
static int64_t with_links(struct mt_solver *v, const struct mt_cluster *cluster, int64_t bound, int64_t net_ps)
{
  enum { PROBES = 3, ENOUGH = 500 };
  const int64_t home = earliest_at_home(v, cluster);
  int64_t rows = uplinks(v), best = home, least = home + net_ps * rows;
  v->result.most_rows = rows;
  if (home - bound <= bound / ENOUGH)
    return home; /* nodes on their own are as good as all together */
  const int64_t first = earliest_anywhere(v, bound);
  /* What must leave a node leaves in any case, so the later end is where the rest no longer pays. */
  int64_t at = first, cost[2] = {-1, -1}, low = first, high = home; /* cost: of left and right */
  const int64_t all = keep(v, cluster, first);
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
    rows = v->result.most_rows = keep(v, cluster, at);
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
    v->result.most_rows = keep(v, cluster, best);
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
  const int E = v->E, nnode = v->nnode;
  int n = 0;
  for (int e = 0; e < E; e++) {
    const int hub = v->nrow + e;
    int own = v->arc_first[hub], at = own; /* the hub's arcs into the node; those that are used up */
    for (int i = e; i < v->nrow; i += E) { /* first what comes back into its own node: it is no other node's */
      const int narc = v->arc_first[i + 1] - v->arc_first[i];
      for (int k = 0; k < narc; k++, own++) {
        int64_t rows = v->flow[own] < v->to_hub[i] ? v->flow[own] : v->to_hub[i];
        v->flow[own] -= rows;
        v->to_hub[i] -= rows;
        v->flow[v->arc_first[i] + k] += rows;
      }
    }
    for (int q = 0; q < nnode; q++) {
      const int i = q * E + e;
      v->result.first[e * nnode + q] = n;
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
  int64_t all = 0;
  for (int i = 0; i < v->nrow; i++)
    all += v->demand[i] = demand[i % v->E * v->nnode + i / v->E];
  if (!all) {
    memset(v->result.first, 0, sizeof *v->result.first * (size_t)(v->nrow + 1));
    return &v->result;
  }
  build(v, layout);
  look_at_all(v, 0);
  const int64_t bound = at_least(v, all);
  if (v->nnode > 1) {
    v->result.last_ps = with_links(v, cluster, bound, net_ps);
  } else {
    v->result.last_ps = earliest_anywhere(v, bound);
    memcpy(v->to_hub, v->demand, sizeof *v->demand * (size_t)v->E);
  }
  write_result(v);
  return &v->result;
}
