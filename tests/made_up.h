/* Made-up inputs for tests that need no MPI: numbers, clusters, a rank's view of a cluster.
 *
 * Idea: everything is a function of a seed, so a failure can be repeated and all ranks of a job make the
 * same. */
#ifndef MT_TEST_MADE_UP_H
#define MT_TEST_MADE_UP_H
#include <check.h>
#include <stdio.h>
#include "base/random.h"
#include "comm/comm.h"
#include "topology/cluster.h"

/* A state of the generator: two numbers that the caller sets, {seed, 0}. */
struct dice {
  uint64_t seed, thrown;
};

/* A number in [0, n). */
static inline int roll(struct dice *dice, int n)
{
  return (int)(mt_random_bits(dice->seed, MT_STREAM_TEST, dice->thrown++) % (uint64_t)n);
}

/* 1 to 5 nodes of 1 to 4 ranks. The caller frees. */
static inline struct mt_cluster *made_up_cluster(struct dice *dice)
{
  char sizes[32];
  int length = 0;
  for (int n = 1 + roll(dice, 5); n > 0; n--)
    length +=
        snprintf(sizes + length, sizeof sizes - (size_t)length, "%s%d", length ? "," : "", 1 + roll(dice, 4));
  struct mt_cluster *cluster;
  ck_assert_int_eq(mt_cluster_from_sizes(sizes, &cluster), MT_OK);
  return cluster;
}

/* 0 to `most` slots on each of P ranks, none on about a third of them, `least` or more in all. */
static inline void made_up_slots(struct dice *dice, int P, int most, int least, int *slots)
{
  int sum = 0;
  for (int r = 0; r < P; r++)
    sum += slots[r] = roll(dice, 3) ? roll(dice, most + 1) : 0;
  for (; sum < least; sum++)
    slots[roll(dice, P)]++;
}

/* What rank `rank` of the cluster knows, without communicators. Borrows the cluster. */
static inline struct mt_comm made_up_comm(struct mt_cluster *cluster, int rank)
{
  int node = cluster->node_of[rank];
  return (struct mt_comm){.rank = rank,
                          .size = cluster->nplace,
                          .node = node,
                          .nnode = cluster->nnode,
                          .node_rank = rank - cluster->node_first[node],
                          .node_size = cluster->node_first[node + 1] - cluster->node_first[node],
                          .node_first = cluster->node_first,
                          .cluster = cluster};
}

#endif
