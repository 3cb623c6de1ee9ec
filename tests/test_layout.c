/* Layouts: numbers of slots from text, static and random contents, the derived arrays. ranks: 1 */
#include "experts/layout.h"
#include "made_up.h"
#include "test.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { MAX_RANK = 32 };

/* Calls mt_layout_slots and returns what it wrote on stderr, in memory that the next call uses again. */
static const char *slots_of(const char *text, int E, int P, int *slots, enum mt_status *status)
{
  static char said[4096];
  char path[] = "/tmp/motley-layout-XXXXXX";
  int file = mkstemp(path), kept = dup(STDERR_FILENO);
  ck_assert_int_ge(file, 0);
  unlink(path);
  dup2(file, STDERR_FILENO);
  *status = mt_layout_slots(text, E, P, slots);
  dup2(kept, STDERR_FILENO);
  close(kept);
  ssize_t n = pread(file, said, sizeof said - 1, 0);
  close(file);
  ck_assert_int_ge(n, 0);
  said[n] = '\0';
  return said;
}

static const struct {
  const char *text;
  int E, P, slots[6];
} good[] = {
    {"", 10, 4, {2, 3, 2, 3}},
    {"", 4, 4, {1, 1, 1, 1}},
    {"", 8, 1, {8}},
    {"", 3, 5, {1, 1, 1, 1, 1}},
    {"", 1, 3, {1, 1, 1}},
    {"", 0, 3, {0, 0, 0}},
    {"3", 5, 4, {3, 3, 3, 3}},
    {"3", 3, 1, {3}},
    {" 2 ", 5, 3, {2, 2, 2}},
    {"0", 0, 2, {0, 0}},
    {"1,0,4", 5, 3, {1, 0, 4}},
    {"0,0,0,5", 5, 4, {0, 0, 0, 5}},
    {" 2 , 1 ,3", 4, 3, {2, 1, 3}},
    {"1048576,0", 9, 2, {1 << 20, 0}},
    {"007,1", 8, 2, {7, 1}},
};

START_TEST(test_slots)
{
  int slots[8];
  enum mt_status status;
  for (int i = 0; i < 8; i++)
    slots[i] = -77;
  const char *said = slots_of(good[_i].text, good[_i].E, good[_i].P, slots, &status);
  ck_assert_int_eq(status, MT_OK);
  ck_assert_str_eq(said, "");
  for (int r = 0; r < 8; r++)
    ck_assert_int_eq(slots[r], r < good[_i].P ? good[_i].slots[r] : -77);
}
END_TEST

static const struct {
  const char *text;
  int E, P;
  const char *part; /* of the message */
} bad[] = {
    {" ", 2, 2, "expected one number"},
    {"x", 2, 2, "expected one number"},
    {"-1", 2, 2, "expected one number"},
    {"+2", 2, 2, "expected one number"},
    {"2,", 2, 2, "expected one number"},
    {"2,1,", 2, 2, "expected one number"},
    {",2", 2, 2, "expected one number"},
    {"2,,1", 2, 3, "expected one number"},
    {"1,-1,2", 2, 3, "expected one number"},
    {"99999999999999999999,1", 2, 2, "expected one number"},
    {"1048577,1", 2, 2, "expected one number"},
    {"2 2", 2, 2, "2 numbers (one per rank)"},
    {"1.5", 2, 2, "2 numbers (one per rank)"},
    {"2x", 2, 2, "2 numbers (one per rank)"},
    {"2x", 1, 1, "1 numbers (one per rank)"},
    {"1,2", 2, 3, "3 numbers (one per rank)"},
    {"1,2,3,4", 2, 3, "3 numbers (one per rank)"},
    {"1,2", 1, 1, "1 numbers (one per rank)"},
    {"1", 5, 4, "found 4 slots in all"},
    {"0", 1, 4, "found 0 slots in all"},
    {"1,0,2", 4, 3, "found 3 slots in all"},
};

START_TEST(test_bad_slots)
{
  int slots[8];
  enum mt_status status;
  for (int i = 0; i < 8; i++)
    slots[i] = -77;
  const char *said = slots_of(bad[_i].text, bad[_i].E, bad[_i].P, slots, &status);
  ck_assert_int_eq(status, MT_USAGE);
  ck_assert_ptr_nonnull(strstr(said, "parallel.slots"));
  ck_assert_ptr_nonnull(strstr(said, bad[_i].text));
  ck_assert_msg(strstr(said, bad[_i].part) != NULL, "'%s' does not say '%s'", said, bad[_i].part);
  ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
  for (int r = bad[_i].P; r < 8; r++)
    ck_assert_int_eq(slots[r], -77);
}
END_TEST

/* The derived arrays by definition: for each expert and node the slots there, ascending, one bin after the
 * other. */
static void check_index(const struct mt_layout *layout, const struct mt_cluster *cluster, const int *slots,
                        int E)
{
  const int P = cluster->nplace, Q = cluster->nnode;
  ck_assert_int_eq(layout->nexpert, E);
  ck_assert_int_eq(layout->nrank, P);
  ck_assert_int_eq(layout->nnode, Q);
  ck_assert_int_eq(layout->slot_first[0], 0);
  for (int r = 0; r < P; r++) {
    ck_assert_int_eq(layout->slot_first[r + 1] - layout->slot_first[r], slots[r]);
    for (int s = layout->slot_first[r]; s < layout->slot_first[r + 1]; s++) {
      ck_assert_int_eq(layout->slot_rank[s], r);
      ck_assert(layout->slot_expert[s] >= 0 && layout->slot_expert[s] < E);
    }
  }
  int at = 0;
  for (int e = 0; e < E; e++) {
    int held = at;
    for (int q = 0; q < Q; q++) {
      ck_assert_int_eq(layout->expert_first[e * Q + q], at);
      for (int s = layout->slot_first[cluster->node_first[q]];
           s < layout->slot_first[cluster->node_first[q + 1]]; s++)
        if (layout->slot_expert[s] == e)
          ck_assert_int_eq(layout->by_expert[at++], s);
    }
    ck_assert_msg(at > held, "expert %d is in no slot", e);
  }
  ck_assert_int_eq(layout->expert_first[E * Q], at);
  ck_assert_int_eq(at, layout->slot_first[P]);
}

/* Without slots given: E >= P: rank r holds its part of E; P > E: one slot, expert floor(r E / P). */
START_TEST(test_static)
{
  for (int P = 1; P <= 9; P++)
    for (int E = 1; E <= 20; E++) {
      struct mt_cluster *cluster;
      int slots[MAX_RANK];
      char sizes[32];
      snprintf(sizes, sizeof sizes, P > 2 ? "1,%d,1" : "%d", P > 2 ? P - 2 : P);
      ck_assert_int_eq(mt_cluster_from_sizes(sizes, &cluster), MT_OK);
      ck_assert_int_eq(mt_layout_slots("", E, P, slots), MT_OK);
      struct mt_layout *layout = mt_layout_new(cluster, E, slots);
      check_index(layout, cluster, slots, E);
      for (int r = 0, expected = 0; r < P; r++)
        for (int s = layout->slot_first[r]; s < layout->slot_first[r + 1]; s++, expected++) {
          ck_assert_int_eq(layout->slot_expert[s], E >= P ? expected : r * E / P);
          if (E >= P)
            ck_assert(expected >= r * E / P && expected < (r + 1) * E / P);
        }
      mt_layout_free(layout);
      mt_cluster_free(cluster);
    }
}
END_TEST

/* With slots given: slot i of S holds expert floor(i E / S). */
START_TEST(test_given)
{
  for (uint64_t seed = 0; seed < 100; seed++) {
    struct dice dice = {seed, 0};
    struct mt_cluster *cluster = made_up_cluster(&dice);
    int slots[MAX_RANK], E = 1 + roll(&dice, 9);
    made_up_slots(&dice, cluster->nplace, 5, E, slots);
    struct mt_layout *layout = mt_layout_new(cluster, E, slots);
    check_index(layout, cluster, slots, E);
    const int S = layout->slot_first[cluster->nplace];
    for (int i = 0; i < S; i++)
      ck_assert_int_eq(layout->slot_expert[i], i * E / S);
    ck_assert_int_eq(layout->revision, 1);
    mt_layout_free(layout);
    mt_cluster_free(cluster);
  }
}
END_TEST

/* After slot_expert was written by hand. */
START_TEST(test_index)
{
  struct mt_cluster *cluster;
  ck_assert_int_eq(mt_cluster_from_sizes("2,1,3", &cluster), MT_OK);
  const int slots[6] = {3, 0, 2, 0, 1, 2}, held[8] = {1, 1, 0, 1, 0, 2, 0, 1};
  struct mt_layout *layout = mt_layout_new(cluster, 3, slots);
  memcpy(layout->slot_expert, held, sizeof held);
  int64_t before = mt_memory_allocations();
  mt_layout_index(layout, cluster, 42);
  ck_assert_int_eq(mt_memory_allocations(), before);
  ck_assert_int_eq(layout->revision, 42);
  check_index(layout, cluster, slots, 3);
  static const int by_expert[8] = {2, 4, 6, 0, 1, 3, 7, 5}, first[10] = {0, 1, 2, 3, 5, 6, 7, 7, 7, 8};
  for (int i = 0; i < 8; i++)
    ck_assert_int_eq(layout->by_expert[i], by_expert[i]);
  for (int i = 0; i < 10; i++)
    ck_assert_int_eq(layout->expert_first[i], first[i]);
  mt_layout_free(layout);
  mt_cluster_free(cluster);
}
END_TEST

START_TEST(test_random)
{
  for (uint64_t seed = 0; seed < 300; seed++) {
    struct dice dice = {seed + 1000, 0};
    struct mt_cluster *cluster = made_up_cluster(&dice);
    int slots[MAX_RANK], E = 1 + roll(&dice, 9);
    made_up_slots(&dice, cluster->nplace, 4, E, slots);
    struct mt_layout *layout = mt_layout_new(cluster, E, slots), *same = mt_layout_new(cluster, E, slots);
    const size_t bytes = sizeof(int) * (size_t)layout->slot_first[cluster->nplace];
    int64_t before = mt_memory_allocations();
    mt_layout_random(layout, cluster, seed, 3 * seed);
    ck_assert_int_eq(mt_memory_allocations(), before);
    check_index(layout, cluster, slots, E);
    mt_layout_random(same, cluster, seed, 3 * seed + 1); /* what it held before does not matter */
    ck_assert_int_ne(same->revision, layout->revision);
    ck_assert_int_ne(same->revision, 1); /* static contents' */
    mt_layout_random(same, cluster, seed, 3 * seed);
    ck_assert_int_eq(same->revision, layout->revision);
    ck_assert_int_eq(memcmp(same->slot_expert, layout->slot_expert, bytes), 0);
    mt_layout_free(layout);
    mt_layout_free(same);
    mt_cluster_free(cluster);
  }
}
END_TEST

/* Other seeds and other keys give other layouts, and every slot meets every expert. */
START_TEST(test_random_differs)
{
  enum { TRIES = 60, SLOTS = 24, EXPERTS = 6 };
  struct mt_cluster *cluster;
  ck_assert_int_eq(mt_cluster_from_sizes("1,2", &cluster), MT_OK);
  const int slots[3] = {7, 0, 17};
  struct mt_layout *layout = mt_layout_new(cluster, EXPERTS, slots);
  static int held[2 * TRIES][SLOTS];
  int met[SLOTS][EXPERTS] = {{0}}, copies[EXPERTS + 1] = {0};
  for (int i = 0; i < 2 * TRIES; i++) {
    mt_layout_random(layout, cluster, i < TRIES ? 5 : (uint64_t)(6 + i), i < TRIES ? (uint64_t)i : 5);
    memcpy(held[i], layout->slot_expert, sizeof held[i]);
    for (int k = 0; k < i; k++)
      ck_assert_msg(memcmp(held[i], held[k], sizeof held[i]) != 0, "layouts %d and %d are the same", k, i);
    for (int s = 0; s < SLOTS; s++)
      met[s][held[i][s]]++;
    for (int e = 0; e < EXPERTS; e++)
      copies[layout->expert_first[(e + 1) * 2] - layout->expert_first[e * 2] > 4 ? EXPERTS : e]++;
  }
  for (int s = 0; s < SLOTS; s++)
    for (int e = 0; e < EXPERTS; e++)
      ck_assert_msg(met[s][e] > 0, "slot %d never holds expert %d", s, e);
  ck_assert_int_gt(copies[EXPERTS], 0); /* replicas are not dealt evenly */
  mt_layout_free(layout);
  mt_cluster_free(cluster);
}
END_TEST

START_TEST(test_no_experts)
{
  struct mt_cluster *cluster;
  ck_assert_int_eq(mt_cluster_from_sizes("2,1", &cluster), MT_OK);
  const int slots[3] = {0, 0, 0};
  struct mt_layout *layout = mt_layout_new(cluster, 0, slots);
  check_index(layout, cluster, slots, 0);
  mt_layout_free(layout);
  mt_layout_free(NULL);
  mt_cluster_free(cluster);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("layout");
  TCase *tests = tcase_create("layout");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_slots, 0, (int)(sizeof good / sizeof *good));
  tcase_add_loop_test(tests, test_bad_slots, 0, (int)(sizeof bad / sizeof *bad));
  tcase_add_test(tests, test_static);
  tcase_add_test(tests, test_given);
  tcase_add_test(tests, test_index);
  tcase_add_test(tests, test_random);
  tcase_add_test(tests, test_random_differs);
  tcase_add_test(tests, test_no_experts);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
