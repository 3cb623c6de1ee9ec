/* What every Check suite shares. A suite's source says in a comment "ranks: 1 2 3" at which rank counts the launcher runs
 * it; suites that need no MPI say "ranks: 1". Check runs without fork: MPI does not survive it. */
#ifndef MT_TEST_H
#define MT_TEST_H
#include <check.h>
#include <stdlib.h>
#include "base/memory.h"

/* Runs a suite, then `end` (NULL = nothing), and returns the exit code; live allocations after it are a failure, so every test
 * is a leak test. */
static inline int mt_test_run_then(Suite *suite, void (*end)(void))
{
  SRunner *runner = srunner_create(suite);
  srunner_set_fork_status(runner, CK_NOFORK);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  if (end)
    end();
  if (!failed && mt_memory_report_leaks() != 0)
    failed = 1;
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static inline int mt_test_run(Suite *suite)
{
  return mt_test_run_then(suite, NULL);
}

#endif
