/* The arithmetic of a training step, as a table of functions that every device fills.
 *
 * Conventions (easy to get wrong, the same everywhere):
 *   - `void *` arrays have the device's ctype (or the type argument beside them); `float *` arrays are f32
 * always.
 *   - Arrays are row-major device memory, shapes stand in the comments; all matrices of weights are [out,
 * in].
 *   - Gradients of parameters (dw, db) are f32 and ACCUMULATE (+=). Gradients of activations are overwritten,
 * except where an argument `add` says 1.
 *   - Host arrays are named so. Everything else is device memory. Kernels run on the math lane and may return
 * before they are done.
 *   - Any count may be zero. Nothing allocates, nothing fails.
 *   - Arguments do not overlap unless a comment says so. What add = 0 overwrites is not read (it may hold
 * NaNs), and the gaps that a stride leaves are not touched. Arrays are aligned to their element only.
 *   - Results do not depend on the number of threads: sums are formed in an order that depends on shapes
 * only.
 *   - ref.c computes with double accumulation and plain loops; it is the oracle of every other backend. */
#ifndef MT_OPS_H
#define MT_OPS_H
#include "device.h"

/* Rows in groups, each with its own weights: the experts of a rank's slots, or one group for a dense layer.
 */
struct mt_linear {
  int ngroup;
  const int64_t *first; /* host [ngroup + 1]: group g has rows [first[g], first[g + 1]); first[0] = 0 */
  int64_t in, out;
  int64_t wstride, bstride; /* elements between the weights (biases) of neighbouring groups */
};

enum mt_norm_kind { MT_NORM_RMS, MT_NORM_LAYER };

struct mt_attention {
  int64_t B, T, H, KV, D; /* sequences, positions, query heads, key/value heads (KV divides H), head width */
  int causal;             /* 1: a position sees itself and earlier ones; 0: all, later ones too */
  int64_t
      window; /* > 0: and no more than window - 1 positions back (forward is causal's matter); 0 = no limit */
  const int32_t *segment; /* [B T] or NULL: a position sees only positions of its own segment; a negative
                             segment is padding, sees nothing and gives zeros */
  float scale;            /* usually 1 / sqrt(D) */
};

struct mt_adamw {
  float lr, beta1, beta2, eps, weight_decay;
  float correction1, correction2; /* 1 - beta^t */
  float grad_scale;               /* multiplies the gradient (clipping) */
};

struct mt_kernels {
  /* ---- linear layers ---- */
  /* y[n,out] (+)= x[n,in] w_g^T + b_g for each group; w is group 0's [out,in], b its [out] or NULL. add = 1:
   * adds to y. */
  void (*linear)(struct mt_device *, const struct mt_linear *, void *y, const void *x, const void *w,
                 const void *b, int add);
  /* dx[n,in] (+)= dy[n,out] w_g */
  void (*linear_dx)(struct mt_device *, const struct mt_linear *, void *dx, const void *dy, const void *w,
                    int add);
  /* dw_g[out,in] += dy^T x ; db_g[out] += column sums of dy (db NULL: none); strides as for the weights, in
   * f32 elements */
  void (*linear_dw)(struct mt_device *, const struct mt_linear *, float *dw, float *db, const void *dy,
                    const void *x);

  /* ---- norms over rows of c >= 1 ---- */
  /* y = x * rstd * w (RMS; mean and b unused, may be NULL), or (x - mean) * rstd * w + b (LAYER). Stores
   * mean[n] and rstd[n] = 1 / sqrt(mean of (x - mean)^2 + eps), for RMS of x^2. */
  void (*norm)(struct mt_device *, enum mt_norm_kind, void *y, float *mean, float *rstd, const void *x,
               const float *w, const float *b, int64_t n, int64_t c, float eps);
  /* dx (+)= gradient through the norm; dw[c] +=, db[c] += (LAYER; RMS: mean and db unused, may be NULL). dx
   * may be dy when add = 0. */
  void (*norm_back)(struct mt_device *, enum mt_norm_kind, void *dx, int add, float *dw, float *db,
                    const void *dy, const void *x, const float *mean, const float *rstd, const float *w,
                    int64_t n, int64_t c);

  /* ---- embedding ---- */
  /* x[n,c] = wte[token] (+ wpe[position] if wpe): wte[V,c], wpe[T,c] of ctype; token[n], position[n] */
  void (*embed)(struct mt_device *, void *x, const int32_t *token, const int32_t *position, const void *wte,
                const void *wpe, int64_t n, int64_t c);
  /* dwte[token] += dx, dwpe[position] += dx (dwpe NULL: none), in f32, rows in ascending order: equal bits
   * everywhere */
  void (*embed_back)(struct mt_device *, float *dwte, float *dwpe, const void *dx, const int32_t *token,
                     const int32_t *position, int64_t n, int64_t c);

  /* ---- rotary embedding, half-split form: pairs (i, i + D/2) ---- */
  /* In place on `heads` heads of even width D at the start of each of n rows that are `stride` elements
   * apart: (a, b) becomes (a cos - b sin, b cos + a sin). table[Tmax][D/2][2] holds cos, sin of a position's
   * angles. inverse = 1 rotates back (the gradient). */
  void (*rope)(struct mt_device *, void *x, int64_t n, int64_t stride, int64_t heads, int64_t D,
               const int32_t *position, const float *table, int inverse);

  /* ---- attention; qkv[B T, (H + 2 KV) D] holds q, k, v of a position side by side ---- */
  int64_t (*attention_work)(const struct mt_device *,
                            const struct mt_attention *); /* bytes of workspace, both ways */
  /* out[B T, H D]; lse[B, H, T] (log of the sum of exponentials of scaled scores; 0 at padding). Never holds
   * T x T of all heads. Query head h reads key/value head h / (H / KV). */
  void (*attention)(struct mt_device *, const struct mt_attention *, void *out, float *lse, const void *qkv);
  /* dqkv[B T, (H + 2 KV) D] overwritten, zeros at padding; out and lse as attention made them */
  void (*attention_back)(struct mt_device *, const struct mt_attention *, void *dqkv, const void *dout,
                         const void *qkv, const void *out, const float *lse);

  /* ---- activations ---- */
  /* h[n,f] = silu(gu[:, :f]) * gu[:, f:2f], gu[n,2f] */
  void (*swiglu)(struct mt_device *, void *h, const void *gu, int64_t n, int64_t f);
  void (*swiglu_back)(struct mt_device *, void *dgu, const void *dh, const void *gu, int64_t n, int64_t f);
  /* tanh form (gelu_new); dx may be dy */
  void (*gelu)(struct mt_device *, void *y, const void *x, int64_t n);
  void (*gelu_back)(struct mt_device *, void *dx, const void *dy, const void *x, int64_t n);

  /* ---- router, all f32 but x ---- */
  /* logits[n,E] = x[n,c] w[E,c]^T ; back: dx += dlogits w (dx is not overwritten), dw[E,c] += dlogits^T x */
  void (*gate_logits)(struct mt_device *, float *logits, const void *x, const float *w, int64_t n, int64_t c,
                      int64_t E);
  void (*gate_logits_back)(struct mt_device *, void *dx, float *dw, const float *dlogits, const void *x,
                           const float *w, int64_t n, int64_t c, int64_t E);
  /* p[n,E] = softmax(logits), lse[n] = logsumexp(logits); the experts of the K <= E largest logits (compared
   * as they are, ties to the lowest expert), largest first, in expert[n,K], and their probabilities
   * renormalised to sum 1, which is the softmax of the chosen logits, in weight[n,K]: finite even where the
   * chosen p are all 0 in f32. balanced > 0: the choice goes in turn instead, row t taking experts
   * ((t + balanced - 1) K + k) mod E. Rows with NaNs still get K different experts of 0..E-1. */
  void (*gate_topk)(struct mt_device *, float *p, float *lse, int32_t *expert, float *weight,
                    const float *logits, int64_t n, int64_t E, int64_t K, int balanced);
  /* dlogits[n,E] (overwritten) from dweight[n,K], plus aux: the loss has the term sum_t sum_e aux[t / T][e]
   * p[t][e] (aux[ceil(n/T),E], never NULL), plus z: the term z * sum_t lse[t]^2 */
  void (*gate_topk_back)(struct mt_device *, float *dlogits, const float *dweight, const float *p,
                         const float *lse, const int32_t *expert, const float *weight, const float *aux,
                         float z, int64_t n, int64_t T, int64_t E, int64_t K);
  /* psum[b][e] = sum of p over the T rows of sequence b (double), zsum[b] = sum of lse^2; both overwritten */
  void (*gate_sums)(struct mt_device *, double *psum, double *zsum, const float *p, const float *lse,
                    int64_t B, int64_t T, int64_t E);

  /* ---- rows to and from experts: mt_routing's triples i, those of token t being [first[t], first[t+1]) ----
   */
  /* to[i] = from[index[i]], width elements each, converting; an index may come up any number of times */
  void (*gather)(struct mt_device *, void *to, enum mt_dtype to_type, const void *from,
                 enum mt_dtype from_type, const int32_t *index, int64_t rows, int64_t width);
  /* y[t] (+)= sum over triples i of t, in order, of weight[i] * row[place[i]] (weight NULL: 1); first[0] may
   * be > 0; a token without triples gives 0; y has ctype. In back, a row's place comes up once at most. */
  void (*combine)(struct mt_device *, void *y, int add, const void *row, enum mt_dtype row_type,
                  const int32_t *first, const int32_t *place, const float *weight, int64_t n, int64_t width);
  /* drow[place[i]] = weight[i] dy[t] ; dweight[i] = <dy[t], row[place[i]]>; drow and row have type row_type.
   * weight NULL: 1; dweight NULL: not wanted, and row is not read. */
  void (*combine_back)(struct mt_device *, void *drow, float *dweight, const void *dy, const void *row,
                       enum mt_dtype row_type, const int32_t *first, const int32_t *place,
                       const float *weight, int64_t n, int64_t width);

  /* ---- loss ---- */
  /* loss[i] = logsumexp(logits[i]) - logits[i][target[i]]; back = 1: logits[n,V] becomes scale[i] * d loss[i]
   * / d logits. Where scale[i] = 0 both are 0 whatever the logits hold, and target[i] is not read as an
   * index. loss is not scaled. */
  void (*cross_entropy)(struct mt_device *, float *loss, void *logits, const int32_t *target,
                        const float *scale, int64_t n, int64_t V, int back);

  /* ---- vectors ---- */
  void (*add)(struct mt_device *, float *y, const float *x, int64_t n);   /* y += x */
  void (*add_act)(struct mt_device *, void *y, const void *x, int64_t n); /* the same in ctype */
  /* to bf16: nearest, ties to even; a NaN stays a NaN */
  void (*convert)(struct mt_device *, void *to, enum mt_dtype to_type, const void *from,
                  enum mt_dtype from_type, int64_t n);
  /* host *sum = sum of squares in double, by fixed blocks; waits for the math lane */
  void (*sum_squares)(struct mt_device *, double *sum, const float *x, int64_t n);
  /* g = grad_scale grad, m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, m^ = m / correction1, v^
   * = v / correction2, w -= lr (m^ / (sqrt(v^) + eps) + weight_decay w): decoupled decay. Loshchilov and
   * Hutter, ICLR 2019 */
  void (*adamw)(struct mt_device *, float *w, float *m, float *v, const float *grad, int64_t n,
                const struct mt_adamw *);
};

extern const struct mt_kernels mt_kernels_ref; /* ref.c */

#endif
