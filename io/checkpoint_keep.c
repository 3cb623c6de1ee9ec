/* Which checkpoints count; see checkpoint_keep.h.
 *
 * A file whose header is right may still hold a byte that is wrong, and only reading all of it tells. One that is damaged must
 * not count as one of the newest, or a good one would be removed for it. So those that are to be kept are read once, before
 * anything is removed for them; the verdict is remembered as long as the file stays what it is, and what this process wrote
 * is known to be good. The price is bounded: behind so many good ones nothing older is read. */
#include "config.h"
#include "checkpoint_keep.h"
#include "checkpoint_folder.h"
#include "checkpoint_piece.h"
#include "base/log.h"
#include "base/memory.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_READ = 16, REMEMBERED = 2 * MOST_READ };

static struct verdict {
  dev_t device;
  ino_t inode;
  struct timespec changed;
  int good;
} known[REMEMBERED]; /* the last ones, in a ring */
static int nknown;

char *mt_checkpoint_listed_read(const char *path, int64_t step, struct mt_checkpoint_file *file)
{
  char *reason = mt_checkpoint_file_read(path, file);
  if (!reason && file->step != step) {
    reason = mt_format("its name says step %lld, it holds step %lld", (long long)step, (long long)file->step);
    mt_checkpoint_file_free(file);
  }
  return reason;
}

char *mt_checkpoint_verify(const char *path, const struct mt_checkpoint_file *file, int list)
{
  int fd = open(path, O_RDONLY | O_CLOEXEC), wrong = 0, width = 8;
  if (fd < 0)
    return mt_format("cannot be read: %s", strerror(errno));
  char *first = NULL;
  for (int i = 0; i < file->nblock; i++)
    if ((int)strlen(file->block[i].name) > width)
      width = (int)strlen(file->block[i].name);
  if (list)
    mt_info("  %-*s  %-5s %-24s %8s  checksum", width, "dataset", "type", "shape", "bytes");
  for (int i = 0; i < file->nblock; i++) {
    const struct mt_block *block = &file->block[i];
    char shape[100];
    uint32_t crc;
    char *bad = mt_piece_sum(fd, block->offset, block->bytes, &crc);
    if (!bad && crc != block->crc)
      bad = mt_format("checksum %08x; expected %08x", crc, block->crc);
    if (list)
      mt_info("  %-*s  %-5s %-24s %8lld  %08x %s", width, block->name, mt_element_name(block->element),
              block->element == MT_ELEMENT_TEXT ? "" : mt_checkpoint_shape(block->ndim, block->dim, shape), (long long)block->bytes,
              block->crc, bad ? "WRONG" : "ok");
    if (bad && wrong++ == 0)
      first = mt_format("damaged: dataset %s: %s", block->name, bad);
    mt_free(bad);
  }
  close(fd);
  if (wrong > 1) {
    char *more = mt_format("%s (and %d more datasets)", first, wrong - 1);
    mt_free(first);
    first = more;
  }
  return first;
}

static const struct verdict *find_verdict(const struct stat *info)
{
  for (int i = 0; i < nknown && i < REMEMBERED; i++)
    if (known[i].device == info->st_dev && known[i].inode == info->st_ino &&
        known[i].changed.tv_sec == info->st_ctim.tv_sec && known[i].changed.tv_nsec == info->st_ctim.tv_nsec)
      return &known[i];
  return NULL;
}

static void remember(const struct stat *info, int good)
{
  known[nknown++ % REMEMBERED] = (struct verdict){info->st_dev, info->st_ino, info->st_ctim, good};
  if (nknown == 2 * REMEMBERED)
    nknown = REMEMBERED;
}

/* Is this a checkpoint? With `read` its bytes are looked at too. */
static int is_good(const char *path, int64_t step, int read)
{
  struct stat info;
  if (stat(path, &info) != 0)
    return 0;
  const struct verdict *verdict = find_verdict(&info);
  if (verdict)
    return verdict->good;
  struct mt_checkpoint_file file;
  char *bad = mt_checkpoint_listed_read(path, step, &file);
  if (!bad) {
    if (read)
      bad = mt_checkpoint_verify(path, &file, 0);
    mt_checkpoint_file_free(&file);
  }
  const int good = bad == NULL;
  if (read)
    remember(&info, good);
  mt_free(bad);
  return good;
}

void mt_checkpoint_keep(const char *dir, int keep, int64_t just_written)
{
  int64_t *step;
  int n, kept = 1;
  struct stat info;
  char *path = mt_checkpoint_path(dir, just_written), *reason = mt_checkpoint_folder_list(dir, &step, &n);
  if (stat(path, &info) == 0)
    remember(&info, 1);
  mt_free(path);
  for (int i = 0; i < n && keep > 0 && !reason; i++) {
    if (step[i] == just_written)
      continue;
    path = mt_checkpoint_path(dir, step[i]);
    if (is_good(path, step[i], kept < keep && kept <= MOST_READ) && ++kept > keep && unlink(path) != 0)
      mt_warn("checkpoint %s cannot be removed: %s", path, strerror(errno));
    mt_free(path);
  }
  if (reason)
    mt_warn("checkpoints %s: %s; none is removed", dir, reason);
  mt_free(reason);
  mt_free(step);
}
