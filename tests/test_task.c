/* The task list and its executor. ranks: 1 */
#include "test.h"
#include <string.h>
#include <time.h>
#include "schedule/task.h"

struct record {
  int n;
  int index[200];
};

static void note(void *self, const struct mt_task *task)
{
  struct record *record = self;
  record->index[record->n++] = task->micro;
}

static void dawdle(void *self, const struct mt_task *task)
{
  (void)self, (void)task;
  struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
  nanosleep(&pause, NULL);
}

START_TEST(test_order_and_dependencies)
{
  struct mt_tasks tasks = {0};
  struct record record = {0};
  for (int i = 0; i < 150; i++) { /* more than one growth of the list */
    int index = mt_tasks_add(&tasks, &(struct mt_task){.kind = MT_TASK_GATE, .lane = MT_LANE_COMPUTE, .micro = i, .layer = 3,
                                                       .chunk = 2, .run = note, .self = &record, .ndep = 3,
                                                       .dep = {i - 1, -1, i / 2 - 1}});
    ck_assert_int_eq(index, i);
  }
  ck_assert_int_eq(tasks.n, 150);
  ck_assert_int_eq(tasks.task[0].ndep, 0);
  ck_assert_int_eq(tasks.task[1].ndep, 1);
  ck_assert_int_eq(tasks.task[100].ndep, 2);
  ck_assert_int_eq(tasks.task[100].dep[0], 99);
  ck_assert_int_eq(tasks.task[100].dep[1], 49);
  ck_assert_int_eq(tasks.task[100].layer, 3);
  ck_assert_int_eq(tasks.task[100].chunk, 2);
  ck_assert_int_eq(tasks.task[100].cost_ns, 0);
  struct mt_task_times times = {0};
  mt_tasks_run(&tasks, &times, NULL);
  ck_assert_int_eq(record.n, 150);
  for (int i = 0; i < 150; i++)
    ck_assert_int_eq(record.index[i], i);
  mt_tasks_free(&tasks);
  ck_assert_int_eq(tasks.n, 0);
}
END_TEST

START_TEST(test_lane_times_are_added)
{
  struct mt_tasks tasks = {0};
  mt_tasks_add(&tasks, &(struct mt_task){.kind = MT_TASK_DISPATCH, .lane = MT_LANE_INTER, .run = dawdle});
  mt_tasks_add(&tasks, &(struct mt_task){.kind = MT_TASK_DISPATCH, .lane = MT_LANE_INTER, .run = dawdle});
  struct mt_task_times times = {.lane_s = {0, 5, 1}};
  mt_tasks_run(&tasks, &times, NULL);
  ck_assert_double_eq(times.lane_s[MT_LANE_COMPUTE], 0);
  ck_assert_double_eq(times.lane_s[MT_LANE_INTRA], 5);
  ck_assert_double_ge(times.lane_s[MT_LANE_INTER], 1.04);
  ck_assert_double_ge(times.kind_s[MT_TASK_DISPATCH], 0.04);
  ck_assert_double_eq(times.kind_s[MT_TASK_EXPERTS], 0);
  mt_tasks_free(&tasks);
}
END_TEST

START_TEST(test_every_kind_has_its_own_name)
{
  for (int a = 0; a < MT_NTASK_KIND; a++) {
    ck_assert_ptr_nonnull(mt_task_name((enum mt_task_kind)a));
    ck_assert_str_ne(mt_task_name((enum mt_task_kind)a), "unknown");
    for (int b = 0; b < a; b++)
      ck_assert_str_ne(mt_task_name((enum mt_task_kind)a), mt_task_name((enum mt_task_kind)b));
  }
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("task");
  TCase *tests = tcase_create("task");
  tcase_add_test(tests, test_order_and_dependencies);
  tcase_add_test(tests, test_lane_times_are_added);
  tcase_add_test(tests, test_every_kind_has_its_own_name);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
