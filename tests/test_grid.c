/* The papers' grids by the simulator, beside what the papers report. ranks: 1 */
#include "test.h"
#include <math.h>
#include "schedule/grid.h"

enum { FSMOE, MAST };

static void check_layers(const struct mt_testbed *testbed)
{
  const struct mt_grid *grid = &mt_grids[FSMOE];
  double gain = 0;
  int beaten = 0;
  for (int i = 0; i < grid->nlayer; i++) {
    int64_t time[MT_NSCHEME], least = INT64_MAX;
    mt_grid_times(grid, testbed, i, MT_TERM_ALL, time);
    for (enum mt_scheme s = MT_SCHEME_SEQUENTIAL; s < MT_SCHEME_LAER; s++) {
      ck_assert_int_gt(time[s], 0);
      if (mt_scheme_moe_only(s) && time[s] < least)
        least = time[s];
    }
    beaten += least < time[MT_SCHEME_FSMOE];
    gain += (double)time[MT_SCHEME_PIPEMOE] / (double)time[MT_SCHEME_FSMOE] / grid->nlayer;
  }
  double published = grid->published[testbed - grid->testbed][MT_SCHEME_FSMOE];
  ck_assert_int_le(beaten * 100, grid->nlayer);
  ck_assert_double_eq_tol(gain, published, 0.05);
}

START_TEST(test_fsmoe_grid)
{
  ck_assert_int_eq(mt_grids[FSMOE].nlayer, 1458);
  check_layers(&mt_grids[FSMOE].testbed[_i]);
}
END_TEST

/* Published are averages from 1.13 to 1.43 over four schemes on two clusters, neither of them described. Ours with
 * contention reach the lower end; what is missing at the upper end is contention: without it, that is reached. */
START_TEST(test_mast_grid)
{
  static const enum mt_scheme over[] = {MT_SCHEME_SEQUENTIAL, MT_SCHEME_TUTEL, MT_SCHEME_PIPEMOE, MT_SCHEME_COCONET};
  const struct mt_grid *grid = &mt_grids[MAST];
  double least = INFINITY, most = 0, alone = 0;
  for (int t = 0; t < grid->ntestbed; t++) {
    double mean[MT_NSCHEME];
    mt_grid_means(grid, &grid->testbed[t], MT_TERM_ALL, mean);
    for (int i = 0; i < 4; i++) {
      least = fmin(least, mean[over[i]]);
      most = fmax(most, mean[over[i]]);
    }
    mt_grid_means(grid, &grid->testbed[t], MT_TERM_ALL & ~MT_TERM_CONTENTION, mean);
    alone = fmax(alone, mean[MT_SCHEME_SEQUENTIAL]);
  }
  ck_assert_int_eq(grid->nlayer, 432);
  ck_assert_double_eq_tol(least, 1.13, 0.05);
  ck_assert_double_le(most, 1.43);
  ck_assert_double_eq_tol(alone, 1.43, 0.05);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("grid");
  TCase *tests = tcase_create("grid");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_fsmoe_grid, 0, 2);
  tcase_add_test(tests, test_mast_grid);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
