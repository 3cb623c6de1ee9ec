/* Discovery under hwloc's own environment, and the control group's limits. ranks: 1
 *
 * hwloc and OpenMP read the environment once, so each case runs in a process of its own: this program called with
 * --place, which prints the place it finds. */
#include "config.h"
#include "test.h"
#include "topology/cgroup.h"
#include "topology/discover.h"
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *program;

/* ---- the other process ---- */

static int show_place(const char *bind)
{
  if (bind) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(bind), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
      return 77;
  }
  struct mt_place place;
  memset(&place, 0x55, sizeof place);
  mt_discover(&place);
  printf("place %d %d %d %d %d %d %d %d %d %d %lld %lld %d\n", place.launch_rank, place.kind, place.device,
         place.package, place.numa, place.cores, place.node_cores, place.packages, place.numas, place.threads,
         (long long)place.mem_bytes, (long long)place.speed, place.flat);
  printf("host %s\nmodel %s\n", place.host, place.model);
  return mt_memory_report_leaks() == 0 ? 0 : 1;
}

/* ---- this process ---- */

struct found {
  struct mt_place place;
  char noise[4096]; /* everything the process said besides */
  int warnings;
  int code;
};

/* Discovery with settings "NAME=value ..." in the environment, bound to a processor unless bind is NULL. */
static struct found discover(const char *settings, const char *bind)
{
  struct found found;
  memset(&found, 0, sizeof found);
  char *command = mt_format("env -u HWLOC_XMLFILE -u HWLOC_SYNTHETIC -u HWLOC_COMPONENTS -u HWLOC_FSROOT "
                            "-u HWLOC_THISSYSTEM -u HWLOC_HIDE_ERRORS -u OMP_PROC_BIND -u OMP_PLACES "
                            "-u OMPI_COMM_WORLD_LOCAL_RANK %s '%s' --place %s 2>&1",
                            settings, program, bind ? bind : "");
  FILE *pipe = popen(command, "r");
  ck_assert_ptr_nonnull(pipe);
  char line[1024];
  int lines = 0;
  while (fgets(line, sizeof line, pipe)) {
    struct mt_place *p = &found.place;
    long long memory, speed;
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "place %d %d %d %d %d %d %d %d %d %d %lld %lld %d", &p->launch_rank, &p->kind, &p->device,
               &p->package, &p->numa, &p->cores, &p->node_cores, &p->packages, &p->numas, &p->threads, &memory, &speed,
               &p->flat) == 13) {
      p->mem_bytes = memory;
      p->speed = speed;
      lines++;
    } else if (strncmp(line, "host ", 5) == 0) {
      snprintf(p->host, sizeof p->host, "%.63s", line + 5);
    } else if (strncmp(line, "model ", 6) == 0) {
      snprintf(p->model, sizeof p->model, "%.63s", line + 6);
    } else {
      found.warnings += strncmp(line, "motley: warning: ", 17) == 0;
      strncat(found.noise, line, sizeof found.noise - strlen(found.noise) - 2);
      strcat(found.noise, "\n");
    }
  }
  int status = pclose(pipe);
  ck_assert(WIFEXITED(status));
  found.code = WEXITSTATUS(status);
  mt_free(command);
  if (found.code == 77)
    return found;
  ck_assert_msg(found.code == 0 && lines == 1, "exit code %d, said: %s", found.code, found.noise);
  /* What holds for every place, also when read back as JSON. */
  char host[256] = "";
  ck_assert_int_eq(gethostname(host, sizeof host - 1), 0);
  host[sizeof found.place.host - 1] = 0;
  ck_assert_str_eq(found.place.host, host);
  ck_assert_int_eq(found.place.launch_rank, 0);
  ck_assert_int_eq(found.place.kind, MT_DEVICE_CPU);
  ck_assert_int_eq(found.place.device, -1);
  ck_assert_int_eq(found.place.threads, 1);
  ck_assert_int_eq(found.place.speed, 0);
  ck_assert_int_ge(found.place.cores, 1);
  ck_assert_int_le(found.place.cores, found.place.node_cores);
  ck_assert_int_ge(found.place.packages, 1);
  ck_assert_int_ge(found.place.numas, 1);
  ck_assert_int_ge(found.place.package, -1);
  ck_assert_int_lt(found.place.package, found.place.packages);
  ck_assert_int_ge(found.place.numa, -1);
  ck_assert_int_lt(found.place.numa, found.place.numas);
  ck_assert_int_ge(found.place.mem_bytes, 0);
  return found;
}

static int processors(void)
{
  cpu_set_t set;
  ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
  return CPU_COUNT(&set);
}

/* A core count of this machine under the quota of the group these tests run in. */
static int under_quota(int cores)
{
  int64_t quota = mt_cgroup_cores("");
  return quota > 0 && quota < cores ? (int)quota : cores;
}

static const struct {
  const char *settings;
  int package, numa, cores, packages, numas;
  int64_t gib; /* -1 = not looked at */
  const char *model;
} machines[] = {
    {"HWLOC_SYNTHETIC='pack:2 numa:2 core:3 pu:2'", -1, -1, 12, 2, 4, -1, ""},
    {"HWLOC_SYNTHETIC='pack:1 core:1 pu:1'", 0, 0, 1, 1, 1, -1, ""},
    {"HWLOC_SYNTHETIC='pack:1 numa:3 core:5 pu:4'", 0, -1, 15, 1, 3, -1, ""},
    {"HWLOC_SYNTHETIC='numa:2 core:2 pu:1'", 0, -1, 4, 1, 2, -1, ""}, /* no packages told */
    /* Said to be this machine, but bound to none of its processors: all of it. */
    {"HWLOC_THISSYSTEM=1 HWLOC_SYNTHETIC='pack:1 core:1 pu:1(indexes=1000)'", 0, 0, 1, 1, 1, -1, ""},
    {"HWLOC_SYNTHETIC='pack:8 core:28 pu:2'", -1, 0, 224, 8, 1, -1, ""},
    {"HWLOC_XMLFILE=$srcdir/tests/machines/ragged.xml", -1, -1, 4, 2, 2, 12, "Made-up CPU A"},
    {"HWLOC_XMLFILE=$srcdir/tests/machines/memories.xml", -1, -1, 4, 2, 2, 104, "Made-up CPU A"},
};

START_TEST(test_machine)
{
  struct found f = discover(machines[_i].settings, NULL);
  ck_assert_str_eq(f.noise, "");
  ck_assert_int_eq(f.place.flat, 0);
  ck_assert_int_eq(f.place.cores, machines[_i].cores);
  ck_assert_int_eq(f.place.node_cores, machines[_i].cores);
  ck_assert_int_eq(f.place.packages, machines[_i].packages);
  ck_assert_int_eq(f.place.numas, machines[_i].numas);
  ck_assert_int_eq(f.place.package, machines[_i].package);
  ck_assert_int_eq(f.place.numa, machines[_i].numa);
  ck_assert_str_eq(f.place.model, machines[_i].model);
  if (machines[_i].gib >= 0)
    ck_assert_int_eq(f.place.mem_bytes, machines[_i].gib << 30);
}
END_TEST

/* A described machine that is said to be this one: the real binding counts on the described cores. */
START_TEST(test_binding)
{
  static const struct {
    const char *file;
    int cores;
  } machine[] = {{"ragged", 4}, {"memories", 4}};
  for (int i = 0; i < 2; i++) {
    char *settings = mt_format("HWLOC_THISSYSTEM=1 HWLOC_XMLFILE=$srcdir/tests/machines/%s.xml", machine[i].file);
    struct found f = discover(settings, "0");
    mt_free(settings);
    if (f.code == 77) /* processor 0 is not ours */
      return;
    ck_assert_str_eq(f.noise, "");
    ck_assert_int_eq(f.place.cores, 1);
    ck_assert_int_eq(f.place.node_cores, under_quota(machine[i].cores));
    ck_assert_int_eq(f.place.package, 0);
    ck_assert_int_eq(f.place.numa, 0);
  }
}
END_TEST

START_TEST(test_here)
{
  struct found all = discover("", NULL);
  ck_assert_str_eq(all.noise, "");
  ck_assert_int_le(all.place.cores, processors());
  ck_assert_int_gt(all.place.mem_bytes, 0);
  struct found one = discover("", "0");
  if (one.code != 77) {
    ck_assert_int_eq(one.place.cores, 1);
    ck_assert_int_eq(one.place.node_cores, all.place.node_cores);
    ck_assert_int_ge(one.place.package, 0);
  }
#if defined _OPENMP && !defined __clang__
  /* OpenMP binds the first thread to its first place before main: that is no limit to the others. (Not so in a program with
   * two OpenMPs, clang's and the one that oneDNN brings: the second takes what the first left for all there is.) */
  struct found openmp = discover("OMP_PROC_BIND=true OMP_PLACES=threads", NULL);
  ck_assert_int_eq(openmp.place.cores, all.place.cores);
#endif
}
END_TEST

/* hwloc gets nowhere: a flat node, one warning, no other word. */
static const char *const broken[] = {
    "HWLOC_COMPONENTS=stop",       /* nothing to discover with */
    "HWLOC_COMPONENTS=no_os,stop", /* processors, but no cores */
    "HWLOC_COMPONENTS=linux,stop HWLOC_FSROOT=$folder",
    "HWLOC_COMPONENTS=linux,stop HWLOC_FSROOT=$folder HWLOC_THISSYSTEM=1",
};

START_TEST(test_broken)
{
  char folder[] = "/tmp/motley-test-XXXXXX";
  ck_assert_ptr_nonnull(mkdtemp(folder));
  setenv("folder", folder, 1);
  struct found f = discover(broken[_i], NULL);
  ck_assert_int_eq(f.place.flat, 1);
  ck_assert_int_eq(f.place.cores, under_quota(processors()));
  ck_assert_int_eq(f.place.packages, 1);
  ck_assert_int_eq(f.place.numas, 1);
  ck_assert_int_gt(f.place.mem_bytes, 0);
  ck_assert_msg(f.warnings == 1 && strchr(f.noise, '\n') == f.noise + strlen(f.noise) - 1, "said: %s", f.noise);
  ck_assert_ptr_nonnull(strstr(f.noise, "flat"));
  struct found bound = discover(broken[_i], "0");
  if (bound.code != 77)
    ck_assert_int_eq(bound.place.cores, 1);
  /* Where the launcher tells the ranks of a node apart, the first one speaks for all. */
  char *settings = mt_format("OMPI_COMM_WORLD_LOCAL_RANK=1 %s", broken[_i]);
  struct found second = discover(settings, NULL);
  ck_assert_int_eq(second.place.flat, 1);
  ck_assert_str_eq(second.noise, "");
  mt_free(settings);
  rmdir(folder);
}
END_TEST

/* A description that hwloc cannot use: this machine instead, and one warning that names the variable. */
static const struct {
  const char *variable, *value;
} useless[] = {{"HWLOC_XMLFILE", "$garbage"},
               {"HWLOC_XMLFILE", "/nonexistent.xml"},
               {"HWLOC_XMLFILE", "/tmp"},
               {"HWLOC_SYNTHETIC", "blah:2"}};

START_TEST(test_useless)
{
  char name[] = "/tmp/motley-test-XXXXXX";
  int file = mkstemp(name);
  ck_assert_int_ge(file, 0);
  ck_assert_int_eq(write(file, "<topology><object\0\xff", 19), 19);
  close(file);
  setenv("garbage", name, 1);
  struct found here = discover("", NULL);
  char *settings = mt_format("%s=%s", useless[_i].variable, useless[_i].value);
  struct found f = discover(settings, NULL);
  mt_free(settings);
  ck_assert_msg(f.warnings == 1 && strchr(f.noise, '\n') == f.noise + strlen(f.noise) - 1, "said: %s", f.noise);
  ck_assert_ptr_nonnull(strstr(f.noise, useless[_i].variable));
  ck_assert_int_eq(f.place.cores, here.place.cores);
  ck_assert_int_eq(f.place.flat, here.place.flat);
  unlink(name);
}
END_TEST

/* ---- control groups, from folders that look like them ---- */

static void put_file(const char *root, const char *path, const char *text)
{
  char *full = mt_format("%s/%s", root, path);
  for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
    *slash = 0;
    mkdir(full, 0700);
    *slash = '/';
  }
  FILE *file = fopen(full, "w");
  ck_assert_ptr_nonnull(file);
  fputs(text, file);
  fclose(file);
  mt_free(full);
}

static const struct {
  const char *path[6], *text[6]; /* files */
  int64_t bytes, cores;
} group[] = {
    {{NULL}, {NULL}, 0, 0}, /* no /proc at all */
    {{"proc/self/cgroup"}, {"0::/\n"}, 0, 0},
    {{"proc/self/cgroup"}, {"garbage\n\n:\n::\n0:\n"}, 0, 0},
    {{"proc/self/cgroup", "sys/fs/cgroup/memory.max", "sys/fs/cgroup/cpu.max"},
     {"0::/\n", "max\n", "max 100000\n"},
     0,
     0},
    {{"proc/self/cgroup", "sys/fs/cgroup/memory.max", "sys/fs/cgroup/cpu.max"},
     {"0::/\n", "1048576\n", "250000 100000\n"},
     1048576,
     2},
    {{"proc/self/cgroup", "sys/fs/cgroup/cpu.max"}, {"0::/\n", "50000 100000\n"}, 0, 1}, /* half a core is one */
    /* The tightest of the group and those above it. */
    {{"proc/self/cgroup", "sys/fs/cgroup/a/memory.max", "sys/fs/cgroup/a/b/memory.max", "sys/fs/cgroup/a/cpu.max",
      "sys/fs/cgroup/a/b/cpu.max"},
     {"0::/a/b\n", "1000\n", "2000\n", "800000 100000\n", "300000 100000\n"},
     1000,
     3},
    /* The host's path, seen from a container whose group is the root. */
    {{"proc/self/cgroup", "sys/fs/cgroup/memory.max"}, {"0::/docker/0123\n", "5000\n"}, 5000, 0},
    {{"proc/self/cgroup", "sys/fs/cgroup/memory.max"}, {"0::/../../x\n", "5000\n"}, 5000, 0},
    /* Version 1, and both versions side by side. */
    {{"proc/self/cgroup", "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us",
      "sys/fs/cgroup/cpu/job/cpu.cfs_period_us"},
     {"5:cpuset:/\n4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n", "7000\n", "400000\n", "100000\n"},
     7000,
     4},
    {{"proc/self/cgroup", "sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
      "sys/fs/cgroup/cpu/cpu.cfs_period_us"},
     {"4:memory:/\n2:cpu:/\n", "9223372036854771712\n", "-1\n", "100000\n"},
     0,
     0},
};

START_TEST(test_cgroup)
{
  char root[] = "/tmp/motley-test-XXXXXX";
  ck_assert_ptr_nonnull(mkdtemp(root));
  for (int i = 0; i < 6 && group[_i].path[i]; i++)
    put_file(root, group[_i].path[i], group[_i].text[i]);
  ck_assert_int_eq(mt_cgroup_memory(root), group[_i].bytes);
  ck_assert_int_eq(mt_cgroup_cores(root), group[_i].cores);
  char *command = mt_format("rm -r '%s'", root);
  ck_assert_int_eq(system(command), 0);
  mt_free(command);
}
END_TEST

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

int main(int argc, char **argv)
{
  if (argc > 1 && strcmp(argv[1], "--place") == 0)
    return show_place(argc > 2 ? argv[2] : NULL);
  program = argv[0];
  Suite *suite = suite_create("discover");
  TCase *tests = tcase_create("discover");
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(tests, test_machine, 0, LENGTH(machines));
  tcase_add_test(tests, test_binding);
  tcase_add_test(tests, test_here);
  tcase_add_loop_test(tests, test_broken, 0, LENGTH(broken));
  tcase_add_loop_test(tests, test_useless, 0, LENGTH(useless));
  tcase_add_loop_test(tests, test_cgroup, 0, LENGTH(group));
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
