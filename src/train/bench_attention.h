/* `motley bench attention`. */
#ifndef MT_BENCH_ATTENTION_H
#define MT_BENCH_ATTENTION_H
#include "base/config.h"
#include "comm/comm.h"

/* Times the CPU device's attention, forward and backward, at the shapes of the configuration's micro-batch, all ranks
 * at once, in turns with a large product of the GEMM library and a streaming loop; prints FLOP/s beside what these two
 * allow. Collective. */
enum mt_status mt_bench_attention(struct mt_comm *comm, const struct mt_config *config);

#endif
