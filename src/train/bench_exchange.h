/* `motley bench exchange`. */
#ifndef MT_BENCH_EXCHANGE_H
#define MT_BENCH_EXCHANGE_H
#include "base/config.h"
#include "comm/comm.h"

/* Exchanges rows of given widths, numbers and skews by MPI_Alltoallv, pairwise, over bridges in one piece, in as many as is
 * cheapest, and by choice; prints messages, bytes, times, and what the uplinks allow. Collective. MT_FAILED, said once,
 * if two of them delivered different bytes. */
enum mt_status mt_bench_exchange(struct mt_comm *comm, const struct mt_config *config);

/* Measures the links, prints the cluster and what the bound between nodes takes for a node's uplink: bytes a second, as
 * bench.uplink_mbit says or as measured, 0 = there is none. Collective. */
double mt_bench_uplink(struct mt_comm *comm, const struct mt_config *config);

#endif
