/* `motley bench planner`: time of the layout policies, and of solving a layer's shares, against the size of the cluster. */
#ifndef MT_BENCH_PLANNER_H
#define MT_BENCH_PLANNER_H
#include "base/config.h"
#include "comm/comm.h"

/* Made-up clusters of nodes of 8 unlike ranks, 32 experts, rows by Zipf's law. Rank 0 computes, on one core. Collective. */
enum mt_status mt_bench_planner(struct mt_comm *comm, const struct mt_config *config);

#endif
