/* The way of rows from one node to another: directly, or over bridges in pieces.
 *
 * The problem: directly, every pair of ranks has its message, and each costs a latency; over bridges there
 * are few messages, but rows take two more steps within the nodes. Which is faster depends on counts and
 * links. The idea: both are predicted for each ordered pair of nodes from what both nodes know, so each pair
 * may go its own way and nobody need agree:
 *
 *   directly:  alpha_net + gap_net * (most messages of a rank, out or in, - 1) + beta_net * bytes
 *   bridged:   gather + deal + max(network, work of the busiest bridge), where gather and deal are one piece's
 *              work in the nodes, beta_node a byte (gather: + beta_self, for arranging), alpha_node and gap_node
 *              for the messages; network = alpha_net + gap_net * (pieces - 1) + beta_net * bytes
 *
 * In more pieces the work in the nodes overlaps with the network. One bridge on each side is enough as long as
 * its work is hidden; else the pieces are spread over all ranks of both nodes. Of ways that cost nearly the same,
 * the one with the fewest messages is taken (many connections at once overflow switches, and a lost packet costs
 * more than all of this), unless its copies would take much of the processors' time from computing.
 * The trap: the result must be the same wherever it is computed: integers only. The bits of what is exchanged
 * do not depend on it. */
#ifndef MT_WAY_H
#define MT_WAY_H
#include <stdint.h>
#include "topology/cluster.h"

enum { MT_MOST_PIECES = 64 };

/* What is to be sent from a node of `senders` ranks to one of `receivers`. */
struct mt_way_problem {
  int senders, receivers;
  int64_t bytes;
  int64_t messages;          /* pairs of ranks that have any rows */
  int64_t most_out, most_in; /* most partners of a rank of the one and of the other node */
};

struct mt_way {
  int npiece;                    /* 0 = directly, else pieces over bridges */
  int spread;                    /* 1: over several bridges, 0: over one on each side */
  int64_t direct_ns, bridged_ns; /* predicted */
};

/* The problem of one pair of nodes. rows(self, s, d): how many rows of `width` bytes go from place s to place d. Pure. */
struct mt_way_problem mt_way_problem(const struct mt_cluster *cluster, int from, int to,
                                     int64_t (*rows)(const void *self, int s, int d), const void *self, int64_t width);
/* Links as measured, or what is usual where they are not. Pure. */
struct mt_link mt_link_usual(const struct mt_cluster *cluster, enum mt_level level);
/* Predicted time over bridges in so many (>= 1) pieces. Pure. */
int64_t mt_way_bridged(const struct mt_cluster *cluster, const struct mt_way_problem *problem, int npiece,
                       int spread);
/* The cheapest way; kind is an enum mt_exchange_kind, which may force one. most = largest number of pieces.
 * Pure. */
struct mt_way mt_way_choose(const struct mt_cluster *cluster, const struct mt_way_problem *problem, int kind,
                            int most);
/* One line: what this kind of exchange chooses, and its predicted time beside those of the other kinds, when
 * each rank sends `rows` rows of `width` bytes evenly to all ranks. The caller frees. Pure. */
char *mt_way_explain(const struct mt_cluster *cluster, int kind, int64_t rows, int64_t width);

#endif
