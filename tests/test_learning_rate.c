/* The schedules of the learning rate, by hand. ranks: 1 */
#include "test.h"
#include "train/optimizer.h"
#include <math.h>

static struct mt_config config_of(enum mt_schedule_kind schedule, int64_t warmup, int64_t steps)
{
  struct mt_config config = {
      .train = {.lr = 2, .min_lr = 0.5, .steps = steps, .warmup = warmup, .schedule = schedule}};
  return config;
}

static void check(const struct mt_config *config, int64_t step, double want)
{
  ck_assert_double_eq_tol(mt_learning_rate(config, step), want, 1e-12);
}

START_TEST(test_warmup)
{
  for (int schedule = MT_SCHEDULE_CONSTANT; schedule <= MT_SCHEDULE_WSD; schedule++) {
    struct mt_config config = config_of(schedule, 4, 20);
    config.train.decay_ratio = 0.5;
    check(&config, 1, 0.5);
    check(&config, 3, 1.5);
    check(&config, 4, 2);
    check(&config, 20, schedule == MT_SCHEDULE_CONSTANT ? 2 : 0.5);
    check(&config, 1000, schedule == MT_SCHEDULE_CONSTANT ? 2 : 0.5);
    config.train.steps = 3; /* a run that ends during warm-up */
    check(&config, 3, 1.5);
  }
}
END_TEST

START_TEST(test_decay_at_once)
{
  struct mt_config config = config_of(MT_SCHEDULE_LINEAR, 4, 12);
  check(&config, 5, 2 - 1.5 / 8);
  check(&config, 8, 1.25);
  config.train.decay_steps = 6;
  check(&config, 5, 1.25);
  check(&config, 6, 0.5);
  check(&config, 7, 0.5);
  config = config_of(MT_SCHEDULE_COSINE, 0, 8);
  check(&config, 2, 0.5 + 1.5 * 0.5 * (1 + sqrt(0.5)));
  check(&config, 4, 1.25);
}
END_TEST

START_TEST(test_wsd)
{
  struct mt_config config = config_of(MT_SCHEDULE_WSD, 4, 20);
  config.train.decay_ratio = 0.4; /* steps 13 to 20 */
  config.train.decay_type = MT_DECAY_LINEAR;
  check(&config, 5, 2);
  check(&config, 12, 2);
  check(&config, 13, 2 - 1.5 / 8);
  check(&config, 16, 1.25);
  config.train.decay_type = MT_DECAY_SQRT;
  check(&config, 12, 2);
  check(&config, 14, 2 - 1.5 * 0.5); /* a quarter of the way */
  check(&config, 20, 0.5);
  config.train.decay_type = MT_DECAY_COSINE;
  check(&config, 14, 0.5 + 1.5 * 0.5 * (1 + sqrt(0.5)));
  check(&config, 16, 1.25);
  /* More steps move the decay and nothing before it. */
  config.train.steps = 100;
  for (int64_t s = 5; s <= 60; s++)
    check(&config, s, 2);
  check(&config, 80, 1.25);
  config.train.decay_steps = 20;
  check(&config, 16, 1.25);
  check(&config, 50, 0.5);
  /* The decay never begins before the warm-up's end, and may be all or nothing. */
  config = config_of(MT_SCHEDULE_WSD, 4, 8);
  config.train.decay_ratio = 1;
  check(&config, 4, 2);
  check(&config, 6, 1.25);
  config.train.decay_ratio = 0;
  check(&config, 8, 2);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("learning rate");
  TCase *tests = tcase_create("learning rate");
  tcase_add_test(tests, test_warmup);
  tcase_add_test(tests, test_decay_at_once);
  tcase_add_test(tests, test_wsd);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
