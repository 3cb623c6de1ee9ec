/* The configuration's data as sources of sequences. */
#ifndef MT_DATA_H
#define MT_DATA_H
#include "io/tokens.h"
#include "train/step.h"

struct mt_data {
  struct mt_tokens *tokens;
  int64_t seed;
  int shuffled;          /* 1: positions run through a keyed permutation per epoch; 0: position = sample */
  enum mt_status status; /* of this rank's reading: the first failure, kept until mt_data_say */
  char *fault;           /* its message, owned */
};

/* Opens comma-separated files on all ranks; `key` names the option in messages. A failure is said once, whoever and
 * however many see it. Collective; the status is agreed, and so are the files' names and sizes. Close with
 * mt_data_close. */
enum mt_status mt_data_open(struct mt_comm *comm, const struct mt_config *config, const char *key,
                            const char *paths, int shuffled, struct mt_data *data);
void mt_data_close(struct mt_data *data);
/* A source that borrows `data`. Its failures are silent until mt_data_say. */
struct mt_source mt_data_source(struct mt_data *data);
/* Lets one rank say why reading failed, if it did on any; returns the agreed status. Collective. */
enum mt_status mt_data_say(struct mt_comm *comm, struct mt_data *data);

#endif
