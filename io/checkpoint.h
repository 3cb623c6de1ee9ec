/* Checkpoints: one HDF5 file per step, independent of ranks, layout and device (step-%08d.h5).
 *
 * The problem: a file must be whole or absent whatever stops the job, a full disk must not hang a collective
 * call, and any number of ranks must be able to read it. The idea (io = direct): rank 0 lets HDF5 make the
 * file's skeleton in memory (libver V110, contiguous, allocated early, never filled), copies it into
 * `.step-%08d.h5.tmp`, reserves the space, and tells everyone where each dataset's bytes lie; each rank
 * pwrites its ranges and fsyncs; errno is agreed; rank 0 then adds the checksums (combined from the ranks'
 * pieces) and the mark `complete`, syncs, renames, syncs the folder, and only then removes older files.
 * The trap: HDF5's own collective writes hang on a full disk (measured with 1.10 under Open MPI 4.1), and
 * serial HDF5 cannot undo a file whose metadata did not fit. Here it never sees the disk when writing.
 *
 * In the file: root attributes format = "motley", version, step, tokens, complete; groups as the datasets'
 * names say (/config, /params, /adam_m, /adam_v, /state), no groups in groups; numbers are f32 (in /state also
 * i32 and i64), a text is a scalar string of fixed length; each dataset has an attribute crc32c (of its bytes;
 * unsigned 32 bit). */
#ifndef MT_CHECKPOINT_H
#define MT_CHECKPOINT_H
#include <stdint.h>
#include "comm/comm.h"

/* What a rank holds of a dataset: elements [first, first + count) in row-major order. On saving, data is
 * read; on loading, written. Host memory. */
struct mt_range {
  int64_t first, count;
  void *data; /* borrowed */
};
enum mt_element { MT_ELEMENT_F32, MT_ELEMENT_I32, MT_ELEMENT_I64, MT_ELEMENT_TEXT };
struct mt_dataset {
  char name[160]; /* absolute: "/params/model.norm.weight" */
  enum mt_element element;
  int ndim;
  int64_t dim[4];
  int nrange;
  struct mt_range *range; /* [nrange], owned by the maker; the ranges of all ranks cover the dataset once */
};
/* A text (or JSON) stored under /state or /config. When saving, rank 0's list counts and the others' are
 * ignored. UTF-8 without NUL, below 1 GiB. */
struct mt_text {
  char name[160];
  char *text; /* owned by the maker on saving; by the caller after loading (mt_free) */
};
struct mt_checkpoint {
  int64_t step, tokens;
  int ndataset;
  struct mt_dataset *dataset; /* the same names, dims and order on all ranks */
  int ntext;
  struct mt_text *text;
};

/* Makes dir (and its parents) if needed and sees whether a file could be made in it, so that a run knows before its first
 * step. Collective, agreed, said once: MT_USAGE where a file is in its place, else MT_FAILED. */
enum mt_status mt_checkpoint_prepare(struct mt_comm *comm, const char *dir);
/* Saves into dir (made if needed, with its parents), keeps the newest `keep` complete files (0 = all; the one
 * just written counts as the newest, whatever its step; a damaged one neither counts nor is removed), replaces a file of the
 * same step. *bytes gets the file's size. Collective. A failure (full disk, no permission, a file where the folder should be) is said
 * once, agreed, and leaves older checkpoints and no temporary file behind: MT_FAILED. */
enum mt_status mt_checkpoint_save(struct mt_comm *comm, const char *dir, int keep,
                                  const struct mt_checkpoint *checkpoint, int64_t *bytes);
/* The newest complete checkpoint in dir of a step below *before (INT64_MAX: of any step), and its step in *before, so that
 * another call goes on to older ones: its path (caller frees), or NULL if dir holds no file step-*.h5. Files that are
 * skipped (incomplete, foreign, truncated) are named once with the reason. Decided by rank 0, told to all.
 * Collective. Agreed MT_CORRUPT, said once: there are files of checkpoints, but none can be used (a run must not start
 * anew without a word where it should have gone on); a folder that exists but cannot be read. MT_USAGE: it is a file. */
enum mt_status mt_checkpoint_newest(struct mt_comm *comm, const char *dir, int64_t *before, char **path);
/* The largest step that a file's name in dir claims, usable or not; -1: none. Collective. */
int64_t mt_checkpoint_last(struct mt_comm *comm, const char *dir);
/* What is wrong with a file that is read: an error, or a warning that it is skipped, if the caller goes on to another. */
enum mt_skip { MT_SKIP_NO, MT_SKIP_YES };
/* Reads attributes and texts of a file: step, tokens, and every text under /config and /state in
 * checkpoint->text (owned by the caller, freed by mt_checkpoint_free_texts); ndataset stays 0. Rank 0 reads,
 * all get it. Collective. MT_CORRUPT, said once with path and cause. */
enum mt_status mt_checkpoint_read_state(struct mt_comm *comm, const char *path, enum mt_skip skip,
                                        struct mt_checkpoint *checkpoint);
/* Reads the datasets' ranges (this rank count's, which need not be the writer's) and compares checksums
 * combined over the ranks. Names starting with "?" (rest of the name follows) are optional: nrange is set to
 * 0 if absent. Collective. MT_CORRUPT, said once: dataset missing, other shape (found, expected), wrong
 * checksum, short file. */
enum mt_status mt_checkpoint_load(struct mt_comm *comm, const char *path, enum mt_skip skip,
                                  const struct mt_checkpoint *checkpoint);
void mt_checkpoint_free_texts(struct mt_checkpoint *checkpoint);
/* The text of that name, borrowed; NULL if absent. */
const char *mt_checkpoint_text(const struct mt_checkpoint *checkpoint, const char *name);

/* `motley inspect PATH`: a file, or a folder of checkpoints or one that holds such (RUN): lists step, tokens, datasets with shapes,
 * verifies every checksum. Local, no MPI. MT_OK, MT_USAGE (no such path, or no checkpoint in it), MT_CORRUPT (what failed is named).
 */
enum mt_status mt_checkpoint_inspect(const char *path);
/* "HDF5 1.10.8". The caller frees. Local, no MPI. */
char *mt_checkpoint_library(void);

#endif
