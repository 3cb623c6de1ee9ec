/* The executor of task lists, with tasks that stand in for computing and communication. ranks: 1 */
#include "test.h"
#include <pthread.h>
#include <string.h>
#include "base/random.h"
#include "schedule/executor.h"

enum { TASKS = 400 };

/* Plain memory that tasks share without locks: only their dependencies keep them apart, which a thread sanitizer
 * checks. */
struct memory {
  int64_t cell[TASKS];                              /* what each has computed */
  int compute[TASKS], comm[TASKS], ncompute, ncomm; /* which ran, by side */
  pthread_t thread[2];
};

struct work {
  struct memory *memory;
  int index;
};

/* A task reads what its dependencies have written. */
static void work(void *self, const struct mt_task *task)
{
  struct work *w = self;
  struct memory *m = w->memory;
  int64_t sum = w->index;
  for (int d = 0; d < task->ndep; d++)
    sum += 3 * m->cell[task->dep[d]] % 1000003;
  m->cell[w->index] = sum;
  if (task->lane == MT_LANE_COMPUTE) {
    m->thread[0] = pthread_self();
    m->compute[m->ncompute++] = w->index;
  } else {
    m->thread[1] = pthread_self();
    m->comm[m->ncomm++] = w->index;
  }
}

static void build(struct mt_tasks *tasks, struct work *w, struct memory *m, uint64_t seed)
{
  memset(m, 0, sizeof *m);
  *tasks = (struct mt_tasks){0};
  for (int i = 0; i < TASKS; i++) {
    uint64_t bits = mt_random_bits(seed, MT_STREAM_TEST, (uint64_t)i);
    w[i] = (struct work){m, i};
    struct mt_task task = {
        .lane = (enum mt_lane)(bits % MT_NLANE), .run = work, .self = &w[i], .ndep = (int)(bits >> 8 & 255) % 4};
    for (int d = 0; d < 3; d++)
      task.dep[d] = i - 1 - (int)(bits >> (16 + 8 * d) & 255) % 20;
    mt_tasks_add(tasks, &task);
  }
}

START_TEST(test_same_as_in_order)
{
  static struct memory alone, beside;
  static struct work w[TASKS];
  struct mt_executor *executor = mt_executor_new();
  for (uint64_t seed = 0; seed < 50; seed++) {
    struct mt_tasks tasks;
    struct mt_span span[TASKS];
    struct mt_task_times times = {0};
    build(&tasks, w, &alone, seed);
    mt_tasks_run(&tasks, &times, NULL);
    memset(&beside, 0, sizeof beside);
    for (int i = 0; i < TASKS; i++)
      w[i].memory = &beside;
    double waited = mt_executor_run(executor, &tasks, &times, span);
    ck_assert_double_ge(waited, 0);
    ck_assert(!memcmp(alone.cell, beside.cell, sizeof alone.cell));
    ck_assert_int_eq(alone.ncompute, beside.ncompute);
    ck_assert(!memcmp(alone.compute, beside.compute, sizeof alone.compute));
    ck_assert(!memcmp(alone.comm, beside.comm, sizeof alone.comm));
    ck_assert(pthread_equal(beside.thread[0], pthread_self()));
    ck_assert(!pthread_equal(beside.thread[1], pthread_self()));
    for (int i = 0; i < tasks.n; i++)
      for (int d = 0; d < tasks.task[i].ndep; d++)
        ck_assert_int_ge(span[i].start_ns, span[tasks.task[i].dep[d]].end_ns);
    mt_tasks_free(&tasks);
  }
  mt_executor_free(executor);
}
END_TEST

/* Two that wait for each other's beginning end only if they run at once. */
struct meeting {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int here;
};

static void meet(void *self, const struct mt_task *task)
{
  struct meeting *m = self;
  (void)task;
  pthread_mutex_lock(&m->lock);
  m->here++;
  pthread_cond_broadcast(&m->changed);
  while (m->here < 2)
    pthread_cond_wait(&m->changed, &m->lock);
  pthread_mutex_unlock(&m->lock);
}

START_TEST(test_beside)
{
  struct meeting m = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
  struct mt_tasks tasks = {0};
  struct mt_task_times times = {0};
  mt_tasks_add(&tasks, &(struct mt_task){.lane = MT_LANE_INTER, .run = meet, .self = &m});
  mt_tasks_add(&tasks, &(struct mt_task){.lane = MT_LANE_COMPUTE, .run = meet, .self = &m});
  mt_tasks_add(&tasks, &(struct mt_task){.lane = MT_LANE_COMPUTE, .dep = {0}, .ndep = 1}); /* nothing to do */
  struct mt_executor *executor = mt_executor_new();
  mt_executor_run(executor, &tasks, &times, NULL);
  mt_executor_run(executor, &(struct mt_tasks){0}, &times, NULL); /* an empty list */
  ck_assert_int_eq(m.here, 2);
  mt_executor_free(executor);
  mt_tasks_free(&tasks);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("executor");
  TCase *tests = tcase_create("executor");
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, test_same_as_in_order);
  tcase_add_test(tests, test_beside);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
