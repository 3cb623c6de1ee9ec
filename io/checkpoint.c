/* Saving and loading checkpoints together; see checkpoint.h.
 *
 * The shape of every function here: rank 0 talks to HDF5, the others learn what they need by one broadcast,
 * everybody moves its own bytes, and after each part that can fail the ranks settle whether any of them did.
 * No rank leaves a path alone, and the one that speaks is the lowest that has something to say. */
#include "config.h"
#include "checkpoint.h"
#include "checkpoint_file.h"
#include "checkpoint_folder.h"
#include "checkpoint_keep.h"
#include "checkpoint_piece.h"
#include "base/crc32c.h"
#include "base/folder.h"
#include "base/log.h"
#include "base/memory.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Ends a part: takes each rank's reason (or NULL), lets the lowest rank that has one say it (as a warning where the caller
 * goes on to another file), and gives all ranks `bad` if any has one. Collective. */
static enum mt_status settle_or_skip(struct mt_comm *comm, enum mt_status bad, enum mt_skip skip, const char *path,
                                     char *reason)
{
  int32_t mine = reason != NULL, *all = MT_NEW(MT_TAG_IO, int32_t, comm->size);
  mt_allgather(comm, &mine, all, sizeof mine);
  int failed = 0, first = -1;
  for (int r = 0; r < comm->size; r++)
    if (all[r]) {
      failed++;
      first = first < 0 ? r : first;
    }
  if (first == comm->rank) {
    char *more = failed > 1 ? mt_format(" (and %d more ranks)", failed - 1) : mt_strdup("");
    if (skip == MT_SKIP_YES)
      mt_warn("checkpoint %s is skipped: %s%s", path, reason, more);
    else
      mt_error("checkpoint %s: %s%s", path, reason, more);
    mt_free(more);
  }
  mt_free(all);
  mt_free(reason);
  return failed ? bad : MT_OK;
}

static enum mt_status settle(struct mt_comm *comm, enum mt_status bad, const char *path, char *reason)
{
  return settle_or_skip(comm, bad, MT_SKIP_NO, path, reason);
}

static int64_t element_count(const struct mt_dataset *dataset)
{
  int64_t n = 1;
  for (int i = 0; i < dataset->ndim; i++)
    n *= dataset->dim[i];
  return n;
}

static int64_t byte_count(const struct mt_dataset *dataset)
{
  return element_count(dataset) * mt_element_bytes(dataset->element);
}

/* ---- the pieces of this rank, and what all ranks' pieces say about a dataset ---- */

/* The ranges of this rank as pieces; offset[] and, where given, the presence of each dataset in the file. */
static struct mt_piece *make_pieces(const struct mt_checkpoint *checkpoint, const int64_t *offset, int64_t *n)
{
  *n = 0;
  for (int i = 0; i < checkpoint->ndataset; i++)
    *n += checkpoint->dataset[i].nrange;
  struct mt_piece *piece = MT_NEW(MT_TAG_IO, struct mt_piece, *n + checkpoint->ntext);
  int64_t at = 0;
  for (int i = 0; i < checkpoint->ndataset; i++) {
    const struct mt_dataset *dataset = &checkpoint->dataset[i];
    for (int k = 0; k < dataset->nrange; k++) {
      const struct mt_range *range = &dataset->range[k];
      MT_CHECK(
          range->first >= 0 && range->count >= 0 && range->first + range->count <= element_count(dataset),
          "a range [%lld, %lld) of checkpoint dataset %s, which has %lld elements", (long long)range->first,
          (long long)(range->first + range->count), dataset->name, (long long)element_count(dataset));
      const int64_t each = mt_element_bytes(dataset->element), first = range->first * each;
      piece[at++] = (struct mt_piece){.block = i,
                                      .first = first,
                                      .bytes = range->count * each,
                                      .offset = offset[i] + first,
                                      .data = range->data};
    }
  }
  return piece;
}

/* Where the file keeps a dataset. */
struct entry {
  int64_t offset, crc, present;
};

/* The checksums of the datasets, crc[ndataset] (the caller frees), and a check that the pieces of all ranks cover each of them
 * once, if the file has it (entry; NULL = all). Checksums are linear: with zeros in place of everything else, those of
 * pieces add up bit by bit, in any order, so each rank adds up its own and only one number a dataset travels. Likewise bytes
 * and differences of squares of places, which tell gaps and overlaps that make up for each other. Collective. */
static uint32_t *sum_pieces(struct mt_comm *comm, const struct mt_checkpoint *checkpoint, const struct entry *entry,
                            int64_t n, const struct mt_piece *piece)
{
  const int ndataset = checkpoint->ndataset;
  uint32_t *crc = MT_ZNEW(MT_TAG_IO, uint32_t, ndataset);
  uint64_t *covered = MT_ZNEW(MT_TAG_IO, uint64_t, 2 * ndataset);
  for (int64_t i = 0; i < n; i++) {
    const struct mt_piece *p = &piece[i];
    if (p->block >= ndataset || !p->bytes)
      continue;
    const int64_t end = p->first + p->bytes;
    const int64_t behind = byte_count(&checkpoint->dataset[p->block]) - end;
    crc[p->block] ^= mt_crc32c_combine(p->crc, 0, behind);
    covered[2 * p->block] += (uint64_t)p->bytes;
    covered[2 * p->block + 1] += (uint64_t)end * (uint64_t)end - (uint64_t)p->first * (uint64_t)p->first;
  }
  mt_xor_int(comm, crc, ndataset);
  mt_sum_int(comm, covered, 2 * ndataset);
  for (int i = 0; i < ndataset; i++) {
    const struct mt_dataset *dataset = &checkpoint->dataset[i];
    const uint64_t bytes = (uint64_t)byte_count(dataset);
    MT_CHECK((entry && !entry[i].present) || (covered[2 * i] == bytes && covered[2 * i + 1] == bytes * bytes),
             "ranges of checkpoint dataset %s hold %llu bytes of %llu, or not each once", dataset->name,
             (unsigned long long)covered[2 * i], (unsigned long long)bytes);
  }
  mt_free(covered);
  return crc;
}

/* All ranks must speak of the same datasets. Collective. */
static void check_same_datasets(struct mt_comm *comm, const struct mt_checkpoint *checkpoint)
{
  uint32_t crc = mt_crc32c(0, &checkpoint->ndataset, sizeof checkpoint->ndataset);
  for (int i = 0; i < checkpoint->ndataset; i++) {
    const struct mt_dataset *d = &checkpoint->dataset[i];
    crc = mt_crc32c(crc, d->name, (int64_t)strlen(d->name));
    crc = mt_crc32c(crc, d->dim, d->ndim * (int64_t)sizeof d->dim[0]);
    crc = mt_crc32c(crc, &d->element, sizeof d->element);
  }
  MT_CHECK(mt_same(comm, &crc, sizeof crc), "ranks pass different lists of checkpoint datasets");
}

/* ---- saving ---- */

/* Rank 0's side of a save. */
struct save {
  char *path, *temporary;
  int nblock;
  struct mt_block *block; /* [ndataset + ntext], owned */
  int skeleton, fd;       /* the memory file; the temporary, locked while it is written. -1 = none */
  int64_t bytes;
};

static void describe_blocks(const struct mt_checkpoint *checkpoint, struct save *save)
{
  save->nblock = checkpoint->ndataset + checkpoint->ntext;
  save->block = MT_ZNEW(MT_TAG_IO, struct mt_block, save->nblock);
  for (int i = 0; i < save->nblock; i++) {
    struct mt_block *block = &save->block[i];
    if (i < checkpoint->ndataset) {
      const struct mt_dataset *dataset = &checkpoint->dataset[i];
      memcpy(block->name, dataset->name, sizeof block->name);
      block->ndim = dataset->ndim;
      memcpy(block->dim, dataset->dim, sizeof block->dim);
      block->element = dataset->element;
      block->bytes = byte_count(dataset);
    } else {
      const struct mt_text *text = &checkpoint->text[i - checkpoint->ndataset];
      memcpy(block->name, text->name, sizeof block->name);
      block->element = MT_ELEMENT_TEXT;
      block->bytes = text->text[0] ? (int64_t)strlen(text->text) : 1; /* HDF5 has no empty strings */
      MT_CHECK(block->bytes < 1 << 30, "checkpoint text %s has %lld bytes", text->name,
               (long long)block->bytes);
    }
  }
}

/* NULL, or why there is no folder; *error, if not NULL, gets the cause. */
static char *make_folder(const char *dir, int *error)
{
  char *failed, *reason = NULL;
  int cause = mt_folder_make(dir, &failed);
  if (cause == ENOTDIR)
    reason = mt_format("%s is a file; expected a folder", failed);
  else if (cause)
    reason = mt_format("the folder %s cannot be made: %s", failed, strerror(cause));
  mt_free(failed);
  if (error)
    *error = cause;
  return reason;
}

/* The temporary file with everything but the data, and room for that. */
static char *begin_save(const char *dir, const struct mt_checkpoint *checkpoint, struct save *save)
{
  char *reason = make_folder(dir, NULL);
  if (reason)
    return reason;
  mt_checkpoint_folder_clean(dir);
  describe_blocks(checkpoint, save);
  reason = mt_checkpoint_file_make(checkpoint->step, checkpoint->tokens, save->nblock, save->block,
                                   &save->skeleton, &save->bytes);
  if (reason)
    return reason;
  int fd = open(save->temporary, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0)
    return mt_format("the file cannot be made: %s", strerror(errno));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(fd);
    return mt_strdup("another job is writing it");
  }
  save->fd = fd; /* from here on the file is ours to remove */
  if (ftruncate(fd, 0) != 0)
    return mt_format("cannot be written: %s", strerror(errno));
  if (mt_fail_point("checkpoint.create"))
    return mt_format("no room for %lld bytes: %s", (long long)save->bytes, strerror(EIO));
  /* Not posix_fallocate: where a file system cannot reserve, that writes to every block instead. Then a full
   * disk shows when the data is written; the fail point acts like such a file system. */
  int error = mt_fail_point("checkpoint.reserve") || fallocate(fd, 0, 0, (off_t)save->bytes) == 0 ? 0 : errno;
  if (error && error != EOPNOTSUPP && error != ENOSYS && error != EINVAL)
    return mt_format("no room for %lld bytes: %s (an older checkpoint is removed when the new one is complete, so there must be "
                     "room for one more than checkpoint.keep)", (long long)save->bytes, strerror(error));
  if (ftruncate(fd, (off_t)save->bytes) != 0)
    return mt_format("cannot be written: %s", strerror(errno));
  return mt_checkpoint_file_copy(save->skeleton, fd, save->bytes, save->nblock, save->block);
}

/* Seals the file and gives it its name. */
static char *finish_save(const char *dir, struct save *save)
{
  char *reason = mt_checkpoint_file_seal(save->skeleton, save->nblock, save->block);
  if (!reason)
    reason = mt_checkpoint_file_copy(save->skeleton, save->fd, save->bytes, save->nblock, save->block);
  if (reason)
    return reason;
  if (fsync(save->fd) != 0 && errno != EINVAL)
    return mt_format("cannot be synced: %s", strerror(errno));
  if (mt_fail_point("checkpoint.finish"))
    return mt_format("cannot be closed: %s", strerror(EIO));
  if (rename(save->temporary, save->path) != 0)
    return mt_format("cannot be renamed: %s", strerror(errno));
  close(save->fd); /* after the rename: as long as the temporary has its name, it has its lock */
  save->fd = -1;
  return mt_checkpoint_folder_sync(dir);
}

static void end_save(struct mt_comm *comm, struct save *save, int failed)
{
  if (failed && comm->rank == 0 && save->fd >= 0)
    unlink(save->temporary);
  if (save->fd >= 0)
    close(save->fd);
  if (save->skeleton >= 0)
    close(save->skeleton);
  mt_free(save->block);
  mt_free(save->path);
  mt_free(save->temporary);
}

/* The middle of a save: everybody's bytes. Rank 0 also writes the texts. */
static char *write_data(struct mt_comm *comm, const struct mt_checkpoint *checkpoint, struct save *save,
                        const int64_t *offset, struct mt_piece **piece, int64_t *n)
{
  *piece = make_pieces(checkpoint, offset, n);
  for (int i = 0; comm->rank == 0 && i < checkpoint->ntext; i++) {
    const struct mt_block *block = &save->block[checkpoint->ndataset + i];
    (*piece)[(*n)++] = (struct mt_piece){.block = checkpoint->ndataset + i,
                                         .bytes = block->bytes,
                                         .offset = block->offset,
                                         .data = checkpoint->text[i].text};
  }
  return mt_pieces_write(save->temporary, *n, *piece);
}

enum mt_status mt_checkpoint_prepare(struct mt_comm *comm, const char *dir)
{
  char *reason = NULL;
  int error = 0;
  if (comm->rank == 0) {
    reason = make_folder(dir, &error);
    if (!reason && access(dir, W_OK | X_OK) != 0)
      reason = mt_format("the folder cannot be written: %s", strerror(errno));
  }
  return mt_agree(comm, settle(comm, error == ENOTDIR ? MT_USAGE : MT_FAILED, dir, reason));
}

enum mt_status mt_checkpoint_save(struct mt_comm *comm, const char *dir, int keep,
                                  const struct mt_checkpoint *checkpoint, int64_t *bytes)
{
  struct save save = {.path = mt_checkpoint_path(dir, checkpoint->step),
                      .temporary = mt_checkpoint_temporary(dir, checkpoint->step),
                      .skeleton = -1,
                      .fd = -1};
  check_same_datasets(comm, checkpoint);
  *bytes = 0;
  char *reason = comm->rank == 0 ? begin_save(dir, checkpoint, &save) : NULL;
  enum mt_status status = settle(comm, MT_FAILED, save.path, reason);
  if (status == MT_OK) {
    int64_t *offset = MT_ZNEW(MT_TAG_IO, int64_t, checkpoint->ndataset + 1), n;
    for (int i = 0; comm->rank == 0 && i < checkpoint->ndataset; i++)
      offset[i] = save.block[i].offset;
    offset[checkpoint->ndataset] = save.bytes;
    mt_bcast(comm, offset, (checkpoint->ndataset + 1) * (int64_t)sizeof *offset, 0);
    *bytes = offset[checkpoint->ndataset];
    struct mt_piece *piece;
    reason = write_data(comm, checkpoint, &save, offset, &piece, &n);
    status = settle(comm, MT_FAILED, save.path, reason);
    if (status == MT_OK) {
      uint32_t *crc = sum_pieces(comm, checkpoint, NULL, n, piece);
      for (int i = 0; comm->rank == 0 && i < checkpoint->ndataset; i++)
        save.block[i].crc = crc[i];
      for (int64_t i = 0; i < n; i++) /* texts are one piece each, of rank 0 */
        if (piece[i].block >= checkpoint->ndataset)
          save.block[piece[i].block].crc = piece[i].crc;
      mt_free(crc);
      status = settle(comm, MT_FAILED, save.path, comm->rank == 0 ? finish_save(dir, &save) : NULL);
    }
    mt_free(piece);
    mt_free(offset);
  }
  end_save(comm, &save, status != MT_OK);
  if (status == MT_OK && comm->rank == 0)
    mt_checkpoint_keep(dir, keep, checkpoint->step);
  return status;
}

/* ---- finding and loading ---- */

/* Rank 0: the newest usable file of a step below *before, whose step it becomes; NULL if there is none. */
static char *find_newest(const char *dir, int64_t *before, char **reason)
{
  char *found = NULL;
  int64_t *step;
  int n;
  *reason = mt_checkpoint_folder_list(dir, &step, &n);
  for (int i = 0; i < n && !*reason && !found; i++) {
    if (step[i] >= *before)
      continue;
    struct mt_checkpoint_file file;
    char *bad = mt_checkpoint_listed_read(found = mt_checkpoint_path(dir, step[i]), step[i], &file);
    if (!bad) {
      mt_checkpoint_file_free(&file);
      *before = step[i];
      break;
    }
    mt_warn("checkpoint %s is skipped: %s", found, bad);
    mt_free(bad);
    mt_free(found);
    found = NULL;
  }
  if (n > 0 && !found && !*reason)
    *reason = mt_format("found %d damaged or foreign files, expected a usable step-*.h5 among them; "
                        "checkpoint.resume = never starts anew", n);
  mt_free(step);
  return found;
}

enum mt_status mt_checkpoint_newest(struct mt_comm *comm, const char *dir, int64_t *before, char **path)
{
  char *reason = NULL, *found = comm->rank == 0 ? find_newest(dir, before, &reason) : NULL;
  struct stat info;
  int64_t file = reason && (stat(dir, &info) == 0 ? !S_ISDIR(info.st_mode) : errno == ENOTDIR);
  mt_bcast(comm, &file, sizeof file, 0);
  enum mt_status status = settle(comm, file ? MT_USAGE : MT_CORRUPT, dir, reason);
  *path = status == MT_OK ? mt_bcast_text(comm, found, 0) : NULL;
  mt_bcast(comm, before, sizeof *before, 0);
  mt_free(found);
  return status;
}

int64_t mt_checkpoint_last(struct mt_comm *comm, const char *dir)
{
  int64_t last = -1, *step = NULL;
  int n = 0;
  if (comm->rank == 0)
    mt_free(mt_checkpoint_folder_list(dir, &step, &n)); /* a folder that cannot be read is said when it is used */
  if (n > 0)
    last = step[0];
  mt_free(step);
  mt_bcast(comm, &last, sizeof last, 0);
  return last;
}

/* Reads one text and compares its checksum. */
static char *read_text(const char *path, const struct mt_block *block, struct mt_text *text)
{
  memcpy(text->name, block->name, sizeof text->name);
  text->text = mt_zalloc(MT_TAG_IO, block->bytes + 1);
  struct mt_piece piece = {.bytes = block->bytes, .offset = block->offset, .data = text->text};
  char *reason = mt_pieces_read(path, 1, &piece);
  if (!reason && piece.crc != block->crc)
    reason =
        mt_format("damaged: text %s has checksum %08x; expected %08x", block->name, piece.crc, block->crc);
  return reason;
}

static char *read_texts(const char *path, struct mt_checkpoint *checkpoint)
{
  struct mt_checkpoint_file file;
  char *reason = mt_checkpoint_file_read(path, &file);
  if (reason)
    return reason;
  checkpoint->step = file.step;
  checkpoint->tokens = file.tokens;
  checkpoint->text = MT_ZNEW(MT_TAG_IO, struct mt_text, file.nblock);
  for (int i = 0; i < file.nblock && !reason; i++)
    if (file.block[i].element == MT_ELEMENT_TEXT)
      reason = read_text(path, &file.block[i], &checkpoint->text[checkpoint->ntext++]);
  mt_checkpoint_file_free(&file);
  return reason;
}

enum mt_status mt_checkpoint_read_state(struct mt_comm *comm, const char *path, enum mt_skip skip,
                                        struct mt_checkpoint *checkpoint)
{
  *checkpoint = (struct mt_checkpoint){0};
  enum mt_status status =
      settle_or_skip(comm, MT_CORRUPT, skip, path, comm->rank == 0 ? read_texts(path, checkpoint) : NULL);
  if (status != MT_OK) {
    mt_checkpoint_free_texts(checkpoint);
    return status;
  }
  int64_t head[3] = {checkpoint->step, checkpoint->tokens, checkpoint->ntext};
  mt_bcast(comm, head, sizeof head, 0);
  if (comm->rank != 0) {
    checkpoint->step = head[0];
    checkpoint->tokens = head[1];
    checkpoint->ntext = (int)head[2];
    checkpoint->text = MT_ZNEW(MT_TAG_IO, struct mt_text, head[2]);
  }
  for (int i = 0; i < checkpoint->ntext; i++) {
    struct mt_text *text = &checkpoint->text[i];
    mt_bcast(comm, text->name, sizeof text->name, 0);
    char *copy = mt_bcast_text(comm, text->text, 0);
    mt_free(text->text);
    text->text = copy;
  }
  return MT_OK;
}

/* Rank 0: finds each dataset in the file and compares shapes. */
static char *match_datasets(const char *path, const struct mt_checkpoint *checkpoint, struct entry *entry)
{
  struct mt_checkpoint_file file;
  char *reason = mt_checkpoint_file_read(path, &file), found[100], expected[100];
  int hint = 0;
  for (int i = 0; i < checkpoint->ndataset && !reason; i++) {
    const struct mt_dataset *dataset = &checkpoint->dataset[i];
    int optional = dataset->name[0] == '?';
    const char *name = dataset->name + optional;
    const struct mt_block *block = mt_checkpoint_file_find(&file, name, &hint);
    if (!block && !optional)
      reason = mt_format("has no dataset %s", name);
    else if (block && block->element != dataset->element)
      reason = mt_format("dataset %s holds %s; expected %s", name, mt_element_name(block->element),
                         mt_element_name(dataset->element));
    else if (block && (block->ndim != dataset->ndim ||
                       memcmp(block->dim, dataset->dim, (size_t)block->ndim * sizeof block->dim[0]) != 0))
      reason = mt_format("dataset %s has shape %s; expected %s", name, mt_checkpoint_shape(block->ndim, block->dim, found),
                         mt_checkpoint_shape(dataset->ndim, dataset->dim, expected));
    else if (block)
      entry[i] = (struct entry){block->offset, block->crc, 1};
  }
  mt_checkpoint_file_free(&file);
  return reason;
}

/* Rank 0: compares the datasets' checksums, summed over all ranks' pieces, with the file's. */
static char *compare_sums(const struct mt_checkpoint *checkpoint, const struct entry *entry, const uint32_t *sum)
{
  char *reason = NULL;
  int wrong = 0;
  for (int i = 0; i < checkpoint->ndataset; i++) {
    const struct mt_dataset *dataset = &checkpoint->dataset[i];
    const char *name = dataset->name + (dataset->name[0] == '?');
    if (!entry[i].present)
      continue;
    if (sum[i] != (uint32_t)entry[i].crc && wrong++ == 0)
      reason = mt_format("damaged: dataset %s has checksum %08x; expected %08x", name, sum[i],
                         (uint32_t)entry[i].crc);
  }
  if (wrong > 1) {
    char *more = mt_format("%s (and %d more datasets)", reason, wrong - 1);
    mt_free(reason);
    reason = more;
  }
  return reason;
}

enum mt_status mt_checkpoint_load(struct mt_comm *comm, const char *path, enum mt_skip skip,
                                  const struct mt_checkpoint *checkpoint)
{
  check_same_datasets(comm, checkpoint);
  struct entry *entry = MT_ZNEW(MT_TAG_IO, struct entry, checkpoint->ndataset);
  enum mt_status status =
      settle_or_skip(comm, MT_CORRUPT, skip, path, comm->rank == 0 ? match_datasets(path, checkpoint, entry) : NULL);
  if (status == MT_OK) {
    mt_bcast(comm, entry, checkpoint->ndataset * (int64_t)sizeof *entry, 0);
    int64_t n, *offset = MT_NEW(MT_TAG_IO, int64_t, checkpoint->ndataset);
    for (int i = 0; i < checkpoint->ndataset; i++) {
      offset[i] = entry[i].offset;
      if (!entry[i].present)
        checkpoint->dataset[i].nrange = 0;
    }
    struct mt_piece *piece = make_pieces(checkpoint, offset, &n);
    status = settle_or_skip(comm, MT_CORRUPT, skip, path, mt_pieces_read(path, n, piece));
    if (status == MT_OK) {
      uint32_t *sum = sum_pieces(comm, checkpoint, entry, n, piece);
      status = settle_or_skip(comm, MT_CORRUPT, skip, path,
                              comm->rank == 0 ? compare_sums(checkpoint, entry, sum) : NULL);
      mt_free(sum);
    }
    mt_free(piece);
    mt_free(offset);
  }
  mt_free(entry);
  return status;
}

void mt_checkpoint_free_texts(struct mt_checkpoint *checkpoint)
{
  for (int i = 0; i < checkpoint->ntext; i++)
    mt_free(checkpoint->text[i].text);
  mt_free(checkpoint->text);
  checkpoint->text = NULL;
  checkpoint->ntext = 0;
}

const char *mt_checkpoint_text(const struct mt_checkpoint *checkpoint, const char *name)
{
  for (int i = 0; i < checkpoint->ntext; i++)
    if (strcmp(checkpoint->text[i].name, name) == 0)
      return checkpoint->text[i].text;
  return NULL;
}
