/* Limits of the control group; see cgroup.h.
 *
 * The trap: /proc/self/cgroup names the group as the host sees it, while a container sees its own group
 * mounted at the root. So every ancestor of the named path is tried, down to the mount itself, and those that
 * are not there say nothing. */
#include "topology/cgroup.h"
#include "base/memory.h"
#include <stdio.h>
#include <string.h>

/* The first two numbers of a file; a word such as "max" counts as -1. Returns how many there are. */
static int read_numbers(const char *path, int64_t number[2])
{
  FILE *file = fopen(path, "r");
  if (!file)
    return 0;
  char word[2][32];
  int n = fscanf(file, "%31s %31s", word[0], word[1]);
  fclose(file);
  for (int i = 0; i < n; i++) {
    long long value;
    number[i] = sscanf(word[i], "%lld", &value) == 1 ? value : -1;
  }
  return n > 0 ? n : 0;
}

static int64_t tighter(int64_t limit, int64_t found)
{
  return found > 0 && (limit == 0 || found < limit) ? found : limit;
}

static int64_t memory_limit(const char *folder, int version)
{
  int64_t number[2];
  char *path = mt_format("%s/%s", folder, version == 2 ? "memory.max" : "memory.limit_in_bytes");
  int n = read_numbers(path, number);
  mt_free(path);
  /* Version 1 writes "none" as the largest multiple of a page. */
  return n >= 1 && number[0] > 0 && number[0] < INT64_MAX / 2 ? number[0] : 0;
}

static int64_t core_limit(const char *folder, int version)
{
  int64_t quota[2] = {-1, -1};
  if (version == 2) {
    char *path = mt_format("%s/cpu.max", folder);
    if (read_numbers(path, quota) < 2)
      quota[0] = -1;
    mt_free(path);
  } else {
    char *path = mt_format("%s/cpu.cfs_quota_us", folder);
    int n = read_numbers(path, quota);
    mt_free(path);
    path = mt_format("%s/cpu.cfs_period_us", folder);
    int64_t period[2];
    quota[1] = n >= 1 && read_numbers(path, period) >= 1 ? period[0] : -1;
    mt_free(path);
  }
  if (quota[0] <= 0 || quota[1] <= 0)
    return 0;
  return quota[0] < quota[1] ? 1 : quota[0] / quota[1];
}

/* The tightest answer of `limit` along `group` below `mount`, the mount included; group is consumed. */
static int64_t along(const char *root, const char *mount, char *group, int version,
                     int64_t (*limit)(const char *folder, int version))
{
  int64_t tightest = 0;
  for (;;) {
    char *folder = mt_format("%s/sys/fs/cgroup%s%s", root, mount, group);
    tightest = tighter(tightest, limit(folder, version));
    mt_free(folder);
    char *slash = strrchr(group, '/');
    if (!slash)
      return tightest;
    *slash = 0;
  }
}

/* Looks at the groups of version 2 ("0::/path") and at those of the version 1 controller
 * ("4:cpu,cpuacct:/path"). */
static int64_t cgroup_limit(const char *root, const char *controller, int64_t (*limit)(const char *folder, int version))
{
  char *name = mt_format("%s/proc/self/cgroup", root), line[4096];
  FILE *file = fopen(name, "r");
  mt_free(name);
  if (!file)
    return 0;
  int64_t tightest = 0;
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
      continue;
    *controllers++ = 0;
    *group++ = 0;
    if (strstr(group, "..")) /* a group above this namespace: nothing of it can be seen */
      group = strchr(group, 0);
    if (!*controllers) {
      tightest = tighter(tightest, along(root, "", group, 2, limit));
      continue;
    }
    for (char *rest = controllers, *one; (one = strtok_r(rest, ",", &rest));)
      if (strcmp(one, controller) == 0) {
        char *mount = mt_format("/%s", controller);
        tightest = tighter(tightest, along(root, mount, group, 1, limit));
        mt_free(mount);
      }
  }
  fclose(file);
  return tightest;
}

int64_t mt_cgroup_memory(const char *root)
{
  return cgroup_limit(root, "memory", memory_limit);
}

int64_t mt_cgroup_cores(const char *root)
{
  return cgroup_limit(root, "cpu", core_limit);
}
