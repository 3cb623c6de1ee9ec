/* What a training step would take: its shape and costs from a configuration and a description of a cluster, and `motley
 * simulate`, which replays it under every published schedule. No MPI; clusters may be made up, of thousands of devices.
 *
 * The costs count what dominates: matrix products at the ranks' measured speed (the slowest counts), bytes over the
 * busiest uplink and within nodes, latencies of messages, and copies at memory's speed. Routing is taken as balanced. What
 * steps were measured to take beside that (cluster->learnt, schedule/observe.h) is put upon it. */
#ifndef MT_PREDICT_H
#define MT_PREDICT_H
#include "base/config.h"
#include "schedule/scheme.h"
#include "topology/cluster.h"

/* layer: [num_hidden_layers], becomes shape's; must outlive it. Pure; MT_USAGE, said once, if parallel.slots does not
 * fit. */
enum mt_status mt_predict(const struct mt_config *config, const struct mt_cluster *cluster, struct mt_shape_layer *layer,
                          struct mt_shape *shape, struct mt_costs *costs);
/* The plan that a training step runs, from schedule.policy, at this degree (0 = what costs least); *scheme: whose it is;
 * *costs: what it was chosen by. Alone, a rank computes one thing after the other. Pure. */
struct mt_plan mt_predict_plan(const struct mt_config *config, const struct mt_cluster *cluster, int degree,
                               enum mt_scheme *scheme, struct mt_costs *costs);
/* One thing after the other, in one chunk. */
extern const struct mt_plan mt_plan_sequential;
/* 1 if a run begins with that one, to learn costs from it before others are chosen by them: schedule.policy = auto without a
 * degree, several ranks, experts, and nothing learnt yet. Pure. */
int mt_predict_learns_first(const struct mt_config *config, const struct mt_cluster *cluster);
/* Costs as if nothing had been learnt. Pure. */
struct mt_costs mt_predict_costs(const struct mt_config *config, const struct mt_cluster *cluster);
/* What a plan has to do with memory. */
struct mt_step_size {
  int64_t task_bytes; /* of the tasks of a step and of an evaluation */
  struct mt_plan plan; /* that a run begins with */
  int overlaps;       /* see mt_predict_overlaps */
};
struct mt_step_size mt_predict_step_size(const struct mt_config *config, const struct mt_cluster *cluster);
/* 1 if schedule.policy and the model (without experts one thing runs after the other) may let gradients of one layer travel
 * while those of another are computed: memory for both is had from the start. Pure. */
int mt_predict_overlaps(const struct mt_config *config, const struct mt_cluster *cluster);
/* Prints the table of schedules; trace (NULL = none): the file that gets the lanes of the sequential and of the best
 * one. Local. */
enum mt_status mt_predict_print(const struct mt_config *config, const struct mt_cluster *cluster, const char *trace);

#endif
