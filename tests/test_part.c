/* Partitions. ranks: 1 */
#include "test.h"
#include "comm/part.h"

/* Starts at 0, ends at n, never decreases. */
static void check_valid(const struct mt_part *part, int64_t n, int nrank)
{
  ck_assert_int_eq(part->nrank, nrank);
  ck_assert_int_eq(part->first[0], 0);
  ck_assert_int_eq(part->first[nrank], n);
  for (int r = 0; r < nrank; r++)
    ck_assert_int_ge(mt_part_count(part, r), 0);
}

START_TEST(test_even)
{
  for (int nrank = 1; nrank <= 9; nrank++)
    for (int64_t n = 0; n <= 30; n++) {
      struct mt_part part = mt_part_even(n, nrank);
      check_valid(&part, n, nrank);
      for (int r = 0; r < nrank; r++) {
        ck_assert_int_eq(part.first[r], r * n / nrank);
        int64_t first, count = mt_part_range(n, nrank, r, &first);
        ck_assert_int_eq(first, part.first[r]);
        ck_assert_int_eq(count, mt_part_count(&part, r));
      }
      mt_part_free(&part);
      ck_assert_ptr_null(part.first);
    }
}
END_TEST

/* r n does not fit 64 bit here. */
START_TEST(test_even_large)
{
  const int64_t n = INT64_MAX - 3;
  const int nrank = 1000;
  struct mt_part part = mt_part_even(n, nrank);
  check_valid(&part, n, nrank);
  for (int r = 0; r < nrank; r++) {
    ck_assert_int_eq(part.first[r], (int64_t)((__int128)n * r / nrank));
    ck_assert_int_eq(mt_part_owner(&part, part.first[r]), r);
    ck_assert_int_eq(mt_part_owner(&part, part.first[r + 1] - 1), r);
  }
  mt_part_free(&part);
}
END_TEST

static void check_weighted(int64_t n, int nrank, const int64_t *weight, const int64_t *count)
{
  struct mt_part part = mt_part_weighted(n, nrank, weight);
  check_valid(&part, n, nrank);
  for (int r = 0; r < nrank; r++)
    ck_assert_int_eq(mt_part_count(&part, r), count[r]);
  mt_part_free(&part);
}

START_TEST(test_weighted)
{
  check_weighted(10, 3, (int64_t[]){1, 1, 1}, (int64_t[]){4, 3, 3}); /* ties to the lowest rank */
  check_weighted(11, 3, (int64_t[]){1, 1, 1}, (int64_t[]){4, 4, 3});
  check_weighted(10, 3, (int64_t[]){1, 2, 4}, (int64_t[]){1, 3, 6}); /* 1.43 2.86 5.71 */
  check_weighted(7, 4, (int64_t[]){0, 5, 0, 2}, (int64_t[]){0, 5, 0, 2});
  check_weighted(1, 4, (int64_t[]){0, 0, 1, 1}, (int64_t[]){0, 0, 1, 0});
  check_weighted(0, 2, (int64_t[]){3, 4}, (int64_t[]){0, 0});
  check_weighted(5, 1, (int64_t[]){9}, (int64_t[]){5});
  /* The product of number and weight needs more than 64 bit. */
  const int64_t big = (int64_t)1 << 61;
  check_weighted(big, 2, (int64_t[]){big, big}, (int64_t[]){big / 2, big / 2});
}
END_TEST

/* No rank is one or more off its exact share; none without weight gets anything. */
START_TEST(test_weighted_is_fair)
{
  uint32_t x = 12345;
  for (int trial = 0; trial < 500; trial++) {
    int64_t weight[11], total = 0;
    int nrank = 1 + trial % 11;
    for (int r = 0; r < nrank; r++) {
      x = x * 1664525u + 1013904223u;
      weight[r] = x >> 28 ? x >> 20 : 0;
      total += weight[r];
    }
    if (!total)
      total = weight[nrank - 1] = 1;
    int64_t n = x >> 16;
    struct mt_part part = mt_part_weighted(n, nrank, weight);
    check_valid(&part, n, nrank);
    for (int r = 0; r < nrank; r++) {
      int64_t error = mt_part_count(&part, r) * total - n * weight[r];
      ck_assert(error < total && error > -total);
      ck_assert(weight[r] || !mt_part_count(&part, r));
    }
    mt_part_free(&part);
  }
}
END_TEST

START_TEST(test_owner_skips_empty_ranges)
{
  const int64_t weight[] = {0, 0, 3, 0, 2, 0, 0};
  struct mt_part part = mt_part_weighted(5, 7, weight);
  const int owner[] = {2, 2, 2, 4, 4};
  for (int i = 0; i < 5; i++)
    ck_assert_int_eq(mt_part_owner(&part, i), owner[i]);
  mt_part_free(&part);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("part");
  TCase *tests = tcase_create("part");
  tcase_add_test(tests, test_even);
  tcase_add_test(tests, test_even_large);
  tcase_add_test(tests, test_weighted);
  tcase_add_test(tests, test_weighted_is_fair);
  tcase_add_test(tests, test_owner_skips_empty_ranges);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
