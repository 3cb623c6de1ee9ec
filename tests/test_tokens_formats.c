/* Formats and names of token files: llm.c's shards whole and damaged, the same tokens in every format and cut
 * into shards, patterns. ranks: 1 */
#include "tokens_case.h"
#include "base/crc32c.h"
#include <sys/resource.h>
#include <sys/stat.h>

/* ---- llm.c's files ---- */

/* Writes a header of the given words (then zeros up to 1024 bytes), n ids of `width` bytes, and `more` zero
 * bytes, of which the first `bytes` are kept. */
static const char *write_llmc(const char *name, const int32_t words[3], const uint32_t *id, int64_t n,
                              int width, int64_t more, int64_t bytes)
{
  static unsigned char data[1024 + 4 * 1024];
  memset(data, 0, sizeof data);
  for (int i = 0; i < 12; i++)
    data[i] = (unsigned char)((uint32_t)words[i / 4] >> (8 * (i % 4)));
  int64_t size = 1024;
  for (int64_t t = 0; t < n; t++)
    for (int b = 0; b < width; b++)
      data[size++] = (unsigned char)(id[t] >> (8 * b));
  size += more;
  ck_assert_int_le(size, sizeof data);
  return write_file(name, data, (size_t)(bytes >= 0 && bytes < size ? bytes : size));
}

/* Found and expected of every damage, at the place in the file; each file has ids that a sample of 3 could be
 * made of. */
static const struct damage {
  int32_t words[3];
  int n, width;
  int64_t more, bytes; /* behind the ids; kept in all, -1 = everything */
  const char *part;
} damages[] = {
    {{20240520, 1, 5}, 5, 2, 0, 0, "llmc: found 0 bytes, expected at least 1024, llm.c's header"},
    {{20240520, 1, 5}, 5, 2, 0, 3, "llmc: found 3 bytes, expected at least 1024"},
    {{20240520, 1, 5}, 5, 2, 0, 1023, "llmc: found 1023 bytes, expected at least 1024"},
    {{20240520, 1, 5},
     5,
     2,
     0,
     1024,
     "llmc: found 1024 bytes, expected 1034: a header of 1024 and, by its byte 8, 5 tokens of 2"},
    {{20240520, 1, 5}, 5, 2, 0, 1033, "llmc: found 1033 bytes, expected 1034"}, /* an odd size */
    {{20240520, 1, 5}, 5, 2, 1, -1, "llmc: found 1035 bytes, expected 1034"},
    {{20240520, 1, 6}, 5, 2, 0, -1, "llmc: found 1034 bytes, expected 1036"},
    {{20240520, 1, 4}, 5, 2, 0, -1, "llmc: found 1034 bytes, expected 1032"},
    {{20240520, 1, INT32_MAX}, 5, 2, 0, -1, "llmc: found 1034 bytes, expected 4294968318"},
    {{20240520, 1, -5}, 5, 2, 0, -1, "llmc: byte 8: found -5 tokens, expected 0 or more"},
    {{20240520, 1, INT32_MIN}, 5, 2, 0, -1, "llmc: byte 8: found -2147483648 tokens"},
    {{20240520, 2, 5}, 5, 2, 0, -1, "llmc: byte 4: found version 2, expected 1 behind magic 20240520"},
    {{20240520, 7, 5}, 5, 2, 0, -1, "llmc: byte 4: found version 7, expected 1"},
    {{20240801, 1, 5}, 5, 4, 0, -1, "llmc: byte 4: found version 1, expected 7 behind magic 20240801"},
    {{20240801, 7, 5},
     5,
     4,
     0,
     1042,
     "llmc: found 1042 bytes, expected 1044: a header of 1024 and, by its byte 8, 5 tokens of 4"},
    {{20240801, 7, 5}, 5, 2, 0, -1, "llmc: found 1034 bytes, expected 1044"}, /* ids of the other width */
    {{20240801, 7, INT32_MAX}, 5, 4, 0, -1, "llmc: found 1044 bytes, expected 8589935612"},
    {{20240522, 1, 5},
     5,
     2,
     0,
     -1,
     "llmc: byte 0: found 20240522, llm.c's evaluation data, expected 20240520 or 20240801"},
    {{20240326, 3, 5}, 5, 2, 0, -1, "llmc: byte 0: found 20240326, llm.c's model, expected"},
    {{0x4c4c4d30, 1, 5}, 5, 2, 0, -1, "llmc: byte 0: found 1280068912, expected 20240520 or 20240801"},
    {{-1, 1, 5}, 5, 2, 0, 8, "llmc: byte 0: found -1, expected 20240520 or 20240801"}, /* raw ids, shorter
                                                                                          than a header */
    {{20240520, 1, 3}, 3, 2, 0, -1, "no sample in"},
    {{20240520, 1, 0}, 0, 2, 0, -1, "no sample in"},
};

START_TEST(test_damaged)
{
  const struct damage *d = &damages[_i];
  const uint32_t id[] = {1, 2, 3, 4, 5};
  refuse(write_llmc("llmc", d->words, id, d->n, d->width, d->more, d->bytes), MT_FORMAT_LLMC, 3, MT_CORRUPT,
         d->part);
  char paths[1100]; /* behind a good file it is as bad */
  snprintf(paths, sizeof paths, "%s, %s",
           write_llmc("goodc",
                      (const int32_t[]){d->words[0] == 20240801 ? 20240801 : 20240520,
                                        d->words[0] == 20240801 ? 7 : 1, 5},
                      id, 5, d->words[0] == 20240801 ? 4 : 2, 0, -1),
           path_of("llmc"));
  if (!strncmp(d->part, "no sample", 9)) /* but a file may have too few tokens */
    mt_tokens_close(open_good(paths, MT_FORMAT_LLMC, 3, 256));
  else
    refuse(paths, MT_FORMAT_LLMC, 3, MT_CORRUPT, d->part);
}
END_TEST

/* A format that is not the file's is noticed where anything can be noticed. */
START_TEST(test_mistaken_format)
{
  const uint32_t id[] = {1, 2, 3, 4, 5, 300};
  const char *two = write_llmc("llmc", (const int32_t[]){20240520, 1, 6}, id, 6, 2, 0, -1);
  const char *four = write_llmc("goodc", (const int32_t[]){20240801, 7, 6}, id, 6, 4, 0, -1);
  const enum mt_format raw[] = {MT_FORMAT_BYTES, MT_FORMAT_UINT16, MT_FORMAT_UINT32};
  for (int i = 0; i < 3; i++) {
    refuse(two, raw[i], 3, MT_CORRUPT,
           "llmc: byte 0: found llm.c's header (magic 20240520), which is read with data.format = llmc");
    refuse(four, raw[i], 3, MT_CORRUPT, "goodc: byte 0: found llm.c's header (magic 20240801)");
  }
  char paths[1100];
  snprintf(paths, sizeof paths, "%s,%s", two, four);
  refuse(paths, MT_FORMAT_LLMC, 3, MT_CORRUPT, "goodc: found ids of 4 bytes, expected 2 as in ");
  int32_t token[6];
  struct mt_tokens *tokens = open_good(two, MT_FORMAT_LLMC, 2, 256);
  sample(tokens, 0, token, NULL);
  sample(tokens, 1, token, NULL);
  mt_tokens_close(tokens);
  tokens = open_good(two, MT_FORMAT_LLMC, 5, 256);
  sample(tokens, 0, token, "llmc: byte 1034: found token id 300, expected less than model.vocab_size = 256");
  mt_tokens_close(tokens);
  tokens = open_good(four, MT_FORMAT_LLMC, 5, 256);
  sample(tokens, 0, token, "goodc: byte 1044: found token id 300");
  mt_tokens_close(tokens);
}
END_TEST

/* ---- the same tokens in every format and cut ---- */

enum { STREAM = 211, STREAM_T = 10 };

/* Ids first .. first + n - 1 of the stream in a format: name, and whether llm.c's are of 4 bytes. */
static const char *write_stream(const char *name, enum mt_format format, int wide, int64_t first, int64_t n)
{
  uint32_t id[STREAM];
  for (int64_t i = 0; i < n; i++)
    id[i] = (uint32_t)((first + i) * 97 % 251);
  if (format == MT_FORMAT_LLMC) {
    const int32_t words[3] = {wide ? 20240801 : 20240520, wide ? 7 : 1, (int32_t)n};
    return write_llmc(name, words, id, n, wide ? 4 : 2, 0, -1);
  }
  int width = format == MT_FORMAT_BYTES ? 1 : format == MT_FORMAT_UINT16 ? 2 : 4;
  unsigned char bytes[4 * STREAM];
  for (int64_t i = 0; i < n * width; i++)
    bytes[i] = (unsigned char)(id[i / width] >> (8 * (i % width)));
  return write_file(name, bytes, (size_t)(n * width));
}

/* Reads everything, each sample checked against the definition, and returns the CRC of all. */
static uint32_t read_stream(const char *paths, enum mt_format format)
{
  struct mt_tokens *tokens = open_good(paths, format, STREAM_T, 256);
  ck_assert_int_eq(mt_tokens_samples(tokens), (STREAM - 1) / STREAM_T);
  uint32_t crc = 0;
  for (int64_t i = 0; i < mt_tokens_samples(tokens); i++) {
    int32_t token[STREAM_T + 2];
    token[STREAM_T + 1] = -77;
    sample(tokens, i, token, NULL);
    for (int64_t t = 0; t <= STREAM_T; t++)
      ck_assert_int_eq(token[t], (i * STREAM_T + t) * 97 % 251);
    ck_assert_int_eq(token[STREAM_T + 1], -77);
    crc = mt_crc32c(crc, token, (STREAM_T + 1) * (int64_t)sizeof *token);
  }
  mt_tokens_close(tokens);
  return crc;
}

START_TEST(test_same_stream)
{
  static const struct {
    enum mt_format format;
    int wide;
  } formats[] = {{MT_FORMAT_BYTES, 0},
                 {MT_FORMAT_UINT16, 0},
                 {MT_FORMAT_UINT32, 0},
                 {MT_FORMAT_LLMC, 0},
                 {MT_FORMAT_LLMC, 1}};
  uint32_t crc = 0;
  for (int f = 0; f < 5; f++) {
    enum mt_format format = formats[f].format;
    uint32_t whole = read_stream(write_stream("whole", format, formats[f].wide, 0, STREAM), format);
    crc = f ? crc : whole;
    ck_assert_uint_eq(whole, crc);
    /* Shards whose borders are samples' borders; each repeats the token before it, for a sample needs its
     * last target. One has no sample, and their names are not in the order in which they are made. */
    write_stream("shard-3", format, formats[f].wide, 120, STREAM - 120);
    write_stream("shard-0", format, formats[f].wide, 0, 4 * STREAM_T + 1);
    write_stream("shard-1", format, formats[f].wide, 40, 1);
    write_stream("shard-2", format, formats[f].wide, 40, 8 * STREAM_T + 1);
    char paths[2200];
    snprintf(paths, sizeof paths, "%s,%s, %s ,%s", path_of("shard-0"), path_of("shard-1"), path_of("shard-2"),
             path_of("shard-3"));
    ck_assert_uint_eq(read_stream(paths, format), crc);
    ck_assert_uint_eq(read_stream(path_of("shard-*"), format), crc);
    snprintf(paths, sizeof paths, "%s,%s", path_of("shard-[01]"), path_of("shard-[!01]"));
    ck_assert_uint_eq(read_stream(paths, format), crc);
  }
  ck_assert_uint_ne(crc, 0);
}
END_TEST

/* ---- patterns ---- */

START_TEST(test_patterns)
{
  char paths[2200];
  int32_t token[2];
  write_file("shard-0", "00", 2);
  write_file("shard-1", "11", 2);
  write_file("shard-2", "22", 2);
  write_file("shard-3", "33", 2);
  write_file("shard-?", "qq", 2); /* a name that exists is no pattern */
  struct {
    const char *first, *second, *expected;
  } cases[] = {
      {"shard-?", NULL, "q"},      {"shard-[0-2]", NULL, "012"}, {"shard-[!?]", NULL, "0123"},
      {"sha*[0-9]", NULL, "0123"}, {"*-2", "shard-0", "20"},     {"shard-0", "shard-[01]", "001"},
      {"*-3", "*-1", "31"},        {"shard-*", NULL, "0123q"},   {"shard-\\?", NULL, "q"},
  };
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    snprintf(paths, sizeof paths, "%s%s%s", path_of(cases[c].first), cases[c].second ? " , " : "",
             cases[c].second ? path_of(cases[c].second) : "");
    struct mt_tokens *tokens = open_good(paths, MT_FORMAT_BYTES, 1, 256);
    ck_assert_msg(mt_tokens_samples(tokens) == (int64_t)strlen(cases[c].expected), "%s: %lld samples", paths,
                  (long long)mt_tokens_samples(tokens));
    ck_assert_int_eq(mt_tokens_files(tokens), mt_tokens_samples(tokens));
    for (int64_t i = 0; i < mt_tokens_samples(tokens); i++) {
      sample(tokens, i, token, NULL);
      ck_assert_msg(token[0] == cases[c].expected[i], "%s: file %d is %c", paths, (int)i, token[0]);
    }
    mt_tokens_close(tokens);
  }
  struct mt_tokens *one = open_good(path_of("shard-[01]"), MT_FORMAT_BYTES, 1, 256);
  struct mt_tokens *two = open_good(path_of("shard-[12]"), MT_FORMAT_BYTES, 1, 256);
  struct mt_tokens *three = open_good(path_of("shard-[0-1]"), MT_FORMAT_BYTES, 1, 256);
  ck_assert_uint_ne(mt_tokens_identity(one),
                    mt_tokens_identity(two)); /* the same numbers of files, samples and bytes */
  ck_assert_uint_eq(mt_tokens_identity(one), mt_tokens_identity(three));
  mt_tokens_close(one);
  mt_tokens_close(two);
  mt_tokens_close(three);

  refuse(path_of("shard-[7-9]"), MT_FORMAT_BYTES, 1, MT_USAGE, "shard-[7-9]: no file matches this pattern");
  refuse(path_of("nowhere/*.bin"), MT_FORMAT_BYTES, 1, MT_USAGE,
         "nowhere/*.bin: no file matches this pattern");
  refuse(path_of("shard-0/*.bin"), MT_FORMAT_BYTES, 1, MT_USAGE,
         "shard-0/*.bin: no file matches this pattern");
  snprintf(paths, sizeof paths, "%s,%s", path_of("shard-0"), path_of("*.none"));
  refuse(paths, MT_FORMAT_BYTES, 1, MT_USAGE, "*.none: no file matches");
  ck_assert_int_eq(mkdir(path_of("shard-folder"), 0700), 0);
  refuse(path_of("shard-*"), MT_FORMAT_BYTES, 1, MT_CORRUPT,
         "shard-folder: is a folder, expected a file of tokens");
  ck_assert_int_eq(chmod(path_of("shard-folder"), 0), 0);
  if (access(path_of("shard-folder"), R_OK)) /* root may read everything */
    refuse(path_of("shard-folder/*"), MT_FORMAT_BYTES, 1, MT_CORRUPT,
           "a folder cannot be read: Permission denied");
  ck_assert_int_eq(rmdir(path_of("shard-folder")), 0);
  ck_assert_int_eq(unlink(path_of("shard-?")), 0);
}
END_TEST

/* More shards than descriptors. */
START_TEST(test_many_files)
{
  struct rlimit before, few;
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
  few = (struct rlimit){40, before.rlim_max};
  const int n = 120;
  char name[32], text[2];
  for (int i = 0; i < n; i++) {
    snprintf(name, sizeof name, "many-%03d", i);
    text[0] = (char)(i + 1);
    text[1] = 'x';
    write_file(name, text, 2);
  }
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
  struct mt_tokens *tokens = open_good(path_of("many-*"), MT_FORMAT_BYTES, 1, 256);
  ck_assert_int_eq(mt_tokens_samples(tokens), n);
  int32_t token[2];
  for (int round = 0; round < 2; round++)
    for (int i = 0; i < n; i++) {
      sample(tokens, i, token, NULL);
      ck_assert_int_eq(token[0], i + 1);
    }
  mt_tokens_close(tokens);
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
  for (int i = 0; i < n; i++) {
    snprintf(name, sizeof name, "many-%03d", i);
    unlink(path_of(name));
  }
}
END_TEST

int main(void)
{
  if (!make_folder())
    return 99;
  Suite *suite = suite_create("tokens_formats");
  TCase *tests = tcase_create("tokens_formats");
  tcase_add_loop_test(tests, test_damaged, 0, sizeof damages / sizeof *damages);
  tcase_add_test(tests, test_mistaken_format);
  tcase_add_test(tests, test_same_stream);
  tcase_add_test(tests, test_patterns);
  tcase_add_test(tests, test_many_files);
  suite_add_tcase(suite, tests);
  const char *made[] = {"llmc", "goodc", "whole", "shard-0", "shard-1", "shard-2", "shard-3"};
  return remove_folder(mt_test_run(suite), made, sizeof made / sizeof *made);
}
