/* The machine's log: folders, appending, an unfinished last line, a full disk, refusals. ranks: 1 */
#include "test.h"
#include "io/runlog.h"
#include <stdio.h>
#include <string.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[256];

static char *path_of(const char *name)
{
  static char path[4][512];
  static int turn;
  turn = (turn + 1) % 4;
  snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
  return path[turn];
}

static const char *content(const char *name)
{
  static char text[8192];
  FILE *file = fopen(path_of(name), "rb");
  ck_assert_ptr_nonnull(file);
  size_t n = fread(text, 1, sizeof text - 1, file);
  text[n] = '\0';
  fclose(file);
  return text;
}

static mt_json *line(const char *event, int64_t step)
{
  mt_json *object = mt_json_object();
  mt_json_set(object, "event", mt_json_string(event));
  mt_json_set(object, "step", mt_json_integer(step));
  return object;
}

/* Every line of `text` is an object with this step, in turn; -1 marks a line that is no JSON. */
static void check_steps(const char *text, const int64_t *step, int n)
{
  char copy[8192];
  snprintf(copy, sizeof copy, "%s", text);
  size_t length = strlen(copy);
  ck_assert(length > 0 && copy[length - 1] == '\n');
  char *at = copy;
  for (int i = 0; i < n; i++) {
    char *end = strchr(at, '\n');
    ck_assert_msg(end != NULL, "%d lines, expected %d", i, n);
    *end = '\0';
    if (step[i] >= 0) {
      mt_json *value = NULL;
      ck_assert_int_eq(mt_json_parse("log", at, &value), MT_OK);
      ck_assert_int_eq(mt_json_as_integer(mt_json_get(value, "step"), -5), step[i]);
      ck_assert_int_eq(strncmp(at, "{\"event\"", 8), 0);
      mt_json_free(value);
    }
    at = end + 1;
  }
  ck_assert_msg(*at == '\0', "more than %d lines: '%s'", n, at);
}

START_TEST(test_append)
{
  struct mt_runlog *log = NULL;
  ck_assert_int_eq(mt_runlog_open(path_of("new/run/"), &log), MT_OK);
  ck_assert_str_eq(content("new/run/log.jsonl"), "");
  mt_runlog_write(log, line("start", 0));
  mt_runlog_write(log, line("step", 1));
  check_steps(content("new/run/log.jsonl"), (int64_t[]){0, 1}, 2); /* there before it is closed */
  mt_runlog_close(log);
  ck_assert_int_eq(mt_runlog_open(path_of("new/run"), &log), MT_OK);
  mt_runlog_write(log, line("start", 2));
  mt_runlog_close(log);
  check_steps(content("new/run/log.jsonl"), (int64_t[]){0, 1, 2}, 3);
}
END_TEST

/* What a killed job left behind is ended, and its line stays alone. */
START_TEST(test_unfinished)
{
  struct mt_runlog *log = NULL;
  ck_assert_int_eq(mt_runlog_open(path_of("new"), &log), MT_OK);
  mt_runlog_write(log, line("step", 1));
  mt_runlog_close(log);
  FILE *file = fopen(path_of("new/log.jsonl"), "ab");
  fputs("{\"event\":\"st", file);
  fclose(file);
  ck_assert_int_eq(mt_runlog_open(path_of("new"), &log), MT_OK);
  mt_runlog_write(log, line("step", 2));
  mt_runlog_write(log, line("step", 3));
  mt_runlog_close(log);
  check_steps(content("new/log.jsonl"), (int64_t[]){1, -1, 2, 3}, 4);
}
END_TEST

/* No log on other ranks; what is written to it is freed all the same. */
START_TEST(test_none)
{
  mt_runlog_write(NULL, line("step", 1));
  mt_runlog_close(NULL);
  ck_assert_int_eq(mt_memory_tag(MT_TAG_IO), 0);
}
END_TEST

/* A write cut short by a full disk (here: a limit on the size of files) warns once; once there is room, lines
 * are whole. */
START_TEST(test_full)
{
  struct mt_runlog *log = NULL;
  struct rlimit before, small;
  ck_assert_int_eq(mt_runlog_open(path_of("full"), &log), MT_OK);
  mt_runlog_write(log, line("step", 1));
  ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
  small = before;
  small.rlim_cur = strlen(content("full/log.jsonl")) + 5;
  signal(SIGXFSZ, SIG_IGN);
  int kept = dup(2), pipes[2]; /* a pipe: the limit binds files */
  ck_assert_int_eq(pipe(pipes), 0);
  dup2(pipes[1], 2);
  ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
  mt_runlog_write(log, line("step", 2));
  mt_runlog_write(log, line("step", 3));
  dup2(kept, 2);
  close(pipes[1]);
  ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
  mt_runlog_write(log, line("step", 4));
  mt_runlog_write(log, line("step", 5));
  mt_runlog_close(log);
  char text[2048];
  ssize_t n = read(pipes[0], text, sizeof text - 1), warnings = 0;
  ck_assert_int_gt(n, 0);
  text[n] = '\0';
  for (const char *at = text; (at = strstr(at, "warning")); at++)
    warnings++;
  ck_assert_int_eq(warnings, 1);
  ck_assert_ptr_nonnull(strstr(text, "full/log.jsonl"));
  close(pipes[0]);
  close(kept);
  check_steps(content("full/log.jsonl"), (int64_t[]){1, -1, 4, 5}, 4);
}
END_TEST

START_TEST(test_refused)
{
  struct mt_runlog *log = (struct mt_runlog *)1;
  FILE *file = fopen(path_of("file"), "wb");
  fclose(file);
  ck_assert_int_eq(mt_runlog_open(path_of("file"), &log), MT_USAGE);
  ck_assert_ptr_null(log);
  ck_assert_int_eq(mt_runlog_open(path_of("file/below"), &log), MT_USAGE);
  ck_assert_int_eq(mt_runlog_open(path_of("file/below/it"), &log), MT_USAGE);
  ck_assert_int_eq(mkdir(path_of("taken"), 0777), 0);
  ck_assert_int_eq(mkdir(path_of("taken/log.jsonl"), 0777), 0);
  ck_assert_int_eq(mt_runlog_open(path_of("taken"), &log), MT_FAILED);
  ck_assert_ptr_null(log);
  ck_assert_int_eq(mt_runlog_open("/proc/motley/run", &log), MT_FAILED);
  struct mt_runlog *first;
  ck_assert_int_eq(mt_runlog_open(path_of("new/run"), &first), MT_OK);
  ck_assert_int_eq(mt_runlog_open(path_of("new/run"), &log), MT_USAGE); /* somebody is at work there */
  ck_assert_ptr_null(log);
  mt_runlog_close(first);
  ck_assert_int_eq(mt_runlog_open(path_of("new/run"), &log), MT_OK);
  mt_runlog_close(log);
}
END_TEST

int main(void)
{
  snprintf(folder, sizeof folder, "%s/motley-runlog-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  if (!mkdtemp(folder)) {
    perror(folder);
    return 99;
  }
  Suite *suite = suite_create("runlog");
  TCase *tests = tcase_create("runlog");
  tcase_add_test(tests, test_append);
  tcase_add_test(tests, test_unfinished);
  tcase_add_test(tests, test_none);
  tcase_add_test(tests, test_full);
  tcase_add_test(tests, test_refused);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  const char *files[] = {"new/run/log.jsonl", "new/log.jsonl", "full/log.jsonl", "file"};
  const char *folders[] = {"new/run", "new", "full", "taken/log.jsonl", "taken", ""};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    unlink(path_of(files[i]));
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
    rmdir(path_of(folders[i]));
  return code;
}
