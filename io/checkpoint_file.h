/* The HDF5 side of checkpoints: every HDF5 call of the program, made by one rank.
 *
 * The problem: HDF5 and the file system fail in different ways. A full disk under H5Fclose leaves a
 * half-closed file inside the library; file locks fail on some parallel file systems. The idea: when writing,
 * HDF5 never sees the disk. It makes the file's skeleton (all metadata, data regions as holes) in a memory
 * file of the kernel; what is outside the data regions is then copied to the real file with pwrite, whose
 * errno says what went wrong. When reading, HDF5 only tells where each dataset's bytes lie; the bytes are
 * read with pread. The trap: the default HDF5 format has no checksums on its metadata; libver V110 has, so
 * damage is refused.
 *
 * A function that can fail returns NULL, or the reason as a text that the caller frees (mt_free) and reports
 * with the path. Local, all of them. */
#ifndef MT_CHECKPOINT_FILE_H
#define MT_CHECKPOINT_FILE_H
#include <stdint.h>
#include "checkpoint.h"

#define MT_CHECKPOINT_VERSION 2 /* 1: no integers */

/* A dataset of a file as a range of bytes. */
struct mt_block {
  char name[160]; /* absolute: "/params/lm_head.weight" */
  enum mt_element element; /* TEXT: a scalar string of fixed length */
  int ndim;       /* 0 for a text */
  int64_t dim[4];
  int64_t bytes;
  int64_t offset; /* in the file; 0 if bytes is 0 */
  uint32_t crc;   /* of the bytes */
};

/* What a file says about itself. */
struct mt_checkpoint_file {
  int64_t step, tokens, bytes;
  int nblock;
  struct mt_block *block; /* [nblock], owned, in the order of their making */
};

/* Makes the skeleton of a checkpoint with these datasets (name, text, dims and bytes given; offset is set) in
 * a memory file: *fd, to be closed by the caller, and *bytes, the size of the whole file. Marked incomplete,
 * checksums zero. */
char *mt_checkpoint_file_make(int64_t step, int64_t tokens, int nblock, struct mt_block *block, int *fd,
                              int64_t *bytes);
/* Writes the checksums of the blocks into the skeleton and, last, the mark `complete`. */
char *mt_checkpoint_file_seal(int fd, int nblock, const struct mt_block *block);
/* Copies what lies outside the blocks from the skeleton to a file of `bytes` bytes. */
char *mt_checkpoint_file_copy(int from, int to, int64_t bytes, int nblock, const struct mt_block *block);

/* Opens a file, refuses what is not a complete checkpoint of a version we know, and lists its datasets; each
 * lies inside the file. Their bytes are not looked at. Filled only on success; free with
 * mt_checkpoint_file_free. */
char *mt_checkpoint_file_read(const char *path, struct mt_checkpoint_file *file);
void mt_checkpoint_file_free(struct mt_checkpoint_file *file);
/* The block of that name, or NULL. Borrowed. The search begins at *hint and leaves it behind the block found,
 * so that a list in the file's order is found in one pass. */
const struct mt_block *mt_checkpoint_file_find(const struct mt_checkpoint_file *file, const char *name,
                                               int *hint);
/* Bytes of a number, or of a text's byte. */
int64_t mt_element_bytes(enum mt_element element);
/* "f32", ... */
const char *mt_element_name(enum mt_element element);
/* "(8, 16, 64)", into text[100]; returns text. */
char *mt_checkpoint_shape(int ndim, const int64_t *dim, char text[100]);

#endif
