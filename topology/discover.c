/* Where this process runs; see discover.h. */
#include "config.h"
#include "topology/discover.h"
#include <sched.h>
#include <string.h>
#include <unistd.h>

void mt_discover(struct mt_place *place)
{
  memset(place, 0, sizeof *place);
  gethostname(place->host, sizeof place->host - 1);
  cpu_set_t set;
  place->cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  place->device = -1;
  place->package = place->numa = -1;
  place->node_cores = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
  place->packages = place->numas = place->threads = 1;
  place->flat = 1;
}
