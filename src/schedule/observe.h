/* What tasks took, and the costs that follow: a running summary of spans, and lines through it.
 *
 * The problem: predictions from a rank's speed and a link's bytes know neither caches nor busy cores, so they are off by
 * factors; plans are chosen by comparing them. The idea: what steps took teaches, by kind of task, how much longer things
 * take than predicted, as a line over the prediction (extra + factor x predicted), which carries over to other
 * configurations. Of computing, the slowest rank counts; a transfer's duration holds the waiting for partners that come
 * late, and the rank that came last did not wait: so of transfers the quickest rank's is the transfer itself. What ranks
 * wait for each other by chance is then what steps take beyond that, and is dealt over all transfers. The trap: tasks that
 * run beside others are slowed by them; so what they take alone is taken from steps run one after the other, and the
 * slow-downs from steps run either way. */
#ifndef MT_OBSERVE_H
#define MT_OBSERVE_H
#include "schedule/cost.h"
#include "topology/cluster.h"

enum { MT_AMOUNTS = 4, MT_RECENT = 8 };

/* Values of the last steps. */
struct mt_recent {
  int64_t n;
  double value[MT_RECENT];
};

/* Tasks of a kind that do the same part of its work (to within a sixteenth); the same everywhere, as tasks are. */
struct mt_amount {
  int part; /* 0 = free */
  struct mt_recent ns; /* mean of a step's */
};

struct mt_observed { /* of one rank; [1]: lanes beside each other, [0]: one after the other */
  struct mt_amount amount[2][MT_NTASK_KIND][MT_AMOUNTS];
  struct mt_recent overlap_ns; /* time of a step in which it computed and communicated */
  struct mt_recent hand_ns;    /* mean time until a task began that was waited for */
};

/* Adds a step's spans. No allocation; O(tasks). Local. */
void mt_observe(struct mt_observed *observed, const struct mt_tasks *tasks, const struct mt_span *span, int beside);

/* What ranks agree on: the largest of each figure over ranks is taken (what should be the smallest is negated). */
struct mt_figures {
  double ns[2][MT_NTASK_KIND][MT_AMOUNTS]; /* medians; of kinds that communicate, negated; MT_UNSEEN = none */
  double overlap_ns, hand_ns;              /* medians; the overlap negated */
};
#define MT_UNSEEN (-1e300)
enum { MT_NFIGURES = sizeof(struct mt_figures) / sizeof(double) };
/* Pure. */
struct mt_figures mt_observe_figures(const struct mt_observed *observed);

/* What agreed figures teach: `parts` are those of `observed` (the figures there count not), `tasks` what one step runs,
 * `predicted` its costs if nothing had been learnt, *learnt what had been, and becomes what is now. step_s: what steps
 * took one after the other [0] and lanes beside each other [1], 0 = none did. Returns the error: root of the mean square of (measured - line) / measured, over
 * kinds and amounts. Local, deterministic: one rank's answer is for all. */
double mt_observe_learn(const struct mt_figures *figures, const struct mt_observed *parts, const struct mt_tasks *tasks,
                        const struct mt_costs *predicted, const double step_s[2], struct mt_learnt *learnt);
/* What a transfer waits for late ranks (learnt->late_ns[beside]), so that these tasks, run that way, come to step_s; 0 if they
 * come to more without. Local, deterministic. */
int64_t mt_observe_late(const struct mt_tasks *tasks, const struct mt_costs *predicted, const struct mt_learnt *learnt, int beside,
                        double step_s);
/* Predicted costs with what was learnt. alone: 1 = one rank, nobody to wait for. Pure. */
void mt_costs_learn(struct mt_costs *costs, const struct mt_learnt *learnt, int alone);

#endif
