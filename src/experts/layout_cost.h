/* The predicted cost of a layer's micro-step under a layout and shares: the objective of all planning.
 *
 *   compute   of the slowest device: its rows times its time a row
 *   exchange  the busiest device's rows within its node (the larger of sent and received), and the busiest node's rows over
 *             its uplink (likewise), times the rows' trips, and latencies
 *   weights   unshard and reshard under the sharding in force, by the same rule: an expert crosses once to each node that
 *             holds it (tree.h), and within a node to each rank that holds it
 * Weights that are hidden behind compute cost what is longer than it. Bytes are sums over the cluster. */
#ifndef MT_LAYOUT_COST_H
#define MT_LAYOUT_COST_H
#include "experts/layout.h"
#include "experts/shares.h"
#include "experts/work.h"

struct mt_layout_cost {
  int64_t compute_ps, exchange_ps, weights_ps; /* weights: all of them, hidden or not */
  int64_t total_ps;
  int64_t imbalance_ppm; /* largest device finish time over that of perfect shares, in millionths */
  int64_t row_bytes[MT_NLEVEL], weight_bytes[MT_NLEVEL]; /* of all trips, by what they cross */
};

/* rows[S]: what each slot gets under the shares. Pure. */
void mt_layout_rows(const struct mt_layout *layout, const struct mt_shares *shares, int64_t *rows);
/* total_ps from its parts. Pure. */
void mt_layout_cost_total(struct mt_layout_cost *cost, const struct mt_work *work);
/* The cost under shares that were dealt for this layout (their scratch is used). O(P E + runs + S + E nnode) time. Pure, no
 * allocation. */
struct mt_layout_cost mt_layout_cost(const struct mt_cluster *cluster, const struct mt_work *work,
                                     const struct mt_layout *layout, struct mt_shares *shares);
/* weights_ps alone; any shares of this size lend their scratch. */
int64_t mt_layout_weights(const struct mt_cluster *cluster, const struct mt_work *work, const struct mt_layout *layout,
                          struct mt_shares *shares);

#endif
