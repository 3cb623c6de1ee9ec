/* `motley train --dry-run`: what a step needs of memory, before any machine is asked for. */
#ifndef MT_FORECAST_H
#define MT_FORECAST_H
#include "base/config.h"
#include "base/memory.h"
#include "topology/cluster.h"

/* Bytes that rank `rank` of the cluster will hold after its first steps, by tag, if routing is balanced (row buffers follow
 * the routing: the largest rank of a skewed step needs more). Local and pure; MT_USAGE, said once, if parallel.slots does
 * not fit the cluster. */
enum mt_status mt_forecast(const struct mt_config *config, const struct mt_cluster *cluster, int rank,
                           int64_t bytes[MT_NTAG]);
/* 1 if each node's ranks fit into its memory, as far as the cluster says how much it has. Local and pure. */
int mt_forecast_fits(const struct mt_config *config, const struct mt_cluster *cluster);
/* Prints the table: the rank that needs most and the one that needs least, by tag, and for each node whether its ranks fit
 * into its memory (where the cluster says how much it has). MT_FAILED if some node's do not fit. Local, no MPI. */
enum mt_status mt_forecast_print(const struct mt_config *config, const struct mt_cluster *cluster);

#endif
