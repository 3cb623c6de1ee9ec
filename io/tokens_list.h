/* The names of data.train and data.valid: commas, blanks and patterns made into a list of files. */
#ifndef MT_TOKENS_LIST_H
#define MT_TOKENS_LIST_H
#include <stdint.h>
#include "base/status.h"

/* Expands comma-separated names (blanks around them do not count) into (*names)[*n], patterns of the shell
 * (*, ?, [a-z]) in place, each sorted by byte values, which no locale changes. A name that exists is taken as
 * it is, whatever characters it has. A file that is named twice counts twice. Local. The caller frees with
 * mt_tokens_list_free, after a failure too. Fails with *fault (the caller frees): MT_USAGE: an empty name, a
 * pattern that no file matches; MT_CORRUPT: a folder that cannot be read. Names without a pattern are not
 * looked up. */
enum mt_status mt_tokens_list(const char *paths, char ***names, int64_t *n, char **fault);
void mt_tokens_list_free(char **names, int64_t n);

#endif
