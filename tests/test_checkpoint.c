/* Checkpoints: what one cut over ranks saves, any other cut loads, bit for bit; damage is refused.
 * ranks: 1 2 3 4 7 */
#include "config.h"
#include "test.h"
#include "checkpoint_case.h"
#include <errno.h>
#include <fcntl.h>
#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>

static struct mt_comm *comm;
static char *dir; /* a folder that rank 0 made, the same text on all ranks */

/* Checks what ranks hold separately: all must agree before any of them may leave the test. */
static int all(int good)
{
  int64_t bad = !good;
  mt_max_int(comm, &bad, 1);
  return !bad;
}

static void setup(void)
{
  char path[] = "/tmp/motley-checkpoint-XXXXXX", *made = NULL;
  if (comm->rank == 0)
    made = mkdtemp(path);
  dir = mt_bcast_text(comm, made, 0);
  ck_assert_ptr_nonnull(dir);
}

static void teardown(void)
{
  mt_barrier(comm);
  if (comm->rank == 0) {
    char *command = mt_format("rm -rf '%s'", dir);
    if (system(command) != 0)
      fprintf(stderr, "cannot remove %s\n", dir);
    mt_free(command);
  }
  mt_free(dir);
}

/* Errors that a test expects do not belong on the screen. */
static int hush(void)
{
  int old = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY);
  dup2(null, STDERR_FILENO);
  close(null);
  return old;
}

static void unhush(int old)
{
  dup2(old, STDERR_FILENO);
  close(old);
}

/* Whether a file exists; rank 0's word. Collective. */
static int exists(const char *format, int step)
{
  char name[64], *path;
  snprintf(name, sizeof name, format, step);
  path = mt_format("%s/%s", dir, name);
  int64_t found = comm->rank == 0 && access(path, F_OK) == 0;
  mt_max_int(comm, &found, 1);
  mt_free(path);
  return (int)found;
}

static char *path_of(int step)
{
  return mt_format("%s/step-%08d.h5", dir, step);
}

static enum mt_status save(int step, uint64_t seed, int ndataset, int keep)
{
  struct mt_checkpoint c = case_new(comm, step, seed, ndataset, 17);
  case_fill(&c);
  int64_t bytes;
  enum mt_status status = mt_checkpoint_save(comm, dir, keep, &c, &bytes);
  if (!all(case_equal(&c, step)))
    status = MT_USAGE; /* saving changed what it saved */
  struct stat is;
  char *path = path_of(step);
  int right =
      status != MT_OK || (bytes > 0 && (comm->rank != 0 || (stat(path, &is) == 0 && is.st_size == bytes)));
  mt_free(path);
  case_free(&c);
  return all(right) ? status : MT_USAGE;
}

/* Loads everything with a cut of its own: MT_OK only if all bits are right (MT_USAGE: wrong bits passed as
 * right). */
static enum mt_status load(int file, int step, uint64_t seed, int ndataset)
{
  struct mt_checkpoint c = case_new(comm, -1, seed, ndataset, 17), state;
  char *path = path_of(file);
  enum mt_status status = mt_checkpoint_read_state(comm, path, MT_SKIP_NO, &state);
  if (status == MT_OK && !all(case_state_equal(&state, step, ndataset)))
    status = MT_USAGE;
  mt_checkpoint_free_texts(&state);
  if (status == MT_OK)
    status = mt_checkpoint_load(comm, path, MT_SKIP_NO, &c);
  if (status == MT_OK && !all(case_equal(&c, step)))
    status = MT_USAGE;
  mt_free(path);
  case_free(&c);
  return status;
}

START_TEST(test_round_trip)
{
  for (int step = 1; step <= 6; step++) {
    int ndataset = step == 1 ? 8 : 8 + step;
    ck_assert_int_eq(save(step, (uint64_t)step * 10, ndataset, 0), MT_OK);
    ck_assert_int_eq(load(step, step, (uint64_t)step * 10 + 1, ndataset), MT_OK);
    ck_assert_int_eq(load(step, step, (uint64_t)step * 10 + 2, ndataset), MT_OK);
  }
}
END_TEST

START_TEST(test_no_data)
{
  ck_assert_int_eq(save(0, 1, 0, 1), MT_OK);
  ck_assert_int_eq(load(0, 0, 2, 0), MT_OK);
}
END_TEST

/* The checksums and all else in the file are independent of the cut, and of the time: equal bytes. */
START_TEST(test_same_file)
{
  char *a = path_of(3), *b = mt_format("%s/other", dir), *command = mt_format("cmp '%s' '%s'", a, b);
  ck_assert_int_eq(save(3, 1, 12, 0), MT_OK);
  int renamed = comm->rank != 0 || rename(a, b) == 0;
  ck_assert(all(renamed));
  sleep(1); /* another second, whatever the clock said */
  ck_assert_int_eq(save(3, 2, 12, 0), MT_OK);
  int same = comm->rank != 0 || system(command) == 0;
  mt_free(a);
  mt_free(b);
  mt_free(command);
  ck_assert(all(same));
}
END_TEST

START_TEST(test_many)
{
  double start = mt_time();
  ck_assert_int_eq(save(1, 1, 1500, 0), MT_OK);
  ck_assert_int_eq(load(1, 1, 2, 1500), MT_OK);
  double seconds = mt_time() - start;
  mt_max(comm, &seconds, 1);
  ck_assert_msg(seconds < 60, "1500 datasets took %.1f s", seconds);
}
END_TEST

START_TEST(test_keep)
{
  for (int step = 1; step <= 4; step++)
    ck_assert_int_eq(save(step, 1, 8, 0), MT_OK);
  ck_assert(exists("step-%08d.h5", 1) && exists("step-%08d.h5", 4));
  /* A dead writer's rests, and files that are not ours to remove. */
  if (comm->rank == 0) {
    char *command = mt_format(
        "cd '%s' && echo x >.step-00000009.h5.tmp && echo x >step-00000002.h5 && echo x >notes", dir);
    ck_assert_int_eq(system(command), 0);
    mt_free(command);
  }
  mt_barrier(comm);
  ck_assert_int_eq(save(5, 1, 8, 2), MT_OK);
  ck_assert(exists("step-%08d.h5", 5) && exists("step-%08d.h5", 4));
  ck_assert(!exists("step-%08d.h5", 3) && !exists("step-%08d.h5", 1));
  ck_assert(exists("step-%08d.h5", 2) && exists("notes", 0));
  ck_assert(!exists(".step-%08d.h5.tmp", 9) && !exists(".step-%08d.h5.tmp", 5));
  /* Replacing; and going on from an earlier step: what was just written stays whatever its number. */
  ck_assert_int_eq(save(5, 2, 9, 2), MT_OK);
  ck_assert_int_eq(load(5, 5, 3, 9), MT_OK);
  ck_assert_int_eq(save(3, 2, 9, 1), MT_OK);
  ck_assert(exists("step-%08d.h5", 3) && !exists("step-%08d.h5", 4) && !exists("step-%08d.h5", 5));
}
END_TEST

static int newest_is(const char *expected)
{
  char *path = NULL;
  int64_t before = INT64_MAX;
  enum mt_status status = mt_checkpoint_newest(comm, dir, &before, &path);
  char *want = expected ? mt_format("%s/%s", dir, expected) : NULL;
  int right = status == MT_OK && (path ? want && strcmp(path, want) == 0 : !want);
  mt_free(path);
  mt_free(want);
  return all(right);
}

START_TEST(test_newest)
{
  ck_assert(newest_is(NULL));
  ck_assert_int_eq(save(99, 1, 8, 0), MT_OK);
  ck_assert_int_eq(save(100, 1, 8, 0), MT_OK);
  ck_assert(newest_is("step-00000100.h5"));
  ck_assert_int_eq(save(123456789, 1, 8, 0), MT_OK);
  ck_assert(newest_is("step-123456789.h5"));
  if (comm->rank == 0) {
    char *command =
        mt_format("cd '%s' && head -c 3000 step-123456789.h5 >x && mv x step-123456789.h5 && "
                  "echo text >step-00000103.h5 && : >step-00000102.h5 && mkdir step-00000101.h5 && "
                  "cp step-00000100.h5 step-100.h5 && cp step-00000100.h5 .step-00000200.h5.tmp && "
                  "mkfifo step-00000104.h5",
                  dir);
    ck_assert_int_eq(system(command), 0);
    mt_free(command);
  }
  mt_barrier(comm);
  int old = hush();
  int right = newest_is("step-00000100.h5");
  unhush(old);
  ck_assert(right);
  /* A folder that is not there is no error; a file in its place is. */
  char *sub = mt_format("%s/sub", dir), *path = sub;
  int64_t before = INT64_MAX;
  ck_assert_int_eq(mt_checkpoint_newest(comm, sub, &before, &path), MT_OK);
  ck_assert_ptr_null(path);
  if (comm->rank == 0) {
    FILE *file = fopen(sub, "w");
    fclose(file);
  }
  mt_barrier(comm);
  old = hush();
  enum mt_status status = mt_checkpoint_newest(comm, sub, &before, &path);
  struct mt_checkpoint c = case_new(comm, 1, 1, 8, 17);
  int64_t bytes;
  enum mt_status saved = mt_checkpoint_save(comm, sub, 0, &c, &bytes);
  char *deeper = mt_format("%s/deeper", sub);
  enum mt_status saved_deeper = mt_checkpoint_save(comm, deeper, 0, &c, &bytes);
  enum mt_status missing = mt_checkpoint_load(comm, "/nonexistent/step-00000001.h5", MT_SKIP_NO, &c);
  unhush(old);
  case_free(&c);
  mt_free(deeper);
  mt_free(sub);
  ck_assert_ptr_null(path);
  ck_assert_int_eq(status, MT_USAGE);
  ck_assert_int_eq(saved, MT_FAILED);
  ck_assert_int_eq(saved_deeper, MT_FAILED);
  ck_assert_int_eq(missing, MT_CORRUPT);
}
END_TEST

/* Folders are made with their parents. */
START_TEST(test_parents)
{
  char *deep = mt_format("%s/a/b//c/", dir);
  struct mt_checkpoint c = case_new(comm, 1, 1, 8, 17);
  case_fill(&c);
  int64_t bytes;
  enum mt_status status = mt_checkpoint_save(comm, deep, 0, &c, &bytes);
  case_free(&c);
  mt_free(deep);
  ck_assert_int_eq(status, MT_OK);
  ck_assert(exists("a/b/c/step-%08d.h5", 1));
}
END_TEST

static enum mt_status load_changed(const char *name, int ndim, int64_t dim0, int *nrange)
{
  struct mt_checkpoint c = case_new(comm, -1, 5, 8, 17);
  struct mt_dataset *d = &c.dataset[0]; /* (13, 7) */
  for (int k = 0; k < d->nrange; k++)
    mt_free((uint32_t *)d->range[k].data - 1);
  mt_free(d->range);
  snprintf(d->name, sizeof d->name, "%s", name);
  d->ndim = ndim;
  d->dim[0] = dim0;
  case_cut(comm, d, 0, 5);
  int made = d->nrange;
  char *path = path_of(1);
  int old = hush();
  enum mt_status status = mt_checkpoint_load(comm, path, MT_SKIP_NO, &c);
  unhush(old);
  mt_free(path);
  *nrange = d->nrange;
  int equal = status != MT_OK || case_equal(&c, 1);
  d->nrange = made;
  case_free(&c);
  return all(equal) ? status : MT_USAGE;
}

START_TEST(test_shapes)
{
  int nrange;
  ck_assert_int_eq(save(1, 1, 8, 0), MT_OK);
  ck_assert_int_eq(load_changed("/params/model.embed_tokens.weight", 2, 13, &nrange), MT_OK);
  ck_assert_int_eq(load_changed("?/params/model.embed_tokens.weight", 2, 13, &nrange), MT_OK);
  int64_t held = nrange;
  mt_max_int(comm, &held, 1);
  ck_assert_int_gt(held, 0);
  ck_assert_int_eq(load_changed("/params/model.embed_tokens.weight", 2, 14, &nrange), MT_CORRUPT);
  ck_assert_int_eq(load_changed("/params/model.embed_tokens.weight", 1, 91, &nrange), MT_CORRUPT);
  ck_assert_int_eq(load_changed("/config/ini", 1, 25, &nrange), MT_CORRUPT);
  ck_assert_int_eq(load_changed("/params/absent", 2, 13, &nrange), MT_CORRUPT);
  ck_assert_int_eq(load_changed("?/params/absent", 2, 13, &nrange), MT_OK);
  held = nrange;
  mt_max_int(comm, &held, 1);
  ck_assert_int_eq(held, 0);
  ck_assert_int_eq(load_changed("?/params/model.embed_tokens.weight", 2, 14, &nrange), MT_CORRUPT);
}
END_TEST

/* Copies step 1 to step 2 with a byte changed (the first from `flip` on that is not zero: much of a small
 * file is unused space), or cut at a length. */
static void damage(int64_t flip, int mask, int64_t length)
{
  if (comm->rank == 0) {
    char *from = path_of(1), *to = path_of(2), *whole = MT_NEW(MT_TAG_MISC, char, length);
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ck_assert(read(in, whole, (size_t)length) == length);
    while (flip >= 0 && whole[flip] == 0)
      flip = (flip + 1) % length;
    if (flip >= 0)
      whole[flip] ^= (char)mask;
    ck_assert(write(out, whole, (size_t)length) == length);
    close(in);
    close(out);
    mt_free(whole);
    mt_free(from);
    mt_free(to);
  }
  mt_barrier(comm);
}

static int64_t size_of_first(void)
{
  char *path = path_of(1);
  struct stat is = {0};
  int64_t size = comm->rank == 0 && stat(path, &is) == 0 ? (int64_t)is.st_size : 0;
  mt_max_int(comm, &size, 1);
  mt_free(path);
  return size;
}

/* A damaged file is refused, or the damage is proven harmless: everything that is loaded is right. */
START_TEST(test_flipped)
{
  ck_assert_int_eq(save(1, 1, 8, 0), MT_OK);
  int64_t size = size_of_first(), refused = 0, harmless = 0, n = comm->size == 1 ? 400 : 40;
  int wrong = 0, old = hush();
  for (int64_t i = 0; i < n; i++) {
    uint64_t bits = mt_random_bits(7, MT_STREAM_TEST, (uint64_t)i);
    int64_t at = i < n / 4 ? i * (n < 400 ? 6 : 1) : (int64_t)(bits >> 8) % size; /* the superblock densely */
    damage(at, 1 << (bits & 7), size);
    enum mt_status status = load(2, 1, (uint64_t)i, 8);
    refused += status == MT_CORRUPT;
    harmless += status == MT_OK;
    wrong += status != MT_CORRUPT && status != MT_OK;
  }
  unhush(old);
  ck_assert_int_eq(wrong, 0);
  ck_assert_int_gt(refused, n / 2);
  ck_assert_int_eq(refused + harmless, n);
}
END_TEST

START_TEST(test_truncated)
{
  ck_assert_int_eq(save(1, 1, 8, 0), MT_OK);
  int64_t size = size_of_first();
  const int64_t length[] = {0, 1, 7, 8, 9, 47, 48, 49, 500, 2048, size / 2, size - 4096, size - 1};
  for (size_t i = 0; i < sizeof length / sizeof *length; i++) {
    if (length[i] < 0 || length[i] >= size)
      continue;
    damage(-1, 0, length[i]);
    int old = hush();
    enum mt_status status = load(2, 1, 1, 8);
    unhush(old);
    ck_assert_msg(status == MT_CORRUPT, "length %lld of %lld: status %d", (long long)length[i],
                  (long long)size, status);
  }
}
END_TEST

/* Integers of a state: of all ranks, of one alone, and none of them where numbers of another kind are expected. */
START_TEST(test_integers)
{
  const int P = comm->size, me = comm->rank;
  int64_t wide[2][6], bytes;
  int32_t narrow[2][5] = {{7, -1, 1 << 30, 0, 5}};
  for (int i = 0; i < 6; i++)
    wide[0][i] = ((int64_t)1 << 60) * (me % 2 ? 1 : -1) + 6 * me + i;
  memset(wide[1], 0, sizeof wide[1]);
  struct mt_range range[2] = {{6 * me, 6, wide[0]}, {0, 5, narrow[0]}};
  struct mt_dataset dataset[2] = {{.name = "/state/wide", .element = MT_ELEMENT_I64, .ndim = 2, .dim = {P, 6}, .nrange = 1,
                                   .range = &range[0]},
                                  {.name = "/state/narrow", .element = MT_ELEMENT_I32, .ndim = 1, .dim = {5},
                                   .nrange = me == 0, .range = &range[1]}};
  struct mt_checkpoint c = {.step = 4, .ndataset = 2, .dataset = dataset};
  ck_assert_int_eq(mt_checkpoint_save(comm, dir, 1, &c, &bytes), MT_OK);
  range[0].data = wide[1];
  range[1].data = narrow[1];
  char *path = path_of(4);
  ck_assert_int_eq(mt_checkpoint_load(comm, path, MT_SKIP_NO, &c), MT_OK);
  ck_assert(all(!memcmp(wide[0], wide[1], sizeof wide[0])));
  ck_assert(all(me != 0 || !memcmp(narrow[0], narrow[1], sizeof narrow[0])));
  dataset[1].element = MT_ELEMENT_F32;
  int old = hush();
  enum mt_status status = mt_checkpoint_load(comm, path, MT_SKIP_NO, &c);
  unhush(old);
  ck_assert_int_eq(status, MT_CORRUPT);
  ck_assert_int_eq(me == 0 ? mt_checkpoint_inspect(path) : MT_OK, MT_OK);
  mt_free(path);
}
END_TEST

/* HDF5 files of other programs, of a later version, of an interrupted writer. */
START_TEST(test_foreign)
{
  for (int kind = 0; kind < 5; kind++) {
    if (comm->rank == 0) {
      char *path = path_of(2), *first = path_of(1);
      hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
      hid_t space = H5Screate(H5S_SCALAR), string = H5Tcopy(H5T_C_S1), variable = H5Tcopy(H5T_C_S1);
      H5Tset_size(string, 6);
      H5Tset_size(variable, H5T_VARIABLE);
      const char *text = kind == 2 ? "torchy" : "motley";
      hid_t type = kind == 3 ? variable : string, attribute = -1;
      if (kind > 0)
        attribute = H5Acreate2(file, kind == 1 ? "title" : "format", type, space, H5P_DEFAULT, H5P_DEFAULT);
      if (kind > 0)
        ck_assert_int_ge(H5Awrite(attribute, type, kind == 3 ? (const void *)&text : text), 0);
      if (kind == 4) { /* right in all but the version */
        hid_t version = H5Acreate2(file, "version", H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT);
        int number = 3;
        ck_assert_int_ge(H5Awrite(version, H5T_NATIVE_INT, &number), 0);
        H5Aclose(version);
      }
      if (attribute >= 0)
        H5Aclose(attribute);
      H5Tclose(string);
      H5Tclose(variable);
      H5Sclose(space);
      H5Fclose(file);
      mt_free(path);
      mt_free(first);
    }
    mt_barrier(comm);
    int old = hush();
    enum mt_status status = load(2, 1, 1, 8);
    unhush(old);
    ck_assert_msg(status == MT_CORRUPT, "kind %d: status %d", kind, status);
  }
}
END_TEST

/* inspect runs on one process. */
START_TEST(test_inspect)
{
  ck_assert_int_eq(save(1, 1, 10, 0), MT_OK);
  int64_t size = size_of_first();
  char *good = path_of(1), *bad = path_of(2);
  enum mt_status status[4] = {MT_OK, MT_OK, MT_CORRUPT, MT_USAGE},
                 got[4] = {MT_OK, MT_OK, MT_CORRUPT, MT_USAGE};
  int old = hush();
  int out = dup(STDOUT_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  if (comm->rank == 0) {
    got[0] = mt_checkpoint_inspect(good);
    got[1] = mt_checkpoint_inspect(dir);
  }
  damage(-1, 0, size / 2);
  if (comm->rank == 0) {
    got[2] = mt_checkpoint_inspect(dir);
    got[3] = mt_checkpoint_inspect("/nonexistent");
    status[2] = mt_checkpoint_inspect(bad);
  }
  unhush(old);
  fflush(stdout);
  dup2(out, STDOUT_FILENO);
  close(out);
  mt_free(good);
  mt_free(bad);
  ck_assert(all(memcmp(status, got, sizeof got) == 0));
}
END_TEST

static void end(void)
{
  mt_comm_free(comm);
}

int main(int argc, char **argv)
{
  if (mt_comm_new(&argc, &argv, &comm) != MT_OK)
    return EXIT_FAILURE;
  Suite *suite = suite_create("checkpoint");
  TCase *tests = tcase_create("checkpoint");
  tcase_add_checked_fixture(tests, setup, teardown);
  tcase_add_test(tests, test_round_trip);
  tcase_add_test(tests, test_no_data);
  tcase_add_test(tests, test_same_file);
  tcase_add_test(tests, test_many);
  tcase_add_test(tests, test_keep);
  tcase_add_test(tests, test_newest);
  tcase_add_test(tests, test_parents);
  tcase_add_test(tests, test_shapes);
  tcase_add_test(tests, test_flipped);
  tcase_add_test(tests, test_truncated);
  tcase_add_test(tests, test_integers);
  tcase_add_test(tests, test_foreign);
  tcase_add_test(tests, test_inspect);
  suite_add_tcase(suite, tests);
  return mt_test_run_then(suite, end);
}
