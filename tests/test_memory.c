/* Counted memory. ranks: 1 */
#include "test.h"
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

START_TEST(test_counts)
{
  int64_t before = mt_memory_bytes();
  char *block = mt_alloc(MT_TAG_PLAN, 100);
  ck_assert_int_eq((uintptr_t)block % 64, 0);
  ck_assert_int_eq(mt_memory_bytes() - before, 100);
  ck_assert_int_eq(mt_memory_tag(MT_TAG_PLAN), 100);
  mt_free(block);
  ck_assert_int_eq(mt_memory_bytes(), before);
  void *nothing = mt_alloc(MT_TAG_PLAN, 0);
  ck_assert_ptr_nonnull(nothing);
  mt_free(nothing);
  mt_free(NULL);
}
END_TEST

START_TEST(test_growth)
{
  void *buffer = NULL;
  int64_t capacity = 0, growths = mt_memory_growths();
  ck_assert_int_eq(mt_grow(MT_TAG_ROW, &buffer, &capacity, 10, 4), 0);
  ck_assert_int_eq(mt_grow(MT_TAG_ROW, &buffer, &capacity, 10, 4), 0);
  ck_assert_int_eq(mt_memory_growths(), growths);
  ck_assert_int_eq(mt_grow(MT_TAG_ROW, &buffer, &capacity, 11, 4), 1);
  ck_assert_int_eq(capacity, 15);
  ck_assert_int_eq(mt_memory_growths(), growths + 1);
  strcpy(buffer, "kept");
  ck_assert_int_eq(mt_extend(MT_TAG_ROW, &buffer, &capacity, 15, 4), 0);
  ck_assert_int_eq(mt_extend(MT_TAG_ROW, &buffer, &capacity, 16, 4), 1);
  ck_assert_int_eq(capacity, 22);
  ck_assert_str_eq(buffer, "kept");
  ck_assert_int_eq(mt_memory_growths(), growths + 2);
  mt_free(buffer);
}
END_TEST

/* A product of sizes that wraps around would be a small block. */
START_TEST(test_too_many)
{
  static const int64_t count[] = {((int64_t)1 << 61) + 1, -(((int64_t)1 << 61) + 1), INT64_MAX, -1};
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0) {
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    memset(MT_NEW(MT_TAG_PLAN, int64_t, count[_i]), 0, 8);
    _exit(0);
  }
  int status;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("memory");
  TCase *tests = tcase_create("memory");
  tcase_add_test(tests, test_counts);
  tcase_add_test(tests, test_growth);
  tcase_add_loop_test(tests, test_too_many, 0, 4);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
