/* parallel.sharding = auto: over which ranks experts' master weights are cut, from predicted time and memory.
 *
 * Whole experts on their owners need not travel, but then rows go where the experts are; cut over all ranks, experts may be
 * anywhere in the next step, but travel in each. Which is cheaper depends on rows, weights, speeds and links. A start knows
 * nothing of the routing, so a moderate skew stands for it: the i-th most popular expert gets rows in proportion to
 * i^(-1/2), in an order that is random but always the same. */
#ifndef MT_SHARDING_H
#define MT_SHARDING_H
#include "base/config.h"
#include "base/text.h"
#include "topology/cluster.h"

/* What parallel.sharding comes to, into *sharding: itself, or for auto the one with the least predicted time
 * (layout_cost.h, under the layout policy in force with it) among those that fit into the nodes' memory (forecast.h); the
 * first of full, node, owner if several are equal, full if none fits or the model is dense. What decided is printed. Local
 * and pure. MT_USAGE, said once, if parallel.slots does not fit the cluster. */
enum mt_status mt_sharding_choose(const struct mt_config *config, const struct mt_cluster *cluster,
                                  enum mt_sharding *sharding);
/* The same without printing: what decided is added to *why, nothing if nothing was to be decided. */
enum mt_status mt_sharding_weigh(const struct mt_config *config, const struct mt_cluster *cluster,
                                 enum mt_sharding *sharding, struct mt_text_buffer *why);
const char *mt_sharding_name(enum mt_sharding sharding);  /* Pure */
enum mt_sharding mt_sharding_named(const char *name);     /* full if there is none of that name. Pure */

#endif
