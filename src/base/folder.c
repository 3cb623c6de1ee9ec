/* Folders; see folder.h. */
#include "folder.h"
#include "memory.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* The trap: a parent that exists on a read-only file system may answer EROFS rather than EEXIST. So what is there counts, not
 * what mkdir says. */
static int make_one(const char *path)
{
  struct stat info;
  int cause = mkdir(path, 0777) == 0 ? 0 : errno;
  if (!cause)
    return 0;
  if (stat(path, &info) == 0)
    return S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
  return cause == EEXIST ? ENOTDIR : cause; /* a link that leads nowhere */
}

int mt_folder_make(const char *path, char **failed)
{
  *failed = NULL;
  for (size_t n = 0; path[n] || n == 0; n += path[n] == '/') {
    n += strcspn(path + n, "/");
    char *part = mt_format("%.*s", (int)n, path);
    int error = *part || !*path ? make_one(part) : 0;
    if (error) {
      *failed = part;
      return error;
    }
    mt_free(part);
  }
  return 0;
}
