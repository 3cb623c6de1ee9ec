/* A model with the weights of a vector file, ready to run steps on the vectors' tokens, at any number of ranks.
 *
 * Idea: all cuts, layouts, exchanges and devices must give the oracle's numbers, so "invariance" needs no second run: every
 * case is compared with the vectors. Trap: ranks hold different pieces, so errors are summed over ranks before anyone
 * asserts; all functions here that compare are collective and assert the same on every rank. */
#ifndef MT_MODEL_CASE_H
#define MT_MODEL_CASE_H
#include "train/session.h"
#include "train/step.h"
#include "vectors.h"

/* Ranks of the test, and pretend nodes of unequal size for so many: MOTLEY_NODES. Local. */
int model_case_ranks(void);
const char *model_case_ragged(void);

struct model_case {
  struct vectors *vectors;
  struct mt_comm *comm;
  struct mt_config config;
  struct mt_device *device;
  struct mt_model *model;
  struct mt_step *step;
  int32_t *token; /* [nbatch, B, stored] */
  int64_t B, nbatch, stored; /* sequences of a batch, batches, tokens of a sequence in the file */
  int64_t T;                 /* stored - 1 unless data.seq_length is overridden: the first T + 1 tokens count */
};

/* Opens tests/vectors/<name>.h5 on all ranks; `overrides` are lines "section.key=value", n of them, over the file's /config
 * (and /curve/config if curve). `nodes` is MOTLEY_NODES or NULL. device "cpu" or "ref", `threads` compute threads.
 * With model.num_hidden_layers overridden the file's layers come again, scaled, and nothing in the file is the answer.
 * The step's last task, the update, is left out unless `update`. Collective. */
struct model_case *model_case_open(const char *name, const char *nodes, const char *device, int threads, int curve, int update,
                                   int n, const char *const *overrides);
void model_case_close(struct model_case *c);
/* Largest norm-wise relative error of a tensor's shard gradients against /<scope>/grads (a tensor whose gradient is zero is
 * measured against its layer's norm); *worst names the tensor (borrowed). Collective, agreed. */
double model_case_gradient_error(struct model_case *c, const char *scope, const char **worst);
/* Norm-wise relative error, after a step, of the logits of all ranks' rows against /logits. Collective, agreed. */
double model_case_logits_error(struct model_case *c);
/* CRC-32C of all shard gradients (weights = 1: of master weights), combined over ranks in rank order. Collective. */
uint32_t model_case_hash(struct model_case *c, int weights);
/* n names the vector files that every case runs on. */
enum { MODEL_CASES = 6 };
extern const char *const model_case_names[MODEL_CASES];

/* Leaves out the step's last task, the update, which uses the gradients up. */
void model_case_without_update(struct mt_step *step);

#endif
