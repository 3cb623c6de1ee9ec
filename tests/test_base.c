/* Random numbers, checksums, JSON, text. ranks: 1 */
#include "test.h"
#include "base/crc32c.h"
#include "base/random.h"
#include <math.h>
#include <string.h>

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
  return mt_test_run(suite);
}
