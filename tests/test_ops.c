/* Kernels: ref against finite differences and known values, every other backend against ref. ranks: 1
 *
 * A new op is a struct in one of the ops_*.c files and a line in ops_list.c; a new backend is a line in
 * `backends`. */
#include "test.h"
#include "ops_tests.h"
#include <stdio.h>
#include <string.h>

static const struct ops_backend backends[] = {
    {{{"cpu-plain", 1}, {"cpu-plain", 2}, {"cpu-plain", 3}}, 0},
    {{{"cpu-v3", 1}, {"cpu-v3", 2}, {"cpu-v3", 3}}, 0},
    {{{"cpu-v4", 1}, {"cpu-v4", 2}, {"cpu-v4", 3}}, 0},
};
enum { NBACKEND = sizeof backends / sizeof *backends };

/* Whether a backend can be opened here; says so once if not. */
static int there(const struct ops_backend *backend)
{
  static int absent[NBACKEND];
  struct mt_device *device;
  int *known = &absent[backend - backends];
  if (*known)
    return 0;
  if (mt_device_open(backend->device[0].name, 1, &device) == MT_OK) {
    device->ops->close(device);
    return 1;
  }
  printf("skipped: the backend %s is not there\n", backend->device[0].name);
  return *known = 1, 0;
}

START_TEST(test_ref)
{
  ops_on_ref(ops_list[_i]);
}
END_TEST

START_TEST(test_ref_bf16)
{
  ops_on_ref_bf16(ops_list[_i]);
}
END_TEST

START_TEST(test_backend)
{
  const struct ops_backend *backend = &backends[_i / OPS_COUNT];
  if (there(backend))
    ops_on_backend(ops_list[_i % OPS_COUNT], backend);
}
END_TEST

START_TEST(test_known_values)
{
  ops_known_values();
}
END_TEST

START_TEST(test_nan_routing)
{
  struct mt_device *device;
  ck_assert_int_eq(mt_device_open("ref", 1, &device), MT_OK);
  ops_nan_routing(device);
  device->ops->close(device);
  for (int i = 0; i < NBACKEND; i++)
    if (there(&backends[i])) {
      ck_assert_int_eq(mt_device_open(backends[i].device[0].name, 1, &device), MT_OK);
      ops_nan_routing(device);
      device->ops->close(device);
    }
}
END_TEST

START_TEST(test_table)
{
  for (int i = -1; i < NBACKEND; i++)
    if (i < 0 || there(&backends[i]))
      ops_table(i < 0 ? "ref" : backends[i].device[0].name);
}
END_TEST

START_TEST(test_memory_of_devices)
{
  for (int i = -1; i < NBACKEND; i++)
    if (i < 0 || there(&backends[i]))
      ops_memory(i < 0 ? "ref" : backends[i].device[0].name);
}
END_TEST

START_TEST(test_unknown_device)
{
  struct mt_device *device;
  ck_assert_int_eq(mt_device_open("abacus", 1, &device), MT_USAGE);
  ck_assert_ptr_null(device);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("ops");
  TCase *devices = tcase_create("devices"), *ref = tcase_create("ref"), *others = tcase_create("backends");
  tcase_add_test(devices, test_unknown_device);
  tcase_add_test(devices, test_memory_of_devices);
  tcase_add_test(devices, test_table);
  tcase_add_test(ref, test_known_values);
  tcase_add_test(ref, test_nan_routing);
  tcase_add_loop_test(ref, test_ref, 0, OPS_COUNT);
  tcase_add_loop_test(ref, test_ref_bf16, 0, OPS_COUNT);
  tcase_add_loop_test(others, test_backend, 0, OPS_COUNT * NBACKEND);
  suite_add_tcase(suite, devices);
  suite_add_tcase(suite, ref);
  suite_add_tcase(suite, others);
  return mt_test_run(suite);
}
