/* The global batch cut over ranks.
 *
 * The problem: unlike ranks should end a micro-step together, all must run the same number of micro-steps, and every rank
 * must know all shares. The idea: shares are a pure function of the configuration and the cluster's measured speeds, which
 * are integers, agreed, and kept in the checkpoint. The trap: speeds that differ by chance would give other shares, and so
 * other roundings, at every start; what is within the noise counts as equal. */
#ifndef MT_BATCH_H
#define MT_BATCH_H
#include "base/config.h"
#include "comm/part.h"
#include "topology/cluster.h"

struct mt_batch {
  struct mt_part share; /* of the sequences, owned; empty ones allowed */
  int64_t nmicro;       /* micro-steps, the same on all ranks: what the largest share needs */
};

/* MT_USAGE, with one message, if parallel.shares is a list that does not fit the cluster's ranks. Local and pure. */
enum mt_status mt_batch_check(const struct mt_config *config, const struct mt_cluster *cluster);
/* n sequences over the cluster's ranks: as parallel.shares lists them; with auto in proportion to the ranks' speeds, if all
 * are measured and they differ by more than a tenth; else evenly. Local and pure. Free with mt_part_free(&batch.share). */
struct mt_batch mt_batch_cut(const struct mt_config *config, const struct mt_cluster *cluster, int64_t n);
/* Most sequences of a micro-step on `rank`; 1 where the share is empty. Pure. */
int64_t mt_batch_most(const struct mt_batch *batch, int rank);
/* The same of train.global_batch. Pure. */
int64_t mt_batch_max_B(const struct mt_config *config, const struct mt_cluster *cluster, int rank);

#endif
