/* `motley bench relayout`: whole training steps under several layout policies, in turns. */
#ifndef MT_BENCH_RELAYOUT_H
#define MT_BENCH_RELAYOUT_H
#include "base/config.h"
#include "comm/comm.h"

/* train.steps steps of each. Collective. */
enum mt_status mt_bench_relayout(struct mt_comm *comm, const struct mt_config *config);

#endif
