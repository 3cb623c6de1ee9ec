/* The split that finishes earliest; see solver.h. */
#include "experts/solver.h"
#include <string.h>
#include "experts/solver_parts.h"

/* ---- the time ---- */

static int64_t rows_by(const struct mt_solver *v, int64_t time)
{
  int64_t rows = 0;
  for (int p = v->device; p < v->device_end; p++)
    rows += v->level[v->nsource + p] >= 0 ? time / v->ps[p] : 0;
  return rows;
}

/* The least time, later than `time`, by which the devices that have a level take `more` rows more than by `time`. From a
 * time that is surely late enough it comes down, first by the rate at which rows are done, then row by row. */
static int64_t later(const struct mt_solver *v, int64_t time, int64_t more)
{
  enum { GUESSES = 8, FEW = 3, SHIFT = 50 };
  int64_t n = 0, rate = 0, least = INT64_MAX, most = 0; /* rate: rows a picosecond, << SHIFT */
  for (int p = v->device; p < v->device_end; p++) {
    if (v->level[v->nsource + p] < 0)
      continue;
    n++;
    rate += ((int64_t)1 << SHIFT) / v->ps[p];
    least = v->ps[p] < least ? v->ps[p] : least;
    most = v->ps[p] > most ? v->ps[p] : most;
  }
  MT_CHECK(n > 0, "rows of an expert that has no slot");
  if (least == most)
    return (time / most + (more + n - 1) / n) * most;
  const int64_t need = rows_by(v, time) + more;
  int64_t low = time, high = (int64_t)(((__int128)(need + n) << SHIFT) / rate) + 1, over = rows_by(v, high) - need;
  for (int i = 0, sure = 0; i < GUESSES && over > FEW && high - low > 1; i++) {
    int64_t back = sure ? (high - low) / 2 : (int64_t)(((__int128)over << SHIFT) / rate);
    const int64_t at = back < high - low ? high - back : low + 1, rows = rows_by(v, at) - need;
    sure = rows < 0;
    low = sure ? at : low;
    high = sure ? high : at;
    over = sure ? over : rows;
  }
  for (;; high--) { /* back to where a row is done, as long as it is one too many */
    int64_t last = 0, together = 0;
    for (int p = v->device; p < v->device_end; p++) {
      if (v->level[v->nsource + p] < 0)
        continue;
      const int64_t done = high / v->ps[p] * v->ps[p];
      together = done > last ? 1 : together + (done == last);
      last = done > last ? done : last;
    }
    high = last;
    if (together > over)
      return high;
    over -= together;
  }
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
  for (int64_t left; (left = mt_solver_maximise(v)) > 0;) {
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
  mt_solver_look_at_all(v, 0);
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
    mt_solver_look_at_node(v, cluster, q);
    for (int i = v->source; i < v->source_end; i++)
      rows += v->excess[i];
    done = rows ? earliest(v, at_least(v, rows)) : 0;
    time = done > time ? done : time;
  }
  mt_solver_look_at_all(v, 0);
  return away ? earliest(v, time) : time;
}

/* A flow that is done by `time` (not before the earliest), nodes first taking their own rows. Returns the rows over the
 * busiest uplink. */
static int64_t keep(struct mt_solver *v, const struct mt_cluster *cluster, int64_t time)
{
  start_at_home(v);
  for (int q = 0; q < v->nnode; q++) {
    mt_solver_look_at_node(v, cluster, q);
    allow(v, time);
    fill(v);
    mt_solver_maximise(v);
  }
  mt_solver_look_at_all(v, 0);
  fill(v);
  if (mt_solver_maximise(v) > 0) {
    mt_solver_look_at_all(v, 1);
    int64_t left = mt_solver_maximise(v);
    MT_CHECK(!left, "%lld rows found no place by a time that is late enough", (long long)left);
  }
  return uplinks(v);
}

/* The cheapest flow of those looked at. */
struct best {
  int64_t time, rows, cost, net_ps;
  int kept; /* 1: it is the one in the solver, else a copy of it is in v->best_flow, v->best_hub */
};

/* The flow at hand is done by `time` and has `rows` over the busiest uplink. Returns what it costs. */
static int64_t consider(struct mt_solver *v, struct best *best, int64_t time, int64_t rows)
{
  const int64_t cost = time + best->net_ps * rows;
  best->kept = cost < best->cost;
  if (best->kept) {
    *best = (struct best){time, rows, cost, best->net_ps, 1};
    memcpy(v->best_flow, v->flow, sizeof *v->flow * (size_t)v->narc);
    memcpy(v->best_hub, v->to_hub, sizeof *v->to_hub * (size_t)v->nrow);
  }
  return cost;
}

/* The time by which the last device is done, at which that time and the uplinks together cost least, and the flow for it.
 * Rows over uplinks fall with more time, ever more slowly, so a golden section finds it; and where they do not fall at first
 * they never do. `bound`: no flow is done earlier. */
static int64_t with_links(struct mt_solver *v, const struct mt_cluster *cluster, int64_t bound, int64_t net_ps)
{
  enum { PROBES = 3, ENOUGH = 500 };
  struct best best = {.cost = INT64_MAX, .net_ps = net_ps};
  const int64_t home = earliest_at_home(v, cluster), least = uplinks(v);
  int64_t must = 0;
  for (int q = 0; q < v->nnode; q++)
    must = v->node_out[q] > must ? v->node_out[q] : must;
  v->result.at_home_ps = home + net_ps * must;
  if (home - bound <= bound / ENOUGH) { /* nodes on their own are as good as all together */
    v->result.most_rows = least;
    return home;
  }
  consider(v, &best, home, least);
  const int64_t first = earliest_anywhere(v, bound), most = keep(v, cluster, first);
  consider(v, &best, first, most);
  /* What must leave a node leaves in any case, so the later end is where the rest no longer pays. */
  const int64_t pays = net_ps * (most > least ? most - least : 0);
  int64_t low = first, high = home - first > pays ? first + pays : home, cost[2] = {-1, -1}; /* cost: of left and right */
  int64_t left = high - (high - low) / 1000 * 618, right = low + (high - low) / 1000 * 618;
  for (int k = 0; k < PROBES && high - low > bound / ENOUGH; k++) {
    const int side = cost[0] >= 0;
    const int64_t at = side ? right : left, rows = keep(v, cluster, at);
    cost[side] = consider(v, &best, at, rows);
    if (rows >= most)
      break;
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
  if (!best.kept) {
    memcpy(v->flow, v->best_flow, sizeof *v->flow * (size_t)v->narc);
    memcpy(v->to_hub, v->best_hub, sizeof *v->to_hub * (size_t)v->nrow);
  }
  v->result.most_rows = best.rows;
  return best.time;
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
  mt_solver_build(v, layout);
  mt_solver_look_at_all(v, 0);
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
