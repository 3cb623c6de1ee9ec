/* AdamW on shards, learning-rate schedule, gradient norm. */
#ifndef MT_OPTIMIZER_H
#define MT_OPTIMIZER_H
#include "model/model.h"

/* The learning rate of step s = 1, 2, ...: warm-up lr s / warmup while s <= warmup; then constant, or from lr to min_lr,
 * linearly or as half a cosine, as x = (s - warmup) / (decay_steps - warmup) goes to 1. wsd (warm-up, stable, decay): lr up to
 * step decay_steps - round(decay_ratio decay_steps), the last `warmup` at the earliest, then the decay from there: 1 - x,
 * 1 - sqrt x (Haegele et al., 2024, arXiv 2405.18392) or half a cosine. Pure. */
double mt_learning_rate(const struct mt_config *config, int64_t step);
/* In what follows `moe` is an MoE layer's number among these, for its experts, or -1 for the shared parameters: the parts into
 * which norm and update are cut, so that each may run when it is due. */

/* Sum of squares of a part's gradients on this rank's shards: every distinct parameter is on one rank once. Local. */
double mt_optimizer_sum_squares(struct mt_model *model, int moe);
/* An update that all parts have in common. */
struct mt_update {
  struct mt_adamw adamw;
  double weight_decay;
  int apply; /* 0: the step is skipped, gradients are zeroed alone */
};
/* Of step (from 1; skipped ones do not count), from gradients times grad_scale. Pure. */
struct mt_update mt_optimizer_begin(const struct mt_config *config, int64_t step, double lr, double grad_scale, int apply);
/* Updates a part's master weights and moments on this rank's shards, and zeroes its gradients. Local. */
void mt_optimizer_update(struct mt_model *model, const struct mt_update *update, int moe);
/* The first tensor whose gradient on this rank's shards is not finite, NULL if none. Local. */
const char *mt_optimizer_find_nonfinite(struct mt_model *model);

#endif
