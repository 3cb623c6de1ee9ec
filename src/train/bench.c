/* The benchmarks that `motley bench` knows. */
#include "train/bench.h"
#include "train/bench_exchange.h"
#include "train/bench_step.h"

const struct mt_bench mt_benches[] = {
    {"exchange", MT_CMD_BENCH_EXCHANGE, 0, mt_bench_exchange,
     "rows between ranks by every algorithm, beside what the nodes' uplinks allow"},
    {"step", MT_CMD_TRAIN, 1, mt_bench_step, "a training step on random tokens, beside the GEMM library at the same shapes"},
};
const int mt_nbench = sizeof mt_benches / sizeof *mt_benches;
