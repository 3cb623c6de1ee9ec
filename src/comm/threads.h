/* Who computes with how many threads on a host that several ranks share, and whether their threads crowd its cores. For
 * src/comm only; the idea and the trap are told in threads.c. */
#ifndef MT_THREADS_H
#define MT_THREADS_H
#include "comm/comm.h"

/* Processors, as bits. */
enum { MT_MAX_CPUS = 8192 };
struct mt_cpus {
  unsigned char bit[MT_MAX_CPUS / 8];
};

/* What a rank has of its host. */
struct mt_threads {
  int count;      /* compute threads, >= 1 */
  int processors; /* that its affinity mask allows, 0 = unknown */
  int given;      /* 1: the count is OMP_NUM_THREADS */
};

/* Threads for rank `me` of the n ranks of a host with these masks, and the processors in its own. Pure. */
int mt_threads_count(const struct mt_place *place, const struct mt_cpus *mask, int n, int me, int *processors);
/* How many of `count` threads compute where another one communicates: of four or more that were not asked for, one less. Pure. */
int mt_threads_beside(int count, int given);
/* 1 if the threads of the ranks that may meet on me's processors outnumber the cores. Pure. */
int mt_threads_crowded(const struct mt_place *place, const struct mt_cpus *mask, const struct mt_threads *threads, int n,
                       int me);
/* Fills threads[size], in launch order: ranks of one real host (equal place[size].host) deal its processors out. Returns 1 if
 * this rank's processors are crowded. Collective over all ranks. */
int mt_threads_agree(struct mt_comm *comm, const struct mt_place *place, struct mt_threads *threads);
/* One warning for the job if ranks run more threads than their binding has processors. Local; rank 0 calls. */
void mt_threads_warn(const struct mt_place *place, const struct mt_threads *threads, int n);

#endif
