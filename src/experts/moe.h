/* The MoE layers of a model: router, dispatch, experts in slots, combine; forward and backward, in pieces that the step's
 * task list calls in any order that its dependencies allow.
 *
 * A row of tokens on its way: gate picks K experts; counts are exchanged; pack makes them a dispatch and puts rows in
 * order; dispatch exchanges them; experts order them by slot and run; combine sends rows back; merge adds them, weighted, to
 * the residual stream. The backward pass goes the same way with gradients, over the same dispatch.
 * What a layer keeps for its backward pass: the router's results, the dispatch, the rows that arrived (x), the experts'
 * pre-activations and the rows that came back; all else is shared by the layers.
 * A micro-step's sequences are cut into batch chunks, each with a gate and counts of its own, and the tokens of each of those
 * into chunks that travel and are computed at once. The trap: while a batch chunk is in one layer, another may be in the next,
 * so in what the layers share each has its place: its rows and triples begin at K times its first token's number, however
 * many there are. */
#ifndef MT_MOE_H
#define MT_MOE_H
#include "base/config.h"
#include "comm/exchange.h"
#include "experts/dispatch.h"
#include "experts/forced.h"
#include "experts/layout.h"
#include "experts/param.h"
#include "experts/relayout.h"
#include "experts/shard.h"
#include "experts/tree.h"
#include "kernels/ops.h"
#include "schedule/plan.h"

/* A buffer of the device that may grow with the routing. */
struct mt_rows {
  void *data;
  int64_t bytes;
};

/* A range of a layer's tokens on its way: what travels and is computed at once. With several, one is computed while others
 * travel. */
struct mt_moe_chunk {
  int64_t token, ntoken;         /* [token, token + ntoken) of the micro-step's */
  int64_t at;                    /* its first token's place in the layer's first */
  int64_t row;                   /* its first triple; where its rows begin in send, dsend and back */
  struct mt_routing routing;
  struct mt_dispatch dispatch;
  struct mt_exchange_plan *plan; /* owned; of the dispatch's rows */
  struct mt_rows gather, scatter; /* device [Q] int32: copies of the dispatch's */
  struct mt_rows x;              /* device [Q,C] rows that arrived, by slot */
  struct mt_rows *pre;           /* device [Q,2F or F] pre-activations; borrowed: own_pre, or one of all with recompute */
  struct mt_rows own_pre;
};

struct mt_moe_layer {
  const struct mt_layout *layout; /* in force; borrowed */
  float *p, *lse, *weight;        /* device [N,E], [N], [N,K] */
  int32_t *expert;                /* device [N,K] */
  int32_t *host_expert;           /* host [N,K] */
  /* With a capacity the picks that count, batch chunk by batch chunk: of chunk a, first begins a places behind its first
     token's number, all else at K times that number; without one, all picks. */
  int32_t *own_first, *own_kept;  /* host [N + chunks], [N K]; owned; NULL without a capacity */
  int32_t *first;                 /* device [N + chunks]: copy of own_first; without a capacity the moe's */
  float *kept_weight;             /* device [N K] weights of the triples; without a capacity `weight` itself */
  int32_t *pick, *triple;         /* device [N K], [N,K]: see capacity.h, numbers within the batch chunk; NULL without */
  float *aux;                     /* host [B,E] coefficients of the balance loss (scope sequence) */
  double aux_sum, z_sum;          /* of the micro-step under way: see mt_moe_sums */
  double *pool_p;                 /* host [E] sum of p here (scope micro_batch) */
  int64_t *counts;                /* host [P,E] */
  struct mt_moe_chunk *chunk;     /* [nchunk], owned */
  int32_t *place;                 /* device [N K]: copies of the dispatches' place, each chunk's from its row on */
  void *back;                     /* device [N K,C] rows that came back, in sending order, chunk by chunk */
};

/* Sums of a step over this rank's tokens; the step adds them up over ranks. */
struct mt_moe_sums {
  double aux;                   /* this rank's part of the balance loss (without its coefficient) */
  double z;                     /* sum of logsumexp^2 over tokens and layers */
  int64_t *received;            /* [nmoe] rows that this rank's experts got */
  int64_t *per_expert;          /* [nmoe, E] rows of each expert, all ranks */
  int64_t dropped;              /* picks beyond the capacity, all layers and ranks */
};

struct mt_moe {
  struct mt_comm *comm;         /* borrowed */
  struct mt_device *device;     /* borrowed */
  int nmoe, E, K;
  int64_t C, F, N, T;           /* N = largest number of tokens of a micro-step here */
  int gated;                    /* 1: SwiGLU, w1|w3 as one [2F,C]; 0: GELU */
  int64_t w_in, b_in, w_out, b_out; /* offsets in an expert's vector; b_* = -1: no bias */
  int64_t stride;               /* elements between slots */
  int nslot;                    /* mine */
  int balanced, recompute;
  struct mt_forced *forced;     /* owned; NULL = the router decides */
  int64_t capacity;             /* rows that an expert takes of a sequence, 0 = any number */
  enum mt_aux_scope scope;
  double aux_coef, z_coef;
  struct mt_shard shard;        /* [nmoe * E] vectors, cut as parallel.sharding says */
  struct mt_layout *fixed;      /* owned; the static layout */
  struct mt_relayout *relayout; /* owned; NULL = static, all layers have the fixed one */
  enum mt_dispatch_kind kind;
  struct mt_work work;
  struct mt_shares *shares;     /* of the layer under way */
  struct mt_dispatcher dispatcher;
  struct mt_tree *tree;
  struct mt_exchange *exchange;
  int round;                    /* 1: a rank computes in bf16, so all round what experts read */
  int in_place;                 /* 1: slots are the shards themselves (whole experts here, in slot order, no replicas) */
  enum mt_dtype wire;           /* of rows between ranks */
  float *slot[2];               /* wire [nslot, stride]: a pool of two layers' weights as they come; NULL when in place. Beside
                                   a device with memory of its own both are one: staging */
  void *matrix[2];              /* device [nslot, stride] in ctype: what experts read; slot[] itself on a CPU if no rank
                                   rounds, NULL when in place */
  void *rounded;                /* device [nslot, stride] bf16, if ranks round and this one computes in f32 */
  int64_t in_slot[2][3];        /* which layer, layout revision and weight version a half of the pool holds */
  int ngrad;                    /* 2: while the gradients of one layer travel, those of another are computed */
  float *slot_grad[2];          /* device [nslot, stride]; NULL when in place */
  float *wire_grad;             /* wire [nslot, stride]: staging beside a device with memory of its own, else NULL */
  int fetching;                 /* the unshard under way has something to do */
  int nbatch, nchunk;           /* batch chunks of a micro-step; chunks of each layer's tokens, a multiple of that */
  int tiled;                    /* 1: the experts' two products are tasks of their own */
  int64_t version;              /* of the weights; the optimizer's update changes it */
  struct mt_moe_layer *layer;   /* [nmoe] */
  /* of the micro-step under way */
  int64_t number;               /* of the step, from 1; 0 = no training */
  int64_t ntoken, nsequence;    /* here */
  int64_t first_token;          /* number of the first one in the step */
  double step_tokens, step_sequences; /* of the whole step, all ranks: the denominators of all losses */
  double *pool_picks;           /* host [E] picks over layers, all ranks, dropped ones too */
  struct mt_moe_sums sums;
  /* scratch shared by the layers */
  float *logits;                /* device [N,E]; also dlogits */
  float *dweight;               /* device [N,K] */
  float *device_aux;            /* device [B,E] */
  double *psum, *host_psum;     /* device, host [B,E] of a batch chunk; followed by zsum [B] */
  int32_t *first;               /* device [N + 1]: K t */
  int32_t *host_first;
  float *host_logits, *host_weight; /* host [N,E], [N,K]; with made-up routing only */
  int32_t *host_pick, *host_triple; /* host [N K]; these four with a capacity only */
  int64_t wide;                 /* numbers that a rank tells of a batch chunk: rows for each of its chunks and expert; with a
                                   capacity its picks too */
  int64_t *my_counts, *host_counts; /* host [nbatch,wide], [nbatch,P,wide]: of the layer that the batch chunk is in */
  int64_t *chunk_counts;        /* host [P,E] */
  float *dkept;                 /* device [N K + chunks] gradients of the triples' weights; behind each batch chunk's, a zero */
  int32_t *send_token;          /* device [N K] */
  void *send, *dsend;           /* device [N K,C] */
  struct mt_rows pre;           /* device [Q,2F]: of the layer under way, with recompute */
  struct mt_rows arrive[MT_MOST_CHUNKS]; /* device [Q,C] of each chunk: as rows arrive, then as they leave */
  struct mt_rows rows;          /* device [Q,C] */
  struct mt_rows h[MT_MOST_CHUNKS], dpre[MT_MOST_CHUNKS]; /* device [Q,F], [Q,2F]: between the two products; of each chunk if
                                   they are tasks of their own, else [0] is all chunks' */
};

/* Makes the MoE layers of a model with `nmoe` of them; expert rows are in `params`. N = tokens, of sequences of T, that a
 * micro-step may have here; training = 0 leaves out what only backward and update need. parallel.sharding must have been
 * chosen. Collective (status agreed; MT_USAGE if parallel.slots does not fit). */
enum mt_status mt_moe_new(struct mt_comm *comm, struct mt_device *device, const struct mt_config *config,
                          const struct mt_params *params, int64_t N, int64_t T, int training, struct mt_moe **moe);
void mt_moe_free(struct mt_moe *moe);
/* Cuts micro-steps into a plan's chunks (at first 1); ahead = 1: gradients of one layer may travel while those of another are
 * computed. Between micro-steps; the same on all ranks. Local. */
void mt_moe_cut(struct mt_moe *moe, const struct mt_plan *plan, int ahead);
/* Makes the row buffers hold what the dispatch of a chunk of layer l says (for moe.c). Local; counted growths. */
void mt_moe_reserve(struct mt_moe *moe, int l, int c);
/* Bytes of a row on the wire. Pure. */
static inline int64_t mt_moe_row_bytes(const struct mt_moe *moe)
{
  return moe->C * mt_dtype_size(moe->wire);
}

/* Begins step `number` of training (from 1), or with 0 an evaluation: zeroes the sums; tokens and sequences of all ranks and
 * micro-steps are the losses' denominators. Local. */
void mt_moe_begin_step(struct mt_moe *moe, int64_t number, double tokens, double sequences);
/* Begins a micro-step of `sequences` sequences of T tokens here, from number `first` of the step on. `key` numbers micro-steps
 * of the run: random layouts are a function of it. Local. */
void mt_moe_begin_micro(struct mt_moe *moe, int64_t first, int64_t sequences, int64_t key);

/* Pieces of the forward pass of MoE layer l: of batch chunk a, of chunk c of its tokens. x [N,C] normed input; wg [E,C] router
 * weights (f32); out [N,C] residual stream (added to); chunks of a layer come in their order.
 * Those that communicate ("collective") share with those that do not only what one hands on to the other, so that a thread of
 * its own may run them, one at a time, while the others run. */
void mt_moe_gate(struct mt_moe *moe, int l, int a, const void *x, const float *wg);
void mt_moe_counts(struct mt_moe *moe, int l, int a);              /* collective */
void mt_moe_pack(struct mt_moe *moe, int l, int c, const void *x); /* plans the dispatch */
void mt_moe_unshard_inter(struct mt_moe *moe, int l);              /* collective; nothing to do where the pool has the layer */
void mt_moe_unshard_intra(struct mt_moe *moe, int l);              /* collective; right behind it */
void mt_moe_dispatch(struct mt_moe *moe, int l, int c);            /* collective */
void mt_moe_experts(struct mt_moe *moe, int l, int c, enum mt_stage stage);
void mt_moe_combine(struct mt_moe *moe, int l, int c);             /* collective */
void mt_moe_merge(struct mt_moe *moe, int l, int c, void *out);

/* Backward. dout [N,C] gradient of the residual stream; dx [N,C] gradient of the normed input (overwritten by merge_back,
 * added to by gate_back); dwg [E,C] += . */
void mt_moe_pack_back(struct mt_moe *moe, int l, int c, const void *dout);
void mt_moe_combine_back(struct mt_moe *moe, int l, int c);        /* collective */
void mt_moe_experts_back(struct mt_moe *moe, int l, int c, enum mt_stage stage); /* FIRST: of the second product */
void mt_moe_dispatch_back(struct mt_moe *moe, int l, int c);       /* collective */
void mt_moe_merge_back(struct mt_moe *moe, int l, int c, void *dx);
void mt_moe_reshard_intra(struct mt_moe *moe, int l);              /* collective */
void mt_moe_reshard_inter(struct mt_moe *moe, int l);              /* collective; right behind it */
void mt_moe_gate_back(struct mt_moe *moe, int l, int a, void *dx, const void *x, const float *wg, float *dwg);

#endif
