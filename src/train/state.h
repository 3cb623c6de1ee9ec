/* A model's state as a checkpoint, and back. */
#ifndef MT_STATE_H
#define MT_STATE_H
#include "base/config.h"
#include "io/checkpoint.h"
#include "model/model.h"

/* Where training stands besides the weights. */
struct mt_progress {
  int64_t step;     /* last finished */
  int64_t tokens;   /* trained on so far */
  int64_t sequence; /* position of the next step's first sequence */
  int64_t updates;  /* steps that were not skipped */
};

/* The folder of checkpoints: checkpoint.dir, or RUN/checkpoints. The caller frees. */
char *mt_state_dir(const struct mt_config *config);
/* Saves model, moments and progress. *bytes and *seconds tell size and time. Collective; MT_FAILED, said once, agreed. */
enum mt_status mt_state_save(struct mt_comm *comm, struct mt_model *model, const struct mt_config *config,
                             const struct mt_progress *progress, int64_t *bytes, double *seconds);
/* The checkpoint that checkpoint.resume names (*path NULL: none; the caller frees), and its state: `stored` gets its
 * configuration, which must describe the same model (MT_USAGE if not). *same = 1 if ranks, places, slots and
 * settings match, so that training goes on bit for bit. Collective. */
enum mt_status mt_state_find(struct mt_comm *comm, const struct mt_config *config, char **path, struct mt_progress *progress,
                             int *same);
/* Fills master weights (and moments, if training) from a file; the caller publishes. Collective. */
enum mt_status mt_state_load(struct mt_comm *comm, struct mt_model *model, const char *path, int training);

#endif
