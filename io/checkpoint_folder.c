/* The folder of checkpoints; see checkpoint_folder.h. */
#include "config.h"
#include "checkpoint_folder.h"
#include "base/memory.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

char *mt_checkpoint_path(const char *dir, int64_t step)
{
  return mt_format("%s/step-%08lld.h5", dir, (long long)step);
}

char *mt_checkpoint_temporary(const char *dir, int64_t step)
{
  return mt_format("%s/.step-%08lld.h5.tmp", dir, (long long)step);
}

/* step-DIGITS.h5 with at least 8 digits (and no more than a number can hold), or -1. */
static int64_t step_of(const char *name)
{
  if (strncmp(name, "step-", 5) != 0)
    return -1;
  size_t digits = strspn(name + 5, "0123456789");
  if (digits < 8 || digits > 18 || strcmp(name + 5 + digits, ".h5") != 0)
    return -1;
  return strtoll(name + 5, NULL, 10);
}

static int descending(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x < y) - (x > y);
}

char *mt_checkpoint_folder_list(const char *dir, int64_t **step, int *n)
{
  *step = NULL;
  *n = 0;
  DIR *folder = opendir(dir);
  if (!folder && errno == ENOENT)
    return NULL;
  if (!folder)
    return errno == ENOTDIR ? mt_strdup("is a file; expected a folder of checkpoints")
                            : mt_format("the folder cannot be read: %s", strerror(errno));
  int64_t capacity = 0;
  char *reason = NULL;
  for (;;) {
    errno = 0;
    struct dirent *entry = readdir(folder);
    if (!entry) {
      if (errno)
        reason = mt_format("the folder cannot be read: %s", strerror(errno));
      break;
    }
    int64_t number = step_of(entry->d_name);
    if (number < 0)
      continue;
    if (*n == capacity) {
      capacity = capacity ? 2 * capacity : 16;
      int64_t *more = MT_NEW(MT_TAG_IO, int64_t, capacity);
      if (*n > 0)
        memcpy(more, *step, (size_t)*n * sizeof **step);
      mt_free(*step);
      *step = more;
    }
    (*step)[(*n)++] = number;
  }
  closedir(folder);
  if (*n > 1)
    qsort(*step, (size_t)*n, sizeof **step, descending);
  return reason;
}

void mt_checkpoint_folder_clean(const char *dir)
{
  DIR *folder = opendir(dir);
  if (!folder)
    return;
  for (struct dirent *entry; (entry = readdir(folder));) {
    const char *name = entry->d_name;
    size_t length = strlen(name);
    if (strncmp(name, ".step-", 6) != 0 || length < 14 || strcmp(name + length - 7, ".h5.tmp") != 0)
      continue;
    int fd = openat(dirfd(folder), name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    /* A file system without locks cannot tell the living from the dead; a run's folder has one writer. */
    if (fd >= 0 && (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK))
      unlinkat(dirfd(folder), name, 0);
    if (fd >= 0)
      close(fd);
  }
  closedir(folder);
}

char *mt_checkpoint_folder_sync(const char *dir)
{
  int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return mt_format("the folder cannot be opened to sync it: %s", strerror(errno));
  /* Some file systems have nothing to sync in a folder and say EINVAL. */
  char *reason = fsync(fd) != 0 && errno != EINVAL
                     ? mt_format("the folder cannot be synced: %s", strerror(errno))
                     : NULL;
  close(fd);
  return reason;
}
