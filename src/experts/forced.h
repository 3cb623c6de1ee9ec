/* Routing that is made up instead of learned: to measure, and to test, under a load that is known beforehand.
 *
 * Zipf: the experts of a layer stand in an order of popularity, another one in each layer; the i-th (from 0) is picked in
 * proportion to (i + 1)^-skew. With drift d > 0 the order moves on by one place every d steps, gradually: between two such
 * steps every expert's share goes in a straight line from the one to the next. A token's K experts are drawn one after the
 * other without putting back.
 * Replay: a file says the rows of each rank and expert (replay.h). Step n takes the file's step n - 1, round and round, layers
 * likewise; a token takes after the rank of the file that stands where it does in the batch: of n tokens the t-th after rank
 * t P / n. An expert is among a token's K in proportion to that rank's rows (at most always; then the others get more), drawn
 * systematically: one random number a token, K points one apart on the line of the experts' chances.
 * All is a function of (seed, step, layer, token) alone, so no cut of the batch changes it. */
#ifndef MT_FORCED_H
#define MT_FORCED_H
#include <stdint.h>
#include "base/config.h"

struct mt_replay;

struct mt_forced {
  int E, K;
  double skew, drift;
  uint64_t seed;
  double *share; /* [E], owned: of the layer and step at hand; replayed: chances to be among the K */
  struct mt_replay *replay; /* owned; NULL = Zipf */
};

/* As moe.router says (anything but replay: Zipf). Local. The caller frees. Fails as mt_replay_read does. */
enum mt_status mt_forced_new(const struct mt_config *config, struct mt_forced **forced);
void mt_forced_free(struct mt_forced *forced); /* NULL allowed */
/* Of Zipf, share[E]: how large a part of first picks each expert gets in that step (from 0) and layer; sums to 1. Pure. */
void mt_forced_shares(const struct mt_forced *forced, int64_t step, int layer, double *share);
/* expert[n,K]: the picks of tokens first .. first + n - 1 of the step, which has `tokens` in all. Pure but for scratch. */
void mt_forced_picks(struct mt_forced *forced, int64_t step, int layer, int64_t tokens, int64_t first, int64_t n,
                     int32_t *expert);

#endif
