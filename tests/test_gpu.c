/* Which rank takes which GPU: made-up hosts, and where hwloc says that GPUs are. ranks: 1 */
#include "test.h"
#include "topology/discover.h"
#include "topology/gpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* GPU number g of the host, near this package and domain. */
static struct mt_gpu gpu(int g, int package, int numa)
{
  struct mt_gpu result = {
      .uuid = {(uint8_t)(g + 1)}, .domain = 0, .bus = g, .slot = 0, .package = package, .numa = numa};
  return result;
}

/* n ranks that each see the ngpu GPUs; two domains a package, four GPUs a package. */
static void host(struct mt_gpu_rank *rank, int n, int ngpu, enum mt_gpu_wish wish, int bound)
{
  for (int r = 0; r < n; r++) {
    rank[r] = (struct mt_gpu_rank){
        .wish = wish, .package = bound ? r * 2 / n : -1, .numa = bound ? r * 4 / n : -1, .ngpu = ngpu};
    for (int g = 0; g < ngpu; g++)
      rank[r].gpu[g] = gpu(g, g / 4, g / 2);
  }
}

enum { MOST = 16 };

START_TEST(test_unbound)
{
  struct mt_gpu_rank rank[MOST];
  struct mt_gpu_choice choice[MOST];
  for (int n = 1; n <= 10; n++)
    for (int ngpu = 0; ngpu <= 8; ngpu++) {
      host(rank, n, ngpu, MT_GPU_FREE, 0);
      mt_gpu_choose(rank, n, choice);
      for (int r = 0; r < n; r++) { /* the first ones get one each, in order; the others compute on their cores */
        ck_assert_int_eq(choice[r].device, r < ngpu ? r : -1);
        ck_assert_int_eq(choice[r].sharers, r < ngpu);
      }
      host(rank, n, ngpu, MT_GPU_ANY, 0);
      mt_gpu_choose(rank, n, choice);
      for (int r = 0; r < n; r++) { /* round and round */
        ck_assert_int_eq(choice[r].device, ngpu ? r % ngpu : -1);
        ck_assert_int_eq(choice[r].sharers, ngpu ? (n - r % ngpu + ngpu - 1) / ngpu : 0);
      }
    }
}
END_TEST

START_TEST(test_nearest)
{
  struct mt_gpu_rank rank[MOST];
  struct mt_gpu_choice choice[MOST];
  host(rank, 8, 8, MT_GPU_FREE, 1);
  mt_gpu_choose(rank, 8, choice);
  for (int r = 0; r < 8; r++) {
    ck_assert_int_eq(choice[r].device, r);
    ck_assert_int_eq(choice[r].near, MT_GPU_SAME_NUMA);
  }
  /* two ranks, on the second package and on the first: not in the order of ranks */
  host(rank, 2, 8, MT_GPU_FREE, 1);
  rank[0].package = rank[1].numa = 1;
  rank[0].numa = 3;
  rank[1].package = 0;
  mt_gpu_choose(rank, 2, choice);
  ck_assert_int_eq(choice[0].device, 6);
  ck_assert_int_eq(choice[1].device, 2);
  /* four ranks in one domain: two get its GPUs, two those of its package; one elsewhere keeps its own although it comes
   * last */
  host(rank, 5, 8, MT_GPU_FREE, 1);
  for (int r = 0; r < 5; r++) {
    rank[r].package = 0;
    rank[r].numa = r < 4 ? 0 : 1;
  }
  mt_gpu_choose(rank, 5, choice);
  ck_assert_int_eq(choice[4].device, 2);
  ck_assert_int_eq(choice[0].device, 0);
  ck_assert_int_eq(choice[1].device, 1);
  ck_assert_int_eq(choice[2].device, 3);
  ck_assert_int_eq(choice[2].near, MT_GPU_SAME_PACKAGE);
  ck_assert_int_eq(choice[3].device, 4);
  ck_assert_int_eq(choice[3].near, MT_GPU_SOMEWHERE);
  /* an unbound rank does not take what a bound one needs */
  host(rank, 3, 3, MT_GPU_FREE, 1);
  rank[0].package = rank[0].numa = -1;
  for (int r = 1; r < 3; r++)
    rank[r].package = rank[r].numa = 0;
  mt_gpu_choose(rank, 3, choice);
  ck_assert_int_eq(choice[0].device, 2);
  ck_assert_int_eq(choice[1].device, 0);
  ck_assert_int_eq(choice[2].device, 1);
}
END_TEST

/* What launchers and CUDA_VISIBLE_DEVICES make of it: each rank sees something else, and number 0 is another GPU for
 * each. */
START_TEST(test_visible)
{
  struct mt_gpu_rank rank[MOST];
  struct mt_gpu_choice choice[MOST];
  host(rank, 4, 1, MT_GPU_FREE, 0);
  for (int r = 0; r < 4; r++)
    rank[r].gpu[0] = gpu(3 - r, 0, 0);
  mt_gpu_choose(rank, 4, choice);
  for (int r = 0; r < 4; r++) {
    ck_assert_int_eq(choice[r].device, 0);
    ck_assert_int_eq(choice[r].sharers, 1);
  }
  /* all see the same one; the first has it */
  host(rank, 3, 1, MT_GPU_FREE, 0);
  mt_gpu_choose(rank, 3, choice);
  ck_assert(choice[0].device == 0 && choice[1].device == -1 && choice[2].device == -1);
  /* the same two in another order: rank 1's device 1 is what rank 0 left */
  host(rank, 2, 2, MT_GPU_ANY, 0);
  rank[1].gpu[0] = gpu(0, 0, 0);
  rank[1].gpu[1] = gpu(1, 0, 0);
  rank[0].gpu[0] = gpu(1, 0, 0);
  rank[0].gpu[1] = gpu(0, 0, 0);
  mt_gpu_choose(rank, 2, choice);
  ck_assert(choice[0].device == 0 && choice[1].device == 0 && choice[0].sharers == 1 && choice[1].sharers == 1);
  /* one sees none */
  host(rank, 3, 2, MT_GPU_ANY, 0);
  rank[1].ngpu = 0;
  mt_gpu_choose(rank, 3, choice);
  ck_assert(choice[0].device == 0 && choice[1].device == -1 && choice[2].device == 1);
}
END_TEST

START_TEST(test_wishes)
{
  struct mt_gpu_rank rank[MOST];
  struct mt_gpu_choice choice[MOST];
  host(rank, 4, 3, MT_GPU_FREE, 0);
  rank[0].wish = MT_GPU_NONE;
  rank[3].wish = MT_GPU_NAMED; /* goes first */
  rank[3].named = 0;
  mt_gpu_choose(rank, 4, choice);
  ck_assert(choice[0].device == -1 && choice[1].device == 1 && choice[2].device == 2 && choice[3].device == 0);
  rank[1].wish = rank[2].wish = MT_GPU_NAMED;
  rank[1].named = rank[2].named = 0;
  mt_gpu_choose(rank, 4, choice);
  ck_assert(choice[1].device == 0 && choice[2].device == 0 && choice[1].sharers == 3);
  rank[1].named = 3; /* not there */
  mt_gpu_choose(rank, 4, choice);
  ck_assert_int_eq(choice[1].device, -1);
}
END_TEST

/* GPUs in hwloc's description of a machine, by class and vendor: an integrated display, a network card and a bridge of
 * NVIDIA's are none. */
START_TEST(test_locality)
{
  const char *dir = getenv("srcdir");
  char path[1024];
  snprintf(path, sizeof path, "%s/tests/machines/gpus.xml", dir ? dir : ".");
  setenv("HWLOC_XMLFILE", path, 1);
  struct mt_gpu found[5] = {{.bus = 0x02}, {.bus = 0x41}, {.bus = 0x42}, {.bus = 0x03}, {.bus = 0x41, .domain = 1}};
  for (int i = 0; i < 5; i++)
    found[i].package = found[i].numa = -1;
  mt_discover_gpus(found, 5);
  ck_assert(found[0].package == 0 && found[0].numa == 0);
  ck_assert(found[1].package == 1 && found[1].numa == 2);
  ck_assert(found[2].package == 1 && found[2].numa == -1);  /* on the package: two domains are as near */
  ck_assert(found[3].package == -1 && found[3].numa == -1); /* a network card */
  ck_assert(found[4].package == -1 && found[4].numa == -1); /* not in this machine */
  unsetenv("HWLOC_XMLFILE");
}
END_TEST

/* Network cards of that machine, with what the system calls them and where they are; not the disk on one of them. */
START_TEST(test_nics)
{
  const char *dir = getenv("srcdir");
  char path[1024];
  snprintf(path, sizeof path, "%s/tests/machines/gpus.xml", dir ? dir : ".");
  setenv("HWLOC_XMLFILE", path, 1);
  struct mt_nic nic[4];
  ck_assert_int_eq(mt_discover_nics(nic, 4), 3);
  ck_assert_str_eq(nic[0].name, "ib0, mlx5_0");
  ck_assert(nic[0].bus == 0x03 && nic[0].package == 0 && nic[0].numa == 0 && nic[0].mb_per_s == 15754);
  ck_assert_str_eq(nic[1].name, "eno1");
  ck_assert(nic[1].bus == 0x43 && nic[1].slot == 0 && nic[1].package == 1 && nic[1].numa == -1 && nic[1].mb_per_s == 0);
  ck_assert_str_eq(nic[2].name, "");
  ck_assert(nic[2].bus == 0x43 && nic[2].slot == 1 && nic[2].function == 0);
  ck_assert_int_eq(mt_discover_nics(nic, 1), 1);
  unsetenv("HWLOC_XMLFILE");
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("gpu");
  TCase *tests = tcase_create("gpu");
  tcase_add_test(tests, test_unbound);
  tcase_add_test(tests, test_nearest);
  tcase_add_test(tests, test_visible);
  tcase_add_test(tests, test_wishes);
  tcase_add_test(tests, test_locality);
  tcase_add_test(tests, test_nics);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
