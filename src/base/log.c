/* Lines for people; see log.h. */
#include "log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum level { ERROR, WARN, INFO, DEBUG };
static int my_rank, my_size = 1;
static char my_host[64];

static enum level level(void)
{
  static int known = -1;
  if (known < 0) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const char *text = getenv("MOTLEY_LOG");
    known = INFO;
    for (int i = 0; text && i < 4; i++)
      if (!strcmp(text, names[i]))
        known = i;
  }
  return (enum level)known;
}

void mt_log_identity(int rank, int size, const char *host)
{
  my_rank = rank;
  my_size = size;
  snprintf(my_host, sizeof my_host, "%s", host);
}

/* Builds the whole line first: one write cannot be cut by another rank's. */
static void say(int fd, const char *label, const char *format, va_list args)
{
  char line[4096];
  int n = 0;
  if (label) {
    if (my_size > 1)
      n = snprintf(line, sizeof line, "[rank %d/%d %s] ", my_rank, my_size, my_host);
    n += snprintf(line + n, sizeof line - (size_t)n, "motley: %s: ", label);
  }
  int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
  if (m >= 0)
    n = n + m < (int)sizeof line - 1 ? n + m : (int)sizeof line - 2;
  line[n++] = '\n';
  if (fd == STDOUT_FILENO) {
    fwrite(line, 1, (size_t)n, stdout);
    fflush(stdout);
  } else if (write(fd, line, (size_t)n) < 0)
    return; /* nowhere left to say it */
}

void mt_error(const char *format, ...)
{
  va_list args;
  va_start(args, format);
  say(STDERR_FILENO, "error", format, args);
  va_end(args);
}

void mt_warn(const char *format, ...)
{
  if (level() < WARN)
    return;
  va_list args;
  va_start(args, format);
  say(STDERR_FILENO, "warning", format, args);
  va_end(args);
}

void mt_info(const char *format, ...)
{
  if (level() < INFO || my_rank != 0)
    return;
  va_list args;
  va_start(args, format);
  say(STDOUT_FILENO, NULL, format, args);
  va_end(args);
}

void mt_write(const void *bytes, long n)
{
  if (my_rank != 0)
    return;
  fwrite(bytes, 1, (size_t)n, stdout);
  fflush(stdout);
}

void mt_debug(const char *format, ...)
{
  if (level() < DEBUG)
    return;
  va_list args;
  va_start(args, format);
  say(STDERR_FILENO, "debug", format, args);
  va_end(args);
}
