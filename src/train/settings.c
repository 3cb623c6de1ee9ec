/* The configuration of a job; see settings.h. */
#include "config.h"
#include "train/settings.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include <string.h>

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
static char *text_for_others(const struct mt_arguments *a, unsigned commands, const char *text)
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
static enum mt_status take_own_device(const struct mt_arguments *a, struct mt_config *config)
{
  for (int i = 0; i < a->noverride; i++)
    if (names_device(&a->overrides[i]))
      MT_TRY(mt_config_override(config, &a->overrides[i]));
  return MT_OK;
}

/* Rank 0's settings hold for all; a rank that is given another one, not of its device, would train with what its line does
 * not say. The first such rank says so. Collective, agreed. */
static enum mt_status check_alike(struct mt_comm *comm, const struct mt_arguments *a)
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

enum mt_status mt_settings_read(struct mt_comm *comm, const struct mt_arguments *a, struct mt_config *config)
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
    struct mt_text_buffer out = {0};
    mt_text_add(&out, "%s %s, ranks: %d, nodes: %d, effective configuration:\n", PACKAGE_STRING, a->command->name, comm->size,
                comm->nnode);
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
      if (*line != '\n')
        mt_text_add(&out, "  %.*s\n", (int)strcspn(line, "\n"), line);
    mt_write(out.text, (long)out.length);
    mt_free(out.text);
  }
  mt_free(shared);
  mt_free(text);
  return status;
}
