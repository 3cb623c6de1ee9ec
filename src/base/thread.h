/* Scheduling of a thread that works little and often on a core that computes meanwhile. */
#ifndef MT_THREAD_H
#define MT_THREAD_H

/* Asks that this thread's sleeps be exact, and for time slices so short that it need not wait until another thread's ends
 * (Linux 6.12: the slice of a normal thread is its sched_runtime). Where it is refused all goes on without. Local. */
void mt_thread_hurry(void);

#endif
