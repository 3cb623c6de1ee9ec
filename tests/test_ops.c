/* Kernels: ref against finite differences and known values, every other backend against ref. ranks: 1
 *
 * A new op is a struct in one of the ops_*.c files and a line in `tests`; a new backend is a line in
 * `backends`. */
#include "test.h"
#include "ops_tests.h"
#include <stdio.h>
#include <string.h>

static const struct ops_test *const tests[] = {
    &ops_linear,     &ops_linear_dx,      &ops_linear_dw,     &ops_norm,
    &ops_norm_back,  &ops_embed,          &ops_embed_back,    &ops_rope,
    &ops_attention,  &ops_attention_back, &ops_swiglu,        &ops_swiglu_back,
    &ops_gelu,       &ops_gelu_back,      &ops_gate_logits,   &ops_gate_logits_back,
    &ops_gate_topk,  &ops_gate_topk_back, &ops_gate_sums,     &ops_gather,
    &ops_combine,    &ops_combine_back,   &ops_cross_entropy, &ops_cross_entropy_back,
    &ops_vector_add, &ops_add_act,        &ops_convert,       &ops_sum_squares,
    &ops_adamw,
};
enum { NTEST = sizeof tests / sizeof *tests };

static const struct ops_backend backends[] = {
    {"cpu-plain", {1, 2, 3}},
    {"cpu-v3", {1, 2, 3}},
    {"cpu-v4", {1, 2, 3}},
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
  if (mt_device_open(backend->name, 1, &device) == MT_OK) {
    device->ops->close(device);
    return 1;
  }
  printf("skipped: the backend %s is not there\n", backend->name);
  return *known = 1, 0;
}

START_TEST(test_ref)
{
  ops_on_ref(tests[_i]);
}
END_TEST

START_TEST(test_ref_bf16)
{
  ops_on_ref_bf16(tests[_i]);
}
END_TEST

START_TEST(test_backend)
{
  const struct ops_backend *backend = &backends[_i / NTEST];
  if (there(backend))
    ops_on_backend(tests[_i % NTEST], backend);
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
      ck_assert_int_eq(mt_device_open(backends[i].name, 1, &device), MT_OK);
      ops_nan_routing(device);
      device->ops->close(device);
    }
}
END_TEST

/* Nobody has an empty entry, and an entry without a test is noticed here: cross_entropy has two tests,
 * attention_work none. */
START_TEST(test_table)
{
  int entries = sizeof(struct mt_kernels) / sizeof(void (*)(void));
  ck_assert_int_eq(entries, NTEST);
  for (int i = -1; i < NBACKEND; i++) {
    struct mt_device *device;
    const char *name = i < 0 ? "ref" : backends[i].name;
    if (i >= 0 && !there(&backends[i]))
      continue;
    ck_assert_int_eq(mt_device_open(name, 2, &device), MT_OK);
    ck_assert_str_eq(device->name, name);
    ck_assert_int_ge(device->threads, 1);
    for (int j = 0; j < entries; j++) {
      void (*entry)(void);
      memcpy(&entry, (const char *)device->kernels + j * (int)sizeof entry, sizeof entry);
      ck_assert_msg(entry != NULL, "%s has no kernel number %d", name, j);
    }
    device->ops->close(device);
  }
}
END_TEST

START_TEST(test_memory_of_devices)
{
  for (int i = -1; i < NBACKEND; i++) {
    struct mt_device *device;
    if (i >= 0 && !there(&backends[i]))
      continue;
    int64_t before = mt_memory_bytes();
    ck_assert_int_eq(mt_device_open(i < 0 ? "ref" : backends[i].name, 0, &device), MT_OK);
    const struct mt_device_ops *ops = device->ops;
    for (int space = 0; space < MT_NSPACE; space++) {
      char from[70], to[72];
      memset(from, 7, sizeof from);
      memset(to, 1, sizeof to);
      char *memory = ops->alloc(device, MT_TAG_MISC, (enum mt_space)space, 70);
      ck_assert_int_eq((uintptr_t)memory % 64, 0);
      ops->copy(device, MT_DEV_COPY, memory, from, 70);
      ops->wait(device, MT_DEV_MATH, ops->mark(device, MT_DEV_COPY));
      ops->zero(device, MT_DEV_MATH, memory + 3, 5);
      ops->copy(device, MT_DEV_MATH, to + 1, memory, 70);
      ops->copy(device, MT_DEV_MATH, to, from, 0);
      ops->sync(device, MT_DEV_MATH);
      memset(from + 3, 0, 5);
      ck_assert_int_eq(memcmp(to + 1, from, 70), 0);
      ck_assert(to[0] == 1 && to[71] == 1);
      ops->free(device, (enum mt_space)space, memory);
      ops->free(device, (enum mt_space)space, ops->alloc(device, MT_TAG_MISC, (enum mt_space)space, 0));
    }
    mt_device_reserve(device, 100);
    ck_assert_int_ge(device->work_bytes, 100);
    void *work = device->work;
    mt_device_reserve(device, 50);
    ck_assert_ptr_eq(device->work, work);
    ops->close(device);
    ck_assert_int_eq(mt_memory_bytes(), before);
  }
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
  tcase_add_loop_test(ref, test_ref, 0, NTEST);
  tcase_add_loop_test(ref, test_ref_bf16, 0, NTEST);
  tcase_add_loop_test(others, test_backend, 0, NTEST * NBACKEND);
  suite_add_tcase(suite, devices);
  suite_add_tcase(suite, ref);
  suite_add_tcase(suite, others);
  return mt_test_run(suite);
}
