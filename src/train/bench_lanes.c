/* `motley bench lanes`: schedules against each other, on the same tokens.
 *
 * Every contender is a model of its own, and they take turns step by step, each round beginning with another, so that
 * all see the same machine. The bound of each: the longer of its computing and its communication as measured, on the
 * slowest rank; no overlap can do better. */
#include "train/bench_lanes.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/log.h"
#include "comm/measure.h"
#include "train/batch.h"
#include "train/sharding.h"
#include "train/step.h"
#include "train/turns.h"

enum { WARM_UP = 1 + MT_ROUNDS * (1 + 2 * MT_ROUND_STEPS) }; /* the longest trial */

static const struct {
  const char *policy;
  int degree;
} lines[] = {{"sequential", 1}, {"laer", 1},  {"tutel", 2},   {"pipemoe", 0}, {"tutel-gar", 0},
             {"lina", 0},       {"fsmoe", 0}, {"mast", 0},    {"coconet", 0}, {"auto", 0}};
enum { CONTENDERS = sizeof lines / sizeof *lines };

struct contender {
  struct mt_config config; /* strings borrowed */
  struct mt_model *model;
  struct mt_step *step;
  int64_t number; /* of its last step */
  double *step_s, *exposed_s, *bound_s, *error; /* [steps], owned */
};

static enum mt_status open_contender(struct mt_comm *comm, struct mt_device *device, const struct mt_config *config,
                                     int i, struct contender *c)
{
  static char names[CONTENDERS][16];
  *c = (struct contender){.config = *config};
  strcpy(names[i], lines[i].policy);
  c->config.schedule.policy = names[i];
  c->config.schedule.degree = lines[i].degree;
  MT_TRY(mt_model_new(comm, device, &c->config, mt_batch_max_B(&c->config, comm->cluster, comm->rank),
                      config->data.seq_length, 1, &c->model));
  mt_model_init(c->model, (uint64_t)config->train.seed);
  mt_model_publish(c->model);
  c->step = mt_step_new(comm, c->model, &c->config, mt_turns_tokens(&c->config));
  double **figures[] = {&c->step_s, &c->exposed_s, &c->bound_s, &c->error};
  for (int f = 0; f < 4; f++)
    *figures[f] = MT_ZNEW(MT_TAG_MISC, double, config->train.steps);
  return MT_OK;
}

static void close_contender(struct contender *c)
{
  mt_step_free(c->step);
  mt_model_free(c->model);
  mt_free(c->step_s);
  mt_free(c->exposed_s);
  mt_free(c->bound_s);
  mt_free(c->error);
}

static void run(struct contender *c, int64_t number, int64_t at)
{
  mt_barrier(c->model->comm);
  const double predicted_s = c->step->predicted_s;
  const struct mt_step_result *result = mt_step_run(c->step, number, (number - 1) * c->config.train.global_batch);
  if (at < 0)
    return;
  c->step_s[at] = result->step_s;
  c->error[at] = fabs(result->step_s / predicted_s - 1);
  c->exposed_s[at] = result->exposed_s;
  c->bound_s[at] = fmax(result->lane_s[MT_LANE_COMPUTE], result->lane_s[MT_LANE_INTRA] + result->lane_s[MT_LANE_INTER]);
}

enum mt_status mt_bench_lanes(struct mt_comm *comm, const struct mt_config *config)
{
  struct contender contender[CONTENDERS] = {0};
  struct mt_device *device = NULL;
  struct mt_config chosen = *config; /* strings borrowed */
  mt_comm_beside(comm);
  MT_TRY(mt_agree(comm, mt_device_open("cpu", comm->cluster->place[comm->rank].threads, &device)));
  if (config->parallel.measure != MT_MEASURE_OFF)
    mt_measure(comm, device);
  enum mt_status status =
      comm->rank == 0 ? mt_sharding_choose(config, comm->cluster, &chosen.parallel.sharding) : MT_OK;
  mt_bcast(comm, &chosen.parallel.sharding, sizeof chosen.parallel.sharding, 0);
  status = mt_agree(comm, status);
  const int steps = (int)config->train.steps;
  for (int i = 0; i < CONTENDERS && status == MT_OK; i++)
    status = open_contender(comm, device, &chosen, i, &contender[i]);
  for (int64_t t = -WARM_UP; t < steps && status == MT_OK; t++)
    for (int i = 0; i < CONTENDERS; i++) {
      struct contender *c = &contender[(t + WARM_UP + i) % CONTENDERS];
      if (t >= 0 || c->step->replan.trial)
        run(c, ++c->number, t);
    }
  if (status == MT_OK) {
    double sequential = 0;
    mt_info("%d steps of each in turns, on %d ranks, %d nodes; seconds", steps, comm->size, comm->nnode);
    mt_info("%-11s %-9s %9s %21s %9s %9s %9s %9s %8s", "schedule", "degree", "median", "quartiles", "speed-up", "exposed",
            "bound", "predicted", "error %");
    for (int i = 0; i < CONTENDERS; i++) {
      struct contender *c = &contender[i];
      struct mt_spread step = mt_spread_of(c->step_s, steps);
      sequential = i ? sequential : step.median;
      const struct mt_course *course = &c->step->course;
      char degree[32];
      snprintf(degree, sizeof degree, "%d x %d", course->plan.chunks, course->plan.degree[0] / course->plan.chunks);
      mt_info("%-11s %-9s %9.4f %10.4f %10.4f %9.3f %9.4f %9.4f %9.4f %8.1f", lines[i].policy, degree, step.median,
              step.quarter, step.three_quarters, sequential / step.median, mt_spread_of(c->exposed_s, steps).median,
              mt_spread_of(c->bound_s, steps).median, c->step->predicted_s, 100 * mt_spread_of(c->error, steps).median);
    }
    const struct mt_course *taken = &contender[CONTENDERS - 1].step->course;
    mt_info("auto takes %s, %s", mt_scheme_name(taken->scheme),
            taken->beside ? "communication beside computing" : "one after the other");
  }
  for (int i = 0; i < CONTENDERS; i++)
    close_contender(&contender[i]);
  device->ops->close(device);
  return status;
}
