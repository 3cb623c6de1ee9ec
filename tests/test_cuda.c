/* The kernels of the CUDA backend against ref, in both types. ranks: 1
 *
 * On the emulation, three devices run a block's threads in three orders and must give the same bits; on a GPU
 * (MOTLEY_TEST_CUDA=cuda) one device runs everything twice. */
#include "test.h"
#include "ops_tests.h"
#include <stdio.h>
#include <stdlib.h>

static const struct ops_backend emulated[] = {
    {{{"emulated", 1}, {"emulated:1", 1}, {"emulated:2", 1}}, 40000},
    {{{"emulated-bf16", 1}, {"emulated:1-bf16", 1}, {"emulated:2-bf16", 1}}, 40000},
};
static const struct ops_backend real[] = {
    {{{"cuda", 1}, {"cuda", 1}}, 0},
    {{{"cuda-bf16", 1}, {"cuda-bf16", 1}}, 0},
};
static const struct ops_backend *backends = emulated;
enum { NBACKEND = 2 };

START_TEST(test_kernel)
{
  const struct ops_test *test = ops_list[_i % OPS_COUNT];
  ck_assert_msg(ops_on_backend(test, &backends[_i / OPS_COUNT]), "%s is not there",
                backends[_i / OPS_COUNT].device[0].name);
}
END_TEST

START_TEST(test_nan_routing)
{
  struct mt_device *device;
  ck_assert_int_eq(mt_device_open(backends[_i].device[0].name, 1, &device), MT_OK);
  ops_nan_routing(device);
  device->ops->close(device);
}
END_TEST

START_TEST(test_table)
{
  ops_table(backends[_i].device[0].name);
}
END_TEST

START_TEST(test_memory)
{
  ops_memory(backends[_i].device[0].name);
}
END_TEST

START_TEST(test_names)
{
  static const char *const bad[] = {"emulated:7", "emulated:", "emulated:x", "emulated:0-f8", "emulated0", "cuda:-1"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct mt_device *device;
    ck_assert_int_eq(mt_device_open(bad[i], 1, &device), MT_USAGE);
    ck_assert_ptr_null(device);
  }
}
END_TEST

int main(void)
{
  const char *kind = getenv("MOTLEY_TEST_CUDA");
  backends = kind && *kind ? real : emulated;
  struct mt_device *device;
  if (mt_device_open(backends[0].device[0].name, 1, &device) != MT_OK) {
    printf("skipped: %s is not there\n", backends[0].device[0].name);
    return MT_SKIPPED;
  }
  device->ops->close(device);
  Suite *suite = suite_create("cuda");
  TCase *devices = tcase_create("devices"), *kernels = tcase_create("kernels");
  if (backends == emulated)
    tcase_add_test(devices, test_names);
  tcase_add_loop_test(devices, test_table, 0, NBACKEND);
  tcase_add_loop_test(devices, test_memory, 0, NBACKEND);
  tcase_add_loop_test(devices, test_nan_routing, 0, NBACKEND);
  tcase_add_loop_test(kernels, test_kernel, 0, OPS_COUNT * NBACKEND);
  suite_add_tcase(suite, devices);
  suite_add_tcase(suite, kernels);
  return mt_test_run(suite);
}
