/* Token data; see tokens.h.
 *
 * The files are mapped, so that a sample costs a copy of its own pages and nothing else, however large the
 * file. The trap of a map is a file that shrinks underneath it: touching a page beyond the new end is a
 * SIGBUS, not an error. So the size is asked for again before each sample; what remains is the instant
 * between the question and the copy. Ids of more than a byte are little-endian on disk, whatever the machine.
 */
#include "tokens.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct file {
  char *path;                /* owned */
  int fd;                    /* open while the map lives: its size is asked for; -1 = closed */
  const unsigned char *data; /* map of `bytes` bytes; NULL if empty */
  int64_t bytes;
  int64_t first; /* number of its first sample among all files' */
};

struct mt_tokens {
  char *key; /* owned; names the option in messages */
  int64_t T, vocab;
  int width; /* bytes of a token on disk */
  int64_t nfile, samples, bytes;
  struct file *file; /* file[nfile], owned */
};

static int width_of(enum mt_format format)
{
  switch (format) {
  case MT_FORMAT_UINT16:
    return 2;
  case MT_FORMAT_UINT32:
    return 4;
  case MT_FORMAT_BYTES:
    break;
  }
  return 1;
}

/* The next path of a comma-separated list as a new string without spaces around it; *list moves on, NULL
 * after the last. */
static char *next_path(const char **list)
{
  const char *begin = *list, *comma = strchr(begin, ','), *end = comma ? comma : begin + strlen(begin);
  *list = comma ? comma + 1 : NULL;
  while (begin < end && isspace((unsigned char)*begin))
    begin++;
  while (end > begin && isspace((unsigned char)end[-1]))
    end--;
  return mt_format("%.*s", (int)(end - begin), begin);
}

static enum mt_status open_file(const struct mt_tokens *tokens, struct file *file)
{
  struct stat info;
  /* Without O_NONBLOCK a named pipe would wait for its writer for ever. */
  file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->fd < 0 || fstat(file->fd, &info) != 0) {
    int missing = errno == ENOENT || errno == ENOTDIR;
    mt_error("%s: cannot open %s: %s", tokens->key, file->path, strerror(errno));
    return missing ? MT_USAGE : MT_CORRUPT;
  }
  if (!S_ISREG(info.st_mode)) {
    mt_error("%s: %s is %s, expected a file of tokens", tokens->key, file->path,
             S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
    return MT_CORRUPT;
  }
  file->bytes = info.st_size;
  if (file->bytes % tokens->width != 0) {
    mt_error("%s: %s has %lld bytes, expected a multiple of %d, the size of a token (data.format)",
             tokens->key, file->path, (long long)file->bytes, tokens->width);
    return MT_CORRUPT;
  }
  if (file->bytes == 0)
    return MT_OK;
  void *map = mmap(NULL, (size_t)file->bytes, PROT_READ, MAP_SHARED, file->fd, 0);
  if (map == MAP_FAILED) {
    mt_error("%s: cannot map the %lld bytes of %s: %s", tokens->key, (long long)file->bytes, file->path,
             strerror(errno));
    return MT_CORRUPT;
  }
  file->data = map;
  return MT_OK;
}

static enum mt_status open_all(struct mt_tokens *tokens, const char *paths)
{
  while (paths) {
    struct file *file = &tokens->file[tokens->nfile++];
    *file = (struct file){.path = next_path(&paths), .fd = -1, .first = tokens->samples};
    if (file->path[0] == '\0') {
      mt_error("%s: found an empty name, expected paths of files separated by commas", tokens->key);
      return MT_USAGE;
    }
    MT_TRY(open_file(tokens, file));
    int64_t n = file->bytes / tokens->width;
    if (n > 0)
      tokens->samples += (n - 1) / tokens->T;
    if (tokens->width == 1)
      tokens->bytes += file->bytes;
  }
  if (tokens->samples == 0) {
    mt_error("%s: no sample in %s%s: expected a file of at least %lld tokens (data.seq_length + 1)",
             tokens->key, tokens->file[0].path, tokens->nfile > 1 ? " and the files after it" : "",
             (long long)(tokens->T + 1));
    return MT_CORRUPT;
  }
  return MT_OK;
}

enum mt_status mt_tokens_open(const char *key, const char *paths, enum mt_format format, int64_t T,
                              int64_t vocab, struct mt_tokens **tokens)
{
  MT_CHECK(T > 0 && vocab > 0 && vocab <= INT32_MAX, "%s: T = %lld, vocabulary %lld", key, (long long)T,
           (long long)vocab);
  int64_t n = 1;
  for (const char *c = paths; *c; c++)
    n += *c == ',';
  struct mt_tokens *made = MT_ZNEW(MT_TAG_IO, struct mt_tokens, 1);
  made->key = mt_strdup(key);
  made->T = T;
  made->vocab = vocab;
  made->width = width_of(format);
  made->file = MT_ZNEW(MT_TAG_IO, struct file, n);
  enum mt_status status = open_all(made, paths);
  if (status != MT_OK) {
    mt_tokens_close(made);
    made = NULL;
  }
  *tokens = made;
  return status;
}

void mt_tokens_close(struct mt_tokens *tokens)
{
  if (!tokens)
    return;
  for (int64_t f = 0; f < tokens->nfile; f++) {
    struct file *file = &tokens->file[f];
    if (file->data)
      munmap((void *)file->data, (size_t)file->bytes);
    if (file->fd >= 0)
      close(file->fd);
    mt_free(file->path);
  }
  mt_free(tokens->file);
  mt_free(tokens->key);
  mt_free(tokens);
}

int64_t mt_tokens_samples(const struct mt_tokens *tokens)
{
  return tokens->samples;
}

int64_t mt_tokens_bytes(const struct mt_tokens *tokens)
{
  return tokens->bytes;
}

/* The file that holds sample i: the last whose first sample is not above it (an empty file shares its
 * successor's). */
static const struct file *find_file(const struct mt_tokens *tokens, int64_t i)
{
  int64_t low = 0, high = tokens->nfile; /* file[low].first <= i < file[high].first */
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (tokens->file[middle].first <= i)
      low = middle;
    else
      high = middle;
  }
  return &tokens->file[low];
}

static uint32_t id_at(const unsigned char *at, int width)
{
  uint32_t id = 0;
  for (int b = 0; b < width; b++)
    id |= (uint32_t)at[b] << (8 * b);
  return id;
}

enum mt_status mt_tokens_sample(const struct mt_tokens *tokens, int64_t i, int32_t *token)
{
  MT_CHECK(i >= 0 && i < tokens->samples, "sample %lld of %lld", (long long)i, (long long)tokens->samples);
  const struct file *file = find_file(tokens, i);
  int64_t offset = (i - file->first) * tokens->T * tokens->width;
  int64_t end = offset + (tokens->T + 1) * tokens->width;
  struct stat info = {0};
  if (fstat(file->fd, &info) != 0 || info.st_size < end) {
    mt_error("%s: %s was cut off while it was in use: expected %lld bytes, found %lld", tokens->key,
             file->path, (long long)file->bytes, (long long)info.st_size);
    return MT_CORRUPT;
  }
  const unsigned char *at = file->data + offset;
  for (int64_t t = 0; t <= tokens->T; t++, at += tokens->width) {
    uint32_t id = id_at(at, tokens->width);
    if ((int64_t)id >= tokens->vocab) {
      mt_error("%s: %s: byte %lld: found token id %lu, expected less than model.vocab_size = %lld",
               tokens->key, file->path, (long long)(at - file->data), (unsigned long)id,
               (long long)tokens->vocab);
      return MT_CORRUPT;
    }
    token[t] = (int32_t)id;
  }
  return MT_OK;
}

int64_t mt_tokens_order(int64_t samples, int64_t seed, int64_t position)
{
  int64_t epoch = position / samples;
  return (int64_t)mt_random_permute((uint64_t)seed, (uint64_t)epoch, (uint64_t)samples,
                                    (uint64_t)(position % samples));
}
