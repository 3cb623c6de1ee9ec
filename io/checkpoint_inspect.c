/* `motley inspect`: what a checkpoint holds and whether its checksums are right. One process, no MPI. */
#include "config.h"
#include "checkpoint.h"
#include "checkpoint_file.h"
#include "checkpoint_folder.h"
#include "checkpoint_keep.h"
#include "base/log.h"
#include "base/memory.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static void date_of(const char *path, char text[32])
{
  struct stat is;
  struct tm local;
  text[0] = '\0';
  if (stat(path, &is) == 0 && localtime_r(&is.st_mtime, &local))
    strftime(text, 32, "%Y-%m-%d %H:%M:%S", &local);
}

/* "12.3 MB"; the caller frees. */
static char *size_of(int64_t bytes)
{
  static const char *const unit[] = {"kB", "MB", "GB", "TB"};
  if (bytes < 1000)
    return mt_format("%lld bytes", (long long)bytes);
  double value = (double)bytes / 1000;
  int i = 0;
  for (; value >= 1000 && i < 3; i++)
    value /= 1000;
  return mt_format("%.1f %s", value, unit[i]);
}

static enum mt_status inspect_file(const char *path)
{
  struct mt_checkpoint_file file;
  char date[32], *reason = mt_checkpoint_file_read(path, &file);
  if (!reason) {
    int64_t parameters = 0, texts = 0;
    for (int i = 0; i < file.nblock; i++) {
      texts += file.block[i].element == MT_ELEMENT_TEXT;
      if (strncmp(file.block[i].name, "/params/", 8) == 0 && file.block[i].element == MT_ELEMENT_F32)
        parameters += file.block[i].bytes / (int64_t)sizeof(float);
    }
    date_of(path, date);
    char *size = size_of(file.bytes);
    mt_info("%s: step %lld, %lld tokens, %s, written %s", path, (long long)file.step, (long long)file.tokens,
            size, date);
    mt_free(size);
    reason = mt_checkpoint_verify(path, &file, 1);
    if (!reason)
      mt_info("  %d datasets, %lld of them text; %lld parameters; every checksum is right", file.nblock,
              (long long)texts, (long long)parameters);
    mt_checkpoint_file_free(&file);
  }
  if (!reason)
    return MT_OK;
  mt_error("checkpoint %s: %s", path, reason);
  mt_free(reason);
  return MT_CORRUPT;
}

/* One line a file; the verdicts of all before an error that counts the bad ones. */
static enum mt_status inspect_folder(const char *dir)
{
  int64_t *step;
  int n, wrong = 0;
  char *reason = mt_checkpoint_folder_list(dir, &step, &n);
  if (!reason && n == 0) {
    mt_error("inspect: %s: found no file step-*.h5; expected a checkpoint or a folder of checkpoints", dir);
    mt_free(step);
    return MT_USAGE;
  }
  for (int i = n - 1; i >= 0 && !reason; i--) {
    struct mt_checkpoint_file file;
    char date[32], *path = mt_checkpoint_path(dir, step[i]), *bad = mt_checkpoint_listed_read(path, step[i], &file);
    if (!bad) {
      date_of(path, date);
      bad = mt_checkpoint_verify(path, &file, 0);
      char *size = size_of(file.bytes);
      if (!bad)
        mt_info("%s: step %lld, %lld tokens, %s, written %s: ok", path, (long long)file.step,
                (long long)file.tokens, size, date);
      mt_free(size);
      mt_checkpoint_file_free(&file);
    }
    if (bad) {
      mt_info("%s: BAD: %s", path, bad);
      wrong++;
    }
    mt_free(bad);
    mt_free(path);
  }
  if (!reason && wrong)
    reason = mt_format("%d of %d checkpoints cannot be used", wrong, n);
  mt_free(step);
  if (!reason)
    return MT_OK;
  mt_error("checkpoints %s: %s", dir, reason);
  mt_free(reason);
  return MT_CORRUPT;
}

enum mt_status mt_checkpoint_inspect(const char *path)
{
  struct stat is;
  if (stat(path, &is) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
    mt_error("inspect: %s: %s; expected a checkpoint or a folder of checkpoints", path, strerror(errno));
    return MT_USAGE;
  }
  if (stat(path, &is) != 0 || !S_ISDIR(is.st_mode))
    return inspect_file(path);
  /* RUN as well as RUN/checkpoints */
  char *inner = mt_format("%s/checkpoints", path);
  enum mt_status status = inspect_folder(stat(inner, &is) == 0 && S_ISDIR(is.st_mode) ? inner : path);
  mt_free(inner);
  return status;
}
