/* motley: the commands, and in which order things start and end.
 *
 * Arguments are understood before MPI is up, by every process alike, and only the launcher's rank 0 speaks of
 * them. Then MPI starts, rank 0 reads the configuration and its verdict is agreed, and the others get its
 * printed form: so a mistake is said once and all ranks end with the same code. What needs no ranks (--help,
 * --version, inspect, topo --cluster, simulate, plan) never starts MPI. */
#include "config.h"
#include "base/config.h"
#include "base/json.h"
#include "base/launcher.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/comm.h"
#include "comm/devices.h"
#include "comm/measure.h"
#include "io/checkpoint.h"
#include "kernels/cpu/limit.h"
#include "schedule/grid.h"
#include "topology/cluster.h"
#include "topology/discover.h"
#include "train/forecast.h"
#include "train/layouts.h"
#include "train/predict.h"
#include "train/settings.h"
#include "train/sharding.h"
#include "train/train.h"
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what needs no ranks ---- */

static void print_help(const struct mt_verb *command)
{
  char *text = mt_arguments_help(command);
  fputs(text, stdout);
  mt_free(text);
  mt_config_help(command ? command->bit : ~0u);
  printf("\nexit codes: 0 done, 1 failed, 2 usage or configuration, 3 unreadable or corrupt input or "
         "checkpoint,\n"
         "75 stopped by a signal with a complete checkpoint\n");
}

static void print_version(void)
{
  char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(mpi, &length); /* one of the few calls that MPI allows before it is started */
  mpi[strcspn(mpi, ",\n")] = 0;
  char *json = mt_json_library();
  printf("motley (%s) %s\n%s", PACKAGE_NAME, PACKAGE_VERSION, mpi);
#ifdef OPEN_MPI
  printf(" (compiled with %d.%d.%d)", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION);
#endif
  char *hdf5 = mt_checkpoint_library(), *hwloc = mt_discover_library(), *dnnl = mt_limit_library();
  printf("\n%s\n%s\n%s\n%s\n", hdf5, hwloc, dnnl, json);
  mt_free(hdf5);
  mt_free(hwloc);
  mt_free(dnnl);
  mt_free(json);
}

static void print_cluster(const struct mt_cluster *cluster, int as_json)
{
  mt_json *json = as_json ? mt_cluster_to_json(cluster) : NULL;
  char *text = as_json ? mt_json_print(json, 2) : mt_cluster_print(cluster);
  size_t length = strlen(text);
  fputs(text, stdout);
  if (length && text[length - 1] != '\n')
    fputc('\n', stdout);
  mt_free(text);
  mt_json_free(json);
}

/* ---- what needs ranks ---- */

static int processors(pid_t pid, cpu_set_t *set)
{
  CPU_ZERO(set);
  return sched_getaffinity(pid, sizeof *set, set) ? 0 : CPU_COUNT(set);
}

/* Idle OpenMP threads spin, and where threads outnumber processors they take them from those that work.
 * libgomp reads its policy when it is loaded, so the program starts itself again, once, with another
 * environment: before MPI is up, since nothing survives it. Where the launcher has bound this process, the
 * parent (which is not bound) still shows all of the host's processors. */
static void wait_passively(char **argv)
{
  static const char *const users[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY"};
  for (int i = 0; i < 4; i++)
    if (getenv(users[i]))
      return;
  cpu_set_t set;
  const char *given = getenv("OMP_NUM_THREADS");
  int64_t ranks = mt_launcher_local_size(), threads = 0;
  if (given && (!mt_text_integer(given, &threads) || threads < 0))
    threads = 0; /* a list, of nested teams */
  int mine = processors(0, &set), host = processors(getppid(), &set);
  if (host < mine)
    host = mine;
  if (ranks == 0)
    ranks = 1;
  if (!mine || (threads <= mine && ranks * (threads ? threads : 1) <= host))
    return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);
  /* It did not: then it is slower, no more. */
}

/* A launcher and an MPI that do not know each other start N programs that each believe to be alone, all
 * writing the same files. */
static enum mt_status check_alone(const struct mt_comm *comm, int rank, int64_t launched, const char *variable)
{
  if (comm->size > 1 || launched <= 1)
    return MT_OK;
  if (rank == 0)
    mt_error("the launcher started %lld processes (%s), but MPI knows of one: they do not speak the same language; start with "
             "the mpirun of the MPI that motley was built with, or with srun --mpi=pmix", (long long)launched, variable);
  return MT_USAGE;
}

/* Unknown or bad MOTLEY_ names concern commands without a configuration too. */
static enum mt_status check_environment(const struct mt_verb *command)
{
  struct mt_config config;
  enum mt_status status = mt_config_read(NULL, NULL, 0, command->bit, &config);
  mt_config_free(&config);
  return status;
}

static enum mt_status measure(struct mt_comm *comm)
{
  struct mt_device *device;
  MT_TRY(mt_agree(comm, mt_device_open("cpu", comm->cluster->place[comm->rank].threads, &device)));
  mt_measure(comm, device);
  device->ops->close(device);
  return MT_OK;
}

static enum mt_status run_on_ranks(const struct mt_arguments *a, int *argc, char ***argv)
{
  const char *variable = NULL;
  const int64_t launched = mt_launcher_size(&variable);
  const int rank = mt_launcher_rank(); /* MPI adds words of its own to the environment */
  struct mt_comm *comm;
  MT_TRY(mt_comm_new(argc, argv, &comm));
  struct mt_config config;
  enum mt_status status = mt_agree(comm, check_alone(comm, rank, launched, variable));
  if (!status && (a->command->run || a->bench)) {
    memset(&config, 0, sizeof config);
    status = mt_settings_read(comm, a, &config);
    if (!status)
      status = mt_agree(comm, (a->bench ? a->bench->run : a->command->run)(comm, &config));
    mt_config_free(&config);
  } else if (!status) {
    status = mt_agree(comm, comm->rank == 0 ? check_environment(a->command) : MT_OK);
    char kind[32], *report = NULL;
    if (!status)
      status = mt_devices_choose(comm, "auto", kind, sizeof kind, &report);
    if (!status && a->measure)
      status = measure(comm);
    if (!status && comm->rank == 0)
      print_cluster(comm->cluster, a->json);
    char *nics = !status && !a->json ? mt_devices_nics(comm) : NULL;
    if (report && !a->json)
      fputs(report, stdout);
    if (nics)
      fputs(nics, stdout);
    mt_free(nics);
    mt_free(report);
  }
  mt_comm_free(comm);
  return status;
}

static enum mt_status read_cluster(const char *text, struct mt_cluster **cluster)
{
  if (text[strspn(text, "0123456789, ")] && access(text, F_OK)) {
    mt_error("--cluster %s: no such file, expected one or the nodes' sizes (2,1,4)", text);
    return MT_USAGE;
  }
  return mt_cluster_read(text, cluster);
}

/* n ranks on the machine at hand, as mpirun -np n would start them here. */
static enum mt_status this_machine(int n, struct mt_cluster **cluster)
{
  struct mt_place *place = MT_NEW(MT_TAG_MISC, struct mt_place, n);
  mt_discover(&place[0]);
  place[0].threads = place[0].cores > n ? place[0].cores / n : 1;
  for (int i = 0; i < n; i++) {
    place[i] = place[0];
    place[i].launch_rank = i;
  }
  enum mt_status status = mt_cluster_build(place, n, getenv("MOTLEY_NODES"), cluster);
  mt_free(place);
  return status;
}

/* A configuration on a cluster that need not be there: its memory, or its time. */
static enum mt_status foresee(const struct mt_arguments *a)
{
  int64_t n = 1;
  if (a->ranks && (!mt_text_integer(a->ranks, &n) || n < 1 || n > 1 << 20)) {
    mt_error("--ranks: found \"%s\", expected a number of ranks", a->ranks);
    return MT_USAGE;
  }
  if (a->ranks && a->cluster) {
    mt_error("--ranks and --cluster both say how many ranks there are; expected one of them");
    return MT_USAGE;
  }
  struct mt_config config;
  MT_TRY(mt_config_read(a->argument, a->overrides, a->noverride, a->command->bit, &config));
  struct mt_cluster *cluster;
  enum mt_status status = a->cluster ? read_cluster(a->cluster, &cluster) : this_machine((int)n, &cluster);
  if (!status) {
    struct mt_text_buffer why = {0}; /* JSON is alone on stdout */
    status = a->json ? mt_sharding_weigh(&config, cluster, &config.parallel.sharding, &why)
                     : mt_sharding_choose(&config, cluster, &config.parallel.sharding);
    mt_free(why.text);
    if (!status)
      status = a->dry                            ? mt_forecast_print(&config, cluster)
               : a->command->bit == MT_CMD_PLAN ? mt_layouts_print(&config, cluster, a->loads, a->json)
                                                : mt_predict_print(&config, cluster, a->trace);
    mt_cluster_free(cluster);
  }
  mt_config_free(&config);
  return status;
}

static enum mt_status run_alone(const struct mt_arguments *a)
{
  if (mt_launcher_rank() != 0)
    return MT_OK;
  if (a->help || a->version) {
    if (a->version)
      print_version();
    else
      print_help(a->command);
    return MT_OK;
  }
  if (a->grid)
    return mt_grid_print(a->grid);
  if (a->dry || a->command->bit & (MT_CMD_SIMULATE | MT_CMD_PLAN))
    return foresee(a);
  MT_TRY(check_environment(a->command));
  if (a->command->bit == MT_CMD_INSPECT)
    return mt_checkpoint_inspect(a->argument);
  struct mt_cluster *cluster;
  MT_TRY(read_cluster(a->cluster, &cluster));
  print_cluster(cluster, a->json);
  mt_cluster_free(cluster);
  return MT_OK;
}

int main(int argc, char **argv)
{
  struct mt_arguments a;
  enum mt_status status = mt_arguments_parse(&a, argc, argv);
  /* Rank 0 says what is wrong, and its code becomes the launcher's. A code from another rank that is quicker would make the
   * launcher kill rank 0 before it has spoken. */
  int silent = status && mt_launcher_rank() != 0;
  if (!status && (a.help || a.version || a.dry || a.cluster || a.command->bit & (MT_CMD_INSPECT | MT_CMD_SIMULATE | MT_CMD_PLAN))) {
    status = run_alone(&a);
  } else if (!status) {
    wait_passively(argv);
    if (a.command->bit == MT_CMD_TRAIN)
      mt_train_catch_signals();
    status = run_on_ranks(&a, &argc, &argv);
  }
  mt_arguments_free(&a);
  if (fflush(stdout) || ferror(stdout)) {
    mt_error("cannot write to standard output");
    status = status ? status : MT_FAILED;
  }
  if (mt_memory_report_leaks() && !status)
    status = MT_FAILED;
  return silent ? MT_OK : status;
}
