/* Data for the step; see data.h. */
#include "train/data.h"
#include "base/log.h"
#include <stddef.h>

enum mt_status mt_data_open(struct mt_comm *comm, const struct mt_config *config, int train, struct mt_data *data)
{
  *data = (struct mt_data){NULL, config->train.seed, train};
  const char *key = train ? "data.train" : "data.valid", *paths = train ? config->data.train : config->data.valid;
  enum mt_status status = MT_OK;
  for (int turn = 0; turn < 2; turn++) {
    if ((comm->rank == 0) == (turn == 0))
      status = mt_tokens_open(key, paths, config->data.format, config->data.seq_length, config->model.vocab_size, &data->tokens);
    enum mt_status agreed = mt_agree(comm, status);
    if (agreed != MT_OK) {
      mt_data_close(data);
      return agreed;
    }
  }
  int64_t samples = mt_tokens_samples(data->tokens);
  if (!mt_same(comm, &samples, sizeof samples)) {
    if (comm->rank == 0)
      mt_error("%s: the files differ between nodes: rank 0 found %lld samples, another rank another number", key,
               (long long)samples);
    mt_data_close(data);
    return MT_CORRUPT;
  }
  return MT_OK;
}

void mt_data_close(struct mt_data *data)
{
  mt_tokens_close(data->tokens);
  data->tokens = NULL;
}

static enum mt_status read(void *self, int64_t position, int32_t *token)
{
  struct mt_data *data = self;
  return mt_tokens_sample(data->tokens,
                          data->shuffled ? mt_tokens_order(mt_tokens_samples(data->tokens), data->seed, position) : position,
                          token);
}

struct mt_source mt_data_source(struct mt_data *data)
{
  return (struct mt_source){read, data};
}
