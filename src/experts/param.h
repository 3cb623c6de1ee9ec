/* The table of parameters: one row a tensor. It drives initialisation, reduction, update, checkpoint, import and export, so
 * that no list of names exists twice.
 *
 * The idea: shared parameters are one flat vector, and each expert of a layer is one flat vector of the same form in
 * every MoE layer; a row says where its tensor lies in the vector. The trap: a row of scope expert describes one
 * expert's part; in a checkpoint the layer's experts are stacked, [E, dims...]. */
#ifndef MT_PARAM_H
#define MT_PARAM_H
#include <stdint.h>

enum mt_scope { MT_SCOPE_SHARED, MT_SCOPE_EXPERT };

struct mt_param {
  char name[128];  /* Hugging Face's, without the expert's index */
  enum mt_scope scope;
  int layer;       /* of the transformer, -1 = none */
  int moe;         /* number among the MoE layers (scope expert), else -1 */
  int ndim;
  int64_t dim[3];  /* of one expert's tensor for scope expert */
  int64_t count;   /* elements (of one expert) */
  int64_t offset;  /* in the shared vector, or in the expert's vector */
  int decay;       /* 1: weight decay applies (matrices), 0: not (biases, norms) */
  float deviation; /* initial values: fill + deviation * normal */
  float fill;
};

enum { MT_SHARED_BLOCKS = 16 }; /* most blocks of the shared vector: see sizes.h */

struct mt_params {
  int n, capacity;
  struct mt_param *param; /* [n], owned */
  int64_t shared_length;  /* elements of the shared vector, gaps included (gaps stay zero); a multiple of MT_SHARED_BLOCKS */
  int64_t expert_length;  /* elements of an expert's vector, gaps included */
  int64_t in_w, in_b, out_w, out_b; /* where an expert's tensors begin in it; biases: -1 = none */
  int nmoe, nexpert;      /* MoE layers, experts a layer */
};

/* Appends a row. packed = 1 places it right behind the one before (so that neighbours can be used as one matrix), 0 on the
 * next multiple of 16 elements. Rows of scope expert must be given for MoE layer 0 first; other layers repeat its offsets.
 * Returns the row, borrowed until the next call. Local. */
struct mt_param *mt_params_add(struct mt_params *params, enum mt_scope scope, int layer, int moe, int packed, int decay,
                               float deviation, float fill, int ndim, const int64_t *dim, const char *name, ...)
    __attribute__((format(printf, 11, 12)));
void mt_params_free(struct mt_params *params);
/* Number of distinct parameters of the model (gaps not counted). */
int64_t mt_params_total(const struct mt_params *params);

#endif
