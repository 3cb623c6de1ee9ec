/* The machine's log; see runlog.h.
 *
 * A job may be killed at any byte and the disk may fill. So a line is one write to a file opened for
 * appending, and whoever finds an unfinished last line (a new process, or this one after a short write) ends
 * it before going on: a reader loses that one line, never the next. */
#include "runlog.h"
#include "base/folder.h"
#include "base/log.h"
#include "base/memory.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

struct mt_runlog {
  char *path; /* owned */
  int fd;
  int unfinished; /* the last line in the file has no newline */
  int warned;
};

static int ends_without_newline(int fd)
{
  char last;
  off_t end = lseek(fd, 0, SEEK_END);
  return end > 0 && pread(fd, &last, 1, end - 1) == 1 && last != '\n';
}

enum mt_status mt_runlog_open(const char *dir, struct mt_runlog **log)
{
  *log = NULL;
  dir = dir[0] ? dir : ".";
  char *failed;
  int error = mt_folder_make(dir, &failed);
  if (error) {
    mt_error("log.dir: cannot make the folder %s: %s", failed, error == ENOTDIR ? "a file is in its place" : strerror(error));
    mt_free(failed);
    return error == ENOTDIR ? MT_USAGE : MT_FAILED;
  }
  char *path = mt_format("%s/log.jsonl", dir);
  int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) {
    mt_error("log.dir: cannot write %s: %s", path, strerror(errno));
    mt_free(path);
    return MT_FAILED;
  }
  /* A job that was killed a moment ago may need a few seconds to be gone. */
  int locked = flock(fd, LOCK_EX | LOCK_NB);
  for (int i = 0; i < 50 && locked != 0 && errno == EWOULDBLOCK; i++) {
    usleep(100000);
    locked = flock(fd, LOCK_EX | LOCK_NB);
  }
  if (locked != 0 && errno == EWOULDBLOCK) {
    mt_error("log.dir: found another job at work in %s, expected a folder of one's own", dir);
    close(fd);
    mt_free(path);
    return MT_USAGE;
  }
  struct mt_runlog *made = MT_ZNEW(MT_TAG_IO, struct mt_runlog, 1);
  made->path = path;
  made->fd = fd;
  made->unfinished = ends_without_newline(fd);
  *log = made;
  return MT_OK;
}

void mt_runlog_close(struct mt_runlog *log)
{
  if (!log)
    return;
  close(log->fd);
  mt_free(log->path);
  mt_free(log);
}

/* One warning for the run, whatever of its folder cannot be written. */
static void warn_once(struct mt_runlog *log, const char *path, const char *cause, const char *effect)
{
  if (!log->warned)
    mt_warn("%s: cannot write: %s%s", path, cause, effect);
  log->warned = 1;
}

void mt_runlog_write(struct mt_runlog *log, mt_json *object)
{
  if (!log) {
    mt_json_free(object);
    return;
  }
  char *text = mt_json_print(object, 0);
  char *line = mt_format("%s%s\n", log->unfinished ? "\n" : "", text);
  size_t length = strlen(line);
  ssize_t written;
  do
    written = write(log->fd, line, length);
  while (written < 0 && errno == EINTR);
  if (written > 0)
    log->unfinished = line[written - 1] != '\n';
  if (written != (ssize_t)length)
    warn_once(log, log->path, written < 0 ? strerror(errno) : "the disk is full", "; lines will be missing");
  mt_free(line);
  mt_free(text);
  mt_json_free(object);
}

void mt_runlog_put(struct mt_runlog *log, const char *name, const char *text)
{
  if (!log)
    return;
  const char *slash = strrchr(log->path, '/');
  char *path = mt_format("%.*s/%s", (int)(slash - log->path), log->path, name);
  FILE *file = fopen(path, "w");
  int failed = !file || fputs(text, file) < 0;
  failed |= file && fclose(file);
  if (failed)
    warn_once(log, path, strerror(errno), "");
  mt_free(path);
}
