/* AdamW on shards, learning-rate schedule, gradient norm. */
#ifndef MT_OPTIMIZER_H
#define MT_OPTIMIZER_H
#include "model/model.h"

/* The learning rate of step s = 1, 2, ...: warm-up lr s / warmup while s <= warmup; then constant, or from lr to min_lr,
 * linearly or as half a cosine, as x = (s - warmup) / (decay_steps - warmup) goes to 1. wsd (warm-up, stable, decay): lr up to
 * step decay_steps - round(decay_ratio decay_steps), the last `warmup` at the earliest, then the decay from there: 1 - x,
 * 1 - sqrt x (Haegele et al., 2024, arXiv 2405.18392) or half a cosine. Pure. */
double mt_learning_rate(const struct mt_config *config, int64_t step);
/* Sum of squares of this rank's shard gradients: every distinct parameter is on one rank once. Local. */
double mt_optimizer_sum_squares(struct mt_model *model);
/* Updates master weights and moments from the shards' gradients times grad_scale, and zeroes the gradients. apply = 0 only
 * zeroes them. Local. */
void mt_optimizer_update(struct mt_model *model, const struct mt_config *config, int64_t step, double lr, double grad_scale,
                         int apply);
/* The first tensor whose gradient on this rank's shards is not finite, NULL if none. Local. */
const char *mt_optimizer_find_nonfinite(struct mt_model *model);

#endif
