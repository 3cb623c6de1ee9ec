/* The benchmarks that `motley bench` knows. */
#include "train/bench.h"
#include "train/bench_step.h"

const struct mt_bench mt_benches[] = {
    {"step", mt_bench_step, "a training step on random tokens, beside the GEMM library at the same shapes"},
};
const int mt_nbench = sizeof mt_benches / sizeof *mt_benches;
