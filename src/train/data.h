/* The configuration's data as sources of sequences. */
#ifndef MT_DATA_H
#define MT_DATA_H
#include "io/tokens.h"
#include "train/step.h"

struct mt_data {
  struct mt_tokens *tokens;
  int64_t seed;
  int shuffled; /* 1: positions run through a keyed permutation per epoch; 0: position = sample */
};

/* Opens data.train (shuffled) or data.valid (in order) on all ranks: rank 0 first, so that a mistake in the configuration is
 * said once. Collective; the status is agreed, and so is the number of samples. Close with mt_data_close. */
enum mt_status mt_data_open(struct mt_comm *comm, const struct mt_config *config, int train, struct mt_data *data);
void mt_data_close(struct mt_data *data);
/* A source that borrows `data`. */
struct mt_source mt_data_source(struct mt_data *data);

#endif
