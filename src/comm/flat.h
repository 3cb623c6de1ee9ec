/* The exchange of rows as one MPI_Alltoallv: what exchange.h is compared with in `motley bench exchange`. */
#ifndef MT_FLAT_H
#define MT_FLAT_H
#include "comm/exchange.h"

struct mt_flat;
/* Counts are taken from the pattern now; forward, `width` bytes a row. Local. The caller frees. */
struct mt_flat *mt_flat_new(struct mt_comm *comm, const struct mt_pattern *pattern, int64_t width);
void mt_flat_free(struct mt_flat *flat);
/* Delivers what mt_exchange_begin and mt_exchange_end deliver, forward. Collective; waits as MPI waits. */
void mt_flat_run(struct mt_flat *flat, const void *send, void *recv);

#endif
