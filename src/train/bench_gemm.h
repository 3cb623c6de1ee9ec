/* `motley bench gemm`. */
#ifndef MT_BENCH_GEMM_H
#define MT_BENCH_GEMM_H
#include "base/config.h"
#include "comm/comm.h"

/* Times the matrix products (forward, dx, dw) of parallel.device at the shapes of the configuration's micro-batch, all ranks
 * at once, and bare calls of the GEMM library at the same shapes in turns with them; prints FLOP/s and ratios. What rank 0
 * prints is of devices like its own if all have such. Collective, agreed. */
enum mt_status mt_bench_gemm(struct mt_comm *comm, const struct mt_config *config);

#endif
