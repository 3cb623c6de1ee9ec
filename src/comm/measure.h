/* Measuring the cluster: how fast each rank computes, what a message costs on each level.
 *
 * The problem: plans by cost need numbers that are right where the job runs, under the load it makes (all
 * ranks at once), and equal on all ranks. The idea: a few short rounds of what training does, each timed
 * several times and the median taken; a straight line alpha + beta bytes through them; rounded, so that noise
 * does not pretend to be knowledge; and rank 0's result for all. The trap: a token bucket lets a burst pass
 * at full speed, and a fast network is done before the clock notices; so the long messages grow until one
 * takes a while. */
#ifndef MT_MEASURE_H
#define MT_MEASURE_H
#include "comm/comm.h"
#include "device.h"

/* Writes speeds (of `device`; NULL: they stay as they are) and links into comm->cluster, the same on all ranks.
 * A level that no message crosses (one node; one rank a node) stays 0 = not measured. Takes about a second.
 * Collective.
 *   self: copies of a rank, all ranks at once.
 *   node: each rank of a node sends to the next and gets from the one before, all at once.
 *   net:  alpha: one rank of each node sends to the next node; beta: a byte over a node's uplink while all its
 *         ranks send and get at once. Of unequal nodes the slowest counts.
 *   gap:  what a message more costs when each rank sends to all ranks of its node, or of the next one. */
void mt_measure(struct mt_comm *comm, struct mt_device *device);
/* Takes speeds, memory, links and what steps took from the description of a cluster with the same places. Pure. */
void mt_measured_copy(struct mt_cluster *to, const struct mt_cluster *from);
/* 1 if speeds, memory and links are the same in both, of the same places. Pure. */
int mt_measured_same(const struct mt_cluster *a, const struct mt_cluster *b);
/* Places, links and what steps took as rank 0 has them, to all ranks. Collective. */
void mt_measured_share(struct mt_comm *comm);
/* 1 if everything that mt_measure could find out is there. Pure. */
int mt_measured(const struct mt_cluster *cluster);

/* The line alpha + beta bytes through n >= 1 points (bytes, seconds), by least squares of the relative
 * errors, so that short messages count as much as long ones; a negative alpha becomes 0 and the slope is
 * fitted again. Rounded to two (alpha) and three (beta) digits; beta is at least 1 ps. Pure. */
struct mt_link mt_link_fit(const double *bytes, const double *seconds, int n);
/* Puts rates[nplace] of ranks into the cluster as speeds. Ranks of a host that look alike get their median, since what differs
 * between them is chance: where three share two cores, one of them has a core to itself. So do hosts that look alike, unless
 * one is off by half again: then 1 is returned, and it is worth measuring again. Pretended nodes (host#i) are on one host.
 * Pure. O(P log P). */
int mt_speeds_settle(struct mt_cluster *cluster, const double *speed);
/* The median of x[n], n >= 1, which is sorted. Pure. */
double mt_median(double *x, int n);
/* x >= 0 rounded to an integer of so many significant digits. Pure. */
int64_t mt_round_digits(double x, int digits);

#endif
