/* A task list in real time, with communication beside computing.
 *
 * The compute lane runs on the caller's thread; both communication lanes on one thread of the executor's own, which
 * from then on makes every MPI call of the list (MPI_THREAD_SERIALIZED is enough: nobody else calls MPI meanwhile).
 * Each of the two takes its tasks in list order, so all ranks communicate in the same order, and begins one as soon as
 * its dependencies have ended; until then it sleeps. Nothing of what is computed depends on when. The trap: the two
 * share memory without locks; what is safe is what the dependencies say (plan.h, experts/moe.h). A task that has ended may have
 * left work on its device's math lane, which is in order: what communicates waits for that lane before it reads or overwrites
 * rows, weights or gradients there (comm/exchange.h), and has its own copies done, or behind on that lane, when it ends. */
#ifndef MT_EXECUTOR_H
#define MT_EXECUTOR_H
#include "schedule/task.h"

struct mt_executor;
/* Starts the thread, which takes no signals. Local. The caller frees. */
struct mt_executor *mt_executor_new(void);
void mt_executor_free(struct mt_executor *executor); /* NULL allowed */
/* Runs all tasks; what they took is added to *times. span: [n], when each ran since the call, or NULL. Returns the
 * seconds in which this thread had nothing to compute. Collective in effect; no allocation but for longer lists than
 * ever before. */
double mt_executor_run(struct mt_executor *executor, const struct mt_tasks *tasks, struct mt_task_times *times,
                       struct mt_span *span);

#endif
