/* Token data: files of bytes, uint16, uint32 or llm.c's shards, memory-mapped, cut into samples.
 *
 * A file of n tokens gives floor((n - 1) / T) samples of T + 1 tokens at stride T (inputs and targets shifted
 * by one); none crosses files. Samples are numbered through the files in the order given, those of a pattern
 * sorted. 64-bit throughout. What fails gives its message as text, to be said by the one rank that is chosen
 * to: of many ranks that read a damaged file, all fail alike. */
#ifndef MT_TOKENS_H
#define MT_TOKENS_H
#include <stdint.h>
#include "base/config.h"

struct mt_tokens;

/* Opens comma-separated paths and patterns (tokens_list.h says how they expand). `key` ("data.train") names
 * the option in messages. Every token id is checked against `vocab` as it is read. Local. A failure sets
 * *fault (the caller frees), one line with path, found, expected, and *tokens = NULL. MT_USAGE: a file is
 * missing, a pattern matches none, the list is empty; MT_CORRUPT: unreadable, not a whole number of tokens, a
 * header that is wrong or does not agree with the size, files of different widths, no file has a sample. */
enum mt_status mt_tokens_open(const char *key, const char *paths, enum mt_format format, int64_t T,
                              int64_t vocab, struct mt_tokens **tokens, char **fault);
void mt_tokens_close(struct mt_tokens *tokens);
int64_t mt_tokens_files(const struct mt_tokens *tokens);
int64_t mt_tokens_samples(const struct mt_tokens *tokens);
int64_t mt_tokens_bytes(
    const struct mt_tokens *tokens); /* of the text, for bits per byte: bytes format only, else 0 */
/* CRC-32C of the files' names and sizes, in order: equal where all see the same files. */
uint32_t mt_tokens_identity(const struct mt_tokens *tokens);
/* What shows that the same tokens are read: sizes, and CRC-32C of the beginning and the end of each file. */
struct mt_tokens_mark {
  int64_t files, bytes, crc;
};
/* Of files as they are now, 128 KiB of each; names do not count. Call it soon after they were opened. Local. */
struct mt_tokens_mark mt_tokens_mark(const struct mt_tokens *tokens);
/* Looks at the ids in the first 4 KiB of each file: what a wrong data.format or another tokenizer makes of them shows there,
 * before anything is trained. *text = 1 if ids of two bytes are all made of characters. Local. Fails like mt_tokens_sample. */
enum mt_status mt_tokens_glance(const struct mt_tokens *tokens, int *text, char **fault);
/* How many files are too short for a sample, and the first one's name, borrowed (NULL = none). */
int64_t mt_tokens_short(const struct mt_tokens *tokens, const char **first);
/* token[T + 1] of sample i (0 <= i < samples). Local. MT_CORRUPT, with *fault as above, if an id is >= vocab
 * (file, byte offset and id are told) or the file was truncated since it was opened (no SIGBUS); token is
 * then undefined. */
enum mt_status mt_tokens_sample(const struct mt_tokens *tokens, int64_t i, int32_t *token, char **fault);

/* The sample that is number `position` (0, 1, 2, ... over all epochs) of a run: epoch = position / n, then a
 * keyed bijection of the epoch (base/random.h). Pure. */
int64_t mt_tokens_order(int64_t samples, int64_t seed, int64_t position);

#endif
