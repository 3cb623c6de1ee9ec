/* A model's state as a checkpoint, and back. */
#ifndef MT_STATE_H
#define MT_STATE_H
#include "base/config.h"
#include "io/checkpoint.h"
#include "io/tokens.h"
#include "model/model.h"

/* Where training stands besides the weights. */
struct mt_progress {
  int64_t step;     /* last finished */
  int64_t tokens;   /* trained on so far */
  int64_t sequence; /* position of the next step's first sequence */
  int64_t updates;  /* steps that were not skipped */
  struct mt_tokens_mark data; /* trained on; no files = not known */
};

/* The folder of checkpoints: checkpoint.dir, or RUN/checkpoints. The caller frees. */
char *mt_state_dir(const struct mt_config *config);
/* Saves model, moments, progress and, as text, the schedule (mt_step_schedule). *bytes and *seconds tell size and time. Collective; MT_FAILED, said once, agreed. */
enum mt_status mt_state_save(struct mt_comm *comm, struct mt_model *model, const struct mt_config *config,
                             const struct mt_progress *progress, const char *schedule, int64_t *bytes, double *seconds);
/* What checkpoint.resume names. */
struct mt_resume {
  char *path;      /* NULL = start from initial weights; owned by the caller of mt_state_find */
  int64_t before;  /* auto: only checkpoints of steps below this are looked at; begin with INT64_MAX */
  int settled;     /* 1: sizes were taken from comm->cluster, so what a file says was measured is not put into it any more */
  struct mt_progress progress;
  enum mt_sharding sharding; /* what auto came to */
  char *remark;    /* rank 0: what to say of the file if it is taken, after "; "; NULL = nothing; owned like path */
  char *layout;    /* /state/layout of the file; owned like path */
  char *schedule;  /* /state/schedule, likewise; NULL = it has none */
  int layouts;     /* 1: layouts that follow the load go on where the file's were, with the loads of the last steps */
  int same;        /* 1: ranks, places, slots and settings match, so that training goes on bit for bit */
};
/* Finds the checkpoint that checkpoint.resume names and reads its state; its configuration must describe the same model
 * (MT_USAGE if not). With auto, files that are damaged or not understood are passed over for older ones, and `before` becomes the step of the found
 * one: if loading shows that it is damaged too, another call finds the next. MT_CORRUPT if none of them can be used;
 * MT_USAGE if a path is not there. If it was written in the same places, what was measured then is put into
 * comm->cluster, unless that is settled: then a file with other figures is not `same`. Collective, agreed. */
enum mt_status mt_state_find(struct mt_comm *comm, const struct mt_config *config, int training, struct mt_resume *resume);
/* Fills master weights (and moments, if training) from the file that was found, and layouts that follow the load, unless the
 * file has none for these ranks, experts and slots (then it is not `same`); the caller publishes. A file that is taken is
 * remarked on here, so that those passed over are not. With resume = auto a damaged file is only warned of. Collective, agreed. */
enum mt_status mt_state_load(struct mt_comm *comm, struct mt_model *model, const struct mt_config *config,
                             struct mt_resume *resume, int training);

#endif
