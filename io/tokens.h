/* Token data: files of bytes, uint16 or uint32, memory-mapped, cut into samples.
 *
 * A file of n tokens gives floor((n - 1) / T) samples of T + 1 tokens at stride T (inputs and targets shifted by one);
 * none crosses files. Samples are numbered through the files in the order given. 64-bit throughout. */
#ifndef MT_TOKENS_H
#define MT_TOKENS_H
#include <stdint.h>
#include "base/config.h"

struct mt_tokens;

/* Opens comma-separated paths (spaces around them ignored). `key` ("data.train") names the option in messages. Every token
 * id is checked against `vocab` as it is read. Local. MT_USAGE: a file is missing or the list empty; MT_CORRUPT:
 * unreadable, not a whole number of tokens, no file has a sample; one message with path, found, expected. */
enum mt_status mt_tokens_open(const char *key, const char *paths, enum mt_format format, int64_t T, int64_t vocab,
                              struct mt_tokens **tokens);
void mt_tokens_close(struct mt_tokens *tokens);
int64_t mt_tokens_samples(const struct mt_tokens *tokens);
int64_t mt_tokens_bytes(const struct mt_tokens *tokens); /* of the text, for bits per byte: bytes format only, else 0 */
/* token[T + 1] of sample i (0 <= i < samples). Local. MT_CORRUPT with file, byte offset and id if an id is >= vocab (or
 * the file was truncated since it was opened: no SIGBUS). */
enum mt_status mt_tokens_sample(const struct mt_tokens *tokens, int64_t i, int32_t *token);

/* The sample that is number `position` (0, 1, 2, ... over all epochs) of a run: epoch = position / n, then a keyed
 * bijection of the epoch (base/random.h). Pure. */
int64_t mt_tokens_order(int64_t samples, int64_t seed, int64_t position);

#endif
