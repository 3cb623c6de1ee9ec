/* Published schedules as plans; see scheme.h. */
#include "schedule/scheme.h"
#include <stddef.h>
#include <string.h>

const char *mt_scheme_name(enum mt_scheme scheme)
{
  static const char *const names[MT_NSCHEME] = {[MT_SCHEME_AUTO] = "auto",
                                                [MT_SCHEME_SEQUENTIAL] = "sequential",
                                                [MT_SCHEME_TUTEL] = "tutel",
                                                [MT_SCHEME_PIPEMOE] = "pipemoe",
                                                [MT_SCHEME_TUTEL_GAR] = "tutel-gar",
                                                [MT_SCHEME_LINA] = "lina",
                                                [MT_SCHEME_COCONET] = "coconet",
                                                [MT_SCHEME_FSMOE_ONE] = "fsmoe-one",
                                                [MT_SCHEME_FSMOE] = "fsmoe",
                                                [MT_SCHEME_MAST] = "mast",
                                                [MT_SCHEME_LAER] = "laer"};
  return (unsigned)scheme < MT_NSCHEME ? names[scheme] : "unknown";
}

enum mt_scheme mt_scheme_named(const char *name)
{
  enum mt_scheme scheme = MT_SCHEME_AUTO;
  while (scheme < MT_NSCHEME && strcmp(name, mt_scheme_name(scheme)))
    scheme++;
  return scheme;
}

int mt_scheme_moe_only(enum mt_scheme scheme)
{
  return scheme != MT_SCHEME_MAST && scheme != MT_SCHEME_AUTO;
}

struct mt_simulation mt_plan_simulate(const struct mt_shape *shape, const struct mt_plan *plan,
                                      const struct mt_costs *costs)
{
  struct mt_tasks tasks = mt_plan_costed(shape, plan, costs);
  struct mt_simulation result = mt_simulate(&tasks, costs, NULL);
  mt_tasks_free(&tasks);
  return result;
}

/* ---- what is left open ---- */

/* Shared gradients of an MoE layer and of the dense ones up to the next, on average; parts of MT_WHOLE. */
static int layer_gradient(const struct mt_shape *shape)
{
  int64_t sum = 0;
  int moe = 0;
  for (int l = 0; shape->layer && l < shape->nlayer; l++) {
    sum += shape->layer[l].gradient;
    moe += !shape->layer[l].dense;
  }
  return (int)(moe ? sum / moe : sum);
}

/* A few layers and micro-steps decide what many would. */
static struct mt_shape excerpt(const struct mt_shape *shape, int layers, int micro)
{
  struct mt_shape few = *shape;
  few.nlayer = few.nlayer < layers ? few.nlayer : layers;
  few.nmicro = few.nmicro < micro ? few.nmicro : micro;
  few.whole = shape->whole && micro > 1;
  return few;
}

static int64_t time_of(const struct mt_shape *shape, const struct mt_plan *plan, const struct mt_costs *costs)
{
  return mt_plan_simulate(shape, plan, costs).total_ns;
}

static int64_t part_cost(const struct mt_costs *costs, enum mt_task_kind kind, int degree)
{
  return mt_task_cost(costs, &(struct mt_task){.kind = kind, .part = MT_WHOLE / degree});
}

/* Shared gradients that travel in so many nanoseconds, parts of MT_WHOLE. */
static int fits(const struct mt_costs *costs, int64_t ns)
{
  const struct mt_cost *cost = &costs->kind[MT_TASK_REDUCE];
  double part = cost->rest_ns ? (double)(ns - cost->alpha_ns) / (double)cost->rest_ns * MT_WHOLE : 0;
  return part <= 0 ? 0 : part >= MT_WHOLE ? MT_WHOLE : (int)part;
}

/* Time in which attention's backward pass leaves the wire between nodes alone. */
static int64_t dense_gap(const struct mt_shape *shape, const struct mt_costs *costs)
{
  int64_t gap = part_cost(costs, MT_TASK_ATTENTION_BACK, 1) + part_cost(costs, MT_TASK_GATE_BACK, 1);
  if (shape->grouped)
    gap += part_cost(costs, MT_TASK_HEADS_GATHER, 1) + part_cost(costs, MT_TASK_HEADS_SCATTER, 1);
  return gap;
}

/* Time in which an MoE layer's backward pass leaves the inter-node queue alone: FSMoE, section 4.2, as one maximum of
 * four cases less the exchanges. */
static int64_t moe_gap(const struct mt_shape *shape, const struct mt_plan *plan, const struct mt_costs *costs)
{
  const int r = plan->degree[1];
  int64_t exchange = part_cost(costs, MT_TASK_COMBINE_BACK, r), experts = part_cost(costs, MT_TASK_EXPERTS_BACK, r),
          side = 0;
  if (shape->grouped)
    side = part_cost(costs, MT_TASK_ROWS_GATHER, r) + part_cost(costs, MT_TASK_ROWS_SCATTER, r);
  if (plan->one_queue) {
    exchange += side / 2;
    side = 0;
  }
  int64_t longest = 2 * r * exchange, by_experts = 2 * exchange + side + r * experts, by_side = 2 * exchange + r * side;
  longest = longest > by_experts ? longest : by_experts;
  longest = longest > by_side ? longest : by_side;
  if (2 * r * exchange + side > longest)
    longest = 2 * r * exchange + side;
  return longest - 2 * r * exchange;
}

/* Chunks of the MoE part, for each pass its own (run: one for both). `gaps`: gradients go into the gaps that each degree
 * leaves. */
static void best_degrees(struct mt_plan *plan, int gaps, const struct mt_shape *shape, const struct mt_costs *costs)
{
  struct mt_shape few = excerpt(shape, gaps ? 2 : 1, 1);
  for (int pass = shape->run ? shape->backward : 0; pass <= shape->backward; pass++) {
    struct mt_plan best = *plan;
    int64_t least = INT64_MAX;
    few.backward = pass;
    for (int degree = 1; degree <= MT_MOST_CHUNKS; degree++) {
      struct mt_plan other = *plan;
      other.degree[pass] = degree;
      if (shape->run)
        other.degree[0] = other.degree[1] = degree;
      if (pass && gaps)
        other.moe_window = fits(costs, moe_gap(shape, &other, costs));
      int64_t time = time_of(&few, &other, costs);
      if (time < least) {
        least = time;
        best = other;
      }
    }
    *plan = best;
  }
}

/* FSMoE. Gradients go into the gaps that computing leaves (its first step); what does not fit may be pushed into MoE
 * layers all the same, rather than travel alone at the end (its second; layers are alike, so one amount for all of them
 * is searched). Leaving MoE layers alone is a candidate too: where links are shared, a gap is not free. */
static struct mt_plan plan_fsmoe(int one_queue, int degree, const struct mt_shape *shape, const struct mt_costs *costs)
{
  struct mt_shape few = excerpt(shape, 4, 1);
  struct mt_plan best = {0};
  int64_t least = INT64_MAX;
  int d = degree ? degree : 1;
  for (int gaps = 0; gaps <= shape->backward; gaps++) {
    struct mt_plan plan = {.chunks = 1,
                           .degree = {d, d},
                           .one_queue = one_queue,
                           .one_wire = shape->run,
                           .gradient = MT_GRADIENT_WINDOW,
                           .dense_window = fits(costs, dense_gap(shape, costs))};
    if (gaps)
      plan.moe_window = fits(costs, moe_gap(shape, &plan, costs));
    if (!degree)
      best_degrees(&plan, gaps, shape, costs);
    for (int quarters = 0; quarters <= (gaps ? 4 : 0); quarters++) {
      struct mt_plan other = plan;
      int64_t window = plan.moe_window + (int64_t)layer_gradient(shape) * quarters / 4;
      other.moe_window = window < MT_WHOLE ? (int)window : MT_WHOLE;
      int64_t time = time_of(&few, &other, costs);
      if (time < least) {
        least = time;
        best = other;
      }
    }
  }
  return best;
}

/* Mast, as we reconstruct it: chunks of whole sequences through attention, those cut further along tokens in the MoE
 * part, both passes alike; tasks in the order in which they become ready, by layer or by chunk; gradients in pieces
 * when nothing else waits. The schedule without a cut through attention stays a candidate. */
static struct mt_plan plan_mast(int degree, const struct mt_shape *shape, const struct mt_costs *costs)
{
  struct mt_shape few = excerpt(shape, 4, 1);
  struct mt_plan best = mt_scheme_plan(MT_SCHEME_PIPEMOE, degree, shape, costs);
  int64_t least = time_of(&few, &best, costs);
  for (int chunks = 1; chunks <= MT_MOST_CHUNKS && chunks <= shape->sequences; chunks *= 2) {
    if ((!shape->run && shape->sequences % chunks) || degree % chunks) /* what runs is cut unevenly anyway */
      continue;
    for (int d = degree ? degree : chunks; d <= (degree ? degree : MT_MOST_CHUNKS) && d <= 4 * chunks; d *= 2) {
      for (int i = 0; i < 4; i++) {
        struct mt_plan plan = {.chunks = chunks,
                               .degree = {d, d},
                               .one_wire = shape->run,
                               .order = i % 2 ? MT_ORDER_CHUNK : MT_ORDER_READY,
                               .gradient = MT_GRADIENT_FREE,
                               .piece = layer_gradient(shape) / (i / 2 ? 8 : 2)};
        int64_t time = time_of(&few, &plan, costs);
        if (time < least) {
          least = time;
          best = plan;
        }
      }
    }
  }
  return best;
}

/* Lina's pieces: 30 MB, parts of MT_WHOLE. */
static int lina_piece(const struct mt_shape *shape)
{
  return shape->gradient_bytes > 30000000 ? (int)(30e6 / (double)shape->gradient_bytes * MT_WHOLE) : MT_WHOLE;
}

struct mt_plan mt_scheme_plan(enum mt_scheme scheme, int degree, const struct mt_shape *shape,
                              const struct mt_costs *costs)
{
  int d = degree ? degree : 1;
  struct mt_plan plan = {.chunks = 1, .degree = {d, d}, .one_wire = shape->run};
  switch (scheme) {
  case MT_SCHEME_SEQUENTIAL:
    plan.serial = 1;
    return plan;
  case MT_SCHEME_TUTEL:
    plan.one_queue = 1;
    plan.degree[0] = plan.degree[1] = degree ? degree : 2;
    return plan;
  case MT_SCHEME_TUTEL_GAR:
    plan.gradient = MT_GRADIENT_WINDOW;
    plan.dense_window = fits(costs, dense_gap(shape, costs));
    break;
  case MT_SCHEME_LINA:
    plan.gradient = MT_GRADIENT_WINDOW;
    plan.piece = lina_piece(shape);
    plan.moe_window = plan.dense_window = MT_WHOLE;
    break;
  case MT_SCHEME_COCONET:
    plan.tiled = 1;
    break;
  case MT_SCHEME_FSMOE:
  case MT_SCHEME_FSMOE_ONE:
    return plan_fsmoe(scheme == MT_SCHEME_FSMOE_ONE, degree, shape, costs);
  case MT_SCHEME_MAST:
    return plan_mast(degree, shape, costs);
  case MT_SCHEME_LAER:
    plan.prefetch = plan.delay = 1;
    plan.gradient = MT_GRADIENT_WINDOW;
    plan.moe_window = layer_gradient(shape);
    return plan;
  default:
    break;
  }
  plan.one_queue = 1;
  if (!degree)
    best_degrees(&plan, 0, shape, costs);
  return plan;
}

struct mt_plan mt_scheme_choose(enum mt_scheme scheme, int degree, const struct mt_shape *shape,
                                const struct mt_costs *costs, enum mt_scheme *chosen)
{
  struct mt_plan best = {0};
  int64_t least = INT64_MAX;
  const struct mt_shape few = shape->run ? excerpt(shape, 8, 2) : *shape;
  for (enum mt_scheme p = MT_SCHEME_SEQUENTIAL; p < MT_NSCHEME; p++) {
    if (scheme != MT_SCHEME_AUTO && p != scheme)
      continue;
    struct mt_plan plan = mt_scheme_plan(p, degree, shape, costs);
    for (int ahead = 0; ahead <= (scheme == MT_SCHEME_AUTO && shape->sharded && !plan.serial); ahead++) {
      plan.prefetch |= ahead;
      plan.delay |= ahead;
      int64_t time = scheme == MT_SCHEME_AUTO ? time_of(&few, &plan, costs) : 0;
      if (shape->run && !plan.serial)
        time += time / 50; /* threads are not free, and predictions not exact */
      if (time < least) {
        least = time;
        best = plan;
        if (chosen)
          *chosen = p;
      }
    }
  }
  return best;
}
