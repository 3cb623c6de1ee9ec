/* One file of token ids: what its format says of it, and its ids. For tokens.c only. */
#ifndef MT_TOKENS_FILE_H
#define MT_TOKENS_FILE_H
#include <stdint.h>
#include <sys/types.h>
#include "base/config.h"

struct mt_tokens_file {
  char *path;                /* owned */
  const unsigned char *data; /* map of `bytes` bytes; NULL if there are none */
  int64_t bytes, header;     /* of the whole file, of what comes before the first id */
  int64_t count;             /* ids */
  int width;                 /* bytes of an id, little-endian: 1, 2, 4 */
  dev_t device;              /* with inode: what was mapped, should the name come to mean another file */
  ino_t inode;
};

/* Opens, checks and maps a file; no descriptor stays open. llm.c's header is checked against the size, to the
 * byte; a raw format refuses a file with that header. Local. Close it, also after a failure: *fault (the
 * caller frees) is then "PATH: found, expected". MT_USAGE: it does not exist; MT_CORRUPT: anything else. */
enum mt_status mt_tokens_file_open(const char *path, enum mt_format format, struct mt_tokens_file *file,
                                   char **fault);
void mt_tokens_file_close(struct mt_tokens_file *file);
/* token[n] = the ids from number `first` on. Local. MT_CORRUPT with *fault: an id is not below `vocab` (file,
 * byte, id), or the file was cut off since it was opened. */
enum mt_status mt_tokens_file_read(const struct mt_tokens_file *file, int64_t first, int64_t n, int64_t vocab,
                                   int32_t *token, char **fault);

#endif
