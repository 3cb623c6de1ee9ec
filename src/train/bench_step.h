/* `motley bench step`. */
#ifndef MT_BENCH_STEP_H
#define MT_BENCH_STEP_H
#include "base/config.h"
#include "comm/comm.h"

/* Trains a few steps of the configuration on random tokens (no data is read, nothing is written) and prints tokens/s, FLOP/s by
 * a printed formula, the time of the same matrix products by the GEMM library alone, and their ratios. Collective. */
enum mt_status mt_bench_step(struct mt_comm *comm, const struct mt_config *config);

#endif
