/* Token data: files in a row, their samples and the order of these; see tokens.h. */
#include "tokens.h"
#include "base/crc32c.h"
#include "base/memory.h"
#include "base/random.h"
#include "tokens_file.h"
#include "tokens_list.h"
#include <string.h>

struct mt_tokens {
  char *key; /* owned; names the option in messages */
  int64_t T, vocab;
  int64_t nfile, samples, bytes;
  struct mt_tokens_file *file; /* file[nfile], owned */
  int64_t *first;              /* first[nfile]: number of a file's first sample among all files', owned */
};

static enum mt_status open_all(struct mt_tokens *tokens, char *const *names, int64_t n, enum mt_format format,
                               char **fault)
{
  tokens->file = MT_ZNEW(MT_TAG_IO, struct mt_tokens_file, n);
  tokens->first = MT_ZNEW(MT_TAG_IO, int64_t, n);
  for (int64_t i = 0; i < n; i++) {
    struct mt_tokens_file *file = &tokens->file[i];
    tokens->first[i] = tokens->samples;
    tokens->nfile++;
    MT_TRY(mt_tokens_file_open(names[i], format, file, fault));
    /* Only llm.c's files differ in it, and there the width goes with a tokenizer. */
    if (file->width != tokens->file[0].width) {
      *fault = mt_format("%s: found ids of %d bytes, expected %d as in %s: ids of another vocabulary",
                         file->path, file->width, tokens->file[0].width, tokens->file[0].path);
      return MT_CORRUPT;
    }
    if (file->count > 0)
      tokens->samples += (file->count - 1) / tokens->T;
    if (format == MT_FORMAT_BYTES)
      tokens->bytes += file->bytes;
  }
  if (tokens->samples == 0) {
    *fault =
        mt_format("no sample in %s%s: expected a file of at least %lld tokens (data.seq_length + 1)",
                  tokens->file[0].path, n > 1 ? " and the files after it" : "", (long long)(tokens->T + 1));
    return MT_CORRUPT;
  }
  return MT_OK;
}

/* Puts the option's name before what went wrong. */
static enum mt_status named(const char *key, enum mt_status status, char **fault)
{
  if (status != MT_OK) {
    char *text = *fault;
    *fault = mt_format("%s: %s", key, text);
    mt_free(text);
  }
  return status;
}

enum mt_status mt_tokens_open(const char *key, const char *paths, enum mt_format format, int64_t T,
                              int64_t vocab, struct mt_tokens **tokens, char **fault)
{
  MT_CHECK(T > 0 && vocab > 0 && vocab <= INT32_MAX, "%s: T = %lld, vocabulary %lld", key, (long long)T,
           (long long)vocab);
  struct mt_tokens *made = MT_ZNEW(MT_TAG_IO, struct mt_tokens, 1);
  made->key = mt_strdup(key);
  made->T = T;
  made->vocab = vocab;
  char **names;
  int64_t n;
  enum mt_status status = mt_tokens_list(paths, &names, &n, fault);
  if (status == MT_OK)
    status = open_all(made, names, n, format, fault);
  mt_tokens_list_free(names, n);
  if (status != MT_OK) {
    mt_tokens_close(made);
    made = NULL;
  }
  *tokens = made;
  return named(key, status, fault);
}

void mt_tokens_close(struct mt_tokens *tokens)
{
  if (!tokens)
    return;
  for (int64_t f = 0; f < tokens->nfile; f++)
    mt_tokens_file_close(&tokens->file[f]);
  mt_free(tokens->file);
  mt_free(tokens->first);
  mt_free(tokens->key);
  mt_free(tokens);
}

int64_t mt_tokens_files(const struct mt_tokens *tokens)
{
  return tokens->nfile;
}

int64_t mt_tokens_samples(const struct mt_tokens *tokens)
{
  return tokens->samples;
}

int64_t mt_tokens_bytes(const struct mt_tokens *tokens)
{
  return tokens->bytes;
}

uint32_t mt_tokens_identity(const struct mt_tokens *tokens)
{
  uint32_t crc = 0;
  for (int64_t f = 0; f < tokens->nfile; f++) {
    const struct mt_tokens_file *file = &tokens->file[f];
    crc = mt_crc32c(crc, file->path, (int64_t)strlen(file->path) + 1);
    crc = mt_crc32c(crc, &file->bytes, sizeof file->bytes);
  }
  return crc;
}

struct mt_tokens_mark mt_tokens_mark(const struct mt_tokens *tokens)
{
  const int64_t most = 64 << 10;
  struct mt_tokens_mark mark = {.files = tokens->nfile};
  uint32_t crc = 0;
  for (int64_t f = 0; f < tokens->nfile; f++) {
    const struct mt_tokens_file *file = &tokens->file[f];
    int64_t part = file->bytes < most ? file->bytes : most;
    mark.bytes += file->bytes;
    crc = mt_crc32c(crc, &file->bytes, sizeof file->bytes);
    if (part) {
      crc = mt_crc32c(crc, file->data, part);
      crc = mt_crc32c(crc, file->data + file->bytes - part, part);
    }
  }
  mark.crc = crc;
  return mark;
}

/* No control characters but the usual ones; UTF-8 may be there. */
static int is_text(const unsigned char *byte, int64_t n)
{
  for (int64_t i = 0; i < n; i++)
    if ((byte[i] < ' ' && !strchr("\t\n\r\f", byte[i])) || byte[i] == 127 || !byte[i])
      return 0;
  return 1;
}

enum mt_status mt_tokens_glance(const struct mt_tokens *tokens, int *text, char **fault)
{
  enum { BYTES = 4096, FEW = 64 /* may look like text by chance */ };
  int32_t id[BYTES];
  enum mt_status status = MT_OK;
  *text = 0;
  for (int64_t f = 0; f < tokens->nfile && status == MT_OK; f++) {
    const struct mt_tokens_file *file = &tokens->file[f];
    int64_t n = file->count < BYTES / file->width ? file->count : BYTES / file->width;
    if (file->width == 2 && n * file->width >= FEW && is_text(file->data + file->header, n * file->width))
      *text = 1;
    status = mt_tokens_file_read(file, 0, n, tokens->vocab, id, fault);
  }
  return named(tokens->key, status, fault);
}

int64_t mt_tokens_short(const struct mt_tokens *tokens, const char **first)
{
  int64_t n = 0;
  *first = NULL;
  for (int64_t f = tokens->nfile - 1; f >= 0; f--)
    if (tokens->file[f].count <= tokens->T) {
      *first = tokens->file[f].path;
      n++;
    }
  return n;
}

/* The file that holds sample i: the last whose first sample is not above it (one without samples shares its
 * successor's). */
static int64_t find_file(const struct mt_tokens *tokens, int64_t i)
{
  int64_t low = 0, high = tokens->nfile; /* first[low] <= i < first[high] */
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (tokens->first[middle] <= i)
      low = middle;
    else
      high = middle;
  }
  return low;
}

enum mt_status mt_tokens_sample(const struct mt_tokens *tokens, int64_t i, int32_t *token, char **fault)
{
  MT_CHECK(i >= 0 && i < tokens->samples, "sample %lld of %lld", (long long)i, (long long)tokens->samples);
  int64_t f = find_file(tokens, i);
  enum mt_status status = mt_tokens_file_read(&tokens->file[f], (i - tokens->first[f]) * tokens->T,
                                              tokens->T + 1, tokens->vocab, token, fault);
  return named(tokens->key, status, fault);
}

int64_t mt_tokens_order(int64_t samples, int64_t seed, int64_t position)
{
  int64_t epoch = position / samples;
  return (int64_t)mt_random_permute((uint64_t)seed, (uint64_t)epoch, (uint64_t)samples,
                                    (uint64_t)(position % samples));
}
