/* How data.valid is split into sets. ranks: 1 */
#include "test.h"
#include "train/valid.h"
#include <string.h>

static const struct {
  const char *list, *sets; /* name=paths;... */
  int named;
} cases[] = {
    {"a.txt", "valid=a.txt;", 0},
    {"a.txt, b.txt", "valid=a.txt,b.txt;", 0},
    {"wiki: a.txt, b.txt", "wiki= a.txt,b.txt;", 1},
    {"wiki:a.txt,code:src-*.c, d.c ,x-2_Y:z", "wiki=a.txt;code=src-*.c,d.c ;x-2_Y=z;", 1},
    {"a.txt, wiki: b.txt", "valid=a.txt;wiki= b.txt;", 1},
    {" wiki: /data/x:y.txt", "wiki= /data/x:y.txt;", 1}, /* one name an item */
    {"./x:y, /a:b, a.b:c", "valid=./x:y,/a:b,a.b:c;", 0},
    {":x", "valid=:x;", 0},
    {"wiki:", "wiki=;", 1}, /* no file: said when opened */
    {"a,,b", "valid=a,,b;", 0},
    {"", "valid=;", 0},
};
enum { NCASE = sizeof cases / sizeof *cases };

START_TEST(test_split)
{
  struct mt_valid valid;
  char *fault = NULL, *sets = mt_strdup("");
  ck_assert_int_eq(mt_valid_split(cases[_i].list, &valid, &fault), MT_OK);
  ck_assert_ptr_null(fault);
  for (int i = 0; i < valid.n; i++) {
    char *longer = mt_format("%s%s=%s;", sets, valid.name[i], valid.paths[i]);
    mt_free(sets);
    sets = longer;
  }
  ck_assert_str_eq(sets, cases[_i].sets);
  ck_assert_int_eq(valid.named, cases[_i].named);
  mt_free(sets);
  mt_valid_close(&valid);
}
END_TEST

START_TEST(test_twice)
{
  static const char *const lists[2] = {"wiki: a, code: b, wiki: c", "a, valid: b"};
  for (int i = 0; i < 2; i++) {
    struct mt_valid valid;
    char *fault = NULL;
    ck_assert_int_eq(mt_valid_split(lists[i], &valid, &fault), MT_USAGE);
    ck_assert_ptr_nonnull(strstr(fault, i ? "found the set valid twice" : "found the set wiki twice"));
    mt_free(fault);
    mt_valid_close(&valid);
  }
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("valid");
  TCase *tests = tcase_create("valid");
  tcase_add_loop_test(tests, test_split, 0, NCASE);
  tcase_add_test(tests, test_twice);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
