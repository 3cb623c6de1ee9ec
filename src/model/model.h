/* A transformer with MoE layers: parameters, activations and the pieces of forward and backward that a step is made of.
 *
 * Families (Mixtral, Qwen and GPT-2 style) differ in data, not in code: struct mt_arch says which norm, positions, biases,
 * activation and head; family.c fills it and the table of parameters.
 * Every piece works on the current micro-step: B sequences of T tokens, rows in sequence order, so that a range of
 * sequences is a range of rows. Pieces do not fail and (but for rows that follow the routing) do not allocate.
 * Where gradients live: those of shared parameters in `grad` (f32, accumulated over micro-steps), those of experts in
 * slots and then shards; the residual stream's gradient is `dx`, updated in place from the last layer to the first. */
#ifndef MT_MODEL_H
#define MT_MODEL_H
#include "base/config.h"
#include "comm/comm.h"
#include "experts/moe.h"
#include "experts/param.h"
#include "experts/shard.h"
#include "kernels/ops.h"

/* Logits of N rows exist for a chunk of rows at a time: of so many. About 16 MiB of them, but enough rows to keep the GEMM
 * efficient. Pure. */
static inline int64_t mt_model_head_rows(int64_t V, int64_t N)
{
  enum { BYTES = 64 << 20, LEAST = 128 };
  int64_t rows = BYTES / (V * 4) < LEAST ? LEAST : BYTES / (V * 4);
  return rows < N ? rows : N;
}

/* Offsets of a layer's tensors in the shared vector; -1 = the family has none. */
struct mt_block {
  int64_t norm1_w, norm1_b, qkv_w, qkv_b, o_w, o_b, norm2_w, norm2_b;
  int64_t gate_w;                       /* MoE layers */
  int64_t in_w, in_b, out_w, out_b;     /* dense layers: up (w1|w3 or c_fc) and down */
  int moe;                              /* number among the MoE layers, -1 = dense */
};

struct mt_arch {
  int64_t C, L, H, KV, D, F, E, K, V, Tmax;
  int64_t window; /* positions that attention sees, 0 = all earlier ones */
  enum mt_norm_kind norm;
  float eps, rope_theta;
  int rope, gated, tied;
  int64_t wte, wpe, norm_w, norm_b, head; /* offsets; head = wte when tied; wpe = -1 with rope */
  struct mt_block *block;                 /* [L], owned */
};

/* What a layer keeps for its backward pass; device memory, owned. With train.recompute (and without training) all layers
 * share one: then mt_model_attention is run again before a layer's backward pass. */
struct mt_layer_state {
  void *x1;                             /* [N,C] residual stream after attention */
  void *y1, *y2;                        /* [N,C] normed inputs */
  float *mean1, *rstd1, *mean2, *rstd2; /* [N] */
  void *qkv;                            /* [N,(H+2KV)D], after rope */
  void *att;                            /* [N,HD] */
  float *lse;                           /* [B,H,T] */
  void *pre;                            /* [N,2F or F] dense layers only */
};

struct mt_model {
  struct mt_comm *comm;                 /* borrowed */
  struct mt_device *device;             /* borrowed */
  const struct mt_config *config;       /* borrowed */
  struct mt_arch arch;
  struct mt_params params;
  struct mt_moe *moe;                   /* NULL for a dense model */
  struct mt_shard shared;               /* one vector: all shared parameters; its blocks, each cut over all ranks */
  struct mt_layout *everywhere;         /* the blocks' layout: each in one slot on every rank, so that slots are the vector */
  struct mt_tree *tree;
  float *wire_weight, *wire_grad;       /* wire [shared_length]: what travels */
  float *weight, *grad;                 /* device [shared_length]: norms' and routers' weights; gradients. On a CPU the same */
  void *matrix;                         /* device [shared_length] in ctype: what linear layers and embeddings read; `weight`
                                           itself if no rank rounds */
  void *rounded;                        /* device [shared_length] bf16: if ranks round, else NULL; may be `matrix` */
  int64_t B, T, N, max_B;               /* of the micro-step under way; largest B */
  int nbatch;                           /* batch chunks: ranges of its sequences, which layers work on one at a time */
  struct mt_layer_state *layer;         /* [L] */
  void **x;                             /* [L + 1] residual stream before each layer and at the end, [N,C] */
  void *y, *dx, *dy, *dqkv, *datt, *h, *dpre; /* scratch [N,...]; y = final norm's output */
  float *mean, *rstd;                   /* [N] of the final norm */
  float *rope_table;                    /* [Tmax, D/2, 2] */
  int32_t *token, *position, *target;   /* device [N] */
  float *scale;                         /* device [N]: weight of a target in the loss, over the step's tokens */
  int32_t *host_token, *host_target;    /* host [N] */
  int32_t *segment, *host_segment;      /* device and host [N]: which document of its sequence; NULL = all one */
  float *host_scale;                    /* host [N] */
  float *loss, *host_loss;              /* [N] */
  void *logits;                         /* device [head_rows, V] */
  float *wide_logits;                   /* the same in f32, for who wants to see them; `logits` itself where that is f32 */
  int64_t head_rows;
  int stale;                            /* 1: updated since it was published */
  double loss_sum;                      /* of the step: sum of scale * loss over this rank's tokens */
};

/* Fills arch and params from the configuration. Local, cannot fail (the configuration was checked). */
void mt_family_build(const struct mt_config *config, struct mt_arch *arch, struct mt_params *params);

/* Makes a model whose micro-steps have at most max_B sequences of T tokens here; weights are zero until mt_model_init or a
 * checkpoint fills the shards, then mt_model_publish. training = 0 saves the memory that only backward needs. Collective. */
enum mt_status mt_model_new(struct mt_comm *comm, struct mt_device *device, const struct mt_config *config, int64_t max_B,
                            int64_t T, int training, struct mt_model **model);
void mt_model_free(struct mt_model *model);
/* Cuts micro-steps into a plan's chunks, at first one; see mt_moe_cut. Local. */
void mt_model_cut(struct mt_model *model, const struct mt_plan *plan, int ahead);
/* Fills this rank's shards with initial values, a function of (seed, parameter, element) alone. Local. */
void mt_model_init(struct mt_model *model, uint64_t seed);
/* Calls f for every piece of every tensor on this rank: its row, expert (0 for shared), first element in the tensor, the
 * shard, index of the piece in the shard's arrays, count. Initial values, update, checkpoint and tests go through it. Local. */
typedef void mt_piece(void *self, const struct mt_param *row, int expert, int64_t first, struct mt_shard *shard, int64_t at,
                      int64_t n);
void mt_model_pieces(struct mt_model *model, mt_piece *f, void *self);
/* The same for the experts of one MoE layer, by its number among these, or (-1) for the shared parameters. Local. */
void mt_model_pieces_of(struct mt_model *model, int moe, mt_piece *f, void *self);
/* Shards -> what every rank computes with; experts are fetched when needed. After init and load. Collective. */
void mt_model_publish(struct mt_model *model);
/* The same for elements [first, end) of the shared vector alone: the next step has them travel while it begins. Collective. */
void mt_model_publish_range(struct mt_model *model, int64_t first, int64_t end);
/* The shards change: what ranks compute with is stale until it is published, by the next step or, before an evaluation, by
 * mt_model_publish. Local. */
void mt_model_updated(struct mt_model *model);

/* segment[T]: the documents of one sequence token[T], counted from 0. `id` opens a document (MT_DOCUMENT_START) or closes it
 * (MT_DOCUMENT_END); what comes before the first such border is document 0. Pure. */
void mt_model_segments(enum mt_document document, int64_t id, const int32_t *token, int64_t T, int32_t *segment);
/* Sets the micro-step: B sequences; token, target [B T], scale [B T] (0: not a target) from host_*; copies to the device.
 * With data.document, attention sees a sequence's documents apart. Positions do not start again with a document, and a
 * document's last token still predicts the first of the next: llm.c and nanoGPT train on both. */
void mt_model_batch(struct mt_model *model, int64_t B);
/* Forward pieces, in this order, those of layers for batch chunk a; MoE layers run moe.h's between attention and the next layer
 * (their input is layer[l].y2, their output is added to x[l + 1]). */
void mt_model_embed(struct mt_model *model);
void mt_model_attention(struct mt_model *model, int l, int a); /* x[l] -> x1, then norm2 -> y2, x[l + 1] := x1 */
void mt_model_mlp(struct mt_model *model, int l, int a);       /* dense layers: x[l + 1] += mlp(y2) */
/* Final norm, head and loss in chunks of rows. back = 1: also their gradients, dx and grad. Adds to loss_sum. */
void mt_model_head(struct mt_model *model, int back);
/* logits[n, V] (host, f32) of the n rows from `first` on, after the forward pieces. Local. */
void mt_model_logits(struct mt_model *model, int64_t first, int64_t n, float *logits);
/* Backward pieces; dy holds the gradient of y2 when attention_back is called. Batch chunks of a layer come in their order:
 * gradients of weights are sums. */
void mt_model_mlp_back(struct mt_model *model, int l, int a);
void mt_model_attention_back(struct mt_model *model, int l, int a);
void mt_model_embed_back(struct mt_model *model);
/* The gradients of elements [result, shared_length) of the shared vector are complete once the last micro-step's backward
 * pass is through layer l (l = L: through the head): tensors lie in the order in which the forward pass needs them. Pure. */
static inline int64_t mt_model_ready(const struct mt_arch *arch, int64_t l)
{
  return l == arch->L ? arch->norm_w : arch->block[l].norm1_w;
}
/* Sums of elements [first, end) of grad over ranks to the shards; grad is zeroed there. Collective; touches nothing that the
 * other pieces use but these elements, so that a thread of its own may run it while they run. */
void mt_model_reduce(struct mt_model *model, int64_t first, int64_t end);
/* The first activation of the current micro-step that is not finite: its layer (-1: embedding, L: head) and name; NULL if
 * all are. Local; slow. */
const char *mt_model_find_nonfinite(struct mt_model *model, int *layer);

#endif
