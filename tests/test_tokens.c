/* Token files: counts, bytes, widths, borders between files, order, and every refusal. ranks: 1 */
#include "tokens_case.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

START_TEST(test_counts)
{
  unsigned char data[40];
  for (int i = 0; i < 40; i++)
    data[i] = (unsigned char)(200 + i);
  struct {
    size_t bytes;
    int64_t T, samples;
  } cases[] = {{2, 1, 1},   {40, 1, 39}, {40, 3, 13}, {40, 13, 3},
               {40, 38, 1}, {40, 39, 1}, {40, 20, 1}, {39, 19, 2}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    int64_t T = cases[c].T;
    struct mt_tokens *tokens = open_good(write_file("a", data, cases[c].bytes), MT_FORMAT_BYTES, T, 256);
    ck_assert_int_eq(mt_tokens_samples(tokens), cases[c].samples);
    ck_assert_int_eq(mt_tokens_bytes(tokens), cases[c].bytes);
    int32_t token[42];
    for (int64_t i = 0; i < cases[c].samples; i++) {
      token[T + 1] = -77; /* sentinel */
      sample(tokens, i, token, NULL);
      for (int64_t t = 0; t <= T; t++)
        ck_assert_int_eq(token[t], data[i * T + t]);
      ck_assert_int_eq(token[T + 1], -77);
    }
    mt_tokens_close(tokens);
  }
}
END_TEST

/* No sample crosses files; files without a sample, empty ones too, are passed over wherever they stand. */
START_TEST(test_several_files)
{
  write_file("one", "abcdefg", 7);     /* 2 samples of 3 + 1: abcd defg */
  write_file("none", "", 0);           /* empty */
  write_file("short", "xyz", 3);       /* too short for a sample */
  write_file("two", "ABCDEFGHIJ", 10); /* 3 samples: ABCD DEFG GHIJ */
  write_file("last", "q", 1);
  const char *order[] = {"none", "one", "none", "short", "two", "last", "none"};
  char paths[4096] = "";
  for (size_t i = 0; i < sizeof order / sizeof *order; i++)
    snprintf(paths + strlen(paths), sizeof paths - strlen(paths), "%s%s", i ? " ,\t" : "  ",
             path_of(order[i]));
  struct mt_tokens *tokens = open_good(paths, MT_FORMAT_BYTES, 3, 256);
  const char *expected[] = {"abcd", "defg", "ABCD", "DEFG", "GHIJ"};
  ck_assert_int_eq(mt_tokens_samples(tokens), 5);
  ck_assert_int_eq(mt_tokens_bytes(tokens), 7 + 3 + 10 + 1);
  for (int i = 0; i < 5; i++) {
    int32_t token[4];
    sample(tokens, i, token, NULL);
    for (int t = 0; t < 4; t++)
      ck_assert_int_eq(token[t], expected[i][t]);
  }
  mt_tokens_close(tokens);
}
END_TEST

START_TEST(test_widths)
{
  const unsigned char two[] = {1, 0, 0xff, 0xff, 0x34, 0x12, 9, 9};
  struct mt_tokens *tokens = open_good(write_file("u16", two, sizeof two), MT_FORMAT_UINT16, 3, 65536);
  int32_t token[4];
  ck_assert_int_eq(mt_tokens_samples(tokens), 1);
  ck_assert_int_eq(mt_tokens_bytes(tokens), 0);
  sample(tokens, 0, token, NULL);
  ck_assert_int_eq(token[0], 1);
  ck_assert_int_eq(token[1], 65535);
  ck_assert_int_eq(token[2], 0x1234);
  ck_assert_int_eq(token[3], 0x0909);
  mt_tokens_close(tokens);
  const unsigned char four[] = {4, 3, 2, 1, 0xfe, 0xff, 0xff, 0x7f};
  tokens = open_good(write_file("u32", four, sizeof four), MT_FORMAT_UINT32, 1, INT32_MAX);
  sample(tokens, 0, token, NULL);
  ck_assert_int_eq(token[0], 0x01020304);
  ck_assert_int_eq(token[1], INT32_MAX - 1);
  mt_tokens_close(tokens);
}
END_TEST

START_TEST(test_refused)
{
  write_file("empty", "", 0);
  write_file("single", "x", 1);
  write_file("odd", "abcdefghi", 9);
  write_file("good", "abcdefgh", 8);
  refuse(path_of("absent"), MT_FORMAT_BYTES, 3, MT_USAGE, "absent");
  refuse("", MT_FORMAT_BYTES, 3, MT_USAGE, "empty name");
  refuse(" , ", MT_FORMAT_BYTES, 3, MT_USAGE, "empty name");
  char paths[1100];
  snprintf(paths, sizeof paths, "%s,", path_of("good"));
  refuse(paths, MT_FORMAT_BYTES, 3, MT_USAGE, "empty name");
  snprintf(paths, sizeof paths, "%s,%s", path_of("good"), path_of("absent"));
  refuse(paths, MT_FORMAT_BYTES, 3, MT_USAGE, "absent");
  refuse(path_of("good/below"), MT_FORMAT_BYTES, 3, MT_USAGE, "good/below");
  refuse(folder, MT_FORMAT_BYTES, 3, MT_CORRUPT, "a folder");
  refuse(path_of("empty"), MT_FORMAT_BYTES, 1, MT_CORRUPT, "at least 2 tokens");
  refuse(path_of("single"), MT_FORMAT_BYTES, 1, MT_CORRUPT, "at least 2 tokens");
  refuse(path_of("good"), MT_FORMAT_BYTES, 8, MT_CORRUPT, "at least 9 tokens");
  refuse(path_of("odd"), MT_FORMAT_UINT16, 3, MT_CORRUPT, "9 bytes, expected a multiple of 2");
  snprintf(paths, sizeof paths, "%s,%s", path_of("good"), path_of("odd"));
  refuse(paths, MT_FORMAT_UINT32, 1, MT_CORRUPT, "9 bytes, expected a multiple of 4");
  ck_assert_int_eq(mkfifo(path_of("pipe"), 0600), 0);
  refuse(path_of("pipe"), MT_FORMAT_BYTES, 3, MT_CORRUPT, "not a regular file");
  ck_assert_int_eq(unlink(path_of("pipe")), 0);
}
END_TEST

/* A wrong id is told by file, byte and id; the samples without it are read all the same. */
START_TEST(test_wrong_id)
{
  const uint32_t ids[] = {0, 1, 9, 3, 4, 10, 6, 7, 0x80000000u};
  write_file("fine", "\0\0\0\0\1\0\0\0\2\0\0\0", 12);
  unsigned char bytes[sizeof ids];
  for (size_t i = 0; i < sizeof ids; i++)
    bytes[i] = (unsigned char)(ids[i / 4] >> (8 * (i % 4)));
  write_file("wrong", bytes, sizeof bytes);
  char paths[1100];
  snprintf(paths, sizeof paths, "%s,%s", path_of("fine"), path_of("wrong"));
  struct mt_tokens *tokens = open_good(paths, MT_FORMAT_UINT32, 2, 10);
  ck_assert_int_eq(mt_tokens_samples(tokens), 5);
  struct {
    int64_t sample;
    const char *part;
  } cases[] = {{0, NULL},
               {1, NULL},
               {2, NULL},
               {3, "wrong: byte 20: found token id 10, expected less than model.vocab_size = 10"},
               {4, "wrong: byte 32: found token id 2147483648,"}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    int32_t token[3];
    sample(tokens, cases[c].sample, token, cases[c].part);
  }
  mt_tokens_close(tokens);
}
END_TEST

/* A file that shrinks under the map is an error, not a signal. */
START_TEST(test_truncated)
{
  static const char zeros[3 * 65536];
  const char *path = write_file("shrinks", zeros, sizeof zeros);
  struct mt_tokens *tokens = open_good(path, MT_FORMAT_BYTES, 1023, 256);
  int32_t token[1024];
  int64_t last = mt_tokens_samples(tokens) - 1;
  sample(tokens, last, token, NULL);
  ck_assert_int_eq(truncate(path, 65536), 0);
  sample(tokens, 0, token, NULL);
  sample(tokens, last, token, "shrinks: was cut off while it was in use: found 65536 bytes, expected 196608");
  /* a name that is gone, or means another file, says nothing of what is mapped */
  ck_assert_int_eq(truncate(path, sizeof zeros), 0);
  ck_assert_int_eq(unlink(path), 0);
  sample(tokens, last, token, NULL);
  write_file("shrinks", "short", 5);
  sample(tokens, last, token, NULL);
  mt_tokens_close(tokens);
}
END_TEST

/* Offsets beyond 31 and 32 bits, in files that take no room; the wrong id at their end is told with its
 * offset. */
static const struct large {
  enum mt_format format;
  int32_t magic, version; /* of llm.c; 0 = none */
  int width;
  int64_t count; /* odd: a whole number of samples of 2 */
} large[] = {
    {MT_FORMAT_UINT16, 0, 0, 2, (INT64_C(1) << 31) + 35001},
    {MT_FORMAT_UINT16, 0, 0, 2, (INT64_C(1) << 30) + 35001},
    {MT_FORMAT_UINT32, 0, 0, 4, (INT64_C(1) << 31) + 35001},
    {MT_FORMAT_LLMC, 20240520, 1, 2, (INT64_C(1) << 30) + 35001},
    {MT_FORMAT_LLMC, 20240520, 1, 2, INT32_MAX}, /* 4 GiB and the largest count that its header can say */
    {MT_FORMAT_LLMC, 20240801, 7, 4, (INT64_C(1) << 30) + 35001},
    {MT_FORMAT_LLMC, 20240801, 7, 4, INT32_MAX}, /* 8 GiB */
};

START_TEST(test_large)
{
  const struct large *l = &large[_i];
  const int64_t header = l->magic ? 1024 : 0, bytes = header + l->count * l->width;
  const int32_t words[3] = {l->magic, l->version, (int32_t)l->count};
  const char *path = path_of("sparse");
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  ck_assert_int_ge(fd, 0);
  if (ftruncate(fd, bytes) != 0) { /* a file system without such files */
    ck_assert_int_eq(errno, EFBIG);
    close(fd);
    unlink(path);
    return;
  }
  unsigned char head[12] = {0}, end[16] = {0};
  for (int i = 0; i < 12; i++)
    head[i] = (unsigned char)((uint32_t)words[i / 4] >> (8 * (i % 4)));
  ck_assert_int_eq(pwrite(fd, head, header ? 12 : 0, 0), header ? 12 : 0);
  for (int i = 0; i < 4; i++) { /* ids 1, 2, 3 and 256 */
    end[i * l->width] = (unsigned char)(i < 3 ? i + 1 : 0);
    end[i * l->width + 1] = i == 3;
  }
  ck_assert_int_eq(pwrite(fd, end, (size_t)(4 * l->width), bytes - 4 * l->width), 4 * l->width);
  close(fd);
  struct mt_tokens *tokens = open_good(path, l->format, 2, 256);
  int64_t samples = mt_tokens_samples(tokens);
  ck_assert_int_eq(l->count % 2, 1);
  ck_assert_int_eq(samples, (l->count - 1) / 2);
  int32_t token[4] = {-1, -1, -1, -77};
  sample(tokens, samples / 2, token, NULL);
  ck_assert_int_eq(token[0] | token[1] | token[2], 0);
  sample(tokens, samples - 2, token, NULL);
  ck_assert_int_eq(token[0], 0);
  ck_assert_int_eq(token[1], 1);
  ck_assert_int_eq(token[2], 2);
  ck_assert_int_eq(token[3], -77);
  char part[128];
  snprintf(part, sizeof part, "sparse: byte %lld: found token id 256", (long long)(bytes - l->width));
  sample(tokens, samples - 1, token, part);
  mt_tokens_close(tokens);
  if (header) { /* one byte less than the header says */
    ck_assert_int_eq(truncate(path, bytes - 1), 0);
    snprintf(part, sizeof part, "found %lld bytes, expected %lld:", (long long)(bytes - 1), (long long)bytes);
    refuse(path, l->format, 2, MT_CORRUPT, part);
  }
  unlink(path);
}
END_TEST

START_TEST(test_order)
{
  const int64_t sizes[] = {1, 2, 3, 7, 64, 1000};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    int64_t n = sizes[s], same = 0, moved = 0;
    char *seen = calloc((size_t)n, 1);
    for (int64_t epoch = 0; epoch < 3; epoch++) {
      memset(seen, 0, (size_t)n);
      for (int64_t i = 0; i < n; i++) {
        int64_t sample = mt_tokens_order(n, 5, epoch * n + i);
        ck_assert(sample >= 0 && sample < n);
        ck_assert_msg(!seen[sample], "sample %lld twice in epoch %lld of %lld", (long long)sample,
                      (long long)epoch, (long long)n);
        seen[sample] = 1;
        same += sample == mt_tokens_order(n, 5, i);
        moved += sample != mt_tokens_order(n, 6, epoch * n + i);
      }
    }
    free(seen);
    if (n >= 64) {
      ck_assert_int_lt(same - n, n / 4); /* epochs 1 and 2 differ from epoch 0 almost everywhere */
      ck_assert_int_gt(moved, 2 * n);    /* and so do seeds */
    }
  }
}
END_TEST

int main(void)
{
  if (!make_folder())
    return 99;
  Suite *suite = suite_create("tokens");
  TCase *tests = tcase_create("tokens");
  tcase_add_test(tests, test_counts);
  tcase_add_test(tests, test_several_files);
  tcase_add_test(tests, test_widths);
  tcase_add_test(tests, test_refused);
  tcase_add_test(tests, test_wrong_id);
  tcase_add_test(tests, test_truncated);
  tcase_add_loop_test(tests, test_large, 0, sizeof large / sizeof *large);
  tcase_add_test(tests, test_order);
  suite_add_tcase(suite, tests);
  const char *made[] = {"a",     "one",    "none", "short", "two",  "last",  "u16",    "u32",
                        "empty", "single", "odd",  "good",  "fine", "wrong", "shrinks"};
  return remove_folder(mt_test_run(suite), made, sizeof made / sizeof *made);
}
