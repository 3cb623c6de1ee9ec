/* Starting and ending: who is here, who shares what, in which numbering.
 *
 * The problem: the launcher numbers ranks as it likes, perhaps round-robin over hosts, and what a rank may
 * use of its host depends on who else is bound there. The idea: places are gathered in launch order,
 * mt_cluster_build renumbers them so that a node's ranks are consecutive, and MPI_Comm_split makes that the
 * order of our own communicator. The traps: the environment of remote ranks need not be the launcher's, so
 * rank 0's word counts; and pretended nodes still share the real host's cores, so the sharing is computed
 * from real host names. */
#include "config.h"
#include "comm/comm.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"
#include "comm/comm_mpi.h"
#include "comm/threads.h"
#include "topology/discover.h"

void mt_mpi_failed(const char *file, int line, const char *call, int code)
{
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  mt_die(file, line, "%.*s: %s", (int)strcspn(call, "("), call, text);
}

static void abort_job(int code)
{
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (started && !ended)
    MPI_Abort(MPI_COMM_WORLD, code ? code : MT_FAILED);
}

/* The longest wait from MOTLEY_TIMEOUT's text. Prints and returns MT_USAGE if it is no number of seconds. */
static enum mt_status read_timeout(const char *text, double *seconds)
{
  *seconds = 1800;
  if (!text)
    return MT_OK;
  char *end;
  *seconds = strtod(text, &end);
  if (end != text && !*end && *seconds >= 0)
    return MT_OK;
  mt_error("MOTLEY_TIMEOUT=%s: expected a number of seconds, 0 for no limit", text);
  return MT_USAGE;
}

static void start_mpi(struct mt_comm *comm, int *argc, char ***argv)
{
  int up = 0, down = 0, provided = 0;
  MPI_Finalized(&down);
  MT_CHECK(!down, "MPI has ended and cannot start again");
  MPI_Initialized(&up);
  if (!up) {
    /* All calls come from one thread at a time, later perhaps not the main one. */
    int code = MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided);
    MT_CHECK(code == MPI_SUCCESS, "MPI_Init_thread failed with code %d", code);
    comm->mpi->started = 1;
    /* Errors that belong to no communicator go to this one's handler. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  mt_die_hook(abort_job);
  MT_MPI(MPI_Query_thread(&provided));
  MT_CHECK(provided >= MPI_THREAD_FUNNELED,
           "MPI was started for a single thread (level %d): MPI_THREAD_FUNNELED is the least", provided);
  comm->threaded = provided >= MPI_THREAD_SERIALIZED;
  const int *limit = NULL;
  int known = 0;
  MT_MPI(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit,
                           &known)); /* derived communicators do not know it */
  comm->mpi->tag_limit = known ? *limit : 32767;
  MT_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm->mpi->world));
  MT_MPI(MPI_Comm_set_errhandler(comm->mpi->world, MPI_ERRORS_RETURN));
  MT_MPI(MPI_Comm_rank(comm->mpi->world, &comm->rank));
  MT_MPI(MPI_Comm_size(comm->mpi->world, &comm->size));
  comm->mpi->counts = MT_NEW(MT_TAG_COMM, int, 2 * (int64_t)comm->size);
}

static double slowness = 1; /* of this rank's computing */

/* One part of MOTLEY_SLOW's text, for `size` ranks: RANK:FACTOR, or *:FACTOR for all. 0: it is none. */
static int read_factor(const char *part, size_t length, int size, double *factor)
{
  char copy[64];
  int64_t rank;
  double value;
  if (length >= sizeof copy)
    return 0;
  memcpy(copy, part, length);
  copy[length] = '\0';
  char *colon = strchr(copy, ':');
  if (!colon || !mt_text_real(colon + 1, &value) || value < 1)
    return 0;
  *colon = '\0';
  const int all = !strcmp(copy, "*");
  if (!all && (!mt_text_integer(copy, &rank) || rank < 0 || rank >= size))
    return 0;
  for (int r = 0; r < size; r++)
    factor[r] = all || r == rank ? value : factor[r];
  return 1;
}

/* MOTLEY_SLOW's text into factor[size]. */
static enum mt_status read_slow(const char *text, int size, double *factor)
{
  for (int r = 0; r < size; r++)
    factor[r] = 1;
  for (const char *at = text; at && *at;) {
    size_t length = strcspn(at, ",");
    if (!read_factor(at, length, size, factor)) {
      mt_error("MOTLEY_SLOW=%s: expected RANK:FACTOR, ..., each a rank below %d, or * for all, and a factor of at least 1", text,
               size);
      return MT_USAGE;
    }
    at += length + (at[length] == ',');
  }
  return MT_OK;
}

static double processor_s(void)
{
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct mt_pace mt_pace_begin(void)
{
  return (struct mt_pace){mt_time(), slowness > 1 ? processor_s() : 0};
}

void mt_pace_end(struct mt_pace pace)
{
  if (slowness <= 1)
    return;
  double left = pace.began + slowness * (processor_s() - pace.used) - mt_time();
  if (left <= 0)
    return;
  struct timespec interval = {.tv_sec = (time_t)left, .tv_nsec = (long)(1e9 * (left - floor(left)))};
  nanosleep(&interval, NULL);
}

/* Builds the cluster from the places, with pretended nodes if rank 0's environment asks for them. Rank 0 says
 * what is wrong, so it is said once. */
static enum mt_status build_cluster(struct mt_comm *comm, const struct mt_place *place)
{
  char *pretend = mt_bcast_text(comm, getenv("MOTLEY_NODES"), 0);
  char *timeout = mt_bcast_text(comm, getenv("MOTLEY_TIMEOUT"), 0);
  double *factor = MT_ZNEW(MT_TAG_COMM, double, comm->size);
  enum mt_status status = MT_OK;
  if (comm->rank == 0) {
    status = read_timeout(timeout, &comm->mpi->timeout_s);
    if (status == MT_OK)
      status = read_slow(getenv("MOTLEY_SLOW"), comm->size, factor);
    if (status == MT_OK)
      status = mt_cluster_build(place, comm->size, pretend, &comm->cluster);
  }
  status = mt_agree(comm, status);
  if (status == MT_OK && comm->rank != 0) {
    status = read_timeout(timeout, &comm->mpi->timeout_s);
    MT_CHECK(status == MT_OK && mt_cluster_build(place, comm->size, pretend, &comm->cluster) == MT_OK,
             "rank 0 could build the cluster, rank %d could not", comm->rank);
  }
  mt_bcast(comm, factor, (int64_t)sizeof *factor * comm->size, 0);
  slowness = 1;
  for (int r = 0; r < comm->size && status == MT_OK; r++) {
    struct mt_place *place = &comm->cluster->place[r];
    slowness = place->launch_rank == comm->rank ? factor[r] : slowness;
    if (factor[r] > 1) { /* it pretends to be another CPU, so that nobody takes it for one of the others */
      size_t room = sizeof place->model - 16, used = strnlen(place->model, room);
      snprintf(place->model + used, sizeof place->model - used, "#%.6g", factor[r]);
    }
  }
  mt_free(factor);
  if (slowness > 1)
    mt_thread_hurry(); /* who has slept as long as it should is due at once */
  mt_free(pretend);
  mt_free(timeout);
  return status;
}

/* From launch order to the cluster's numbering. */
static void renumber(struct mt_comm *comm)
{
  struct mt_cluster *cluster = comm->cluster;
  int rank = 0;
  while (cluster->place[rank].launch_rank != comm->rank)
    rank++;
  MPI_Comm world;
  MT_MPI(MPI_Comm_split(comm->mpi->world, 0, rank, &world));
  MT_MPI(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN));
  MT_MPI(MPI_Comm_free(&comm->mpi->world));
  comm->mpi->world = world;
  comm->rank = rank;
  comm->nnode = cluster->nnode;
  comm->node_first = cluster->node_first;
  comm->node = cluster->node_of[rank];
  comm->node_rank = rank - cluster->node_first[comm->node];
  comm->node_size = cluster->node_first[comm->node + 1] - cluster->node_first[comm->node];
}

enum mt_status mt_comm_new(int *argc, char ***argv, struct mt_comm **result)
{
  *result = NULL;
  struct mt_comm *comm = MT_ZNEW(MT_TAG_COMM, struct mt_comm, 1);
  comm->mpi = MT_ZNEW(MT_TAG_COMM, struct mt_comm_mpi, 1);
  start_mpi(comm, argc, argv);

  struct mt_place mine;
  memset(&mine, 0, sizeof mine); /* padding and the tails of strings are sent too */
  mt_discover(&mine);
  mine.launch_rank = comm->rank;
  mine.threads = 1;
  mt_log_identity(comm->rank, comm->size, mine.host);
  struct mt_place *place = MT_NEW(MT_TAG_COMM, struct mt_place, comm->size);
  struct mt_threads *threads = MT_NEW(MT_TAG_COMM, struct mt_threads, comm->size);
  mt_allgather(comm, &mine, place, sizeof mine);
  comm->mpi->crowded = mt_threads_agree(comm, place, threads);
  comm->mpi->given = threads[comm->rank].given;
  for (int r = 0; r < comm->size; r++)
    place[r].threads = threads[r].count;

  enum mt_status status = build_cluster(comm, place);
  if (status == MT_OK) {
    if (comm->rank == 0)
      mt_threads_warn(place, threads, comm->size);
    renumber(comm);
    mt_log_identity(comm->rank, comm->size, comm->cluster->place[comm->rank].host);
    comm->wait_s = 0;
    *result = comm;
  }
  mt_free(threads);
  mt_free(place);
  if (status != MT_OK)
    mt_comm_free(comm);
  return status;
}

void mt_comm_beside(struct mt_comm *comm)
{
  struct mt_place *place = comm->cluster->place;
  int32_t mine = place[comm->rank].threads, *all = MT_NEW(MT_TAG_COMM, int32_t, comm->size);
  if (comm->threaded && comm->size > 1)
    mine = mt_threads_beside(mine, comm->mpi->given);
  mt_allgather(comm, &mine, all, sizeof mine);
  for (int r = 0; r < comm->size; r++)
    place[r].threads = all[r];
  mt_free(all);
}

void mt_comm_free(struct mt_comm *comm)
{
  if (!comm)
    return;
  int started = comm->mpi->started;
  MT_MPI(MPI_Comm_free(&comm->mpi->world));
  mt_cluster_free(comm->cluster);
  mt_free(comm->mpi->scratch);
  mt_free(comm->mpi->counts);
  mt_free(comm->mpi);
  mt_free(comm);
  if (started)
    MPI_Finalize();
}
