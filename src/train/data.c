/* Data for the step; see data.h. */
#include "train/data.h"
#include "base/log.h"
#include "base/memory.h"
#include <stddef.h>

enum mt_status mt_data_say(struct mt_comm *comm, struct mt_data *data)
{
  /* the worst status speaks, since it becomes the exit code; of equals the lowest rank */
  int64_t claim = data->status ? (int64_t)data->status * (comm->size + 1) + comm->size - comm->rank : 0,
          best = claim;
  mt_max_int(comm, &best, 1);
  if (claim && claim == best)
    mt_error("%s", data->fault);
  mt_free(data->fault);
  data->fault = NULL;
  data->status = MT_OK;
  return (enum mt_status)(best / (comm->size + 1));
}

/* Token ids read as bytes would train without complaint; text has no zero bytes, ids have many. */
static void warn_of_zeros(struct mt_comm *comm, const struct mt_config *config, const char *key, const struct mt_tokens *tokens)
{
  if (comm->rank != 0 || config->data.format != MT_FORMAT_BYTES)
    return;
  int32_t *token = MT_NEW(MT_TAG_IO, int32_t, config->data.seq_length + 1);
  char *fault = NULL;
  int64_t zeros = 0, n = mt_tokens_sample(tokens, 0, token, &fault) == MT_OK ? config->data.seq_length + 1 : 0;
  for (int64_t t = 0; t < n; t++)
    zeros += token[t] == 0;
  if (zeros)
    mt_warn("%s: found %lld zeros in the first %lld bytes, which text does not have; token ids are read with data.format = "
            "uint16, uint32 or llmc",
            key, (long long)zeros, (long long)n);
  mt_free(fault);
  mt_free(token);
}

/* An empty file among others is more often a download that failed than a wish. */
static void warn_of_short(struct mt_comm *comm, const char *key, const struct mt_tokens *tokens)
{
  const char *first;
  int64_t n = mt_tokens_short(tokens, &first);
  if (n && comm->rank == 0)
    mt_warn("%s: %s: found too few tokens for a sample (data.seq_length + 1)%s", key, first,
            n > 1 ? "; so have other files" : "");
}

enum mt_status mt_data_open(struct mt_comm *comm, const struct mt_config *config, const char *key,
                            const char *paths, int shuffled, struct mt_data *data)
{
  *data = (struct mt_data){.seed = config->train.seed, .shuffled = shuffled};
  data->status = mt_tokens_open(key, paths, config->data.format, config->data.seq_length,
                                config->model.vocab_size, &data->tokens, &data->fault);
  int text = 0;
  if (data->status == MT_OK)
    data->status = mt_tokens_glance(data->tokens, &text, &data->fault);
  enum mt_status status = mt_data_say(comm, data);
  if (status == MT_OK) {
    const int64_t seen[3] = {mt_tokens_files(data->tokens), mt_tokens_samples(data->tokens),
                             mt_tokens_identity(data->tokens)};
    if (!mt_same(comm, seen, sizeof seen)) {
      if (comm->rank == 0)
        mt_error("%s: the files differ between nodes: rank 0 found %lld files with %lld samples, another "
                 "rank found others or "
                 "sees them under other names",
                 key, (long long)seen[0], (long long)seen[1]);
      status = MT_CORRUPT;
    }
  }
  if (status == MT_OK) {
    warn_of_zeros(comm, config, key, data->tokens);
    warn_of_short(comm, key, data->tokens);
    if (text && comm->rank == 0) /* a large vocabulary takes it all */
      mt_warn("%s: found a file that begins with characters only, expected ids of 2 bytes; text is read with data.format = bytes",
              key);
  } else
    mt_data_close(data);
  return status;
}

void mt_data_close(struct mt_data *data)
{
  mt_tokens_close(data->tokens);
  mt_free(data->fault);
  *data = (struct mt_data){0};
}

static enum mt_status read(void *self, int64_t position, int32_t *token)
{
  struct mt_data *data = self;
  int64_t sample =
      data->shuffled ? mt_tokens_order(mt_tokens_samples(data->tokens), data->seed, position) : position;
  char *fault = NULL;
  enum mt_status status = mt_tokens_sample(data->tokens, sample, token, &fault);
  if (status != MT_OK && data->status == MT_OK) {
    data->status = status;
    data->fault = fault;
    return status;
  }
  mt_free(fault);
  return status;
}

struct mt_source mt_data_source(struct mt_data *data)
{
  return (struct mt_source){read, data};
}
