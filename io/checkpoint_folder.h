/* The folder of checkpoints: names, what is there, temporaries, durability. One rank's calls.
 *
 * A checkpoint that is being written is `.step-%08d.h5.tmp`, and its writer holds a lock (flock) on it. So a
 * temporary that can be locked belongs to a dead writer and may be removed, and two jobs do not write the
 * same file. A function that can fail returns NULL, or the reason as a text that the caller frees (mt_free).
 * Local. */
#ifndef MT_CHECKPOINT_FOLDER_H
#define MT_CHECKPOINT_FOLDER_H
#include <stdint.h>

/* dir/step-%08d.h5 and dir/.step-%08d.h5.tmp; the caller frees. */
char *mt_checkpoint_path(const char *dir, int64_t step);
char *mt_checkpoint_temporary(const char *dir, int64_t step);
/* The steps of the files step-*.h5, the largest first: *step is [*n], freed by the caller. A folder that does
 * not exist is empty. */
char *mt_checkpoint_folder_list(const char *dir, int64_t **step, int *n);
/* Removes temporaries of dead writers. What cannot be removed stays. */
void mt_checkpoint_folder_clean(const char *dir);
/* Makes a durable entry of what was renamed into dir. */
char *mt_checkpoint_folder_sync(const char *dir);

#endif
