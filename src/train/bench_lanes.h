/* `motley bench lanes`. */
#ifndef MT_BENCH_LANES_H
#define MT_BENCH_LANES_H
#include "base/config.h"
#include "comm/comm.h"

/* Trains train.steps steps on random tokens under each schedule that can be run, in turns, and prints what a step takes
 * beside what was predicted and the bound by the lanes' measured work. Collective. */
enum mt_status mt_bench_lanes(struct mt_comm *comm, const struct mt_config *config);

#endif
