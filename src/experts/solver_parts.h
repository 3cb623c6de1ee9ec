/* The inside of the solver: the graph, and a maximum flow in it. For solver*.c only. */
#ifndef MT_SOLVER_PARTS_H
#define MT_SOLVER_PARTS_H
#include "experts/solver.h"

/* Vertices 0 .. E nnode - 1 are the rows of (node, expert), a node's together; then one hub an expert; then the devices. */
struct mt_solver {
  int most_rank, most_node; /* that there is room for */
  int P, E, S, nnode;
  int nrow, nsource; /* E nnode; that and the hubs */
  int narc;
  int32_t *arc_first;   /* [nsource + 1]: a source's arcs, to devices */
  int32_t *arc_device;  /* [2 S] */
  int32_t *arc_slot;    /* [2 S] */
  int64_t *flow;        /* [2 S] */
  int32_t *back_first;  /* [P + 1]: a device's arcs, backwards */
  int32_t *back;        /* [2 S] arcs */
  int32_t *back_tail;   /* [2 S] their sources */
  int64_t *to_hub;      /* [E nnode] rows that went to the expert's hub */
  int64_t *best_flow, *best_hub; /* copies of flow and to_hub */
  int64_t *excess;      /* [nsource] rows not placed yet */
  int64_t *cap, *spare; /* [P] rows a device takes by the time in question; what of it is free */
  const int64_t *ps;    /* [P] borrowed */
  int64_t *demand;      /* [E nnode] */
  /* what the search looks at: the sources [source, source_end), the devices [device, device_end) */
  int source, source_end, device, device_end;
  int between;                   /* rows may go to hubs */
  int32_t *level, *queue, *next; /* [nsource + P] of the search; next: the arc to be tried next */
  int64_t *node_out, *node_in;   /* [nnode] rows over uplinks */
  int32_t *order;                /* [nsource] each node's sources, then the hubs: those with few arcs first */
  struct mt_flow result;
};

/* The graph of a layout. The solver's sizes are those of the cluster. */
void mt_solver_build(struct mt_solver *v, const struct mt_layout *layout);
/* The search looks at node q alone, whose rows may not leave it; or at all, and `between` says whether rows may leave. */
void mt_solver_look_at_node(struct mt_solver *v, const struct mt_cluster *cluster, int q);
void mt_solver_look_at_all(struct mt_solver *v, int between);
/* Places what it can of the rows left, where the search looks. Returns those that remain; then the devices that have a level
 * are those that all of them, and the rows that they could push aside, must go to. */
int64_t mt_solver_maximise(struct mt_solver *v);

#endif
