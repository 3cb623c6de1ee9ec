/* The command line; see arguments.h. */
#include "train/arguments.h"
#include "base/launcher.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "train/train.h"
#include <string.h>

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

static const struct mt_verb commands[] = {
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

static int is_bench(const struct mt_verb *command)
{
  return command && !strcmp(command->name, "bench");
}

static enum mt_status take_bench(struct mt_arguments *a, const char *word)
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

static enum mt_status unknown_option(const struct mt_verb *command, const char *word)
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
static enum mt_status take_option(struct mt_arguments *a, int argc, char **argv, int *i)
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

enum mt_status mt_arguments_parse(struct mt_arguments *a, int argc, char **argv)
{
  *a = (struct mt_arguments){.overrides = MT_NEW(MT_TAG_MISC, struct mt_override, argc)};
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

void mt_arguments_free(struct mt_arguments *a)
{
  mt_free(a->overrides);
}

static void add_usage(struct mt_text_buffer *out, const struct mt_verb *command)
{
  mt_text_add(out, "motley %s%s%s%s", command->name, is_bench(command) ? " WHAT" : "", command->argument ? " " : "",
              command->argument ? command->argument : "");
  for (int f = 0; f < NFLAG; f++)
    if (command->options & flags[f].bit)
      mt_text_add(out, " [%s%s%s]", flags[f].name, flags[f].argument ? " " : "", flags[f].argument ? flags[f].argument : "");
}

char *mt_arguments_help(const struct mt_verb *command)
{
  struct mt_text_buffer out = {0};
  if (command) {
    mt_text_add(&out, "usage: ");
    add_usage(&out, command);
    mt_text_add(&out, "\n%c%s.\n", command->help[0] - 'a' + 'A', command->help + 1);
    for (int i = 0; is_bench(command) && i < mt_nbench; i++)
      mt_text_add(&out, "  %-10s %s\n", mt_benches[i].name, mt_benches[i].help);
    for (int f = 0; f < NFLAG; f++)
      if (command->options & flags[f].bit)
        mt_text_add(&out, "  %s %s: %s\n", flags[f].name, flags[f].argument ? flags[f].argument : "", flags[f].help);
  } else {
    mt_text_add(&out, "motley trains Mixture-of-Experts language models on clusters of unlike machines.\n\nusage:\n");
    for (int c = 0; c < NCOMMAND; c++) {
      mt_text_add(&out, "  ");
      add_usage(&out, &commands[c]);
      mt_text_add(&out, "\n      %s\n", commands[c].help);
    }
    mt_text_add(&out, "  motley --version\n  motley COMMAND --help\n\n"
                      "On several ranks: mpirun -np 4 motley train CONFIG\n");
  }
  if (!command || command->options & OPTION_SET)
    mt_text_add(&out, "\nCONFIG is an INI file. An option is taken from --set SECTION.KEY=VALUE, else from the environment's\n"
                      "MOTLEY_SECTION_KEY, else from the file, else it has its default (in parentheses).\n");
  return out.text;
}
