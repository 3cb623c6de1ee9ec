/* The passes of a micro-step as tasks; see pass.h. */
#include "train/pass.h"
#include <math.h>
#include "base/memory.h"
#include "base/status.h"

#define MODEL(self) ((struct mt_model *)(self))
#define MOE(self) (MODEL(self)->moe)
#define NUMBER(self, task) (MODEL(self)->arch.block[(task)->layer].moe)
#define GATE_W(self, task) (MODEL(self)->weight + MODEL(self)->arch.block[(task)->layer].gate_w)

static void do_embed(void *self, const struct mt_task *task)
{
  (void)task;
  struct mt_model *model = self;
  mt_model_embed(model);
  if (model->N && mt_fail_point("nan")) {
    float bad = NAN;
    model->device->ops->copy(model->device, MT_DEV_MATH, model->x[0], &bad, sizeof bad);
    model->device->ops->sync(model->device, MT_DEV_MATH);
  }
}

static void do_attention(void *self, const struct mt_task *task)
{
  mt_model_attention(self, task->layer, task->chunk);
}

static void do_mlp(void *self, const struct mt_task *task)
{
  mt_model_mlp(self, task->layer, task->chunk);
}

static void do_gate(void *self, const struct mt_task *task)
{
  mt_moe_gate(MOE(self), NUMBER(self, task), task->chunk, MODEL(self)->layer[task->layer].y2, GATE_W(self, task));
}

static void do_counts(void *self, const struct mt_task *task)
{
  mt_moe_counts(MOE(self), NUMBER(self, task), task->chunk);
}

static void do_pack(void *self, const struct mt_task *task)
{
  mt_moe_pack(MOE(self), NUMBER(self, task), task->chunk, MODEL(self)->layer[task->layer].y2);
}

static void do_unshard_inter(void *self, const struct mt_task *task)
{
  mt_moe_unshard_inter(MOE(self), NUMBER(self, task));
}

static void do_unshard_intra(void *self, const struct mt_task *task)
{
  mt_moe_unshard_intra(MOE(self), NUMBER(self, task));
}

static void do_dispatch(void *self, const struct mt_task *task)
{
  mt_moe_dispatch(MOE(self), NUMBER(self, task), task->chunk);
}

static void do_experts(void *self, const struct mt_task *task)
{
  mt_moe_experts(MOE(self), NUMBER(self, task), task->chunk, task->stage);
}

static void do_combine(void *self, const struct mt_task *task)
{
  mt_moe_combine(MOE(self), NUMBER(self, task), task->chunk);
}

static void do_merge(void *self, const struct mt_task *task)
{
  mt_moe_merge(MOE(self), NUMBER(self, task), task->chunk, MODEL(self)->x[task->layer + 1]);
}

static void do_head(void *self, const struct mt_task *task)
{
  (void)task;
  mt_model_head(self, 0);
}

static void do_head_and_back(void *self, const struct mt_task *task)
{
  (void)task;
  mt_model_head(self, 1);
}

static void do_pack_back(void *self, const struct mt_task *task)
{
  mt_moe_pack_back(MOE(self), NUMBER(self, task), task->chunk, MODEL(self)->dx);
}

static void do_combine_back(void *self, const struct mt_task *task)
{
  mt_moe_combine_back(MOE(self), NUMBER(self, task), task->chunk);
}

static void do_experts_back(void *self, const struct mt_task *task)
{
  mt_moe_experts_back(MOE(self), NUMBER(self, task), task->chunk, task->stage);
}

static void do_dispatch_back(void *self, const struct mt_task *task)
{
  mt_moe_dispatch_back(MOE(self), NUMBER(self, task), task->chunk);
}

static void do_merge_back(void *self, const struct mt_task *task)
{
  mt_moe_merge_back(MOE(self), NUMBER(self, task), task->chunk, MODEL(self)->dy);
}

static void do_reshard_intra(void *self, const struct mt_task *task)
{
  mt_moe_reshard_intra(MOE(self), NUMBER(self, task));
}

static void do_reshard_inter(void *self, const struct mt_task *task)
{
  mt_moe_reshard_inter(MOE(self), NUMBER(self, task));
}

static void do_gate_back(void *self, const struct mt_task *task)
{
  struct mt_model *model = self;
  mt_moe_gate_back(MOE(self), NUMBER(self, task), task->chunk, model->dy, model->layer[task->layer].y2, GATE_W(self, task),
                   model->grad + model->arch.block[task->layer].gate_w);
}

static void do_mlp_back(void *self, const struct mt_task *task)
{
  mt_model_mlp_back(self, task->layer, task->chunk);
}

static void do_attention_back(void *self, const struct mt_task *task)
{
  mt_model_attention_back(self, task->layer, task->chunk);
}

/* The elements of the shared vector that a task moves. Parts are counted from the vector's end: that is the order in which
 * gradients become ready, and the reverse of that in which weights are needed. Rounded down, as shares of layers are
 * (mt_pass_shape): no gradient travels before it is ready, and no weight after it is needed. */
struct range {
  int64_t first, end;
};

static struct range range_of(const struct mt_model *model, const struct mt_task *task)
{
  const int64_t n = model->params.shared_length;
  return (struct range){n - n * ((int64_t)task->from + task->part) / MT_WHOLE, n - n * task->from / MT_WHOLE};
}

static void do_reduce(void *self, const struct mt_task *task)
{
  const struct range range = range_of(self, task);
  mt_model_reduce(self, range.first, range.end);
}

static void do_publish(void *self, const struct mt_task *task)
{
  const struct range range = range_of(self, task);
  if (MODEL(self)->stale)
    mt_model_publish_range(self, range.first, range.end);
}

static void (*const run_of[MT_NTASK_KIND])(void *, const struct mt_task *) = {
    [MT_TASK_EMBED] = do_embed,
    [MT_TASK_ATTENTION] = do_attention,
    [MT_TASK_MLP] = do_mlp,
    [MT_TASK_GATE] = do_gate,
    [MT_TASK_COUNTS] = do_counts,
    [MT_TASK_PACK] = do_pack,
    [MT_TASK_UNSHARD_INTER] = do_unshard_inter,
    [MT_TASK_UNSHARD_INTRA] = do_unshard_intra,
    [MT_TASK_DISPATCH] = do_dispatch,
    [MT_TASK_EXPERTS] = do_experts,
    [MT_TASK_COMBINE] = do_combine,
    [MT_TASK_MERGE] = do_merge,
    [MT_TASK_PACK_BACK] = do_pack_back,
    [MT_TASK_COMBINE_BACK] = do_combine_back,
    [MT_TASK_EXPERTS_BACK] = do_experts_back,
    [MT_TASK_DISPATCH_BACK] = do_dispatch_back,
    [MT_TASK_MERGE_BACK] = do_merge_back,
    [MT_TASK_RESHARD_INTRA] = do_reshard_intra,
    [MT_TASK_RESHARD_INTER] = do_reshard_inter,
    [MT_TASK_GATE_BACK] = do_gate_back,
    [MT_TASK_MLP_BACK] = do_mlp_back,
    [MT_TASK_ATTENTION_BACK] = do_attention_back,
    [MT_TASK_REDUCE] = do_reduce,
    [MT_TASK_PUBLISH] = do_publish,
};

/* Parts of the shared gradients that are ready when layer l is through. */
static int parts_ready(const struct mt_arch *arch, const struct mt_params *params, int64_t l)
{
  const int64_t n = params->shared_length;
  return (int)((n - mt_model_ready(arch, l)) * MT_WHOLE / n);
}

struct mt_shape mt_pass_shape(const struct mt_config *config, const struct mt_cluster *cluster, const struct mt_arch *arch,
                              const struct mt_params *params, int nslot, struct mt_shape_layer *layer)
{
  const double experts = (double)params->nexpert * (double)params->expert_length,
               all = (double)params->shared_length + params->nmoe * experts;
  for (int64_t l = 0; l < arch->L; l++) {
    const int dense = arch->block[l].moe < 0;
    layer[l] = (struct mt_shape_layer){dense, parts_ready(arch, params, l) - parts_ready(arch, params, l + 1),
                                       dense ? 0 : (int)(experts / all * MT_WHOLE)};
  }
  return (struct mt_shape){.nlayer = (int)arch->L,
                           .nmicro = 1,
                           .layer = layer,
                           .head_gradient = parts_ready(arch, params, arch->L),
                           .shared_update = (int)((double)params->shared_length / all * MT_WHOLE),
                           .sequences = 1,
                           .several = cluster->nnode > 1,
                           .sharded = params->nmoe > 0,
                           .gated = arch->gated,
                           .recompute = config->train.recompute,
                           .whole = 1,
                           .backward = 1,
                           .follows = params->nmoe && mt_relayout_policy(config, cluster->nplace, nslot, 1) != MT_LAYOUT_STATIC,
                           .gradient_bytes = 4 * params->shared_length};
}

struct mt_tasks mt_pass_tasks(struct mt_model *model, const struct mt_plan *plan, const struct mt_costs *costs, int nmicro,
                              int backward)
{
  const struct mt_moe *moe = model->moe;
  MT_CHECK(model->nbatch == plan->chunks && plan->degree[0] == plan->degree[1] && (plan->serial || plan->one_wire) &&
               (!moe || (moe->nchunk == plan->degree[0] && moe->tiled == plan->tiled &&
                         (plan->serial || !backward || moe->ngrad == 2))),
           "a plan of %d chunks, degrees %d and %d, for what the model is not cut for", plan->chunks, plan->degree[0],
           plan->degree[1]);
  struct mt_shape_layer *layer = MT_NEW(MT_TAG_PLAN, struct mt_shape_layer, model->arch.L);
  struct mt_shape shape = mt_pass_shape(model->config, model->comm->cluster, &model->arch, &model->params,
                                        moe ? moe->fixed->slot_first[model->comm->size] : 0, layer);
  shape.nmicro = nmicro;
  shape.backward = backward;
  struct mt_tasks tasks = costs ? mt_plan_costed(&shape, plan, costs) : mt_plan_tasks(&shape, plan);
  for (int i = 0; i < tasks.n; i++) {
    struct mt_task *task = &tasks.task[i];
    task->run = task->kind == MT_TASK_HEAD ? (backward ? do_head_and_back : do_head) : run_of[task->kind];
    task->self = model;
  }
  mt_free(layer);
  mt_tasks_trim(&tasks);
  return tasks;
}
