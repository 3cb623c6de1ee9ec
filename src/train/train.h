/* The commands that run on all ranks. */
#ifndef MT_TRAIN_H
#define MT_TRAIN_H
#include "base/config.h"
#include "comm/comm.h"

/* From here on USR1 and TERM stop `motley train` at the end of its next step. To be called as early as possible, and never
 * undone: a signal that comes while the program starts or ends must not kill it. Local. */
void mt_train_catch_signals(void);
/* `motley train`: trains from the newest complete checkpoint (or from scratch) to train.steps. MT_STOPPED after USR1 or TERM
 * with a complete checkpoint. Collective; the status is agreed. */
enum mt_status mt_train_run(struct mt_comm *comm, const struct mt_config *config);
/* `motley eval`: mean loss (and bits per byte) of each set of data.valid under the newest checkpoint. Collective. */
enum mt_status mt_eval_run(struct mt_comm *comm, const struct mt_config *config);
/* `motley generate`: continues generate.prompt under the newest checkpoint, on stdout of rank 0. Collective. */
enum mt_status mt_generate_run(struct mt_comm *comm, const struct mt_config *config);

#endif
