/* `motley bench WHAT`: one row a benchmark. Each prints its figure beside the machine's own limit, measured in the same run. */
#ifndef MT_BENCH_H
#define MT_BENCH_H
#include "base/config.h"
#include "comm/comm.h"

struct mt_bench {
  const char *name;
  unsigned commands; /* whose sections of the configuration it reads */
  int config;              /* 1: does not run without a file */
  enum mt_status (*run)(struct mt_comm *comm, const struct mt_config *config); /* collective */
  const char *help;
};
extern const struct mt_bench mt_benches[];
extern const int mt_nbench;

#endif
