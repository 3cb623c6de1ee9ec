/* The split of rows over slots that lets the last device finish earliest: a flow.
 *
 * The problem: expert e has demand[e][q] rows on node q and slots on some devices; a device of w ps a row that gets x rows
 * is done after w x. Minimise the last device's time T, plus what rows that leave their node cost on the busiest uplink.
 *
 * The idea: at a given T a device takes floor(T / w) rows, and what can be placed is a maximum flow from (expert, node)
 * over slots to devices (Dinic 1970). Where it leaves rows over, the set of experts and devices that the search reached is a
 * cut which proves that T is too small, and says the least T that is not refuted by it: Newton's method, exact after a few
 * cuts. Rows that have a slot in their own node stay there at first. If that takes longer, by a 500th, than all devices
 * together need, rows of the late nodes may flow between nodes, as early as is possible, or as late as nodes on their own: between the
 * two, the time plus the cost of the uplinks has one minimum.
 *
 * The trap: between nodes an expert's rows are alike, wherever they come from. One hub an expert stands for "somewhere
 * else", so the graph has E nnode + E + P vertices and 2 S + E nnode arcs, not P S. */
#ifndef MT_SOLVER_H
#define MT_SOLVER_H
#include <stdint.h>
#include "experts/layout.h"

struct mt_solver; /* scratch, reused */
/* What goes where, by expert and node that the rows are on. */
struct mt_flow {
  int32_t *first; /* [E nnode + 1]: the rows of expert e on node q go to [first[e nnode + q], first[e nnode + q + 1]) */
  int32_t *slot;
  int64_t *rows;     /* > 0 */
  int64_t last_ps;   /* the last device's finish time */
  int64_t at_home_ps; /* on several nodes: no split by which rows with a slot in their node stay there costs less */
  int64_t most_rows; /* rows that leave or enter over the busiest uplink */
};

/* For layouts of nexpert experts on nslot slots in all, or fewer, on the cluster or a smaller one. Local. The caller frees. */
struct mt_solver *mt_solver_new(const struct mt_cluster *cluster, int nexpert, int nslot);
void mt_solver_free(struct mt_solver *solver); /* NULL allowed */
/* Solves for demand [E][nnode], ps[P] a row on each device (>= 1) and net_ps a row over an uplink. Pure, no allocation; the
 * flow belongs to the solver, and its rows may be written over. Of slots of an expert on one rank only the first is used. At
 * most E nnode + 2 S runs. */
const struct mt_flow *mt_solver_solve(struct mt_solver *solver, const struct mt_cluster *cluster,
                                      const struct mt_layout *layout, const int64_t *demand, const int64_t *ps,
                                      int64_t net_ps);

#endif
