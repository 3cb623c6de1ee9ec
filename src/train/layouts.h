/* `motley plan`: layout policies on loads from a file, or made up, and a cluster that need not be there. No MPI.
 *
 * Step by step and layer by layer each policy plans on the steps before, as in training, and what it planned meets the step's
 * own rows: so the table says what a policy is worth when loads move. */
#ifndef MT_LAYOUTS_H
#define MT_LAYOUTS_H
#include "base/config.h"
#include "topology/cluster.h"

/* Prints the table of policies, or as JSON the figures and the last layouts. loads: a file (see experts/replay.h), NULL: made up
 * as moe.router = zipf picks. Local. MT_USAGE or MT_CORRUPT, said once, if slots or the file do not fit. */
enum mt_status mt_layouts_print(const struct mt_config *config, const struct mt_cluster *cluster, const char *loads,
                                int json);

#endif
