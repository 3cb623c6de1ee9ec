/* The last words of a rank; see status.h. */
#include "status.h"
#include "log.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void (*the_hook)(int);

void mt_die_hook(void (*hook)(int code))
{
  the_hook = hook;
}

void mt_die(const char *file, int line, const char *format, ...)
{
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  const char *slash = strrchr(file, '/');
  mt_error("%s (%s:%d)", text, slash ? slash + 1 : file, line);
  if (the_hook)
    the_hook(MT_FAILED);
  _Exit(MT_FAILED);
}

/* MOTLEY_FAIL is read once: a point is passed often, and the environment does not change. */
int mt_fail_point(const char *point)
{
  static const char *spec;
  static long countdown;
  static int known;
  if (!known) {
    known = 1;
    spec = getenv("MOTLEY_FAIL");
    const char *colon = spec ? strchr(spec, ':') : NULL;
    countdown = colon ? strtol(colon + 1, NULL, 10) : 1;
  }
  if (!spec)
    return 0;
  size_t length = strcspn(spec, ":");
  return strlen(point) == length && strncmp(point, spec, length) == 0 && --countdown == 0;
}
