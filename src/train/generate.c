/* Not built yet. */
#include "train/train.h"

enum mt_status mt_generate_run(struct mt_comm *comm, const struct mt_config *config)
{
  (void)comm, (void)config;
  return MT_FAILED;
}
