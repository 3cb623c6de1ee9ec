/* `motley bench relayout`: static layouts under every sharding, LAER-MoE's, and motley's, on the same tokens.
 *
 * The idea: every contender is a model of its own, and they take turns step by step, each round beginning with another, so
 * that all see the same machine, batch and routing (moe.router = zipf makes one that is known and moves on; a step's number
 * says where it stands). A step is the whole one: forward, backward, update, planning and adopting layouts. Beside what was
 * measured stands what layout_cost.h predicts for the routing that the step really had, under the layouts that it really had.
 * Static layouts have a slot for each expert and none to spare: more would be copies beside the first.
 * The bound: what lies outside the experts as measured, the least median of all; the experts' rows over all speeds together;
 * and what must cross between nodes, evenly over their uplinks: of each expert, wherever it is at home, either another node's
 * rows or its weights, whichever is less. No layout under any sharding can do better. */
#include "train/bench_relayout.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/log.h"
#include "base/random.h"
#include "comm/measure.h"
#include "comm/way.h"
#include "experts/layout_cost.h"
#include "experts/policy.h"
#include "train/sharding.h"
#include "train/step.h"
#include "train/turns.h"

enum { MOST = 5, WARM_UP = 3 };

struct contender {
  char name[32];
  struct mt_config config; /* strings borrowed */
  struct mt_model *model;
  struct mt_step *step;
  struct mt_layout **before; /* [nmoe] in force in the step under way */
  double *step_s, *experts_s, *predicted_s, *rest_s, *load; /* [steps] */
};

/* The contenders' settings; returns how many. `sharding` is what config's comes to. */
static int line_up(const struct mt_config *config, enum mt_sharding sharding, const struct mt_comm *comm,
                   struct contender *c)
{
  int n = 0;
  for (int s = MT_SHARDING_FULL; s <= MT_SHARDING_OWNER; s++) {
    if (s == MT_SHARDING_NODE && comm->nnode == 1)
      continue; /* the same as full */
    c[n] = (struct contender){.config = *config};
    c[n].config.parallel.layout = MT_LAYOUT_STATIC;
    c[n].config.parallel.sharding = (enum mt_sharding)s;
    c[n].config.parallel.slots = (char *)"";
    snprintf(c[n].name, sizeof c[n].name, "static, %s", mt_sharding_name((enum mt_sharding)s));
    n++;
  }
  c[n] = (struct contender){.name = "laer, full, lite", .config = *config};
  c[n].config.parallel.layout = MT_LAYOUT_LAER;
  c[n].config.parallel.sharding = MT_SHARDING_FULL;
  c[n].config.parallel.dispatch = MT_DISPATCH_LITE;
  n++;
  c[n] = (struct contender){.config = *config};
  c[n].config.parallel.sharding = sharding;
  snprintf(c[n].name, sizeof c[n].name, "%s, %s", mt_policy_name(config->parallel.layout), mt_sharding_name(sharding));
  return n + 1;
}

static enum mt_status open_contender(struct mt_comm *comm, struct mt_device *device, struct contender *c)
{
  const int64_t steps = c->config.train.steps;
  MT_TRY(mt_model_new(comm, device, &c->config, mt_batch_max_B(&c->config, comm->cluster, comm->rank),
                      c->config.data.seq_length, 1, &c->model));
  mt_model_init(c->model, (uint64_t)c->config.train.seed);
  mt_model_publish(c->model);
  c->step = mt_step_new(comm, c->model, &c->config, mt_turns_tokens(&c->config));
  const struct mt_moe *moe = c->model->moe;
  c->before = MT_ZNEW(MT_TAG_MISC, struct mt_layout *, moe->nmoe);
  int slots[comm->size];
  for (int r = 0; r < comm->size; r++)
    slots[r] = moe->fixed->slot_first[r + 1] - moe->fixed->slot_first[r];
  for (int l = 0; l < moe->nmoe; l++)
    c->before[l] = mt_layout_new(comm->cluster, moe->E, slots);
  double **figures[] = {&c->step_s, &c->experts_s, &c->predicted_s, &c->rest_s, &c->load};
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
    *figures[i] = MT_ZNEW(MT_TAG_MISC, double, steps);
  return MT_OK;
}

static void close_contender(struct contender *c)
{
  if (c->step)
    for (int l = 0; l < c->model->moe->nmoe; l++)
      mt_layout_free(c->before[l]);
  mt_free(c->before);
  mt_free(c->step_s);
  mt_free(c->experts_s);
  mt_free(c->predicted_s);
  mt_free(c->rest_s);
  mt_free(c->load);
  mt_step_free(c->step);
  mt_model_free(c->model);
}

/* Picoseconds that what must cross between nodes takes at least. */
static double least_between_nodes(const struct mt_work *work, const struct mt_cluster *cluster, int E, const int64_t *counts)
{
  const int nnode = cluster->nnode;
  double bytes = 0;
  for (int e = 0; e < E; e++) {
    double all = 0, most = 0; /* of a home, and of the best one */
    for (int q = 0; q < nnode; q++) {
      int64_t rows = 0;
      for (int p = cluster->node_first[q]; p < cluster->node_first[q + 1]; p++)
        rows += counts[(int64_t)p * E + e];
      double less = fmin((double)(rows * work->row_bytes * work->row_trips), (double)(work->expert_bytes * work->expert_trips));
      all += less;
      most = fmax(most, less);
    }
    bytes += all - most;
  }
  return bytes / nnode * (double)mt_link_usual(cluster, MT_LEVEL_NET).beta_ps;
}

/* Seconds of the experts in a step whose micro-steps all were as the last one: as predicted, and the bound. */
static void predict(struct contender *c, double *predicted_s, double *least_s)
{
  const struct mt_moe *moe = c->model->moe;
  const struct mt_cluster *cluster = moe->comm->cluster;
  const int P = cluster->nplace;
  int64_t ps[P];
  double speed = 0, rows = 0, cost = 0, crossing = 0;
  mt_work_row_ps(&moe->work, cluster, ps);
  for (int p = 0; p < P; p++)
    speed += 1 / (double)ps[p];
  for (int l = 0; l < moe->nmoe; l++) {
    mt_shares_deal(moe->shares, moe->kind, cluster, &moe->work, c->before[l], moe->layer[l].counts);
    cost += (double)mt_layout_cost(cluster, &moe->work, c->before[l], moe->shares).total_ps;
    crossing += least_between_nodes(&moe->work, cluster, moe->E, moe->layer[l].counts);
    for (int i = 0; i < P * moe->E; i++)
      rows += (double)moe->layer[l].counts[i];
  }
  *predicted_s = 1e-12 * cost * (double)c->step->batch.nmicro;
  const double computing = rows / speed;
  *least_s = 1e-12 * (moe->work.hidden ? fmax(computing, crossing) : computing + crossing) * (double)c->step->batch.nmicro;
}

/* One step of one contender; at < 0: not counted. Returns the bound's part for the experts. */
static double run(struct contender *c, int64_t number, int64_t at)
{
  const struct mt_moe *moe = c->model->moe;
  for (int l = 0; l < moe->nmoe; l++) {
    const struct mt_layout *now = moe->layer[l].layout;
    memcpy(c->before[l]->slot_expert, now->slot_expert, sizeof(int) * (size_t)now->slot_first[now->nrank]);
    mt_layout_index(c->before[l], moe->comm->cluster, now->revision);
  }
  mt_barrier(moe->comm);
  const struct mt_step_result *result = mt_step_run(c->step, number, (number - 1) * c->config.train.global_batch);
  double least = 0, predicted = 0, load = 0;
  predict(c, &predicted, &least);
  for (int l = 0; l < moe->nmoe; l++)
    load += result->load[l] / moe->nmoe;
  if (at < 0)
    return 0;
  c->step_s[at] = result->step_s;
  c->experts_s[at] = result->experts_s;
  c->rest_s[at] = result->step_s - result->experts_s;
  c->predicted_s[at] = predicted;
  c->load[at] = load;
  return least;
}

static void report(struct mt_comm *comm, struct contender *c, int n, int steps, double least)
{
  struct mt_spread step[MOST], experts[MOST], predicted[MOST], load[MOST];
  double rest = INFINITY, best = INFINITY;
  for (int i = 0; i < n; i++) {
    step[i] = mt_spread_of(c[i].step_s, steps);
    experts[i] = mt_spread_of(c[i].experts_s, steps);
    predicted[i] = mt_spread_of(c[i].predicted_s, steps);
    load[i] = mt_spread_of(c[i].load, steps);
    rest = fmin(rest, mt_spread_of(c[i].rest_s, steps).median);
    if (c[i].config.parallel.layout == MT_LAYOUT_STATIC)
      best = fmin(best, step[i].median);
  }
  const double bound = rest + least / steps;
  mt_info("%d steps of each in turns, on %d ranks, %d nodes; batch shares: %lld to %lld sequences; seconds", steps, comm->size,
          comm->nnode, (long long)mt_part_count(&c[0].step->batch.share, 0), (long long)c[0].step->batch.share.first[comm->size]);
  mt_info("%-18s %8s %21s %9s %9s %9s %10s", "layout", "median", "quartiles", "experts", "predicted", "max/mean", "x static");
  for (int i = 0; i < n; i++)
    mt_info("%-18s %8.4f %10.4f %10.4f %9.4f %9.4f %9.2f %10.2f", c[i].name, step[i].median, step[i].quarter,
            step[i].three_quarters, experts[i].median, predicted[i].median, load[i].median, best / step[i].median);
  mt_info("%-18s %8.4f %21s %9.4f %9s %9s %10.2f", "bound", bound, "", least / steps, "", "", best / bound);
  mt_info("of the bound's speed-up over the best static %.2f is reached, by %s", bound / step[n - 1].median, c[n - 1].name);
}

enum mt_status mt_bench_relayout(struct mt_comm *comm, const struct mt_config *config)
{
  if (!config->model.num_local_experts) {
    if (comm->rank == 0)
      mt_error("bench relayout: found a model without experts, expected model.num_local_experts > 0");
    return MT_USAGE;
  }
  struct mt_device *device = NULL;
  MT_TRY(mt_agree(comm, mt_device_open("cpu", comm->cluster->place[comm->rank].threads, &device)));
  if (config->parallel.measure != MT_MEASURE_OFF)
    mt_measure(comm, device);
  struct contender contender[MOST];
  enum mt_sharding sharding = MT_SHARDING_FULL;
  enum mt_status status = comm->rank == 0 ? mt_sharding_choose(config, comm->cluster, &sharding) : MT_OK;
  mt_bcast(comm, &sharding, sizeof sharding, 0);
  status = mt_agree(comm, status);
  const int n = line_up(config, sharding, comm, contender), steps = (int)config->train.steps;
  int open = 0;
  while (status == MT_OK && open < n)
    status = open_contender(comm, device, &contender[open++]);
  if (status == MT_OK) {
    double least = 0;
    for (int64_t t = -WARM_UP; t < steps; t++)
      for (int i = 0; i < n; i++) {
        const int which = (int)((t + WARM_UP + i) % n);
        double one = run(&contender[which], t + WARM_UP + 1, t);
        least += which == 0 ? one : 0;
      }
    report(comm, contender, n, steps, least);
  }
  for (int i = 0; i < open; i++)
    close_contender(&contender[i]);
  device->ops->close(device);
  return status;
}
