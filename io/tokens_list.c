/* Names of files from a list with patterns; see tokens_list.h.
 *
 * The trap is order: samples are numbered through the files, so every rank on every node must see the same
 * sequence, and glob(3) sorts by the locale. So matches are sorted here, by byte values. */
#include "tokens_list.h"
#include "base/memory.h"
#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* One element of the list. */
struct part {
  char *name;   /* owned */
  int expanded; /* found holds its files, else the name is the file */
  glob_t found;
};

/* The next element as a new string without blanks around it; *list moves on, NULL after the last. */
static char *next_name(const char **list)
{
  const char *begin = *list, *comma = strchr(begin, ','), *end = comma ? comma : begin + strlen(begin);
  *list = comma ? comma + 1 : NULL;
  while (begin < end && isspace((unsigned char)*begin))
    begin++;
  while (end > begin && isspace((unsigned char)end[-1]))
    end--;
  return mt_format("%.*s", (int)(end - begin), begin);
}

static int by_bytes(const void *a, const void *b)
{
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum mt_status expand(struct part *part, char **fault)
{
  struct stat info;
  if (part->name[0] == '\0') {
    *fault = mt_format("found an empty name, expected paths of files separated by commas");
    return MT_USAGE;
  }
  if (!strpbrk(part->name, "*?[") || stat(part->name, &info) == 0)
    return MT_OK;
  part->expanded = 1;
  errno = 0;
  int code = glob(part->name, GLOB_NOSORT | GLOB_ERR, NULL, &part->found);
  MT_CHECK(code != GLOB_NOSPACE, "no memory for the files that match %s", part->name);
  if (code == GLOB_ABORTED && errno != ENOENT && errno != ENOTDIR) {
    *fault = mt_format("%s: a folder cannot be read: %s", part->name, strerror(errno));
    return MT_CORRUPT;
  }
  if (code != 0 || part->found.gl_pathc == 0) {
    *fault = mt_format("%s: no file matches this pattern", part->name);
    return MT_USAGE;
  }
  qsort(part->found.gl_pathv, part->found.gl_pathc, sizeof(char *), by_bytes);
  return MT_OK;
}

enum mt_status mt_tokens_list(const char *paths, char ***names, int64_t *n, char **fault)
{
  int64_t nparts = 1, total = 0, at = 0;
  for (const char *c = paths; *c; c++)
    nparts += *c == ',';
  struct part *part = MT_ZNEW(MT_TAG_IO, struct part, nparts);
  enum mt_status status = MT_OK;
  for (int64_t i = 0; i < nparts && status == MT_OK; i++) {
    part[i].name = next_name(&paths);
    status = expand(&part[i], fault);
    total += part[i].expanded ? (int64_t)part[i].found.gl_pathc : 1;
  }
  *n = status == MT_OK ? total : 0;
  *names = MT_ZNEW(MT_TAG_IO, char *, *n);
  for (int64_t i = 0; i < nparts; i++) {
    for (size_t k = 0; status == MT_OK && part[i].expanded && k < part[i].found.gl_pathc; k++)
      (*names)[at++] = mt_strdup(part[i].found.gl_pathv[k]);
    if (status == MT_OK && !part[i].expanded)
      (*names)[at++] = mt_strdup(part[i].name);
    if (part[i].expanded)
      globfree(&part[i].found);
    mt_free(part[i].name);
  }
  mt_free(part);
  return status;
}

void mt_tokens_list_free(char **names, int64_t n)
{
  for (int64_t i = 0; i < n; i++)
    mt_free(names[i]);
  mt_free(names);
}
