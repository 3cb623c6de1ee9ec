/* Lanes beside each other; see executor.h. */
#include "schedule/executor.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include "base/memory.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/comm.h"

struct mt_executor {
  pthread_t thread;
  pthread_mutex_t lock; /* of all that follows */
  pthread_cond_t changed;
  const struct mt_tasks *tasks; /* under way; NULL = none */
  struct mt_span *span;
  double zero;
  int ending;
  char *ended; /* [capacity] by task */
  int64_t capacity;
  int communicated;           /* the thread is through with its tasks */
  struct mt_task_times times; /* the thread's */
};

static int is_ready(const struct mt_executor *x, const struct mt_task *task)
{
  for (int i = 0; i < task->ndep; i++)
    if (!x->ended[task->dep[i]])
      return 0;
  return 1;
}

/* Runs the tasks of the compute lane or those of the others; called and left with the lock held. Returns the seconds
 * that it waited for dependencies. */
static double run_lanes(struct mt_executor *x, int compute, struct mt_task_times *times)
{
  const struct mt_tasks *tasks = x->tasks;
  struct mt_span *span = x->span;
  const double zero = x->zero;
  double waited = 0;
  for (int i = 0; i < tasks->n; i++) {
    const struct mt_task *task = &tasks->task[i];
    if ((task->lane == MT_LANE_COMPUTE) != compute)
      continue;
    if (!is_ready(x, task)) {
      double before = mt_time();
      while (!is_ready(x, task))
        pthread_cond_wait(&x->changed, &x->lock);
      waited += mt_time() - before;
    }
    pthread_mutex_unlock(&x->lock);
    mt_task_run(task, times, zero, span ? &span[i] : NULL);
    pthread_mutex_lock(&x->lock);
    x->ended[i] = 1;
    pthread_cond_broadcast(&x->changed);
  }
  return waited;
}

static void *communicate(void *self)
{
  struct mt_executor *x = self;
  mt_thread_hurry(); /* it works little and often, on a core that computes meanwhile */
  pthread_mutex_lock(&x->lock);
  for (;;) {
    while (!x->ending && (!x->tasks || x->communicated))
      pthread_cond_wait(&x->changed, &x->lock);
    if (x->ending)
      break;
    memset(&x->times, 0, sizeof x->times);
    run_lanes(x, 0, &x->times);
    x->communicated = 1;
    pthread_cond_broadcast(&x->changed);
  }
  pthread_mutex_unlock(&x->lock);
  return NULL;
}

struct mt_executor *mt_executor_new(void)
{
  struct mt_executor *x = MT_ZNEW(MT_TAG_PLAN, struct mt_executor, 1);
  pthread_mutex_init(&x->lock, NULL);
  pthread_cond_init(&x->changed, NULL);
  sigset_t all, kept; /* signals are the main thread's */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &kept);
  int error = pthread_create(&x->thread, NULL, communicate, x);
  pthread_sigmask(SIG_SETMASK, &kept, NULL);
  MT_CHECK(!error, "no thread for communication: %s", strerror(error));
  return x;
}

void mt_executor_free(struct mt_executor *x)
{
  if (!x)
    return;
  pthread_mutex_lock(&x->lock);
  x->ending = 1;
  pthread_cond_broadcast(&x->changed);
  pthread_mutex_unlock(&x->lock);
  pthread_join(x->thread, NULL);
  pthread_cond_destroy(&x->changed);
  pthread_mutex_destroy(&x->lock);
  mt_free(x->ended);
  mt_free(x);
}

double mt_executor_run(struct mt_executor *x, const struct mt_tasks *tasks, struct mt_task_times *times,
                       struct mt_span *span)
{
  pthread_mutex_lock(&x->lock);
  mt_grow(MT_TAG_PLAN, (void **)&x->ended, &x->capacity, tasks->n, 1);
  memset(x->ended, 0, (size_t)tasks->n);
  x->tasks = tasks;
  x->span = span;
  x->zero = mt_time();
  x->communicated = 0;
  pthread_cond_broadcast(&x->changed);
  double waited = run_lanes(x, 1, times);
  while (!x->communicated) {
    double before = mt_time();
    pthread_cond_wait(&x->changed, &x->lock);
    waited += mt_time() - before;
  }
  x->tasks = NULL;
  for (int lane = 0; lane < MT_NLANE; lane++)
    times->lane_s[lane] += x->times.lane_s[lane];
  for (int kind = 0; kind < MT_NTASK_KIND; kind++)
    times->kind_s[kind] += x->times.kind_s[kind];
  pthread_mutex_unlock(&x->lock);
  return waited;
}
