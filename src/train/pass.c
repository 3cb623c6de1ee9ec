/* The passes of a micro-step as tasks; see pass.h. */
#include "train/pass.h"
#include <math.h>

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
  mt_model_attention(self, task->layer);
}

static void do_mlp(void *self, const struct mt_task *task)
{
  mt_model_mlp(self, task->layer);
}

static void do_gate(void *self, const struct mt_task *task)
{
  mt_moe_gate(MOE(self), NUMBER(self, task), MODEL(self)->layer[task->layer].y2, GATE_W(self, task));
}

static void do_counts(void *self, const struct mt_task *task)
{
  mt_moe_counts(MOE(self), NUMBER(self, task));
  if (NUMBER(self, task) == MOE(self)->nmoe - 1)
    mt_moe_end_forward(MOE(self));
}

static void do_unshard(void *self, const struct mt_task *task)
{
  mt_moe_unshard(MOE(self), NUMBER(self, task));
}

static void do_dispatch(void *self, const struct mt_task *task)
{
  mt_moe_dispatch(MOE(self), NUMBER(self, task), MODEL(self)->layer[task->layer].y2);
}

static void do_experts(void *self, const struct mt_task *task)
{
  mt_moe_experts(MOE(self), NUMBER(self, task));
}

static void do_combine(void *self, const struct mt_task *task)
{
  mt_moe_combine(MOE(self), NUMBER(self, task), MODEL(self)->x[task->layer + 1]);
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

static void do_combine_back(void *self, const struct mt_task *task)
{
  mt_moe_combine_back(MOE(self), NUMBER(self, task), MODEL(self)->dx);
}

static void do_experts_back(void *self, const struct mt_task *task)
{
  mt_moe_experts_back(MOE(self), NUMBER(self, task));
}

static void do_dispatch_back(void *self, const struct mt_task *task)
{
  mt_moe_dispatch_back(MOE(self), NUMBER(self, task), MODEL(self)->dy);
}

static void do_reshard(void *self, const struct mt_task *task)
{
  mt_moe_reshard(MOE(self), NUMBER(self, task));
}

static void do_gate_back(void *self, const struct mt_task *task)
{
  struct mt_model *model = self;
  mt_moe_gate_back(MOE(self), NUMBER(self, task), model->dy, model->layer[task->layer].y2, GATE_W(self, task),
                   model->grad + model->arch.block[task->layer].gate_w);
}

static void do_mlp_back(void *self, const struct mt_task *task)
{
  mt_model_mlp_back(self, task->layer);
}

static void do_attention_back(void *self, const struct mt_task *task)
{
  mt_model_attention_back(self, task->layer);
}

/* ---- the lists ---- */

static int add(struct mt_tasks *tasks, struct mt_model *model, enum mt_task_kind kind, enum mt_lane lane, int micro, int layer,
               void (*run)(void *, const struct mt_task *), int after, int and)
{
  return mt_tasks_add(tasks, &(struct mt_task){.kind = kind, .lane = lane, .micro = micro, .layer = layer, .part = MT_WHOLE,
                                               .run = run, .self = model, .dep = {after, and}, .ndep = 2});
}

int mt_pass_forward(struct mt_tasks *tasks, struct mt_model *model, int micro, int last)
{
  const struct mt_arch *arch = &model->arch;
  const enum mt_lane compute = MT_LANE_COMPUTE, wire = mt_pass_wire(model->comm);
  last = add(tasks, model, MT_TASK_EMBED, compute, micro, -1, do_embed, last, -1);
  for (int l = 0; l < arch->L; l++) {
    last = add(tasks, model, MT_TASK_ATTENTION, compute, micro, l, do_attention, last, -1);
    if (arch->block[l].moe < 0) {
      last = add(tasks, model, MT_TASK_MLP, compute, micro, l, do_mlp, last, -1);
      continue;
    }
    last = add(tasks, model, MT_TASK_GATE, compute, micro, l, do_gate, last, -1);
    last = add(tasks, model, MT_TASK_COUNTS, wire, micro, l, do_counts, last, -1);
    int weights = add(tasks, model, MT_TASK_UNSHARD_INTER, wire, micro, l, do_unshard, last, -1);
    last = add(tasks, model, MT_TASK_DISPATCH, wire, micro, l, do_dispatch, last, -1);
    last = add(tasks, model, MT_TASK_EXPERTS, compute, micro, l, do_experts, last, weights);
    last = add(tasks, model, MT_TASK_COMBINE, wire, micro, l, do_combine, last, -1);
  }
  return last;
}

int mt_pass_head(struct mt_tasks *tasks, struct mt_model *model, int micro, int back, int last)
{
  return add(tasks, model, MT_TASK_HEAD, MT_LANE_COMPUTE, micro, -1, back ? do_head_and_back : do_head, last, -1);
}

int mt_pass_backward(struct mt_tasks *tasks, struct mt_model *model, int micro, int last)
{
  const struct mt_arch *arch = &model->arch;
  const enum mt_lane compute = MT_LANE_COMPUTE, wire = mt_pass_wire(model->comm);
  for (int l = (int)arch->L - 1; l >= 0; l--) {
    if (model->config->train.recompute)
      last = add(tasks, model, MT_TASK_ATTENTION, compute, micro, l, do_attention, last, -1);
    if (arch->block[l].moe < 0)
      last = add(tasks, model, MT_TASK_MLP_BACK, compute, micro, l, do_mlp_back, last, -1);
    else {
      int weights = add(tasks, model, MT_TASK_UNSHARD_INTER, wire, micro, l, do_unshard, last, -1);
      last = add(tasks, model, MT_TASK_COMBINE_BACK, wire, micro, l, do_combine_back, last, -1);
      last = add(tasks, model, MT_TASK_EXPERTS_BACK, compute, micro, l, do_experts_back, last, weights);
      int grads = add(tasks, model, MT_TASK_RESHARD_INTER, wire, micro, l, do_reshard, last, -1);
      last = add(tasks, model, MT_TASK_DISPATCH_BACK, wire, micro, l, do_dispatch_back, last, -1);
      last = add(tasks, model, MT_TASK_GATE_BACK, compute, micro, l, do_gate_back, last, grads);
    }
    last = add(tasks, model, MT_TASK_ATTENTION_BACK, compute, micro, l, do_attention_back, last, -1);
  }
  return last;
}
