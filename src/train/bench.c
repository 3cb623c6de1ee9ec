/* The benchmarks that `motley bench` knows. */
#include "train/bench.h"
#include "train/bench_attention.h"
#include "train/bench_exchange.h"
#include "train/bench_gemm.h"
#include "train/bench_lanes.h"
#include "train/bench_planner.h"
#include "train/bench_relayout.h"
#include "train/bench_step.h"
#include "train/bench_unshard.h"

const struct mt_bench mt_benches[] = {
    {"attention", MT_CMD_TRAIN | MT_CMD_BENCH, 1, mt_bench_attention,
     "attention at a micro-batch's shapes, beside the GEMM library's rate and memory's"},
    {"exchange", MT_CMD_BENCH, 0, mt_bench_exchange,
     "rows between ranks by every algorithm, beside what the nodes' uplinks allow"},
    {"gemm", MT_CMD_TRAIN | MT_CMD_BENCH, 1, mt_bench_gemm,
     "the matrix products of a micro-batch, beside the GEMM library at the same shapes"},
    {"lanes", MT_CMD_TRAIN, 1, mt_bench_lanes,
     "training steps under each schedule that can be run, beside what is predicted and the bound by the lanes' work"},
    {"planner", MT_CMD_BENCH, 0, mt_bench_planner,
     "time of layout policies and solved shares against the size of a made-up cluster"},
    {"relayout", MT_CMD_TRAIN, 1, mt_bench_relayout,
     "training steps under static layouts and such that follow the load, beside a bound by speeds and rows"},
    {"step", MT_CMD_TRAIN, 1, mt_bench_step, "a training step on random tokens, beside the GEMM library at the same shapes"},
    {"unshard", MT_CMD_TRAIN | MT_CMD_BENCH, 1, mt_bench_unshard,
     "a layer's experts from shards to slots and gradients back, beside what the links allow"},
};
const int mt_nbench = sizeof mt_benches / sizeof *mt_benches;
