/* A step as tasks: which there are follows from a shape (what a step must do), how they are cut and in which order each
 * lane runs them from a plan (what a policy has decided). The step that is run and the one that is simulated are built
 * here.
 *
 * The idea: published schedules differ in few things: into how many chunks the MoE part is cut, whether the cut goes
 * through attention, what shares a queue, when experts' weights travel, and where the shared parameters' gradients do.
 * Each is a member of mt_plan; the tasks and their dependencies follow. The trap: lanes run in list order, so a task
 * emitted early for one lane can hold up what another needs. What joins two layers (adding a chunk's rows to the
 * residual stream, its attention's backward pass) is therefore emitted when the next layer begins with that chunk, not
 * when the layer ends. */
#ifndef MT_PLAN_H
#define MT_PLAN_H
#include "schedule/cost.h"

/* Most chunks of a micro-batch. */
enum { MT_MOST_CHUNKS = 8 };

struct mt_shape_layer {
  int dense;    /* an MLP instead of experts */
  int gradient; /* its part of the shared parameters' gradients, of MT_WHOLE: ready behind its backward pass */
  int update;   /* its experts' part of the optimizer's work, of MT_WHOLE: done when the next step has time for it */
};

struct mt_shape {
  int nlayer, nmicro;
  const struct mt_shape_layer *layer; /* [nlayer]; NULL: experts in all of them, nothing shared; borrowed */
  int head_gradient;                  /* likewise the head's part. What is left is ready with the embedding's */
  int shared_update;                  /* the shared parameters' part of the optimizer's work */
  int sequences;              /* of a micro-batch: attention cannot be cut further */
  int several;                /* nodes: 1 = messages between ranks cross nodes */
  int sharded;                /* experts are unsharded before use, their gradients resharded after it */
  int grouped;                /* simulator only: heads and experts cut over the ranks of a node */
  int gated;                  /* the experts' first product is two thirds of their work, not half */
  int recompute;              /* attention again in the backward pass */
  int whole;                  /* 1: batch, embedding, head and update too; 0: layers alone (the papers' grids) */
  int backward;               /* 0: the forward pass alone */
  int follows;                /* layouts are planned anew in the step */
  int run;                    /* schemes make what the executor can do: one communication at a time, one degree for both
                                 passes, whose dispatch is the same */
  int64_t gradient_bytes;     /* of all shared parameters; 0 = unknown */
};

enum mt_gradient {                     /* when the shared parameters' gradients travel */
                   MT_GRADIENT_END,    /* after the backward pass */
                   MT_GRADIENT_WINDOW, /* in windows of the backward pass: behind each MoE part's first exchange, and
                                          under attention */
                   MT_GRADIENT_FREE    /* when the lane has nothing else to do; needs an order that is not `listed` */
};

enum mt_order {
  MT_ORDER_LISTED, /* layer by layer: all chunks' exchanges, then all chunks' experts, then all chunks' way back */
  MT_ORDER_READY,  /* what is ready, of the oldest layer */
  MT_ORDER_CHUNK   /* what is ready, of the oldest chunk */
};

struct mt_plan {
  int serial;    /* nothing overlaps */
  int chunks;    /* along the batch: whole sequences, attention included; at least 1 */
  int degree[2]; /* chunks of the MoE part, forward and backward: multiples of `chunks` */
  int one_queue; /* what an MoE layer's rows do within nodes and between them takes turns */
  int one_wire;  /* one communication at a time, on whatever level: what the executor's one thread can do */
  int tiled;     /* each of the experts' products overlaps with its neighbouring exchange, and with nothing else */
  int prefetch;  /* the next MoE layer's experts are unsharded while this one's compute */
  int delay;     /* gradients of the MoE layer before travel while this one's experts compute */
  enum mt_order order;
  enum mt_gradient gradient;
  int moe_window, dense_window; /* most of the shared gradients in a window, parts of MT_WHOLE */
  int piece;                    /* of a piece, likewise; 0 = any; a window holds whole ones then */
};

/* Builds the tasks of a step without what runs them. Local; the caller frees. */
struct mt_tasks mt_plan_tasks(const struct mt_shape *shape, const struct mt_plan *plan);
/* The same with costs, in the plan's order. Local; the caller frees. */
struct mt_tasks mt_plan_costed(const struct mt_shape *shape, const struct mt_plan *plan, const struct mt_costs *costs);

#endif
