/* Messages: posting, and waiting without burning a core that somebody computes on.
 *
 * The problem: MPI_Wait spins. Where threads outnumber cores a spinning rank takes the core from the very rank
 * it waits for. The idea: test, yield for a moment (most answers are near), then sleep for a little, then for
 * longer; each completion starts over. Where each thread has its core, yielding and sleeping only delay: it spins, a
 * hundred times as long before it sleeps. The trap: MPI moves long messages only inside its calls, so each
 * wake-up tests several times, and the longest sleep stays short. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/log.h"
#include "base/memory.h"
#include "comm/comm_mpi.h"

enum { IS_SEND = 1 << 30 };
enum { TESTS_PER_WAKE = 4, SLEEP_FIRST_NS = 20 * 1000, SLEEP_LONGEST_NS = 200 * 1000 };
static const double eager_s = 20e-3, eager_crowded_s = 200e-6;

int64_t mt_comm_piece = (int64_t)1 << 30;

double mt_time(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void mt_requests_reserve(struct mt_requests *set, int capacity)
{
  if (capacity <= set->capacity)
    return;
  int more = set->capacity + set->capacity / 2;
  if (capacity < more)
    capacity = more;
  if (set->mpi)
    mt_memory_count_growth();
  /* One block: requests, indices for MPI_Testsome behind them, partners behind those. */
  MPI_Request *mpi = mt_alloc(MT_TAG_COMM, capacity * (int64_t)(sizeof(MPI_Request) + 2 * sizeof(int)));
  int *partner = (int *)(mpi + capacity) + capacity;
  if (set->n) {
    memcpy(mpi, set->mpi, (size_t)set->n * sizeof *mpi);
    memcpy(partner, set->partner, (size_t)set->n * sizeof *partner);
  }
  mt_free(set->mpi);
  set->mpi = mpi;
  set->partner = partner;
  set->capacity = capacity;
}

void mt_requests_free(struct mt_requests *set)
{
  MT_CHECK(set->n == 0, "%d messages were posted and not waited for", set->n);
  mt_free(set->mpi);
  *set = (struct mt_requests){0};
}

/* Room for one more request, and its place. */
static MPI_Request *next_request(struct mt_requests *set, int partner)
{
  if (set->n == set->capacity)
    mt_requests_reserve(set, set->n + 16);
  set->partner[set->n] = partner;
  return (MPI_Request *)set->mpi + set->n++;
}

static void check_message(const struct mt_comm *comm, int64_t bytes, int partner)
{
  MT_CHECK(bytes >= 0 && partner >= 0 && partner < comm->size && partner != comm->rank,
           "rank %d: a message of %lld bytes with rank %d of %d", comm->rank, (long long)bytes, partner,
           comm->size);
}

void mt_post_send(struct mt_comm *comm, struct mt_requests *set, const void *data, int64_t bytes, int to,
                  int tag)
{
  check_message(comm, bytes, to);
  enum mt_level level = mt_cluster_level(comm->cluster, comm->rank, to);
  for (int64_t at = 0; at < bytes; at += mt_comm_piece) {
    int64_t piece = bytes - at < mt_comm_piece ? bytes - at : mt_comm_piece;
    MT_MPI(MPI_Isend((const char *)data + at, (int)piece, MPI_BYTE, to, tag, comm->mpi->world,
                     next_request(set, to | IS_SEND)));
    comm->sent_bytes[level] += piece;
    comm->sent_messages[level]++;
  }
}

void mt_post_recv(struct mt_comm *comm, struct mt_requests *set, void *data, int64_t bytes, int from, int tag)
{
  check_message(comm, bytes, from);
  for (int64_t at = 0; at < bytes; at += mt_comm_piece) {
    int64_t piece = bytes - at < mt_comm_piece ? bytes - at : mt_comm_piece;
    MT_MPI(MPI_Irecv((char *)data + at, (int)piece, MPI_BYTE, from, tag, comm->mpi->world,
                     next_request(set, from)));
  }
}

/* How long this rank has waited since it began and since something last completed. */
struct patience {
  double began, last;
  long sleep_ns;
};

static struct patience new_patience(void)
{
  double now = mt_time();
  return (struct patience){.began = now, .last = now, .sleep_ns = SLEEP_FIRST_NS};
}

/* Somebody else wants the core that waiting takes. */
static int is_crowded(const struct mt_comm *comm)
{
  return comm->mpi->crowded || comm->beside;
}

/* One pause between tests. `progress`: something completed since the last one. */
static void pause_once(const struct mt_comm *comm, struct patience *patience, int progress)
{
  double now = mt_time();
  if (progress) {
    patience->last = now;
    patience->sleep_ns = SLEEP_FIRST_NS;
  }
  /* Beside computing a thread that yields gives away a whole time slice; one that sleeps comes back when it likes. */
  if (!comm->beside && now - patience->last < (is_crowded(comm) ? eager_crowded_s : eager_s)) {
    if (is_crowded(comm)) /* else the core is ours; given away, it comes back after a time slice */
      sched_yield();
    return;
  }
  struct timespec interval = {.tv_nsec = patience->sleep_ns};
  nanosleep(&interval, NULL);
  patience->sleep_ns = patience->sleep_ns * 2 < SLEEP_LONGEST_NS ? patience->sleep_ns * 2 : SLEEP_LONGEST_NS;
}

static int is_late(const struct mt_comm *comm, const struct patience *patience)
{
  return comm->mpi->timeout_s > 0 && mt_time() - patience->began > comm->mpi->timeout_s;
}

/* Appends "rank r (host), ..." of the partners of open requests, each once, at most eight. */
static void name_missing(const struct mt_comm *comm, const struct mt_requests *set, int send, char *text,
                         size_t size)
{
  const MPI_Request *request = set->mpi;
  size_t length = 0;
  int named = 0, more = 0;
  text[0] = '\0';
  for (int i = 0; i < set->n; i++) {
    if (request[i] == MPI_REQUEST_NULL || ((set->partner[i] & IS_SEND) != 0) != send)
      continue;
    int again = 0;
    for (int j = 0; j < i && !again; j++)
      again = request[j] != MPI_REQUEST_NULL && set->partner[j] == set->partner[i];
    if (again)
      continue;
    if (named++ >= 8) {
      more++;
      continue;
    }
    int partner = set->partner[i] & ~IS_SEND;
    int n = snprintf(text + length, size - length, "%s%d (%s)", length ? ", " : "", partner,
                     comm->cluster->place[partner].host);
    length = n < 0 || (size_t)n >= size - length ? size - 1 : length + (size_t)n;
  }
  if (more)
    snprintf(text + length, size - length, " and %d more", more);
}

static _Noreturn void give_up(const struct mt_comm *comm, const struct mt_requests *set)
{
  int count; /* MPI_Testall leaves the finished ones as they are; this turns them into null requests */
  MPI_Testsome(set->n, set->mpi, &count, (int *)((MPI_Request *)set->mpi + set->capacity),
               MPI_STATUSES_IGNORE);
  char from[700], to[700], text[1600];
  name_missing(comm, set, 0, from, sizeof from);
  name_missing(comm, set, 1, to, sizeof to);
  snprintf(text, sizeof text, "%s%s%s%s%s", from[0] ? "nothing came from rank " : "", from,
           from[0] && to[0] ? "; " : "", to[0] ? "nothing was taken by rank " : "", to);
  mt_die(__FILE__, __LINE__, "waited %g s (MOTLEY_TIMEOUT): %s", comm->mpi->timeout_s, text);
}

void mt_wait(struct mt_comm *comm, struct mt_requests *set)
{
  if (!set->n)
    return;
  MPI_Request *request = set->mpi;
  int *index = (int *)(request + set->capacity);
  struct patience patience = new_patience();
  for (int open = set->n;;) {
    int before = open;
    for (int i = 0; i < TESTS_PER_WAKE && open > 0; i++) {
      int done = 0;
      MT_MPI(MPI_Testsome(set->n, request, &done, index, MPI_STATUSES_IGNORE));
      if (done > 0)
        open -= done;
    }
    if (!open)
      break;
    if (is_late(comm, &patience))
      give_up(comm, set);
    pause_once(comm, &patience, open < before);
  }
  set->n = 0;
  comm->wait_s += mt_time() - patience.began;
}

/* After a sleep several tests move MPI's messages on; between yields one is enough, as others want the core. */
static int tests_now(const struct mt_comm *comm, const struct patience *patience)
{
  return is_crowded(comm) && patience->sleep_ns == SLEEP_FIRST_NS ? 1 : TESTS_PER_WAKE;
}

int mt_wait_some(struct mt_comm *comm, struct mt_requests *set, const int **done)
{
  struct patience patience = new_patience();
  while (set->n) {
    MPI_Request *request = set->mpi;
    int *index = (int *)(request + set->capacity), n = 0;
    for (int i = 0; i < tests_now(comm, &patience) && n == 0; i++)
      MT_MPI(MPI_Testsome(set->n, request, &n, index, MPI_STATUSES_IGNORE));
    if (n == MPI_UNDEFINED) { /* all were done before */
      set->n = 0;
      break;
    }
    if (n > 0) {
      comm->wait_s += mt_time() - patience.began;
      *done = index;
      return n;
    }
    if (is_late(comm, &patience))
      give_up(comm, set);
    pause_once(comm, &patience, 0);
  }
  comm->wait_s += mt_time() - patience.began;
  return 0;
}

int mt_test_some(struct mt_requests *set, const int **done)
{
  int n = MPI_UNDEFINED;
  *done = (int *)((MPI_Request *)set->mpi + set->capacity);
  if (set->n)
    MT_MPI(MPI_Testsome(set->n, set->mpi, &n, (int *)*done, MPI_STATUSES_IGNORE));
  if (n != MPI_UNDEFINED)
    return n;
  set->n = 0;
  return 0;
}

void mt_wait_collective(struct mt_comm *comm, MPI_Request *request, const char *what)
{
  struct patience patience = new_patience();
  for (;;) {
    int done = 0;
    for (int i = 0; i < TESTS_PER_WAKE && !done; i++)
      MT_MPI(MPI_Test(request, &done, MPI_STATUS_IGNORE));
    if (done)
      break;
    MT_CHECK(!is_late(comm, &patience),
             "waited %g s (MOTLEY_TIMEOUT) in a %s over all ranks: some rank is missing",
             comm->mpi->timeout_s, what);
    pause_once(comm, &patience, 0);
  }
  comm->wait_s += mt_time() - patience.began;
}
