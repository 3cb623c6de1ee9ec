/* Who computes with how many threads; see threads.h.
 *
 * The problem: ranks of one host may be bound to the same processors, to disjoint ones, or to none in
 * particular, and together they should use each core once. The idea: ranks of a host show each other their
 * affinity masks; a processor that k of them may use counts 1/k to each. The trap: launchers bind silently,
 * often one rank to one core. */
#include "config.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/memory.h"
#include "comm/comm_mpi.h"
#include "comm/threads.h"

static int has_bit(const struct mt_cpus *mask, int cpu)
{
  return mask->bit[cpu / 8] >> (cpu % 8) & 1;
}

/* The processors this rank may use; empty if the system does not say. */
static void affinity(struct mt_cpus *mask)
{
  memset(mask, 0, sizeof *mask);
  cpu_set_t set[MT_MAX_CPUS / CPU_SETSIZE];
  if (sched_getaffinity(0, sizeof set, set) == 0)
    for (int cpu = 0; cpu < MT_MAX_CPUS; cpu++)
      if (CPU_ISSET_S(cpu, sizeof set, set))
        mask->bit[cpu / 8] |= (unsigned char)(1 << cpu % 8);
}

/* OMP_NUM_THREADS ("4" or "4,2"), 0 if absent or not a positive number (the OpenMP run time warns of that
 * itself). */
static int threads_wanted(void)
{
  const char *text = getenv("OMP_NUM_THREADS");
  long n = text ? strtol(text, NULL, 10) : 0;
  return n > 0 && n < 1 << 20 ? (int)n : 0;
}

/* A processor that k ranks may use counts 1/k to each of them. hwloc's cores may be fewer than the processors
 * of the mask (hyperthreads, quotas), or more (a made-up machine): a rank gets the same share of either, and
 * the smaller. */
int mt_threads_count(const struct mt_place *place, const struct mt_cpus *mask, int n, int me, int *processors)
{
  double fraction = 0;
  *processors = 0;
  for (int cpu = 0; cpu < MT_MAX_CPUS; cpu++) {
    if (!has_bit(&mask[me], cpu))
      continue;
    int users = 0;
    for (int i = 0; i < n; i++)
      users += has_bit(&mask[i], cpu);
    fraction += 1.0 / users;
    ++*processors;
  }
  if (!*processors)
    return place->cores / n > 1 ? place->cores / n : 1;
  double cores = fraction * place->cores / *processors;
  int threads = (int)((cores < fraction ? cores : fraction) + 1e-6);
  return threads > 1 ? threads : 1;
}

int mt_threads_beside(int count, int given)
{
  return count - (count >= 4 && !given);
}

/* More threads of ranks that meet on my processors than these processors (scaled to cores)? */
int mt_threads_crowded(const struct mt_place *place, const struct mt_cpus *mask, const struct mt_threads *threads, int n,
                       int me)
{
  struct mt_cpus all = mask[me];
  int sum = 0, processors = 0;
  for (int i = 0; i < n; i++) {
    int meets = i == me || !threads[me].processors;
    for (size_t b = 0; b < sizeof all.bit && !meets; b++)
      meets = (mask[i].bit[b] & mask[me].bit[b]) != 0;
    if (!meets)
      continue;
    sum += threads[i].count;
    for (size_t b = 0; b < sizeof all.bit; b++)
      all.bit[b] |= mask[i].bit[b];
  }
  for (int cpu = 0; cpu < MT_MAX_CPUS; cpu++)
    processors += has_bit(&all, cpu);
  int64_t cores = place->cores;
  if (threads[me].processors && cores < threads[me].processors)
    cores = processors * cores / threads[me].processors;
  else if (threads[me].processors)
    cores = processors;
  return sum > (cores > 1 ? cores : 1);
}

int mt_threads_agree(struct mt_comm *comm, const struct mt_place *place, struct mt_threads *threads)
{
  struct mt_cpus mine, *mask = MT_NEW(MT_TAG_COMM, struct mt_cpus, comm->size);
  affinity(&mine);
  mt_allgather(comm, &mine, mask, sizeof mine);
  int me = 0, n = 0; /* of my host's ranks, whose masks move to the front */
  for (int r = 0; r < comm->size; r++)
    if (!strcmp(place[r].host, place[comm->rank].host)) {
      me = r == comm->rank ? n : me;
      mask[n++] = mask[r];
    }
  struct mt_threads result = {0};
  result.count = mt_threads_count(&place[comm->rank], mask, n, me, &result.processors);
  result.given = threads_wanted() > 0;
  if (result.given)
    result.count = threads_wanted();
  mt_allgather(comm, &result, threads, sizeof result);
  struct mt_threads *here = MT_NEW(MT_TAG_COMM, struct mt_threads, n);
  for (int r = 0, i = 0; r < comm->size; r++)
    if (!strcmp(place[r].host, place[comm->rank].host))
      here[i++] = threads[r];
  int crowded = mt_threads_crowded(&place[comm->rank], mask, here, n, me);
  mt_free(here);
  mt_free(mask);
  return crowded;
}

/* One line for the job if ranks run more threads than their binding has processors. */
void mt_threads_warn(const struct mt_place *place, const struct mt_threads *threads, int n)
{
  int narrow = 0, first = -1;
  for (int r = n - 1; r >= 0; r--)
    if (threads[r].processors && threads[r].processors < threads[r].count) {
      narrow++;
      first = r;
    }
  if (narrow)
    mt_warn("%d of %d ranks have more compute threads than processors they may use (rank %d on %s: %d "
            "threads, %d "
            "processors): pass --bind-to none or --map-by slot:PE=N to mpirun, or lower OMP_NUM_THREADS",
            narrow, n, first, place[first].host, threads[first].count, threads[first].processors);
}
