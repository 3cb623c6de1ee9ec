/* Text into numbers and back; see text.h. */
#include "text.h"
#include "memory.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int mt_text_integer(const char *text, int64_t *value)
{
  const char *digits = text + (*text == '-' || *text == '+');
  size_t n = strspn(digits, "0123456789");
  if (n == 0 || digits[n])
    return 0;
  errno = 0;
  long long parsed = strtoll(text, NULL, 10);
  if (errno)
    return 0;
  *value = parsed;
  return 1;
}

int mt_text_integers(const char *text, int64_t *value, int room)
{
  for (int n = 0;; text++) {
    char part[32];
    text += strspn(text, " ");
    size_t digits = strspn(text, "0123456789");
    int64_t number;
    if (digits >= sizeof part)
      return -1;
    memcpy(part, text, digits);
    part[digits] = 0;
    if (!mt_text_integer(part, &number))
      return -1;
    if (n++ < room)
      value[n - 1] = number;
    text += digits;
    text += strspn(text, " ");
    if (!*text)
      return n;
    if (*text != ',')
      return -1;
  }
}

int mt_text_real(const char *text, double *value)
{
  const char *p = text + (*text == '-' || *text == '+');
  size_t whole = strspn(p, "0123456789"), fraction = 0;
  p += whole;
  if (*p == '.') {
    fraction = strspn(p + 1, "0123456789");
    p += 1 + fraction;
  }
  if (whole + fraction == 0)
    return 0;
  if (*p == 'e' || *p == 'E') {
    p += 1 + (p[1] == '-' || p[1] == '+');
    size_t exponent = strspn(p, "0123456789");
    if (exponent == 0)
      return 0;
    p += exponent;
  }
  if (*p)
    return 0;
  double parsed = strtod(text, NULL);
  if (!isfinite(parsed))
    return 0;
  *value = parsed;
  return 1;
}

int mt_text_boolean(const char *text, int *value)
{
  int yes = !strcmp(text, "true") || !strcmp(text, "1"), no = !strcmp(text, "false") || !strcmp(text, "0");
  if (yes || no)
    *value = yes;
  return yes || no;
}

char *mt_text_print_real(double value, char *text)
{
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(text, 32, "%.*g", digits, value);
    if (strtod(text, NULL) == value)
      break;
  }
  return text;
}

/* A whole file with a zero byte behind it. 0, or the errno of what failed (a folder is EISDIR). */
static int read_file(const char *path, char **text, int64_t *bytes)
{
  *text = NULL;
  *bytes = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return errno;
  struct stat info;
  int error = fstat(fd, &info) ? errno : S_ISDIR(info.st_mode) ? EISDIR : 0;
  int64_t capacity = 4096;
  char *data = mt_alloc(MT_TAG_MISC, capacity);
  int64_t length = 0;
  while (!error) {
    if (length + 1 == capacity) { /* the size that stat tells is no promise: a pipe has none */
      char *larger = mt_alloc(MT_TAG_MISC, capacity * 2);
      memcpy(larger, data, (size_t)length);
      mt_free(data);
      data = larger;
      capacity *= 2;
    }
    ssize_t n = read(fd, data + length, (size_t)(capacity - 1 - length));
    if (n == 0)
      break;
    if (n > 0)
      length += n;
    else if (errno != EINTR)
      error = errno;
  }
  close(fd);
  if (error) {
    mt_free(data);
    return error;
  }
  data[length] = 0;
  *text = data;
  *bytes = length;
  return 0;
}

enum mt_status mt_text_read(const char *path, char **text, char **fault)
{
  int64_t bytes, line = 1;
  *fault = NULL;
  int error = read_file(path, text, &bytes);
  if (error) {
    *fault = mt_format("%s: %s", path, strerror(error));
    return error == ENOENT || error == ENOTDIR ? MT_USAGE : MT_CORRUPT;
  }
  for (int64_t at = 0; at < bytes; at++) {
    unsigned char c = (unsigned char)(*text)[at];
    if ((c < ' ' && (c < '\t' || c > '\r')) || c == 127) {
      *fault = mt_format("%s:%lld: byte %lld: found 0x%02x, which is no text", path, (long long)line, (long long)at, c);
      mt_free(*text);
      *text = NULL;
      return MT_CORRUPT;
    }
    line += c == '\n';
  }
  return MT_OK;
}

static int folded(char c)
{
  return c == '-' ? '_' : tolower((unsigned char)c);
}

int mt_text_distance(const char *a, const char *b)
{
  enum { LONGEST = 64 };
  int n = (int)strnlen(a, LONGEST), m = (int)strnlen(b, LONGEST);
  int row[3][LONGEST + 1]; /* the current row of the table and the two above it */
  for (int j = 0; j <= m; j++)
    row[0][j] = j;
  for (int i = 1; i <= n; i++) {
    int *now = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
    now[0] = i;
    for (int j = 1; j <= m; j++) {
      int same = folded(a[i - 1]) == folded(b[j - 1]);
      int best = up[j - 1] + !same;
      if (up[j] + 1 < best)
        best = up[j] + 1;
      if (now[j - 1] + 1 < best)
        best = now[j - 1] + 1;
      int swapped =
          i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) && folded(a[i - 2]) == folded(b[j - 1]);
      if (swapped && up2[j - 2] + 1 < best)
        best = up2[j - 2] + 1;
      now[j] = best;
    }
  }
  return row[n % 3][m];
}

const char *mt_text_nearest(const char *word, const char *const *words, int n)
{
  const char *nearest = NULL;
  int least = (int)strlen(word) / 3 + 1; /* more edits than a third of the word: not the same word any more */
  for (int i = 0; i < n; i++) {
    int distance = mt_text_distance(word, words[i]);
    if (distance < least + !nearest) {
      least = distance;
      nearest = words[i];
    }
  }
  return nearest;
}

void mt_text_add(struct mt_text_buffer *buffer, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  int64_t more = vsnprintf(NULL, 0, format, args);
  va_end(args);
  if (buffer->length + more + 1 > buffer->capacity) {
    buffer->capacity = (buffer->length + more + 1) * 2;
    char *larger = mt_alloc(MT_TAG_MISC, buffer->capacity);
    if (buffer->text)
      memcpy(larger, buffer->text, (size_t)buffer->length);
    mt_free(buffer->text);
    buffer->text = larger;
  }
  va_start(args, format);
  vsnprintf(buffer->text + buffer->length, (size_t)more + 1, format, args);
  va_end(args);
  buffer->length += more;
}
