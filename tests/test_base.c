/* Random numbers, checksums, JSON, text. ranks: 1 */
#include "test.h"
#include "base/crc32c.h"
#include "base/json.h"
#include "base/random.h"
#include "base/text.h"
#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

/* The known answers that the authors of Philox publish with Random123 (philox4x32, 10 rounds). */
START_TEST(test_philox)
{
  static const uint32_t vector[3][10] = {{0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                         {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff,
                                          0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822,
                                          0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
  for (int i = 0; i < 3; i++) {
    uint32_t out[4];
    mt_philox(vector[i], vector[i] + 4, out);
    for (int j = 0; j < 4; j++)
      ck_assert_uint_eq(out[j], vector[i][6 + j]);
  }
  ck_assert_uint_eq(mt_random_bits(0, 0, 0), 0xe169c58d6627e8d5u);
  ck_assert_uint_eq(mt_random_bits(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u),
                    0x94fdccebd16cfe09u);
}
END_TEST

START_TEST(test_moments)
{
  enum { N = 200000 };
  double mean = 0, square = 0, cube = 0, fourth = 0, uniform = 0, low = 1, high = 0;
  for (int i = 0; i < N; i++) {
    double x = mt_random_normal(7, MT_STREAM_TEST, (uint64_t)i),
           u = mt_random_uniform(7, MT_STREAM_TEST, (uint64_t)i);
    mean += x / N;
    square += x * x / N;
    cube += x * x * x / N;
    fourth += x * x * x * x / N;
    uniform += u / N;
    low = u < low ? u : low;
    high = u > high ? u : high;
  }
  /* Five standard deviations of each estimate. */
  ck_assert_double_lt(fabs(mean), 5 * sqrt(1. / N));
  ck_assert_double_lt(fabs(square - 1), 5 * sqrt(2. / N));
  ck_assert_double_lt(fabs(cube), 5 * sqrt(15. / N));
  ck_assert_double_lt(fabs(fourth - 3), 5 * sqrt(96. / N));
  ck_assert_double_lt(fabs(uniform - 0.5), 5 * sqrt(1 / 12. / N));
  ck_assert(low >= 0 && low < 1e-4 && high < 1 && high > 1 - 1e-4);
}
END_TEST

START_TEST(test_streams_are_apart)
{
  double correlation = 0;
  enum { N = 20000 };
  for (int i = 0; i < N; i++)
    correlation += mt_random_normal(1, 1, (uint64_t)i) * mt_random_normal(1, 257, (uint64_t)i) / N;
  ck_assert_double_lt(fabs(correlation), 5 / sqrt(N));
  ck_assert_uint_ne(mt_random_bits(1, 1, 0), mt_random_bits(2, 1, 0));
  ck_assert_uint_ne(mt_random_bits(1, 1, 0), mt_random_bits(1 + (UINT64_C(1) << 32), 1, 0));
  ck_assert_uint_ne(mt_random_bits(1, 1, 0), mt_random_bits(1, 1 + (UINT64_C(1) << 32), 0));
  ck_assert_uint_ne(mt_random_bits(1, 1, 0), mt_random_bits(1, 1, UINT64_C(1) << 32));
}
END_TEST

/* Any part of an array is the same whoever fills it, and nothing beside it is touched. */
START_TEST(test_fill)
{
  enum { N = 40001 };
  float *whole = MT_NEW(MT_TAG_MISC, float, N), piece[9];
  mt_random_fill_normal(whole, N, 3, 4, 5, 0.02f);
  for (int first = 0; first < N - 7; first += 6007) {
    piece[0] = piece[8] = 77;
    mt_random_fill_normal(piece + 1, 7, 3, 4, 5 + (uint64_t)first, 0.02f);
    ck_assert_mem_eq(piece + 1, whole + first, 7 * sizeof(float));
    ck_assert(piece[0] == 77 && piece[8] == 77);
  }
  ck_assert_float_eq(whole[2], (float)(0.02f * mt_random_normal(3, 4, 7)));
  mt_random_fill_normal(piece, 0, 3, 4, 5, 1);
  ck_assert(piece[0] == 77);
  mt_free(whole);
}
END_TEST

START_TEST(test_permutation)
{
  static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4097};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
      uint64_t n = sizes[s];
      char *seen = mt_zalloc(MT_TAG_MISC, (int64_t)n);
      for (uint64_t i = 0; i < n; i++) {
        uint64_t j = mt_random_permute(11, epoch, n, i);
        ck_assert_uint_lt(j, n);
        ck_assert_int_eq(seen[j]++, 0);
      }
      mt_free(seen);
    }
}
END_TEST

START_TEST(test_permutation_mixes)
{
  enum { N = 1000 };
  int64_t fixed = 0, same = 0, other_seed = 0, rises = 0;
  double distance = 0;
  for (uint64_t i = 0; i < N; i++) {
    uint64_t j = mt_random_permute(11, 0, N, i);
    fixed += j == i;
    same += j == mt_random_permute(11, 1, N, i);
    other_seed += j == mt_random_permute(12, 0, N, i);
    rises += j < mt_random_permute(11, 0, N, (i + 1) % N);
    distance += fabs((double)j - (double)i) / N;
  }
  ck_assert_int_lt(fixed, 8); /* one is expected, whatever the size */
  ck_assert_int_lt(same, 8);
  ck_assert_int_lt(other_seed, 8);
  ck_assert(rises > 440 && rises < 560);
  ck_assert(distance > 290 && distance < 377); /* n / 3 is expected */
  ck_assert_uint_lt(mt_random_permute(1, 2, UINT64_MAX, UINT64_MAX - 1), UINT64_MAX);
  ck_assert_uint_lt(mt_random_permute(1, 2, (UINT64_C(1) << 32) + 1, UINT64_C(1) << 32),
                    (UINT64_C(1) << 32) + 1);
}
END_TEST

/* The examples of RFC 3720, appendix B.4, and the catalogue's check value. */
START_TEST(test_crc32c)
{
  unsigned char data[32];
  uint32_t (*const make[2])(uint32_t, const void *, int64_t) = {mt_crc32c, mt_crc32c_portable};
  for (int way = 0; way < 2; way++) {
    ck_assert_uint_eq(make[way](0, "123456789", 9), 0xe3069283);
    ck_assert_uint_eq(make[way](0, "", 0), 0);
    memset(data, 0, 32);
    ck_assert_uint_eq(make[way](0, data, 32), 0x8a9136aa);
    memset(data, 255, 32);
    ck_assert_uint_eq(make[way](0, data, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
      data[i] = (unsigned char)i;
    ck_assert_uint_eq(make[way](0, data, 32), 0x46dd794e);
    for (int i = 0; i < 32; i++)
      data[i] = (unsigned char)(31 - i);
    ck_assert_uint_eq(make[way](0, data, 32), 0x113fdb5c);
  }
}
END_TEST

START_TEST(test_crc32c_pieces)
{
  unsigned char data[301];
  for (size_t i = 0; i < sizeof data; i++)
    data[i] = (unsigned char)mt_random_bits(1, MT_STREAM_TEST, i);
  for (int begin = 0; begin < 9; begin++) /* every alignment */
    for (int end = begin; end <= (int)sizeof data; end += 1 + end / 40) {
      uint32_t whole = mt_crc32c(0, data + begin, end - begin);
      ck_assert_uint_eq(whole, mt_crc32c_portable(0, data + begin, end - begin));
      for (int cut = begin; cut <= end; cut += 1 + cut / 30) {
        uint32_t a = mt_crc32c(0, data + begin, cut - begin), b = mt_crc32c(0, data + cut, end - cut);
        ck_assert_uint_eq(whole, mt_crc32c(a, data + cut, end - cut));
        ck_assert_uint_eq(whole, mt_crc32c_combine(a, b, end - cut));
      }
    }
  /* A length beyond 32 bits: 5 GiB of zeros by doubling, appended to a byte. */
  uint32_t zeros = mt_crc32c(0, "\0\0\0\0\0", 5), byte = mt_crc32c(0, "x", 1), bytewise = byte;
  int64_t length = 5;
  for (int i = 0; i < 30; i++, length *= 2)
    zeros = mt_crc32c_combine(zeros, zeros, length);
  int64_t third = length / 3;
  uint32_t parts = 0;
  for (int64_t first = 0; first < length; first += third) {
    int64_t n = length - first < third ? length - first : third;
    uint32_t run = 0; /* n zeros from powers of two */
    for (int bit = 62; bit >= 0; bit--)
      if (n >> bit & 1) {
        uint32_t power = mt_crc32c(0, "", 1);
        for (int i = 0; i < bit; i++)
          power = mt_crc32c_combine(power, power, INT64_C(1) << i);
        run = mt_crc32c_combine(run, power, INT64_C(1) << bit);
      }
    parts = mt_crc32c_combine(parts, run, n);
    bytewise = mt_crc32c_combine(bytewise, run, n);
  }
  ck_assert_uint_eq(parts, zeros);
  ck_assert_uint_eq(bytewise, mt_crc32c_combine(byte, zeros, length));
}
END_TEST

START_TEST(test_numbers)
{
  int64_t n = 5;
  double x = 5;
  int yes = 5;
  ck_assert(mt_text_integer("9223372036854775807", &n) && n == INT64_MAX);
  ck_assert(mt_text_integer("-9223372036854775808", &n) && n == INT64_MIN);
  ck_assert(mt_text_integer("+007", &n) && n == 7);
  static const char *const bad[] = {"",      " 1",   "1 ",  "1x",   "9223372036854775808",
                                    "1_000", "0x10", "-",   "1e3x", "nan",
                                    "inf",   "1e",   "e5",  ".",    "--1",
                                    "1e999", "1,5",  "1e+", "0x1p3"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ck_assert_msg(!mt_text_integer(bad[i], &n), "'%s' taken for an integer", bad[i]);
    if (strcmp(bad[i], "9223372036854775808"))
      ck_assert_msg(!mt_text_real(bad[i], &x), "'%s' taken for a real", bad[i]);
    ck_assert(!mt_text_boolean(bad[i], &yes));
  }
  ck_assert(n == 7 && x == 5 && yes == 5); /* untouched by what was refused */
  ck_assert(!mt_text_integer("1.0", &n));
  ck_assert(mt_text_real("1e-3", &x) && x == 1e-3);
  ck_assert(mt_text_real("-.5E+1", &x) && x == -5);
  ck_assert(mt_text_real("1.", &x) && x == 1);
  ck_assert(mt_text_boolean("true", &yes) && yes == 1);
  ck_assert(mt_text_boolean("0", &yes) && yes == 0);
}
END_TEST

START_TEST(test_shortest_real)
{
  static const double values[] = {
      0, 1, -1, 0.1, 1e-3, 1. / 3, 1e300, DBL_MIN, DBL_MAX, 123456789012345680, 5e-324};
  static const char *const texts[] = {"0", "1", "-1", "0.1", "0.001", "0.3333333333333333", "1e+300"};
  char text[32];
  double back;
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    ck_assert(mt_text_real(mt_text_print_real(values[i], text), &back));
    ck_assert_double_eq(back, values[i]);
    if (i < sizeof texts / sizeof *texts)
      ck_assert_str_eq(text, texts[i]);
  }
  for (uint64_t i = 0; i < 1000; i++) {
    double value = ldexp(mt_random_normal(5, MT_STREAM_TEST, i), (int)i - 500);
    ck_assert(mt_text_real(mt_text_print_real(value, text), &back));
    ck_assert_double_eq(back, value);
  }
}
END_TEST

START_TEST(test_nearest)
{
  static const char *const words[] = {"train", "eval", "generate", "topo", "inspect"};
  ck_assert_str_eq(mt_text_nearest("trian", words, 5), "train");
  ck_assert_str_eq(mt_text_nearest("Generat", words, 5), "generate");
  ck_assert_str_eq(mt_text_nearest("tops", words, 5), "topo");
  ck_assert_ptr_null(mt_text_nearest("frobnicate", words, 5));
  ck_assert_ptr_null(mt_text_nearest("train", words, 0));
  ck_assert_int_eq(mt_text_distance("", "abc"), 3);
  ck_assert_int_eq(mt_text_distance("ab-c", "AB_C"), 0);
  ck_assert_int_eq(mt_text_distance("kitten", "sitting"), 3);
}
END_TEST

START_TEST(test_files)
{
  char path[] = "/tmp/motley-test-XXXXXX", *text, *fault;
  int fd = mkstemp(path);
  ck_assert(fd >= 0);
  enum { N = 10000 };
  char *data = mt_alloc(MT_TAG_MISC, N);
  for (int i = 0; i < N; i++)
    data[i] = (char)(i % 100 ? 128 + i % 100 : '\n');
  ck_assert_int_eq(write(fd, data, N), N);
  ck_assert_int_eq(mt_text_read(path, &text, &fault), MT_OK);
  ck_assert_mem_eq(text, data, N);
  ck_assert_int_eq(text[N], 0);
  ck_assert_ptr_null(fault);
  mt_free(text);
  mt_free(data);
  /* bytes that no text has, behind 100 lines */
  for (int c = 0; c < 256; c++) {
    const char last = (char)c;
    const int good = (c >= '\t' && c <= '\r') || (c >= ' ' && c != 127);
    ck_assert_int_eq(pwrite(fd, &last, 1, N), 1);
    ck_assert_int_eq(mt_text_read(path, &text, &fault), good ? MT_OK : MT_CORRUPT);
    char *expected = mt_format("%s:101: byte %d: found 0x%02x, which is no text", path, N, c);
    ck_assert(good ? !fault && strlen(text) == N + 1 : !text && !strcmp(fault, expected));
    mt_free(expected);
    mt_free(text);
    mt_free(fault);
  }
  close(fd);
  unlink(path);
  ck_assert_int_eq(mt_text_read(path, &text, &fault), MT_USAGE);
  ck_assert_ptr_nonnull(strstr(fault, ": No such file or directory"));
  mt_free(fault);
  ck_assert_int_eq(mt_text_read("/tmp", &text, &fault), MT_CORRUPT);
  ck_assert_str_eq(fault, "/tmp: Is a directory");
  mt_free(fault);
  ck_assert_ptr_null(text);
}
END_TEST

START_TEST(test_json_values)
{
  mt_json *object = mt_json_object(), *value;
  mt_json_set(object, "z", mt_json_integer(INT64_MAX));
  mt_json_set(object, "a", mt_json_real(0.001));
  mt_json_set(object, "whole", mt_json_real(3));
  mt_json_set(object, "nan", mt_json_real(NAN));
  mt_json_set(object, "text", mt_json_string("a\"b\\c\n\x01 \xc3\xa4"));
  mt_json_set(object, "broken", mt_json_string("x\xff\xc3y\xed\xa0\x80"));
  mt_json_set(object, "yes", mt_json_boolean(7));
  mt_json_set(object, "list", mt_json_integers((int64_t[]){1, -2, 3}, 3));
  mt_json_set(object, "none", mt_json_integers(NULL, 0));
  char *text = mt_json_print(object, 0);
  ck_assert_str_eq(text,
                   "{\"z\": 9223372036854775807, \"a\": 0.001, \"whole\": 3.0, \"nan\": null, "
                   "\"text\": \"a\\\"b\\\\c\\n\\u0001 \xc3\xa4\", \"broken\": \"x??y???\", \"yes\": true, "
                   "\"list\": [1, -2, 3], \"none\": []}");
  mt_json *back;
  ck_assert_int_eq(mt_json_parse("text", text, &back), MT_OK);
  mt_free(text);
  text = mt_json_print(back, 2);
  mt_json_free(back);
  ck_assert_ptr_nonnull(strstr(text, "{\n  \"z\": 9223372036854775807,\n  \"a\": 0.001,\n"));
  ck_assert_int_eq(mt_json_parse("text", text, &back), MT_OK);
  mt_free(text);
  ck_assert_int_eq(mt_json_size(back), 9);
  ck_assert_str_eq(mt_json_key_at(back, 1, &value), "a");
  ck_assert_double_eq(mt_json_as_real(value, 0), 0.001);
  ck_assert_ptr_null(mt_json_key_at(back, 9, &value));
  ck_assert_ptr_null(value);
  ck_assert(!mt_json_is_integer(mt_json_get(back, "whole")) && mt_json_is_number(mt_json_get(back, "whole")));
  ck_assert(mt_json_is_null(mt_json_get(back, "nan")) && mt_json_is_null(mt_json_get(back, "absent")));
  ck_assert_int_eq(mt_json_as_integer(mt_json_at(mt_json_get(back, "list"), 1), 9), -2);
  ck_assert_int_eq(mt_json_as_integer(mt_json_at(mt_json_get(back, "list"), 3), 9), 9);
  ck_assert_int_eq(mt_json_as_integer(mt_json_at(mt_json_get(back, "list"), -1), 9), 9);
  ck_assert_int_eq(mt_json_as_boolean(mt_json_get(back, "yes"), 0), 1);
  ck_assert_str_eq(mt_json_as_string(mt_json_get(back, "z"), "other"), "other");
  ck_assert(mt_json_is_string(mt_json_get(back, "text")) && mt_json_is_array(mt_json_get(back, "none")));
  ck_assert(mt_json_is_object(back) && mt_json_is_boolean(mt_json_get(back, "yes")));
  mt_json_free(back);
  mt_json_free(object);
}
END_TEST

START_TEST(test_json_errors)
{
  static const char *const bad[] = {"{\"a\": 1, \"a\": 2}",  "{\"a\": }", "[1, 2", "", "{} x", "[1e999]",
                                    "[99999999999999999999]"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    mt_json *value = (mt_json *)1;
    ck_assert_int_eq(mt_json_parse("test", bad[i], &value), MT_CORRUPT);
    ck_assert_ptr_null(value);
  }
  mt_json *value;
  ck_assert_int_eq(mt_json_read("/tmp/motley-no-such-file", &value), MT_USAGE);
  ck_assert_ptr_null(value);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("base");
  TCase *tests = tcase_create("random");
  tcase_add_test(tests, test_philox);
  tcase_add_test(tests, test_moments);
  tcase_add_test(tests, test_streams_are_apart);
  tcase_add_test(tests, test_fill);
  tcase_add_test(tests, test_permutation);
  tcase_add_test(tests, test_permutation_mixes);
  suite_add_tcase(suite, tests);
  tests = tcase_create("crc32c");
  tcase_add_test(tests, test_crc32c);
  tcase_add_test(tests, test_crc32c_pieces);
  suite_add_tcase(suite, tests);
  tests = tcase_create("text");
  tcase_add_test(tests, test_numbers);
  tcase_add_test(tests, test_shortest_real);
  tcase_add_test(tests, test_nearest);
  tcase_add_test(tests, test_files);
  suite_add_tcase(suite, tests);
  tests = tcase_create("json");
  tcase_add_test(tests, test_json_values);
  tcase_add_test(tests, test_json_errors);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
