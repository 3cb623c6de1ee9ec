/* Which files of a folder of checkpoints count, and which go. One rank's calls. Local. */
#ifndef MT_CHECKPOINT_KEEP_H
#define MT_CHECKPOINT_KEEP_H
#include <stdint.h>
#include "checkpoint_file.h"

/* Reads a file that the folder lists under `step`, as mt_checkpoint_file_read, and refuses one that holds another step. */
char *mt_checkpoint_listed_read(const char *path, int64_t step, struct mt_checkpoint_file *file);
/* NULL if the checksums of all datasets are right, else which is wrong first (the caller frees). list = 1: one line a dataset. */
char *mt_checkpoint_verify(const char *path, const struct mt_checkpoint_file *file, int list);
/* Removes the complete checkpoints of dir beyond the newest `keep` (0 = none); the one just written counts first, whatever its
 * number. A damaged one neither counts nor goes. What cannot be removed is warned of. */
void mt_checkpoint_keep(const char *dir, int keep, int64_t just_written);

#endif
