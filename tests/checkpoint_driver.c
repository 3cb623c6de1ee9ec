/* Saves and loads made-up checkpoints from a script (test_checkpoint_failures.sh): what must be tried in
 * separate programs, because the writer dies, the disk is full or the reader has other ranks.
 *   checkpoint_driver save DIR STEP KEEP ROWS   exit code = status
 *   checkpoint_driver storm DIR ROWS            saves steps 1, 2, 3, ... (keep 2) until it is killed
 *   checkpoint_driver load DIR ROWS             finds the newest, loads it, compares all bits, prints its
 * step checkpoint_driver inspect PATH MOTLEY_TEST_RANK=R: MOTLEY_FAIL holds for rank R alone. */
#include "config.h"
#include "checkpoint_case.h"
#include <stdlib.h>
#include "base/launcher.h"
#include "base/log.h"

enum { NDATASET = 20 };

static enum mt_status save(struct mt_comm *comm, const char *dir, int64_t step, int keep, int64_t rows)
{
  struct mt_checkpoint c = case_new(comm, step, (uint64_t)step + 7, NDATASET, rows);
  case_fill(&c);
  int64_t bytes;
  enum mt_status status = mt_checkpoint_save(comm, dir, keep, &c, &bytes);
  case_free(&c);
  return status;
}

static enum mt_status load(struct mt_comm *comm, const char *dir, int64_t rows)
{
  char *path;
  int64_t before = INT64_MAX;
  enum mt_status status = mt_checkpoint_newest(comm, dir, &before, &path);
  if (status != MT_OK)
    return status;
  if (!path) {
    mt_info("no checkpoint");
    return MT_OK;
  }
  struct mt_checkpoint state, c = case_new(comm, -1, 12345, NDATASET, rows);
  status = mt_checkpoint_read_state(comm, path, MT_SKIP_NO, &state);
  if (status == MT_OK)
    status = mt_checkpoint_load(comm, path, MT_SKIP_NO, &c);
  if (status == MT_OK) {
    int right = case_equal(&c, state.step) && case_state_equal(&state, state.step, NDATASET);
    status = mt_agree(comm, right ? MT_OK : MT_FAILED);
    mt_info(status == MT_OK ? "loaded step %lld" : "WRONG CONTENT of step %lld", (long long)state.step);
  }
  case_free(&c);
  mt_checkpoint_free_texts(&state);
  mt_free(path);
  return status;
}

int main(int argc, char **argv)
{
  struct mt_comm *comm;
  const char *only = getenv("MOTLEY_TEST_RANK");
  if (only && atoi(only) != mt_launcher_rank())
    unsetenv("MOTLEY_FAIL");
  if (argc == 3 && strcmp(argv[1], "inspect") == 0)
    return mt_checkpoint_inspect(argv[2]);
  if (mt_comm_new(&argc, &argv, &comm) != MT_OK)
    return EXIT_FAILURE;
  enum mt_status status = MT_USAGE;
  if (argc == 6 && strcmp(argv[1], "save") == 0)
    status = save(comm, argv[2], atoll(argv[3]), atoi(argv[4]), atoll(argv[5]));
  else if (argc == 4 && strcmp(argv[1], "load") == 0)
    status = load(comm, argv[2], atoll(argv[3]));
  else if (argc == 4 && strcmp(argv[1], "storm") == 0)
    for (int64_t step = 1; (status = save(comm, argv[2], step, 2, atoll(argv[3]))) == MT_OK; step++)
      mt_info("saved step %lld", (long long)step);
  mt_comm_free(comm);
  return mt_memory_report_leaks() == 0 ? (int)status : EXIT_FAILURE;
}
