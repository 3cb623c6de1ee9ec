/* Rows of every (source rank, expert), step by step and layer by layer: what layouts are planned on, from a file or made up.
 *
 * A file is CSV. Its first line says which of two kinds it is:
 *   step,layer,rank,expert,rows     rows of a (rank, expert); lines that are absent are zero; order does not matter
 *   rank,layer,iter,token_num       tokens that each device computed under static expert parallelism, the form in which
 *                                   LAER-MoE's artifact publishes its loads. Ranks form groups of E / (slots a rank), and the
 *                                   i-th of a group holds experts i, i + group, ... How the tokens split over those is not in
 *                                   the file: each gets seven tenths of what the ones before it leave, from the lowest up in
 *                                   even layers, from the highest down in odd ones. Tokens are thought to come evenly from the
 *                                   ranks of their node (of all, where there are no nodes). */
#ifndef MT_REPLAY_H
#define MT_REPLAY_H
#include <stdint.h>
#include "experts/forced.h"
#include "topology/cluster.h"

struct mt_replay {
  int nstep, nlayer, P, E;
  int64_t *counts; /* [nstep, nlayer, P, E], owned */
  int64_t *device; /* [nstep, nlayer, P] tokens of devices as they were recorded, owned; NULL if the file has counts */
};

/* Reads a file for the ranks of a cluster (NULL: as many as the file speaks of), E experts and `slots` a rank (of the second kind only; 0 = they differ). Local. The
 * caller frees. MT_USAGE if the file is not there, MT_CORRUPT, with one message that names the line, if it cannot be read or does not
 * fit. */
enum mt_status mt_replay_read(const char *path, const struct mt_cluster *cluster, int E, int slots,
                              struct mt_replay *replay);
/* What the forced router picks for `tokens` tokens a rank and step; where they are many, for some of them, times as many.
 * Local. The caller frees. */
void mt_replay_make(struct mt_forced *forced, int P, int64_t tokens, int nstep, int nlayer, struct mt_replay *replay);
void mt_replay_free(struct mt_replay *replay);
/* counts[P][E] of a step and layer. Borrowed. */
static inline int64_t *mt_replay_at(const struct mt_replay *replay, int step, int layer)
{
  return replay->counts + ((int64_t)step * replay->nlayer + layer) * replay->P * replay->E;
}

#endif
