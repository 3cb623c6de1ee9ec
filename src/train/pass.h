/* The passes of a micro-step over a model as tasks: training, evaluation and generation run the same ones, on what
 * mt_model_batch (and mt_moe_begin_micro) have set.
 *
 * Each function appends tasks for micro-step `micro` behind task `last` (-1: none) and returns the index of its last
 * one. Tasks borrow the model. Local. */
#ifndef MT_PASS_H
#define MT_PASS_H
#include "model/model.h"
#include "schedule/task.h"

/* The lane of communication among all ranks: that between nodes where there are several. Pure. */
static inline enum mt_lane mt_pass_wire(const struct mt_comm *comm)
{
  return comm->nnode > 1 ? MT_LANE_INTER : MT_LANE_INTRA;
}
/* From the tokens to the last layer's output. */
int mt_pass_forward(struct mt_tasks *tasks, struct mt_model *model, int micro, int last);
/* The loss of all positions; back = 1: also its gradient, for the backward pass. */
int mt_pass_head(struct mt_tasks *tasks, struct mt_model *model, int micro, int back, int last);
/* From there to the gradient of the first layer's input; mt_model_embed_back is left. */
int mt_pass_backward(struct mt_tasks *tasks, struct mt_model *model, int micro, int last);

#endif
