/* Schedules that others have published, as plans; and the choice among them by predicted time.
 *
 * What a policy leaves open (degrees, how much of the gradients goes where) is decided by simulating the possibilities:
 * where the papers solve an optimisation problem whose objective is a formula for the time, we evaluate the time
 * itself. */
#ifndef MT_SCHEME_H
#define MT_SCHEME_H
#include "schedule/plan.h"
#include "schedule/simulate.h"

enum mt_scheme {
  MT_SCHEME_AUTO,       /* the one below that costs least */
  MT_SCHEME_SEQUENTIAL, /* DeepSpeed-MoE: nothing overlaps */
  MT_SCHEME_TUTEL,      /* exchanges and experts of two chunks overlap */
  MT_SCHEME_PIPEMOE,    /* PipeMoE (INFOCOM 2023): as many chunks as cost least */
  MT_SCHEME_TUTEL_GAR,  /* FSMoE's "Tutel-Improved": that, and gradients travel under attention */
  MT_SCHEME_LINA,       /* Lina (ATC 2023): that, with gradients in pieces of 30 MB, under experts too */
  MT_SCHEME_COCONET,    /* CoCoNet (ASPLOS 2022): each product tiled with the exchange beside it */
  MT_SCHEME_FSMOE_ONE,  /* FSMoE-No-IIO: FSMoE with one queue for all communication */
  MT_SCHEME_FSMOE,      /* FSMoE (ASPLOS 2025): two queues, a degree for each pass, gradients in the gaps */
  MT_SCHEME_MAST,       /* Mast (ICDCS 2025), as we reconstruct it: attention cut too, tasks reordered */
  MT_SCHEME_LAER,       /* LAER-MoE (ASPLOS 2026): experts fetched ahead, their gradients sent later */
  MT_NSCHEME
};
const char *mt_scheme_name(enum mt_scheme scheme);
/* 1 if it cuts the MoE part alone, so that attention never overlaps with rows of its own micro-batch. Pure. */
int mt_scheme_moe_only(enum mt_scheme scheme);

/* The plan of a scheme (not auto) for a shape with these costs. degree > 0 fixes the chunks of both passes, 0 leaves
 * them to the scheme. Pure. */
struct mt_plan mt_scheme_plan(enum mt_scheme scheme, int degree, const struct mt_shape *shape,
                              const struct mt_costs *costs);
/* The same for auto too; *chosen: the scheme whose plan it is; may be NULL. Pure. */
struct mt_plan mt_scheme_choose(enum mt_scheme scheme, int degree, const struct mt_shape *shape,
                                const struct mt_costs *costs, enum mt_scheme *chosen);
/* By name; MT_NSCHEME if there is none. Pure. */
enum mt_scheme mt_scheme_named(const char *name);
/* What a plan comes to. Local. */
struct mt_simulation mt_plan_simulate(const struct mt_shape *shape, const struct mt_plan *plan,
                                      const struct mt_costs *costs);

#endif
