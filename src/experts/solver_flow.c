/* The solver's graph, and a maximum flow in it (Dinic 1970); see solver_parts.h. */
#include <string.h>
#include "base/memory.h"
#include "experts/solver_parts.h"

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
  v->best_flow = MT_NEW(MT_TAG_PLAN, int64_t, 2 * nslot);
  v->best_hub = MT_NEW(MT_TAG_PLAN, int64_t, v->nrow);
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
  void *owned[] = {v->arc_first, v->arc_device, v->arc_slot, v->flow,  v->back_first,   v->back,        v->back_tail,
                   v->to_hub,    v->excess,     v->cap,      v->spare, v->demand,       v->level,       v->queue,
                   v->next,      v->node_out,   v->node_in,  v->order, v->result.first, v->result.slot, v->result.rows,
                   v->best_flow, v->best_hub};
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

void mt_solver_build(struct mt_solver *v, const struct mt_layout *layout)
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

void mt_solver_look_at_node(struct mt_solver *v, const struct mt_cluster *cluster, int q)
{
  v->source = q * v->E;
  v->source_end = v->source + v->E;
  v->device = cluster->node_first[q];
  v->device_end = cluster->node_first[q + 1];
  v->between = 0;
}

void mt_solver_look_at_all(struct mt_solver *v, int between)
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

int64_t mt_solver_maximise(struct mt_solver *v)
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
