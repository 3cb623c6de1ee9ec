/* The command line: which commands there are, what each may be given, and what was given.
 *
 * Every process of a job understands it alike, before MPI is up; only the launcher's rank 0 speaks of mistakes. Local. */
#ifndef MT_ARGUMENTS_H
#define MT_ARGUMENTS_H
#include "comm/comm.h"
#include "train/bench.h"

struct mt_verb {
  const char *name;
  enum mt_command bit;
  const char *argument; /* what it must be given, NULL = nothing */
  unsigned options;
  enum mt_status (*run)(struct mt_comm *, const struct mt_config *); /* on all ranks with a configuration */
  const char *help;
};

struct mt_arguments {
  const struct mt_verb *command; /* NULL = none was given */
  const struct mt_bench *bench;     /* of `motley bench`: which one */
  int help, version, json, measure, dry;
  const char *argument, *cluster, *ranks, *trace, *grid, *loads; /* borrowed from argv */
  struct mt_override *overrides; /* [noverride], owned */
  int noverride;
};

/* MT_USAGE, said once. Free it, after a failure too. */
enum mt_status mt_arguments_parse(struct mt_arguments *a, int argc, char **argv);
void mt_arguments_free(struct mt_arguments *a);
/* What --help says of a command (NULL: of all) before the options of the configuration. The caller frees. */
char *mt_arguments_help(const struct mt_verb *command);

#endif
