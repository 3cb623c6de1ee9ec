/* The data side of checkpoints: pieces of datasets between memory and a file, with their checksums.
 *
 * No MPI, no HDF5, no shared state: a list of pieces may be handed to a thread and collected later. Plain
 * pwrite and pread, because their errno tells a full disk at once and nothing collective can hang on it. A
 * function that can fail returns NULL, or the reason as a text that the caller frees (mt_free). Local. */
#ifndef MT_CHECKPOINT_PIECE_H
#define MT_CHECKPOINT_PIECE_H
#include <stdint.h>

struct mt_piece {
  int64_t block;  /* number of the dataset */
  int64_t first;  /* first byte within the dataset */
  int64_t bytes;  /* may be 0 */
  int64_t offset; /* in the file */
  uint32_t crc;   /* result */
  void *data;     /* borrowed; host memory */
};

/* Writes the pieces into an existing file, sets their checksums and syncs the file. */
char *mt_pieces_write(const char *path, int64_t n, struct mt_piece *piece);
/* Reads the pieces and sets their checksums. */
char *mt_pieces_read(const char *path, int64_t n, struct mt_piece *piece);
/* The checksum of `bytes` bytes at offset, read in small parts. */
char *mt_piece_sum(int fd, int64_t offset, int64_t bytes, uint32_t *crc);

/* All bytes or an error: retried when cut short or interrupted, below 1 GiB a call. 0, or errno (ENODATA: the
 * file ends before). */
int mt_write_at(int fd, const void *data, int64_t bytes, int64_t offset);
int mt_read_at(int fd, void *data, int64_t bytes, int64_t offset);

#endif
