/* One file of token ids; see tokens_file.h.
 *
 * Files are mapped, so that a sample costs a copy of its own pages and nothing else, however large the file;
 * only maps are kept, since a thousand shards are more than the descriptors that a process usually may have.
 * The trap of a map is a file that shrinks underneath it: touching a page beyond the new end is a SIGBUS, not
 * an error. So the size is asked for again before each sample; what remains is the instant between the
 * question and the copy.
 *
 * llm.c's shards (A. Karpathy's llm.c, dev/data/data_common.py) begin with 256 int32: magic, version, number
 * of ids. The magic tells the width, and in practice the tokenizer: GPT-2's or Llama 3's. */
#include "tokens_file.h"
#include "base/memory.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER = 1024 };

static const struct kind {
  int32_t magic, version;
  int width;
} kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

static const struct kind *find_kind(int32_t magic)
{
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (magic == kinds[i].magic)
      return &kinds[i];
  return NULL;
}

/* llm.c's other files, to tell a mistaken name from a damaged file. */
static const char *other_kind(int32_t magic)
{
  switch (magic) {
  case 20240522:
    return ", llm.c's evaluation data";
  case 20240326:
    return ", llm.c's model";
  case 20240327:
    return ", llm.c's debug state";
  case 20240328:
    return ", llm.c's tokenizer";
  case 20240527:
    return ", llm.c's training state";
  default:
    return "";
  }
}

static uint32_t id_at(const unsigned char *at, int width)
{
  uint32_t id = 0;
  for (int b = 0; b < width; b++)
    id |= (uint32_t)at[b] << (8 * b);
  return id;
}

/* Word i of the header, an int32. */
static int32_t word(const struct mt_tokens_file *file, int i)
{
  int64_t word = id_at(file->data + 4 * i, 4);
  return (int32_t)(word > INT32_MAX ? word - ((int64_t)UINT32_MAX + 1) : word);
}

/* Sets *fault and returns MT_CORRUPT. */
#define CORRUPT(file, ...) (*fault = located((file)->path, mt_format(__VA_ARGS__)), MT_CORRUPT)

static char *located(const char *path, char *text)
{
  char *both = mt_format("%s: %s", path, text);
  mt_free(text);
  return both;
}

static enum mt_status read_header(struct mt_tokens_file *file, char **fault)
{
  const struct kind *kind = file->bytes >= 4 ? find_kind(word(file, 0)) : NULL;
  if (file->bytes >= 4 && !kind)
    return CORRUPT(
        file,
        "byte 0: found %d%s, expected %d or %d, llm.c's tokens (data.format = llmc; ids without a header are "
        "uint16 or uint32)",
        word(file, 0), other_kind(word(file, 0)), kinds[0].magic, kinds[1].magic);
  if (file->bytes < HEADER)
    return CORRUPT(file, "found %lld bytes, expected at least %d, llm.c's header", (long long)file->bytes,
                   HEADER);
  if (word(file, 1) != kind->version)
    return CORRUPT(file, "byte 4: found version %d, expected %d behind magic %d", word(file, 1),
                   kind->version, kind->magic);
  file->count = word(file, 2);
  if (file->count < 0)
    return CORRUPT(file, "byte 8: found %lld tokens, expected 0 or more", (long long)file->count);
  file->header = HEADER;
  file->width = kind->width;
  int64_t expected = HEADER + file->count * file->width;
  if (file->bytes != expected)
    return CORRUPT(
        file, "found %lld bytes, expected %lld: a header of %d and, by its byte 8, %lld tokens of %d bytes",
        (long long)file->bytes, (long long)expected, HEADER, (long long)file->count, file->width);
  return MT_OK;
}

/* A file of ids alone. */
static enum mt_status check_raw(struct mt_tokens_file *file, enum mt_format format, char **fault)
{
  const struct kind *kind = file->bytes >= HEADER ? find_kind(word(file, 0)) : NULL;
  file->width = format == MT_FORMAT_UINT32 ? 4 : format == MT_FORMAT_UINT16 ? 2 : 1;
  if (kind && word(file, 1) == kind->version)
    return CORRUPT(file, "byte 0: found llm.c's header (magic %d), which is read with data.format = llmc",
                   kind->magic);
  if (file->bytes % file->width != 0)
    return CORRUPT(file, "found %lld bytes, expected a multiple of %d, the size of a token (data.format)",
                   (long long)file->bytes, file->width);
  file->count = file->bytes / file->width;
  return MT_OK;
}

static enum mt_status map(struct mt_tokens_file *file, int fd, char **fault)
{
  struct stat info;
  if (fd < 0 || fstat(fd, &info) != 0) {
    int missing = errno == ENOENT || errno == ENOTDIR;
    *fault = located(file->path, mt_format("cannot be opened: %s", strerror(errno)));
    return missing ? MT_USAGE : MT_CORRUPT;
  }
  if (!S_ISREG(info.st_mode))
    return CORRUPT(file, "is %s, expected a file of tokens",
                   S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
  file->bytes = info.st_size;
  file->device = info.st_dev;
  file->inode = info.st_ino;
  if (file->bytes == 0)
    return MT_OK;
  void *data = mmap(NULL, (size_t)file->bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED)
    return CORRUPT(file, "its %lld bytes cannot be mapped: %s", (long long)file->bytes, strerror(errno));
  file->data = data;
  return MT_OK;
}

enum mt_status mt_tokens_file_open(const char *path, enum mt_format format, struct mt_tokens_file *file,
                                   char **fault)
{
  *file = (struct mt_tokens_file){.path = mt_strdup(path)};
  /* Without O_NONBLOCK a named pipe would wait for its writer for ever. */
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  enum mt_status status = map(file, fd, fault);
  if (fd >= 0)
    close(fd);
  MT_TRY(status);
  return format == MT_FORMAT_LLMC ? read_header(file, fault) : check_raw(file, format, fault);
}

void mt_tokens_file_close(struct mt_tokens_file *file)
{
  if (file->data)
    munmap((void *)file->data, (size_t)file->bytes);
  mt_free(file->path);
  *file = (struct mt_tokens_file){0};
}

enum mt_status mt_tokens_file_read(const struct mt_tokens_file *file, int64_t first, int64_t n, int64_t vocab,
                                   int32_t *token, char **fault)
{
  int64_t offset = file->header + first * file->width, end = offset + n * file->width;
  struct stat info;
  /* A name that is gone or means another file by now says nothing about the map, which keeps the old one
   * alive. */
  if (stat(file->path, &info) == 0 && info.st_dev == file->device && info.st_ino == file->inode &&
      info.st_size < end)
    return CORRUPT(file, "was cut off while it was in use: found %lld bytes, expected %lld",
                   (long long)info.st_size, (long long)file->bytes);
  for (int64_t t = 0; t < n; t++, offset += file->width) {
    uint32_t id = id_at(file->data + offset, file->width);
    if ((int64_t)id >= vocab)
      return CORRUPT(file, "byte %lld: found token id %lu, expected less than model.vocab_size = %lld",
                     (long long)offset, (unsigned long)id, (long long)vocab);
    token[t] = (int32_t)id;
  }
  return MT_OK;
}
