/* Trials of plans; see replan.h. */
#include "train/replan.h"
#include <stddef.h>
#include <string.h>
#include "comm/measure.h"

/* A round runs both ways, or, where a plan cannot overlap, one. */
static int both(const struct mt_replan *r)
{
  return r->lanes && !r->serial;
}

/* Its first step, of a plan that is new, counts not. */
static int round_steps(const struct mt_replan *r)
{
  return 1 + MT_ROUND_STEPS * (both(r) ? 2 : 1);
}

int mt_replan_counts(const struct mt_replan *replan)
{
  return !replan->trial || replan->nth > 0;
}

static double median_of(const double *value, int n)
{
  double x[MT_WATCHED];
  if (!n)
    return 0;
  memcpy(x, value, sizeof *x * (size_t)n);
  return mt_median(x, n);
}

double mt_replan_s(const struct mt_replan *r, int round, int beside)
{
  return median_of(r->timed[round][beside], r->ntimed[round][beside]);
}

double mt_replan_ratio(const struct mt_replan *r)
{
  return median_of(r->ratio, r->nratio < MT_WATCHED ? (int)r->nratio : MT_WATCHED);
}

int mt_replan_rested(const struct mt_replan *r)
{
  return !r->fixed && r->rested >= r->wait;
}

static int departed(const struct mt_replan *r)
{
  double ratio = mt_replan_ratio(r);
  return r->nratio >= MT_WATCHED && (ratio > 1 + 1e-3 * MT_DEPARTED || ratio < 1 / (1 + 1e-3 * MT_DEPARTED));
}

static enum mt_turn go(struct mt_replan *r, int beside)
{
  if (r->beside == beside)
    return MT_TURN_NONE;
  r->beside = beside;
  return MT_TURN_SWITCH;
}

void mt_replan_begin(struct mt_replan *r, int serial, int fresh)
{
  r->trial = 1;
  r->round = 0;
  r->nth = !fresh;
  r->serial = serial;
  r->beside = fresh && both(r);
  memset(r->ntimed, 0, sizeof r->ntimed);
}

enum mt_turn mt_replan_step(struct mt_replan *r, double step_s, double predicted_s)
{
  if (!r->trial) {
    r->rested++;
    if (predicted_s <= 0)
      return MT_TURN_NONE;
    r->ratio[r->nratio++ % MT_WATCHED] = step_s / predicted_s;
    return departed(r) ? MT_TURN_DEPARTED : MT_TURN_NONE;
  }
  int *n = &r->ntimed[r->round][r->beside];
  if (r->nth > 0 && *n < MT_ROUND_STEPS)
    r->timed[r->round][r->beside][(*n)++] = step_s;
  r->nth++;
  if (r->nth == round_steps(r))
    return MT_TURN_ROUND;
  return both(r) ? go(r, r->nth > MT_ROUND_STEPS) : MT_TURN_NONE;
}

void mt_replan_next(struct mt_replan *r, int serial)
{
  r->round++;
  r->nth = 0;
  r->serial = serial;
  r->beside = both(r);
}

int mt_replan_best(const struct mt_replan *r, unsigned allowed, int *beside)
{
  int best = 0;
  double least = 0;
  *beside = r->beside;
  for (int round = 0; round <= r->round; round++)
    for (int way = r->either || !r->lanes || r->serial ? 0 : 1; way < 2; way++) {
      double s = mt_replan_s(r, round, way);
      if ((allowed >> round & 1) && s > 0 && (least == 0 || s < least)) {
        least = s;
        best = round;
        *beside = way;
      }
    }
  return best;
}

void mt_replan_done(struct mt_replan *r, int beside, int changed)
{
  r->trial = 0;
  r->warm = 1;
  r->beside = beside;
  r->nratio = r->rested = 0;
  r->wait = changed || r->wait < MT_WATCHED ? MT_WATCHED : 2 * r->wait;
}

int mt_course_same_bits(const struct mt_course *a, const struct mt_course *b)
{
  return a->plan.chunks == b->plan.chunks && a->plan.degree[0] == b->plan.degree[0] &&
         a->plan.degree[1] == b->plan.degree[1];
}

/* ---- a checkpoint's state ---- */

#define AT(name) #name, offsetof(struct mt_plan, name)
static const struct {
  const char *name;
  size_t offset;
  int64_t low, high;
} member[] = {{AT(serial), 0, 1},
              {AT(chunks), 1, MT_MOST_CHUNKS},
              {"degree", offsetof(struct mt_plan, degree[0]), 1, MT_MOST_CHUNKS},
              {"degree_back", offsetof(struct mt_plan, degree[1]), 1, MT_MOST_CHUNKS},
              {AT(one_queue), 0, 1},
              {AT(one_wire), 0, 1},
              {AT(tiled), 0, 1},
              {AT(prefetch), 0, 1},
              {AT(delay), 0, 1},
              {AT(order), 0, MT_ORDER_CHUNK},
              {AT(gradient), 0, MT_GRADIENT_FREE},
              {AT(moe_window), 0, MT_WHOLE},
              {AT(dense_window), 0, MT_WHOLE},
              {AT(piece), 0, MT_WHOLE}};
#undef AT
enum { NMEMBER = sizeof member / sizeof *member };
_Static_assert(sizeof(struct mt_plan) == NMEMBER * sizeof(int), "every member of a plan is an int and is in the table");

mt_json *mt_course_json(const struct mt_course *course, int warm)
{
  mt_json *json = mt_json_object();
  mt_json_set(json, "policy", mt_json_string(mt_scheme_name(course->scheme)));
  mt_json_set(json, "beside", mt_json_boolean(course->beside));
  mt_json_set(json, "warm", mt_json_boolean(warm));
  for (int m = 0; m < NMEMBER; m++) {
    int value;
    memcpy(&value, (const char *)&course->plan + member[m].offset, sizeof value);
    mt_json_set(json, member[m].name, mt_json_integer(value));
  }
  return json;
}

int mt_course_from_json(const mt_json *json, struct mt_course *course, int *warm)
{
  struct mt_course read = {.scheme = mt_scheme_named(mt_json_as_string(mt_json_get(json, "policy"), "?")),
                           .beside = mt_json_as_boolean(mt_json_get(json, "beside"), 0)};
  int good = read.scheme != MT_NSCHEME;
  for (int m = 0; m < NMEMBER; m++) {
    int64_t found = mt_json_as_integer(mt_json_get(json, member[m].name), -1);
    good &= found >= member[m].low && found <= member[m].high;
    int value = (int)found;
    memcpy((char *)&read.plan + member[m].offset, &value, sizeof value);
  }
  if (!good || read.plan.degree[0] % read.plan.chunks || read.plan.degree[1] % read.plan.chunks)
    return 0;
  *course = read;
  *warm = mt_json_as_boolean(mt_json_get(json, "warm"), 0);
  return 1;
}
