/* Pieces between memory and a file; see checkpoint_piece.h. */
#include "config.h"
#include "checkpoint_piece.h"
#include "base/crc32c.h"
#include "base/memory.h"
#include "base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* A part small enough to be still in the cache when it is written after its checksum was taken (or the
 * reverse). */
enum { PART = 1 << 20 };

int mt_write_at(int fd, const void *data, int64_t bytes, int64_t offset)
{
  const char *at = data;
  while (bytes > 0) {
    ssize_t done = pwrite(fd, at, (size_t)(bytes < (1 << 30) ? bytes : 1 << 30), (off_t)offset);
    if (done < 0 && errno == EINTR)
      continue;
    if (done <= 0)
      return done < 0 ? errno : EIO;
    at += done;
    offset += done;
    bytes -= done;
  }
  return 0;
}

int mt_read_at(int fd, void *data, int64_t bytes, int64_t offset)
{
  char *at = data;
  while (bytes > 0) {
    ssize_t done = pread(fd, at, (size_t)(bytes < (1 << 30) ? bytes : 1 << 30), (off_t)offset);
    if (done < 0 && errno == EINTR)
      continue;
    if (done <= 0)
      return done < 0 ? errno : ENODATA;
    at += done;
    offset += done;
    bytes -= done;
  }
  return 0;
}

static char *read_failed(int error, int64_t offset)
{
  if (error == ENODATA)
    return mt_format("the file ends before byte %lld, which a dataset needs", (long long)offset);
  return mt_format("cannot be read at byte %lld: %s", (long long)offset, strerror(error));
}

/* The rank that makes the file may be on another node. */
static char *open_failed(int error)
{
  return mt_format("cannot be opened: %s%s", strerror(error),
                   error == ENOENT ? " (is the folder on a file system that all nodes share?)" : "");
}

char *mt_pieces_write(const char *path, int64_t n, struct mt_piece *piece)
{
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0)
    return open_failed(errno);
  int error = mt_fail_point("checkpoint.write") ? EIO : 0;
  int64_t at = 0;
  for (int64_t i = 0; i < n; i++) {
    const char *data = piece[i].data;
    piece[i].crc = 0;
    for (int64_t done = 0, part; done < piece[i].bytes && !error; done += part) {
      part = piece[i].bytes - done < PART ? piece[i].bytes - done : PART;
      at = piece[i].offset + done;
      piece[i].crc = mt_crc32c(piece[i].crc, data + done, part);
      error = mt_write_at(fd, data + done, part, at);
    }
  }
  char *reason =
      error ? mt_format("cannot be written at byte %lld: %s", (long long)at, strerror(error)) : NULL;
  if (!reason && fsync(fd) != 0 && errno != EINVAL)
    reason = mt_format("cannot be synced: %s", strerror(errno));
  if (close(fd) != 0 && !reason && errno != EINTR)
    reason = mt_format("cannot be closed: %s", strerror(errno));
  return reason;
}

char *mt_pieces_read(const char *path, int64_t n, struct mt_piece *piece)
{
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return open_failed(errno);
  char *reason = NULL;
  for (int64_t i = 0; i < n && !reason; i++) {
    char *data = piece[i].data;
    piece[i].crc = 0;
    for (int64_t done = 0, part; done < piece[i].bytes && !reason; done += part) {
      part = piece[i].bytes - done < PART ? piece[i].bytes - done : PART;
      int error = mt_read_at(fd, data + done, part, piece[i].offset + done);
      if (error)
        reason = read_failed(error, piece[i].offset + done);
      else
        piece[i].crc = mt_crc32c(piece[i].crc, data + done, part);
    }
  }
  close(fd);
  return reason;
}

char *mt_piece_sum(int fd, int64_t offset, int64_t bytes, uint32_t *crc)
{
  char *part = MT_NEW(MT_TAG_IO, char, bytes < PART ? bytes : PART), *reason = NULL;
  *crc = 0;
  for (int64_t done = 0, n; done < bytes && !reason; done += n) {
    n = bytes - done < PART ? bytes - done : PART;
    int error = mt_read_at(fd, part, n, offset + done);
    if (error)
      reason = read_failed(error, offset + done);
    else
      *crc = mt_crc32c(*crc, part, n);
  }
  mt_free(part);
  return reason;
}
