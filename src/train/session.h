/* What train, eval and generate have in common: a device, a model, and weights from a checkpoint. */
#ifndef MT_SESSION_H
#define MT_SESSION_H
#include "train/state.h"

/* Layouts that follow the load, after a resume. */
enum mt_layouts_from { MT_LAYOUTS_NONE, MT_LAYOUTS_GO_ON, MT_LAYOUTS_ANEW };

struct mt_session {
  struct mt_comm *comm;           /* borrowed */
  const struct mt_config *config; /* what the model runs with: `chosen` */
  struct mt_config chosen;        /* the caller's, its strings borrowed, with what auto came to */
  struct mt_device *device;       /* owned */
  struct mt_model *model;         /* owned */
  struct mt_resume from;          /* where the weights came from (path NULL = initial values); path owned */
  enum mt_layouts_from layouts;
  struct mt_progress progress;    /* where they stand now */
};

/* The device that this rank drives, by parallel.device and parallel.precision; `say`: with who has which GPU, and why.
 * The caller closes it. Collective, agreed. */
enum mt_status mt_session_device(struct mt_comm *comm, const struct mt_config *config, int say, struct mt_device **device);
/* Opens the device, measures the cluster where something is decided by it (training), builds the model for micro-steps of
 * max_B sequences of T (training: pass 0, it is what the rank's share of the batch needs), finds and loads the checkpoint
 * (the newest that is whole; training: or makes initial weights; otherwise a missing checkpoint is MT_USAGE),
 * publishes. Collective, agreed. On failure nothing is left behind. */
enum mt_status mt_session_open(struct mt_comm *comm, const struct mt_config *config, int64_t max_B, int64_t T,
                               int training, struct mt_session *session);
void mt_session_close(struct mt_session *session);

#endif
