/* Which plan a step follows; see step_plan.h. */
#include "train/step_plan.h"
#include <math.h>
#include <string.h>
#include "base/json.h"
#include "train/predict.h"

/* What the plan in force comes to by the costs known. */
static void foresee(struct mt_step *step)
{
  step->tasks.serial = !step->course.beside;
  mt_tasks_cost(&step->tasks, &step->costs);
  step->predicted_s = 1e-9 * (double)mt_tasks_ns(&step->tasks, &step->costs);
}

void mt_step_follow(struct mt_step *step, const struct mt_course *course)
{
  const int first = !step->tasks.n,
            recut = first || !mt_course_same_bits(course, &step->course) || course->plan.tiled != step->course.plan.tiled,
            rebuild = recut || memcmp(&course->plan, &step->course.plan, sizeof course->plan);
  step->course = *course;
  if (recut)
    mt_model_cut(step->model, &course->plan, !course->plan.serial || mt_predict_overlaps(step->config, step->comm->cluster));
  if (rebuild)
    mt_step_build(step);
  if (rebuild && !first)
    mt_memory_count_growth();
  foresee(step);
}

/* What schedule.policy comes to at this degree (0 = any) by what is known now. One rank's word, since ranks unlike each other
 * may round unlike. Collective. */
static struct mt_course choose(struct mt_step *step, int degree)
{
  struct mt_course course = {.scheme = MT_SCHEME_SEQUENTIAL};
  if (step->comm->rank == 0)
    course.plan = mt_predict_plan(step->config, step->comm->cluster, degree, &course.scheme, &step->costs);
  mt_bcast(step->comm, &course, sizeof course, 0);
  mt_bcast(step->comm, &step->costs, sizeof step->costs, 0);
  course.beside = step->lanes && !course.plan.serial;
  return course;
}

/* ---- trials: see replan.h ---- */

static void begin_trial(struct mt_step *step)
{
  memset(step->observed, 0, sizeof *step->observed);
  step->before = step->course;
}

/* Costs into the description of the cluster, from what was observed of steps that took so many seconds one way and the other (0
 * = none did). Collective. */
static void learn(struct mt_step *step, const double step_s[2])
{
  struct mt_comm *comm = step->comm;
  struct mt_figures figures = mt_observe_figures(step->observed);
  mt_max(comm, (double *)&figures, MT_NFIGURES);
  if (comm->rank == 0) {
    struct mt_costs predicted = mt_predict_costs(step->config, comm->cluster);
    step->fit_error =
        mt_observe_learn(&figures, step->observed, &step->tasks, &predicted, step_s, &comm->cluster->learnt);
  }
  mt_bcast(comm, &comm->cluster->learnt, sizeof comm->cluster->learnt, 0);
}

static void report(struct mt_step *step, const char *why, int settled, double before_s)
{
  step->report = (struct mt_schedule_report){why, settled, before_s};
  step->result.schedule = &step->report;
}

/* Was it tried: the same plan, or, one after the other, any of the same cut? */
static int tried(const struct mt_step *step, const struct mt_course *course)
{
  for (int r = 0; r <= step->replan.round; r++)
    if (!memcmp(&step->tried[r].plan, &course->plan, sizeof course->plan) ||
        (course->plan.serial && mt_course_same_bits(course, &step->tried[r])))
      return 1;
  return 0;
}

/* What is in force would come to this if it ran the other way. */
static double other_way_s(struct mt_step *step)
{
  if (!step->lanes || !step->replan.either || step->course.plan.serial)
    return INFINITY;
  step->course.beside = !step->course.beside;
  foresee(step);
  const double s = step->predicted_s;
  step->course.beside = !step->course.beside;
  foresee(step);
  return s;
}

/* Steps take longer, or shorter, than they should: costs from the last ones, and a trial if by them something else is better.
 * Collective. */
static void depart(struct mt_step *step)
{
  struct mt_replan *replan = &step->replan;
  const int way = step->course.beside;
  double step_s[2] = {0};
  step_s[way] = mt_replan_ratio(replan) * step->predicted_s;
  memset(step->observed->amount[!way], 0, sizeof step->observed->amount[!way]); /* of other times */
  learn(step, step_s);
  replan->learnt |= !step->config->schedule.degree;
  replan->nratio = 0;
  const struct mt_course next = choose(step, step->course.plan.degree[0]);
  foresee(step);
  const int other = mt_course_same_bits(&next, &step->course) && memcmp(&next.plan, &step->course.plan, sizeof next.plan);
  if (mt_replan_rested(replan) && (other || other_way_s(step) < step->predicted_s)) {
    mt_replan_begin(replan, step->course.plan.serial, 0);
    begin_trial(step);
    step->course.beside = replan->beside;
    foresee(step);
  } else {
    report(step, "prediction departed", 1, step_s[way]);
  }
}

/* The plan in force, which is not the last one tried, was measured to take so long: what predicts it starts from there.
 * Collective. */
static void start_from(struct mt_step *step, double step_s)
{
  struct mt_learnt *learnt = &step->comm->cluster->learnt;
  const int beside = step->course.beside;
  if (step->comm->rank == 0) {
    const struct mt_costs predicted = mt_predict_costs(step->config, step->comm->cluster);
    learnt->late_ns[beside] = mt_observe_late(&step->tasks, &predicted, learnt, beside, step_s);
  }
  mt_bcast(step->comm, learnt, sizeof *learnt, 0);
  step->costs.late_ns[beside] = learnt->late_ns[beside];
  foresee(step);
}

/* A plan has had its round: another one by what it taught, or the best of all. Collective. */
static void end_round(struct mt_step *step)
{
  struct mt_replan *replan = &step->replan;
  const int any = !step->config->schedule.degree, open = any && !replan->pinned;
  const double before_s = step->result.step_s;
  const char *why = replan->warm ? "measured" : "first steps";
  step->tried[replan->round] = step->course;
  learn(step, (double[]){mt_replan_s(replan, replan->round, 0), mt_replan_s(replan, replan->round, 1)});
  struct mt_course next = choose(step, open ? 0 : step->course.plan.degree[0]);
  if (!replan->fixed && replan->round + 1 < MT_ROUNDS && (open || mt_course_same_bits(&next, &step->course)) &&
      !tried(step, &next)) {
    mt_replan_next(replan, next.plan.serial);
    next.beside = replan->beside;
    mt_step_follow(step, &next);
    report(step, why, 0, before_s);
    return;
  }
  unsigned allowed = 0;
  for (int r = 0; r <= replan->round; r++)
    allowed |= (unsigned)(open || mt_course_same_bits(&step->tried[r], &step->course)) << r;
  int beside, best = mt_replan_best(replan, allowed, &beside);
  next = step->tried[best];
  next.beside = beside;
  const int changed = memcmp(&next, &step->before, sizeof next) != 0;
  mt_step_follow(step, &next);
  if (best != replan->round)
    start_from(step, mt_replan_s(replan, best, beside));
  mt_replan_done(replan, beside, changed);
  replan->serial = next.plan.serial;
  replan->learnt |= any && replan->pinned && !replan->fixed; /* the next checkpoint may have another degree */
  report(step, why, 1, before_s);
}

void mt_step_plan_turn(struct mt_step *step)
{
  struct mt_replan *replan = &step->replan;
  if (mt_replan_counts(replan) && step->settled_s == 0) /* else part of it ran before */
    mt_observe(step->observed, &step->tasks, step->span, step->course.beside);
  switch (mt_replan_step(replan, step->result.step_s, step->predicted_s)) {
  case MT_TURN_SWITCH:
    step->course.beside = replan->beside;
    foresee(step);
    break;
  case MT_TURN_ROUND:
    end_round(step);
    break;
  case MT_TURN_DEPARTED:
    depart(step);
    break;
  case MT_TURN_NONE:
    break;
  }
}

void mt_step_plan_begin(struct mt_step *step)
{
  const struct mt_config *config = step->config;
  step->observed = MT_ZNEW(MT_TAG_PLAN, struct mt_observed, 1);
  struct mt_course course = choose(step, (int)config->schedule.degree);
  if (mt_predict_learns_first(config, step->comm->cluster))
    course = (struct mt_course){.plan = mt_plan_sequential, .scheme = MT_SCHEME_SEQUENTIAL};
  mt_step_follow(step, &course);
  const int automatic = !strcmp(config->schedule.policy, "auto");
  step->replan = (struct mt_replan){.lanes = step->lanes,
                                    .either = automatic,
                                    .fixed = !step->model->moe || step->comm->size == 1 || (!automatic && config->schedule.degree),
                                    .wait = MT_WATCHED};
  mt_replan_begin(&step->replan, course.plan.serial, 1);
  begin_trial(step);
}

char *mt_step_schedule(const struct mt_step *step)
{
  mt_json *json = mt_course_json(&step->course, step->replan.warm);
  mt_json_set(json, "asked", mt_json_string(step->config->schedule.policy));
  char *text = mt_json_print(json, 2);
  mt_json_free(json);
  return text;
}

int mt_step_resume(struct mt_step *step, const char *schedule)
{
  mt_json *json;
  struct mt_course course;
  int warm;
  if (!schedule || mt_json_parse("/state/schedule", schedule, &json) != MT_OK)
    return 0;
  int good = mt_course_from_json(json, &course, &warm) &&
             !strcmp(mt_json_as_string(mt_json_get(json, "asked"), ""), step->config->schedule.policy);
  mt_json_free(json);
  if (!good)
    return 0;
  course.beside = course.beside && step->lanes;
  mt_step_follow(step, &course);
  step->replan.pinned = 1;
  step->replan.serial = course.plan.serial;
  step->replan.beside = course.beside;
  if (warm) {
    step->replan.trial = 0;
    step->replan.warm = 1;
  } else {
    mt_replan_begin(&step->replan, course.plan.serial, 1);
    begin_trial(step);
  }
  return 1;
}

void mt_step_before_save(struct mt_step *step)
{
  mt_step_settle(step);
  step->result.schedule = NULL;
  if (!step->replan.learnt || step->replan.trial || step->replan.fixed)
    return;
  step->replan.learnt = 0;
  step->before = step->course;
  struct mt_course next = choose(step, 0);
  const double before_s = step->predicted_s;
  if (mt_course_same_bits(&next, &step->course))
    return;
  mt_step_follow(step, &next);
  if (step->predicted_s * (1 + 1e-3 * MT_DEPARTED) > before_s) { /* no more than predictions may be off */
    mt_step_follow(step, &step->before);
    return;
  }
  report(step, "checkpoint", 1, step->result.step_s);
}

void mt_step_after_save(struct mt_step *step, int saved)
{
  if (saved) {
    step->replan.pinned = 1;
    if (step->result.schedule) { /* which way it runs is measured yet */
      mt_replan_begin(&step->replan, step->course.plan.serial, 1);
      begin_trial(step);
    }
  } else if (step->result.schedule) {
    mt_step_follow(step, &step->before);
    step->result.schedule = NULL;
    step->replan.learnt = 1; /* the next checkpoint may succeed */
  }
}
