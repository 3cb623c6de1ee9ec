/* Configuration files.
 *
 * inih splits a file into sections and keys. The trap: it cuts long lines and long names without a word,
 * takes an indented line for the rest of the value above it, and differs in all this from build to build. So
 * it is fed lines that it cannot misread, a stand-in in the place of each value, and the value is taken from
 * our own copy of the line. */
#include "config_table.h"
#include "log.h"
#include "memory.h"
#include <ctype.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct lines {
  struct mt_reading *reading;
  const char *next; /* rest of the text */
  int line;         /* number of the line that inih has */
  char *value;      /* of that line, owned */
  enum mt_status status;
};

static int blank(char c)
{
  return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v';
}

static int hex(char c)
{
  return isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10;
}

/* The value in text[n]: a text in double quotes with \n \t \" \\ \xHH, or everything up to a comment (';' or
 * '#' after a blank) without the blanks around it. NULL (said) if the quotes are not closed or the file has
 * more behind them. */
static char *parse_value(struct lines *lines, const char *text, int64_t n)
{
  const char *path = lines->reading->path;
  char *value = mt_alloc(MT_TAG_MISC, n + 1);
  int64_t i = 0, length = 0;
  while (i < n && blank(text[i]))
    i++;
  if (i < n && text[i] == '"') {
    for (i++; i < n && text[i] != '"'; i++) {
      char c = text[i];
      if (c == '\\') {
        c = ++i < n ? text[i] : 0;
        if (c == 'x' && i + 2 < n && isxdigit((unsigned char)text[i + 1]) &&
            isxdigit((unsigned char)text[i + 2]) && hex(text[i + 1]) + hex(text[i + 2]) > 0) {
          c = (char)(hex(text[i + 1]) * 16 + hex(text[i + 2]));
          i += 2;
        } else if (c == 'n' || c == 't') {
          c = c == 'n' ? '\n' : '\t';
        } else if (c != '"' && c != '\\') {
          mt_error("%s:%d: found \"\\%c\" in quoted text, expected \\n, \\t, \\\", \\\\ or \\xHH", path,
                   lines->line, c ? c : ' ');
          mt_free(value);
          return NULL;
        }
      }
      value[length++] = c;
    }
    int closed = i < n;
    for (i++; i < n && blank(text[i]);)
      i++;
    if (!closed || (i < n && text[i] != ';' && text[i] != '#')) {
      mt_error("%s:%d: found %s, expected text in double quotes and nothing behind it", path, lines->line,
               closed ? "more behind a closing quote" : "no closing quote");
      mt_free(value);
      return NULL;
    }
  } else {
    while (i < n && !((text[i] == ';' || text[i] == '#') && (i == 0 || blank(text[i - 1]))))
      value[length++] = text[i++];
    while (length > 0 && blank(value[length - 1]))
      length--;
  }
  value[length] = 0;
  return value;
}

/* Gives inih the next line (an ini_reader): a key with a stand-in for its value, which is kept in
 * lines->value. */
static char *next_line(char *out, int size, void *stream)
{
  struct lines *lines = stream;
  const char *path = lines->reading->path;
  if (lines->status || !*lines->next)
    return NULL;
  const char *text = lines->next;
  int64_t n = (int64_t)strcspn(text, "\n");
  lines->next += n + (text[n] == '\n');
  lines->line++;
  mt_free(lines->value);
  lines->value = NULL;
  if (lines->line == 1 && n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) {
    text += 3;
    n -= 3;
  }
  while (n > 0 && blank(*text)) { /* an indented key is a key, not a continuation */
    text++;
    n--;
  }
  int64_t end = 0;
  while (end < n && text[end] != '=' && text[end] != ':')
    end++;
  int section = *text == '[', comment = n == 0 || *text == ';' || *text == '#';
  int64_t taken = section ? n : end < n ? end : 0;
  if (!comment && (!taken || taken > 48 || size < 64)) { /* inih keeps 49 characters of a name */
    mt_error("%s:%d: found \"%.*s\", expected [section] or key = value", path, lines->line,
             n < 60 ? (int)n : 60, text);
    lines->status = MT_USAGE;
    return NULL;
  }
  if (!comment && !section) {
    lines->value = parse_value(lines, text + end + 1, n - end - 1);
    if (!lines->value) {
      lines->status = MT_USAGE;
      return NULL;
    }
  }
  snprintf(out, (size_t)size, "%.*s%s\n", comment ? 0 : (int)taken, text, comment || section ? "" : "=x");
  return out;
}

static int take_line(void *user, const char *section, const char *key, const char *value)
{
  struct lines *lines = user;
  struct mt_reading *reading = lines->reading;
  (void)value;
  if (lines->status)
    return 0;
  char prefix[1024];
  snprintf(prefix, sizeof prefix, "%s:%d", reading->path, lines->line);
  const struct mt_option *option = mt_option_find(section, key);
  if (!*section) {
    mt_error("%s: found \"%s\" before any section, expected [model] or another section first", prefix, key);
    lines->status = MT_USAGE;
  } else if (!option && reading->lenient) {
    mt_text_add(&reading->warning, "%s%s.%s", reading->warning.text ? ", " : "", section, key);
  } else if (!option) {
    lines->status = mt_reading_unknown(prefix, section, key);
  } else if (reading->source[option - mt_options].origin == MT_FROM_FILE) {
    int same = !strcmp(key, option->key);
    mt_error("%s: %s.%s%s%s%s is given twice, first in line %d", prefix, section, key,
             same ? "" : " (that is ", same ? "" : option->key, same ? "" : ")",
             reading->source[option - mt_options].line);
    lines->status = MT_USAGE;
  } else {
    lines->status =
        mt_reading_set(reading, option, (struct mt_source){MT_FROM_FILE, lines->line, NULL}, lines->value);
  }
  return lines->status == MT_OK;
}

enum mt_status mt_config_read_text(struct mt_reading *reading, const char *text)
{
  struct lines lines = {.reading = reading, .next = text};
  int bad = ini_parse_stream(next_line, &lines, take_line, &lines);
  mt_free(lines.value);
  if (bad && !lines.status) {
    mt_error("%s:%d: expected [section] or key = value", reading->path, bad);
    return MT_USAGE;
  }
  return lines.status;
}

enum mt_status mt_config_read_file(struct mt_reading *reading)
{
  char *text, *fault;
  struct stat info;
  if (stat(reading->path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    /* a pipe or a device may never end */
    mt_error("%s: found no regular file, expected a configuration file", reading->path);
    return MT_USAGE;
  }
  if (mt_text_read(reading->path, &text, &fault)) {
    mt_error("%s, expected a configuration file", fault);
    mt_free(fault);
    return MT_USAGE;
  }
  enum mt_status status = mt_config_read_text(reading, text);
  mt_free(text);
  return status;
}
