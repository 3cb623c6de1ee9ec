/* `motley bench relayout`: static layouts under every sharding, LAER-MoE's, and motley's, on the same tokens.
 *
 * The idea: every contender is a model of its own, and they take turns step by step, each round beginning with another, so
 * that all see the same machine, batch and routing (moe.router = zipf makes one that is known and moves on; a step's number
 * says where it stands). A step is the whole one: forward, backward, update, planning and adopting layouts. Beside what was
 * measured stands what layout_cost.h predicts for the routing that the step really had, under the layouts that it really had.
 * (Predicted are tasks one after the other, at speeds that were measured while all ranks compute: what overlaps, or shares
 * cores with ranks that wait, takes less.)
 * Static layouts have a slot for each expert and none to spare: more would be copies beside the first.
 * The bound: what lies outside the experts as measured, the least median of all; the experts' rows over all speeds together;
 * and what must cross between nodes, evenly over their uplinks: of each expert, wherever it is at home, either another node's
 * rows or its weights, whichever is less. No layout under any sharding can do better. Where communication goes on beside
 * computing, what lies outside is what else is computed, and of the other two only the longer one counts. */
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
#include "train/predict.h"
#include "train/sharding.h"
#include "train/step.h"
#include "train/turns.h"

enum { MOST = 5, WARM_UP = 3 };
static const double SILENCE = 10; /* seconds between two lines of progress */

/* Of a step, in seconds but for LOAD. The parts are those of the MoE layers behind their gates: what the slowest rank
 * computed, and what rows and weights took where a rank waited least for the others; then the same as predicted. */
enum figure {
  STEP, EXPERTS, REST, LOAD,
  COMPUTE, ROWS, WEIGHTS,
  PREDICTED, PREDICTED_COMPUTE, PREDICTED_ROWS, PREDICTED_WEIGHTS,
  NFIGURE
};

struct contender {
  char name[32];
  struct mt_config config; /* strings borrowed */
  struct mt_model *model;
  struct mt_step *step;
  struct mt_layout **before; /* [nmoe] in force in the step under way */
  double *figure[NFIGURE];   /* [steps] */
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
  for (int f = 0; f < NFIGURE; f++)
    c->figure[f] = MT_ZNEW(MT_TAG_MISC, double, steps);
  return MT_OK;
}

static void close_contender(struct contender *c)
{
  if (c->step)
    for (int l = 0; l < c->model->moe->nmoe; l++)
      mt_layout_free(c->before[l]);
  mt_free(c->before);
  for (int f = 0; f < NFIGURE; f++)
    mt_free(c->figure[f]);
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

/* Seconds of the experts in a step whose micro-steps all were as the last one: as predicted, into x[NFIGURE]. Returns the
 * bound. */
static double predict(struct contender *c, double *x)
{
  const struct mt_moe *moe = c->model->moe;
  const struct mt_cluster *cluster = moe->comm->cluster;
  const int P = cluster->nplace;
  const double unit = 1e-12 * (double)c->step->batch.nmicro;
  int64_t ps[P];
  double speed = 0, rows = 0, crossing = 0;
  mt_work_row_ps(&moe->work, cluster, ps);
  for (int p = 0; p < P; p++)
    speed += 1 / (double)ps[p];
  for (int l = 0; l < moe->nmoe; l++) {
    const struct mt_work work = mt_work_of_layer(&moe->work, l, moe->nmoe);
    mt_shares_deal(moe->shares, moe->kind, cluster, &work, c->before[l], moe->layer[l].counts);
    const struct mt_layout_cost cost = mt_layout_cost(cluster, &work, c->before[l], moe->shares);
    x[PREDICTED] += unit * (double)cost.total_ps;
    x[PREDICTED_COMPUTE] += unit * (double)cost.compute_ps;
    x[PREDICTED_ROWS] += unit * (double)cost.exchange_ps;
    x[PREDICTED_WEIGHTS] += unit * (double)cost.weights_ps;
    crossing += least_between_nodes(&work, cluster, moe->E, moe->layer[l].counts);
    for (int i = 0; i < P * moe->E; i++)
      rows += (double)moe->layer[l].counts[i];
  }
  const double computing = rows / speed;
  return unit * (c->step->course.beside ? fmax(computing, crossing) : computing + crossing);
}

/* What of the step's tasks, as this rank timed them, belongs to the experts, and, where what travels may be hidden, what else
 * was computed; agreed. */
static void measure_parts(struct contender *c, double *x)
{
  const double *kind = c->step->times.kind_s;
  double compute = kind[MT_TASK_EXPERTS] + kind[MT_TASK_EXPERTS_BACK];
  double weights = kind[MT_TASK_UNSHARD_INTER] + kind[MT_TASK_UNSHARD_INTRA] + kind[MT_TASK_RESHARD_INTER] +
                   kind[MT_TASK_RESHARD_INTRA];
  double copies = kind[MT_TASK_PACK] + kind[MT_TASK_MERGE] + kind[MT_TASK_PACK_BACK] + kind[MT_TASK_MERGE_BACK];
  double rows = copies + kind[MT_TASK_DISPATCH] + kind[MT_TASK_COMBINE] + kind[MT_TASK_COMBINE_BACK] +
                kind[MT_TASK_DISPATCH_BACK];
  double other = c->step->times.lane_s[MT_LANE_COMPUTE] - compute - copies;
  double most[4] = {compute, -rows, -weights, other};
  mt_max(c->model->comm, most, 4);
  x[COMPUTE] = most[0];
  x[ROWS] = -most[1];
  x[WEIGHTS] = -most[2];
  if (c->step->course.beside)
    x[REST] = most[3];
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
  if (at < 0)
    return 0;
  double x[NFIGURE] = {[STEP] = result->step_s, [EXPERTS] = result->experts_s, [REST] = result->step_s - result->experts_s};
  for (int l = 0; l < moe->nmoe; l++)
    x[LOAD] += result->load[l] / moe->nmoe;
  measure_parts(c, x);
  const double least = predict(c, x);
  for (int f = 0; f < NFIGURE; f++)
    c->figure[f][at] = x[f];
  return least;
}

static void report(struct mt_comm *comm, struct contender *c, int n, int steps, double least)
{
  struct mt_spread s[MOST][NFIGURE];
  double rest = INFINITY, best = INFINITY;
  for (int i = 0; i < n; i++) {
    for (int f = 0; f < NFIGURE; f++)
      s[i][f] = mt_spread_of(c[i].figure[f], steps);
    rest = fmin(rest, s[i][REST].median);
    if (c[i].config.parallel.layout == MT_LAYOUT_STATIC)
      best = fmin(best, s[i][STEP].median);
  }
  const double bound = rest + least / steps;
  int64_t fewest = INT64_MAX, most = 0;
  for (int r = 0; r < comm->size; r++) {
    const int64_t share = mt_part_count(&c[0].step->batch.share, r);
    fewest = share < fewest ? share : fewest;
    most = share > most ? share : most;
  }
  mt_info("%d steps of each in turns, on %d ranks, %d nodes; batch shares: %lld to %lld sequences; seconds", steps, comm->size,
          comm->nnode, (long long)fewest, (long long)most);
  mt_info("%-18s %8s %21s %9s %9s %9s %10s", "layout", "median", "quartiles", "experts", "predicted", "max/mean", "x static");
  for (int i = 0; i < n; i++)
    mt_info("%-18s %8.4f %10.4f %10.4f %9.4f %9.4f %9.2f %10.2f", c[i].name, s[i][STEP].median, s[i][STEP].quarter,
            s[i][STEP].three_quarters, s[i][EXPERTS].median, s[i][PREDICTED].median, s[i][LOAD].median,
            best / s[i][STEP].median);
  mt_info("%-18s %8.4f %21s %9.4f %9s %9s %10.2f", "bound", bound, "", least / steps, "", "", best / bound);
  mt_info("of the experts: computing of the slowest rank, rows and weights of the rank that waited least; medians");
  mt_info("%-18s %19s %19s %19s", "parts", "computing", "rows", "weights");
  mt_info("%-18s %9s %9s %9s %9s %9s %9s", "", "predicted", "measured", "predicted", "measured", "predicted", "measured");
  for (int i = 0; i < n; i++)
    mt_info("%-18s %9.4f %9.4f %9.4f %9.4f %9.4f %9.4f", c[i].name, s[i][PREDICTED_COMPUTE].median, s[i][COMPUTE].median,
            s[i][PREDICTED_ROWS].median, s[i][ROWS].median, s[i][PREDICTED_WEIGHTS].median, s[i][WEIGHTS].median);
  mt_info("%s runs at %.2f of the best static's speed and at %.2f of the bound's", c[n - 1].name, best / s[n - 1][STEP].median,
          bound / s[n - 1][STEP].median);
}

/* All steps of all contenders. Returns the sum of the bound's parts for the experts. */
static double run_all(struct contender *c, int n, int steps)
{
  const double start = mt_time();
  double least = 0, said = start;
  for (int64_t t = -WARM_UP; t < steps; t++) {
    for (int i = 0; i < n; i++) {
      const int which = (int)((t + WARM_UP + i) % n);
      const double one = run(&c[which], t + WARM_UP + 1, t);
      least += which == 0 ? one : 0;
    }
    const double now = mt_time(), done = (double)(t + WARM_UP + 1) / (WARM_UP + steps);
    if (now - said < SILENCE || t + 1 == steps)
      continue;
    said = now;
    mt_info("step %lld of %d of all %d, %.0f s; about %.0f s left", (long long)t + 1, steps, n, now - start,
            (now - start) * (1 / done - 1));
  }
  return least;
}

enum mt_status mt_bench_relayout(struct mt_comm *comm, const struct mt_config *config)
{
  if (!config->model.num_local_experts) {
    if (comm->rank == 0)
      mt_error("bench relayout: found a model without experts, expected model.num_local_experts > 0");
    return MT_USAGE;
  }
  struct mt_device *device = NULL;
  if (mt_predict_overlaps(config, comm->cluster))
    mt_comm_beside(comm);
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
  if (status == MT_OK)
    report(comm, contender, n, steps, run_all(contender, n, steps));
  for (int i = 0; i < open; i++)
    close_contender(&contender[i]);
  device->ops->close(device);
  return status;
}
