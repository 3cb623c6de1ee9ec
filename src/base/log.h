/* The log for people: stderr for errors and warnings, stdout for rank 0's lines.
 *
 * One write per line, so that lines of several ranks do not interleave. Levels, by volume: error (the reason why the
 * program ends or skips something), warn (goes on, but differently from what one would expect), info (constant number
 * of lines per run), debug (proportional to objects). MOTLEY_LOG=error|warn|info|debug sets the level (default info). */
#ifndef MT_LOG_H
#define MT_LOG_H
#include <stdarg.h>

/* Names this rank in messages. Before it is called messages carry no rank. Local. */
void mt_log_identity(int rank, int size, const char *host);

/* "motley: error: ..." on stderr, prefixed with "[rank r/P host]" when there is more than one rank. Local. */
void mt_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Likewise "motley: warning: ...". */
void mt_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A line on stdout from rank 0 only; on other ranks nothing. Local. */
void mt_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Bytes on stdout from rank 0 only, as they are (generated text, tables longer than a line of the log). Local. */
void mt_write(const void *bytes, long n);
/* A line on stderr from any rank when the level is debug. */
void mt_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
