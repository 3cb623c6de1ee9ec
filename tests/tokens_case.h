/* What the suites of token files share: a folder of their own, files in it, and openings and readings that
 * succeed or are refused with one line. */
#ifndef MT_TOKENS_CASE_H
#define MT_TOKENS_CASE_H
#include "io/tokens.h"
#include "test.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char folder[256];

static inline const char *path_of(const char *name)
{
  static char path[4][512];
  static int turn;
  turn = (turn + 1) % 4;
  snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
  return path[turn];
}

static inline const char *write_file(const char *name, const void *data, size_t bytes)
{
  const char *path = path_of(name);
  FILE *file = fopen(path, "wb");
  ck_assert_ptr_nonnull(file);
  ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
  ck_assert_int_eq(fclose(file), 0);
  return path;
}

static inline int lines(const char *text)
{
  int n = 0;
  for (; *text; text++)
    n += *text == '\n';
  return n;
}

/* Opening fails with `expected` and one line that holds `part`. */
static inline void refuse(const char *paths, enum mt_format format, int64_t T, enum mt_status expected,
                          const char *part)
{
  struct mt_tokens *tokens = (struct mt_tokens *)1;
  char *fault = NULL;
  enum mt_status status = mt_tokens_open("data.train", paths, format, T, 256, &tokens, &fault);
  ck_assert_int_eq(status, expected);
  ck_assert_ptr_null(tokens);
  ck_assert_ptr_nonnull(fault);
  ck_assert_int_eq(lines(fault), 0);
  ck_assert_msg(!strncmp(fault, "data.train: ", 12) && strstr(fault, part), "message '%s' lacks '%s'", fault,
                part);
  mt_free(fault);
}

static inline struct mt_tokens *open_good(const char *paths, enum mt_format format, int64_t T, int64_t vocab)
{
  struct mt_tokens *tokens = NULL;
  char *fault = NULL;
  enum mt_status status = mt_tokens_open("data.train", paths, format, T, vocab, &tokens, &fault);
  ck_assert_msg(status == MT_OK, "status %d, %s", status, fault);
  ck_assert_ptr_null(fault);
  ck_assert_ptr_nonnull(tokens);
  return tokens;
}

/* Sample i is read, or refused with one line that holds `part`. */
static inline void sample(const struct mt_tokens *tokens, int64_t i, int32_t *token, const char *part)
{
  char *fault = NULL;
  enum mt_status status = mt_tokens_sample(tokens, i, token, &fault);
  if (!part) {
    ck_assert_msg(status == MT_OK, "status %d, %s", status, fault);
    ck_assert_ptr_null(fault);
    return;
  }
  ck_assert_int_eq(status, MT_CORRUPT);
  ck_assert_ptr_nonnull(fault);
  ck_assert_int_eq(lines(fault), 0);
  ck_assert_msg(!strncmp(fault, "data.train: ", 12) && strstr(fault, part), "message '%s' lacks '%s'", fault,
                part);
  mt_free(fault);
}

static inline int make_folder(void)
{
  snprintf(folder, sizeof folder, "%s/motley-tokens-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  if (mkdtemp(folder))
    return 1;
  perror(folder);
  return 0;
}

/* Removes the n files and the folder, which must be empty then; returns the suite's exit code. */
static inline int remove_folder(int code, const char *const *made, size_t n)
{
  for (size_t i = 0; i < n; i++)
    unlink(path_of(made[i]));
  if (rmdir(folder) != 0 && code == 0) {
    perror(folder);
    code = 1;
  }
  return code;
}

#endif
