/* The configuration on all ranks: rank 0 reads it, for its file may be nowhere else, and the others get its printed form; only
 * their devices are their own. */
#ifndef MT_SETTINGS_H
#define MT_SETTINGS_H
#include "train/arguments.h"

/* Reads what the command line names, prints the effective configuration (but where generated text is alone on stdout), and
 * leaves *config empty on failure. Collective, agreed: MT_USAGE, said once. */
enum mt_status mt_settings_read(struct mt_comm *comm, const struct mt_arguments *a, struct mt_config *config);

#endif
