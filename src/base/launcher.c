/* The launcher's environment; see launcher.h. */
#include "launcher.h"
#include "text.h"
#include <stdlib.h>

/* The first of these variables (the last is NULL) that holds a number from `least` on, else `otherwise`. */
static int64_t first_of(const char *const *names, int64_t least, int64_t otherwise, const char **variable)
{
  int64_t value;
  for (; *names; names++) {
    const char *text = getenv(*names);
    if (!text || !mt_text_integer(text, &value) || value < least || value >= 1 << 24)
      continue;
    if (variable)
      *variable = *names;
    return value;
  }
  return otherwise;
}

int mt_launcher_rank(void)
{
  static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", NULL};
  return (int)first_of(names, 0, 0, NULL);
}

int64_t mt_launcher_size(const char **variable)
{
  static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", NULL};
  return first_of(names, 1, 0, variable);
}

int mt_launcher_local_rank(void)
{
  static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", NULL};
  return (int)first_of(names, 0, -1, NULL);
}

int64_t mt_launcher_local_size(void)
{
  static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", NULL};
  return first_of(names, 1, 0, NULL);
}
