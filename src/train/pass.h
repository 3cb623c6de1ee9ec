/* The passes of micro-steps over a model as tasks: training, evaluation and generation run the same ones, on what
 * mt_model_batch (and mt_moe_begin_micro) have set. */
#ifndef MT_PASS_H
#define MT_PASS_H
#include "model/model.h"
#include "schedule/plan.h"

/* The shape of a training step of one micro-step and one sequence (callers set others): what is predicted and what is run.
 * nslot: of all ranks; layer: [L], becomes the shape's, must outlive it. Pure, the same on all ranks. */
struct mt_shape mt_pass_shape(const struct mt_config *config, const struct mt_cluster *cluster, const struct mt_arch *arch,
                              const struct mt_params *params, int nslot, struct mt_shape_layer *layer);

/* The tasks of `nmicro` micro-steps, forward alone or (backward = 1) of a whole training step, as a plan orders them by these costs (the same on all ranks; NULL = as listed). What the
 * model does has its functions; what a step does around it (reading the batch; what comes after the backward pass) has none:
 * that is left to the caller. The model must be cut into the plan's chunks (mt_model_cut). Tasks borrow the model.
 * Local; the caller frees. */
struct mt_tasks mt_pass_tasks(struct mt_model *model, const struct mt_plan *plan, const struct mt_costs *costs, int nmicro,
                              int backward);

#endif
