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
#include "train/bench.h"
#include "train/forecast.h"
#include "train/layouts.h"
#include "train/predict.h"
#include "train/sharding.h"
#include "train/train.h"
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the command line ---- */

enum {
  OPTION_SET = 1,
  OPTION_JSON = 2,
  OPTION_CLUSTER = 4,
  OPTION_MEASURE = 8,
  OPTION_DRY = 16,
  OPTION_RANKS = 32,
  OPTION_TRACE = 64,
  OPTION_GRID = 128,
  OPTION_LOADS = 256
};

static const struct command {
  const char *name;
  enum mt_command bit;
  const char *argument; /* what it must be given, NULL = nothing */
  unsigned options;
  enum mt_status (*run)(struct mt_comm *, const struct mt_config *); /* on all ranks with a configuration */
  const char *help;
} commands[] = {
    {"train", MT_CMD_TRAIN, "CONFIG", OPTION_SET | OPTION_DRY | OPTION_RANKS | OPTION_CLUSTER, mt_train_run,
     "train a model, from the newest checkpoint if there is one"},
    {"eval", MT_CMD_EVAL, "CONFIG", OPTION_SET, mt_eval_run,
     "the loss of the newest checkpoint on each set of data.valid"},
    {"generate", MT_CMD_GENERATE, "CONFIG", OPTION_SET, mt_generate_run,
     "text that the newest checkpoint writes after generate.prompt"},
    {"bench", MT_CMD_TRAIN | MT_CMD_BENCH, "CONFIG", OPTION_SET, NULL,
     "a figure of this machine and this configuration beside the machine's own limit"},
    {"simulate", MT_CMD_SIMULATE, "CONFIG", OPTION_SET | OPTION_RANKS | OPTION_CLUSTER | OPTION_TRACE | OPTION_GRID, NULL,
     "what a step would take under each published schedule; needs no MPI"},
    {"plan", MT_CMD_PLAN, "CONFIG", OPTION_SET | OPTION_RANKS | OPTION_CLUSTER | OPTION_LOADS | OPTION_JSON, NULL,
     "what layouts each policy makes of moving loads, and what they cost; needs no MPI"},
    {"topo", MT_CMD_TOPO, NULL, OPTION_JSON | OPTION_CLUSTER | OPTION_MEASURE, NULL,
     "the cluster as the ranks see it, or one from a description"},
    {"inspect", MT_CMD_INSPECT, "PATH", 0, NULL,
     "what a checkpoint (or a folder of them) holds, every checksum verified"},
};
enum { NCOMMAND = sizeof commands / sizeof *commands };

static const struct {
  const char *name;
  unsigned bit;
  const char *argument, *help;
} flags[] = {
    {"--set", OPTION_SET, "SECTION.KEY=VALUE", "override the file (may be repeated)"},
    {"--json", OPTION_JSON, NULL, "print the JSON form: of the cluster, or of figures and layouts"},
    {"--loads", OPTION_LOADS, "FILE", "rows of each rank and expert, step by step, as CSV; else they are made up"},
    {"--cluster", OPTION_CLUSTER, "FILE|SIZES",
     "this file's cluster, or one of nodes of 2, 1 and 4 ranks: 2,1,4"},
    {"--measure", OPTION_MEASURE, NULL, "measure the ranks' speeds and the links between them"},
    {"--dry-run", OPTION_DRY, NULL, "print what a step needs of memory and whether it fits; needs no MPI"},
    {"--ranks", OPTION_RANKS, "N", "N ranks on this machine, without running there (or --cluster)"},
    {"--trace", OPTION_TRACE, "FILE", "the lanes of the sequential and the best schedule, for Perfetto"},
    {"--grid", OPTION_GRID, "fsmoe|mast", "instead of CONFIG: the layers of a paper, averages beside the published ones"},
};
enum { NFLAG = sizeof flags / sizeof *flags };

struct arguments {
  const struct command *command; /* NULL = none was given */
  const struct mt_bench *bench;  /* of `motley bench`: which one */
  int help, version, json, measure, dry;
  const char *argument, *cluster, *ranks, *trace, *grid, *loads;
  struct mt_override *overrides; /* [noverride], owned */
  int noverride;
};

/* Errors about the command line: one process of the job speaks. */
#define SAY(...)                                                                                             \
  do {                                                                                                       \
    if (mt_launcher_rank() == 0)                                                                             \
      mt_error(__VA_ARGS__);                                                                                 \
  } while (0)

static enum mt_status unknown_command(const char *word)
{
  const char *names[NCOMMAND];
  for (int i = 0; i < NCOMMAND; i++)
    names[i] = commands[i].name;
  const char *near = mt_text_nearest(word, names, NCOMMAND);
  SAY("unknown command \"%s\"%s%s%s; motley --help lists them", word, near ? ", did you mean " : "",
      near ? near : "", near ? "?" : "");
  return MT_USAGE;
}

static int is_bench(const struct command *command)
{
  return command && !strcmp(command->name, "bench");
}

static enum mt_status take_bench(struct arguments *a, const char *word)
{
  const char *names[mt_nbench];
  for (int i = 0; i < mt_nbench; i++) {
    names[i] = mt_benches[i].name;
    if (!strcmp(word, names[i]))
      a->bench = &mt_benches[i];
  }
  if (a->bench)
    return MT_OK;
  const char *near = mt_text_nearest(word, names, mt_nbench);
  SAY("unknown benchmark \"%s\"%s%s%s; motley bench --help lists them", word, near ? ", did you mean " : "",
      near ? near : "", near ? "?" : "");
  return MT_USAGE;
}

static enum mt_status unknown_option(const struct command *command, const char *word)
{
  const char *names[NFLAG + 2] = {"--help", "--version"};
  char *name = mt_format("%.*s", (int)strcspn(word, "="), word);
  int n = command ? 1 : 2; /* --version goes with no command */
  for (int i = 0; command && i < NFLAG; i++)
    if (command->options & flags[i].bit)
      names[n++] = flags[i].name;
  const char *near = mt_text_nearest(name, names, n);
  SAY("unknown option %s%s%s%s%s%s; motley %s%s--help lists them", name, command ? " of " : "",
      command ? command->name : "", near ? ", did you mean " : "", near ? near : "", near ? "?" : "",
      command ? command->name : "", command ? " " : "");
  mt_free(name);
  return MT_USAGE;
}

/* Takes one option at argv[*i] (and its argument behind it or after '='). */
static enum mt_status take_option(struct arguments *a, int argc, char **argv, int *i)
{
  const char *word = argv[*i];
  size_t n = strcspn(word, "=");
  if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
    a->help = 1;
    return MT_OK;
  }
  if (!a->command && (!strcmp(word, "--version") || !strcmp(word, "-V"))) {
    a->version = 1;
    return MT_OK;
  }
  for (int f = 0; a->command && f < NFLAG; f++) {
    if (!(a->command->options & flags[f].bit) || strlen(flags[f].name) != n ||
        strncmp(word, flags[f].name, n))
      continue;
    const char *value = word[n] ? word + n + 1 : NULL;
    if (!flags[f].argument && value) {
      SAY("%s takes no argument, found \"%s\"", flags[f].name, value);
      return MT_USAGE;
    }
    if (flags[f].argument && !value && *i + 1 < argc)
      value = argv[++*i];
    if (flags[f].argument && !value) {
      SAY("%s needs an argument: %s", flags[f].name, flags[f].argument);
      return MT_USAGE;
    }
    if (flags[f].bit == OPTION_SET)
      a->overrides[a->noverride++].text = value;
    else if (flags[f].bit == OPTION_CLUSTER)
      a->cluster = value;
    else if (flags[f].bit == OPTION_MEASURE)
      a->measure = 1;
    else if (flags[f].bit == OPTION_RANKS)
      a->ranks = value;
    else if (flags[f].bit == OPTION_TRACE)
      a->trace = value;
    else if (flags[f].bit == OPTION_LOADS)
      a->loads = value;
    else if (flags[f].bit == OPTION_GRID)
      a->grid = value;
    else if (flags[f].bit == OPTION_DRY)
      a->dry = 1;
    else
      a->json = 1;
    return MT_OK;
  }
  return unknown_option(a->command, word);
}

static enum mt_status parse_arguments(struct arguments *a, int argc, char **argv)
{
  int plain = 0; /* behind "--" everything is an argument */
  for (int i = 1; i < argc; i++) {
    if (!plain && !strcmp(argv[i], "--"))
      plain = 1;
    else if (!plain && argv[i][0] == '-' && argv[i][1])
      MT_TRY(take_option(a, argc, argv, &i));
    else if (!a->command) {
      for (int c = 0; c < NCOMMAND && !a->command; c++)
        if (!strcmp(argv[i], commands[c].name))
          a->command = &commands[c];
      if (!a->command)
        return unknown_command(argv[i]);
    } else if (is_bench(a->command) && !a->bench) {
      MT_TRY(take_bench(a, argv[i]));
    } else if (!a->command->argument || a->argument) {
      SAY("%s: one argument too many: \"%s\"", a->command->name, argv[i]);
      return MT_USAGE;
    } else
      a->argument = argv[i];
  }
  if (a->help || a->version)
    return MT_OK;
  if (!a->command) {
    SAY("expected a command; motley --help lists them");
    return MT_USAGE;
  }
  if ((a->ranks || a->cluster) && a->command->bit == MT_CMD_TRAIN && !a->dry) {
    SAY("%s: %s goes with --dry-run only", a->command->name, a->ranks ? "--ranks" : "--cluster");
    return MT_USAGE;
  }
  if (a->grid && (a->argument || a->cluster || a->ranks || a->trace || a->noverride)) {
    SAY("--grid goes with nothing else: a paper's layers and testbeds are given");
    return MT_USAGE;
  }
  if (a->command->argument && !a->argument && !a->grid && !(a->bench && !a->bench->config)) {
    const char *what = is_bench(a->command) ? " WHAT" : "";
    SAY("%s: expected%s %s: motley %s%s %s", a->command->name, what, a->command->argument, a->command->name, what,
        a->command->argument);
    return MT_USAGE;
  }
  return MT_OK;
}

/* ---- what needs no ranks ---- */

static void print_usage(const struct command *command)
{
  printf("motley %s%s%s%s", command->name, is_bench(command) ? " WHAT" : "", command->argument ? " " : "",
         command->argument ? command->argument : "");
  for (int f = 0; f < NFLAG; f++)
    if (command->options & flags[f].bit)
      printf(" [%s%s%s]", flags[f].name, flags[f].argument ? " " : "",
             flags[f].argument ? flags[f].argument : "");
}

static void print_help(const struct command *command)
{
  if (command) {
    printf("usage: ");
    print_usage(command);
    printf("\n%c%s.\n", command->help[0] - 'a' + 'A', command->help + 1);
    for (int i = 0; is_bench(command) && i < mt_nbench; i++)
      printf("  %-10s %s\n", mt_benches[i].name, mt_benches[i].help);
    for (int f = 0; f < NFLAG; f++)
      if (command->options & flags[f].bit)
        printf("  %s %s: %s\n", flags[f].name, flags[f].argument ? flags[f].argument : "", flags[f].help);
  } else {
    printf("motley trains Mixture-of-Experts language models on clusters of unlike machines.\n\nusage:\n");
    for (int c = 0; c < NCOMMAND; c++) {
      printf("  ");
      print_usage(&commands[c]);
      printf("\n      %s\n", commands[c].help);
    }
    printf("  motley --version\n  motley COMMAND --help\n\n"
           "On several ranks: mpirun -np 4 motley train CONFIG\n");
  }
  if (!command || command->run || is_bench(command) || command->bit & (MT_CMD_SIMULATE | MT_CMD_PLAN)) {
    printf("\nCONFIG is an INI file. An option is taken from --set SECTION.KEY=VALUE, else from the "
           "environment's\n"
           "MOTLEY_SECTION_KEY, else from the file, else it has its default (in parentheses).\n");
    mt_config_help(command ? command->bit : ~0u);
  }
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

/* Ranks that were started with other arguments (behind mpirun's ':') name devices of their own. */
static int names_device(const struct mt_override *override)
{
  static const char *const keys[] = {"parallel.device=", "parallel.precision="};
  for (int i = 0; i < 2; i++)
    if (!strncmp(override->text, keys[i], strlen(keys[i])))
      return 1;
  return 0;
}

static char *print_config(const struct mt_config *config, unsigned commands)
{
  return commands & MT_CMD_BENCH ? mt_config_print_sections(config, commands) : mt_config_print(config);
}

/* The text of rank 0's configuration for the other ranks: as it would be without its own device. */
static char *text_for_others(const struct arguments *a, unsigned commands, const char *text)
{
  struct mt_override *rest = MT_NEW(MT_TAG_MISC, struct mt_override, a->noverride);
  int n = 0;
  for (int i = 0; i < a->noverride; i++)
    if (!names_device(&a->overrides[i]))
      rest[n++] = a->overrides[i];
  struct mt_config config;
  char *others = NULL;
  if (n < a->noverride && mt_config_read(a->argument, rest, n, commands, &config) == MT_OK) {
    others = print_config(&config, commands);
    mt_config_free(&config);
  }
  mt_free(rest);
  return others ? others : mt_strdup(text);
}

/* This rank's own device. Local. */
static enum mt_status take_own_device(const struct arguments *a, struct mt_config *config)
{
  for (int i = 0; i < a->noverride; i++)
    if (names_device(&a->overrides[i]))
      MT_TRY(mt_config_override(config, &a->overrides[i]));
  return MT_OK;
}

/* Rank 0's settings hold for all; a rank that is given another one, not of its device, would train with what its line does
 * not say. The first such rank says so. Collective, agreed. */
static enum mt_status check_alike(struct mt_comm *comm, const struct arguments *a)
{
  struct mt_text_buffer given = {0};
  for (int i = 0; i < a->noverride && comm->rank == 0; i++)
    mt_text_add(&given, "\n%s\n", a->overrides[i].text);
  char *all = mt_bcast_text(comm, given.text ? given.text : "", 0);
  const char *other = NULL;
  for (int i = 0; i < a->noverride && !other; i++) {
    char *line = mt_format("\n%s\n", a->overrides[i].text);
    if (!names_device(&a->overrides[i]) && !strstr(all, line))
      other = a->overrides[i].text;
    mt_free(line);
  }
  int64_t first = other ? comm->size - comm->rank : 0; /* the largest is of the lowest rank */
  const int64_t mine = first;
  mt_max_int(comm, &first, 1);
  if (other && mine == first)
    mt_error("--set %s: rank 0, whose settings hold for all, was not given this; behind mpirun's ':' expected parallel.device "
             "or parallel.precision", other);
  mt_free(all);
  mt_free(given.text);
  return first ? MT_USAGE : MT_OK;
}

/* The configuration on all ranks, from rank 0's reading of it. Collective. */
static enum mt_status read_config(struct mt_comm *comm, const struct arguments *a, struct mt_config *config)
{
  const unsigned commands = a->bench ? a->bench->commands : a->command->bit;
  enum mt_status status = MT_OK;
  char *text = NULL;
  if (comm->rank == 0 && (status = mt_config_read(a->argument, a->overrides, a->noverride, commands, config)) == MT_OK)
    text = print_config(config, commands);
  status = mt_agree(comm, status);
  if (!status && (status = check_alike(comm, a)) && comm->rank == 0)
    mt_config_free(config);
  char *others = status || comm->rank ? NULL : text_for_others(a, commands, text);
  char *shared = status ? NULL : mt_bcast_text(comm, others, 0);
  mt_free(others);
  if (!status && comm->rank != 0) {
    status = mt_config_parse("rank 0's configuration", shared, config, NULL);
    if (!status && (status = take_own_device(a, config)))
      mt_config_free(config);
  }
  if (shared)
    status = mt_agree(comm, status);
  /* Generated text is alone on stdout. */
  if (!status && comm->rank == 0 && a->command->bit != MT_CMD_GENERATE) {
    printf("%s %s, ranks: %d, nodes: %d, effective configuration:\n", PACKAGE_STRING, a->command->name,
           comm->size, comm->nnode);
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
      if (*line != '\n')
        printf("  %.*s\n", (int)strcspn(line, "\n"), line);
    fflush(stdout);
  }
  mt_free(shared);
  mt_free(text);
  return status;
}

/* Unknown or bad MOTLEY_ names concern commands without a configuration too. */
static enum mt_status check_environment(const struct command *command)
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

static enum mt_status run_on_ranks(const struct arguments *a, int *argc, char ***argv)
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
    status = read_config(comm, a, &config);
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
static enum mt_status foresee(const struct arguments *a)
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

static enum mt_status run_alone(const struct arguments *a)
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
  struct arguments a = {.overrides = MT_NEW(MT_TAG_MISC, struct mt_override, argc)};
  enum mt_status status = parse_arguments(&a, argc, argv);
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
  mt_free(a.overrides);
  if (fflush(stdout) || ferror(stdout)) {
    mt_error("cannot write to standard output");
    status = status ? status : MT_FAILED;
  }
  if (mt_memory_report_leaks() && !status)
    status = MT_FAILED;
  return silent ? MT_OK : status;
}
