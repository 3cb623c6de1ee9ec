/* Layout policies side by side; see layouts.h. */
#include "train/layouts.h"
#include <stdio.h>
#include <string.h>
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "experts/layout_cost.h"
#include "experts/policy.h"
#include "experts/replay.h"
#include "experts/shares.h"
#include "train/turns.h"

enum { MOST_LAYERS = 4 }; /* of made-up loads: more tell nothing new */

struct planning {
  const struct mt_config *config;
  const struct mt_cluster *cluster;
  struct mt_work work;
  struct mt_replay replay;
  int E, S, window;
  int nmoe; /* layers that there are; of made-up loads the first ones are planned */
  int *slots;     /* [P] */
  int64_t *sum;   /* [P, E] of the window */
  double *sample; /* [nstep * nlayer] largest over mean, of the case at hand */
  struct mt_shares *shares;
  struct mt_policy *policy;
};

/* What a policy comes to; means over steps and layers but where it says otherwise. */
struct figures {
  double compute_ms, exchange_ms, weights_ms, total_ms;
  double imbalance, p95, worst;
  double row_bytes[MT_NLEVEL], weight_bytes[MT_NLEVEL];
  double planner_ms; /* processor time of a plan */
  int fewest, most;  /* replicas of an expert in the last layouts */
  int changed;       /* layouts that differed from the one before */
};

/* Mean, 95th percentile and largest of the n samples. */
static void summarise(struct planning *p, int n, struct figures *f)
{
  f->worst = mt_spread_of(p->sample, n).most; /* which sorts them */
  f->imbalance = 0;
  for (int i = 0; i < n; i++)
    f->imbalance += p->sample[i] / n;
  f->p95 = p->sample[(int)(0.95 * (n - 1) + 0.5)];
}

/* The window of the steps up to `step`, as in training. Returns how many micro-steps that makes. */
static int64_t sum_window(struct planning *p, int step, int layer)
{
  const int64_t *counts[MT_MOST_WINDOW];
  int n = 0;
  for (; n < p->window && step >= 0; step--)
    counts[n++] = mt_replay_at(&p->replay, step, layer);
  return mt_policy_window(p->sum, (int64_t)p->cluster->nplace * p->E, counts, NULL, n);
}

static void count_replicas(const struct planning *p, const struct mt_layout *layout, struct figures *f)
{
  for (int e = 0; e < p->E; e++) {
    const int n = layout->expert_first[(e + 1) * layout->nnode] - layout->expert_first[e * layout->nnode];
    f->fewest = n < f->fewest ? n : f->fewest;
    f->most = n > f->most ? n : f->most;
  }
}

static mt_json *layout_to_json(const struct mt_layout *layout, int layer)
{
  mt_json *object = mt_json_object(), *ranks = mt_json_array();
  mt_json_set(object, "layer", mt_json_integer(layer));
  for (int r = 0; r < layout->nrank; r++) {
    mt_json *experts = mt_json_array();
    for (int s = layout->slot_first[r]; s < layout->slot_first[r + 1]; s++)
      mt_json_push(experts, mt_json_integer(layout->slot_expert[s]));
    mt_json_push(ranks, experts);
  }
  mt_json_set(object, "ranks", ranks);
  return object;
}

/* Steps from which on figures count: the first ones have little to plan on. */
static int first_counted(const struct planning *p)
{
  const int warmup = (int)p->config->plan.warmup;
  return warmup < p->replay.nstep ? warmup : p->replay.nstep - 1;
}

/* Replays all loads under a policy. layers (NULL: not wanted) gets the last layouts. */
static struct figures replay(struct planning *p, enum mt_layout_policy kind, enum mt_dispatch_kind dispatch,
                             mt_json *layers)
{
  struct figures f = {.fewest = p->S, .most = 0};
  int n = 0, plans = 0;
  const int from = first_counted(p), all = (p->replay.nstep - from) * p->replay.nlayer;
  for (int l = 0; l < p->replay.nlayer; l++) {
    const struct mt_work work = mt_work_of_layer(&p->work, l, p->nmoe);
    struct mt_layout *now = mt_layout_new(p->cluster, p->E, p->slots),
                     *next = mt_layout_new(p->cluster, p->E, p->slots);
    for (int t = 0; t < p->replay.nstep; t++) {
      if (t > 0) {
        struct mt_policy_problem problem = {.cluster = p->cluster,
                                            .work = work,
                                            .dispatch = dispatch,
                                            .nstep = sum_window(p, t - 1, l),
                                            .counts = p->sum,
                                            .before = now};
        const double start = mt_processor_ms();
        mt_policy_plan(p->policy, kind, &problem, next);
        f.planner_ms += mt_processor_ms() - start;
        plans++;
        f.changed += next->revision != now->revision;
        struct mt_layout *swap = now;
        now = next;
        next = swap;
      }
      if (t < from)
        continue;
      mt_shares_deal(p->shares, dispatch, p->cluster, &work, now, mt_replay_at(&p->replay, t, l));
      const struct mt_layout_cost cost = mt_layout_cost(p->cluster, &work, now, p->shares);
      p->sample[n++] = 1e-6 * (double)cost.imbalance_ppm;
      f.compute_ms += 1e-9 * (double)cost.compute_ps / all;
      f.exchange_ms += 1e-9 * (double)cost.exchange_ps / all;
      f.weights_ms += 1e-9 * (double)cost.weights_ps / all;
      f.total_ms += 1e-9 * (double)cost.total_ps / all;
      for (int level = 0; level < MT_NLEVEL; level++) {
        f.row_bytes[level] += (double)cost.row_bytes[level] / all;
        f.weight_bytes[level] += (double)cost.weight_bytes[level] / all;
      }
    }
    count_replicas(p, now, &f);
    if (layers)
      mt_json_push(layers, layout_to_json(now, l));
    mt_layout_free(now);
    mt_layout_free(next);
  }
  f.planner_ms /= plans ? plans : 1;
  summarise(p, n, &f);
  return f;
}

static void print_header(struct planning *p, const char *loads)
{
  const struct mt_replay *r = &p->replay;
  mt_info(
      "%d ranks on %d nodes, %d experts, %d slots; %d steps of %d layers %s%s, the first %d not counted; window of %d",
      r->P, p->cluster->nnode, p->E, p->S, r->nstep, r->nlayer, loads ? "from " : "made up", loads ? loads : "",
      first_counted(p), p->window);
  char *assumed = mt_work_assumed(p->cluster);
  if (assumed)
    mt_info("%s", assumed);
  mt_free(assumed);
  mt_info("means of a layer's micro-step, forward and backward; max/mean: the slowest rank's time over that of an even "
          "finish");
  mt_info("%-8s %-7s %10s %10s %10s %10s  %7s %7s %7s  %8s  %9s %9s %9s  %9s", "policy", "dispatch", "total ms",
          "compute", "exchange", "weights", "max/mean", "p95", "worst", "replicas", "rows net", "rows node", "wts net",
          "planner");
  mt_info("%-8s %-7s %10s %10s %10s %10s  %7s %7s %7s  %8s  %9s %9s %9s  %9s", "", "", "", "ms", "ms", "ms", "", "", "",
          "", "MB", "MB", "MB", "ms");
  if (!r->device)
    return;
  struct figures f;
  int n = 0;
  for (int t = 0; t < r->nstep; t++)
    for (int l = 0; l < r->nlayer; l++) {
      int64_t sum = 0, most = 0;
      for (int d = 0; d < r->P; d++) {
        const int64_t rows = r->device[((int64_t)t * r->nlayer + l) * r->P + d];
        sum += rows;
        most = rows > most ? rows : most;
      }
      p->sample[n++] = sum ? (double)most * r->P / (double)sum : 1;
    }
  summarise(p, n, &f);
  mt_info("%-8s %-7s %10s %10s %10s %10s  %7.4f %7.4f %7.4f", "recorded", "", "", "", "", "", f.imbalance, f.p95,
          f.worst);
}

static void print_line(const char *name, const char *dispatch, const struct figures *f)
{
  char replicas[32];
  snprintf(replicas, sizeof replicas, "%d-%d", f->fewest, f->most);
  mt_info("%-8s %-7s %10.4g %10.4g %10.4g %10.4g  %7.4f %7.4f %7.4f  %8s  %9.4g %9.4g %9.4g  %9.3g", name, dispatch,
          f->total_ms, f->compute_ms, f->exchange_ms, f->weights_ms, f->imbalance, f->p95, f->worst, replicas,
          1e-6 * f->row_bytes[MT_LEVEL_NET], 1e-6 * f->row_bytes[MT_LEVEL_NODE], 1e-6 * f->weight_bytes[MT_LEVEL_NET],
          f->planner_ms);
}

static mt_json *figures_to_json(const char *name, const char *dispatch, const struct figures *f, mt_json *layers)
{
  static const char *const level[MT_NLEVEL] = {"self", "node", "net"};
  mt_json *object = mt_json_object(), *rows = mt_json_object(), *weights = mt_json_object();
  mt_json_set(object, "policy", mt_json_string(name));
  mt_json_set(object, "dispatch", mt_json_string(dispatch));
  mt_json_set(object, "total_ms", mt_json_real(f->total_ms));
  mt_json_set(object, "compute_ms", mt_json_real(f->compute_ms));
  mt_json_set(object, "exchange_ms", mt_json_real(f->exchange_ms));
  mt_json_set(object, "weights_ms", mt_json_real(f->weights_ms));
  mt_json_set(object, "max_over_mean", mt_json_real(f->imbalance));
  mt_json_set(object, "max_over_mean_p95", mt_json_real(f->p95));
  for (int l = 0; l < MT_NLEVEL; l++) {
    mt_json_set(rows, level[l], mt_json_real(f->row_bytes[l]));
    mt_json_set(weights, level[l], mt_json_real(f->weight_bytes[l]));
  }
  mt_json_set(object, "row_bytes", rows);
  mt_json_set(object, "weight_bytes", weights);
  mt_json_set(object, "planner_ms", mt_json_real(f->planner_ms));
  mt_json_set(object, "layers", layers);
  return object;
}

/* The loads, and what follows from the configuration. */
static enum mt_status set_up(struct planning *p, const char *loads)
{
  const struct mt_config *config = p->config;
  const int P = p->cluster->nplace;
  p->slots = MT_ZNEW(MT_TAG_PLAN, int, P);
  p->E = (int)config->model.num_local_experts;
  if (!p->E) {
    mt_error("model.num_local_experts: found 0, expected experts: a dense model has no layouts");
    return MT_USAGE;
  }
  MT_TRY(mt_layout_slots(config->parallel.slots, p->E, P, p->slots));
  int alike = 1;
  for (int r = 0; r < P; r++) {
    p->S += p->slots[r];
    alike &= p->slots[r] == p->slots[0];
  }
  p->work =
      mt_work_of(config->model.hidden_size, config->model.intermediate_size, config->model.family != MT_FAMILY_GPT2,
                 config->parallel.wire == MT_WIRE_BF16 ? 2 : 4, config->train.recompute, config->parallel.sharding);
  p->work.keep = config->plan.keep;
  p->work.hidden = config->plan.hidden;
  p->window = (int)config->parallel.relayout_window;
  if (loads) {
    MT_TRY(mt_replay_read(loads, p->cluster, p->E, alike ? p->slots[0] : 0, &p->replay));
    p->nmoe = p->replay.nlayer;
  } else {
    struct mt_forced *forced;
    MT_TRY(mt_forced_new(config, &forced));
    p->nmoe = (int)(config->model.num_hidden_layers / config->model.decoder_sparse_step);
    forced->skew = config->moe.router == MT_ROUTER_BALANCED ? 0 : forced->skew;
    mt_replay_make(forced, P, config->train.micro_batch * config->data.seq_length, (int)config->plan.steps,
                   p->nmoe < MOST_LAYERS ? p->nmoe : MOST_LAYERS, &p->replay);
    mt_forced_free(forced);
  }
  p->sum = MT_NEW(MT_TAG_PLAN, int64_t, (int64_t)P * p->E);
  p->sample = MT_NEW(MT_TAG_PLAN, double, (int64_t)p->replay.nstep * p->replay.nlayer);
  p->shares = mt_shares_new(p->cluster, p->E, p->S);
  p->policy = mt_policy_new(p->cluster, p->E, p->slots);
  return MT_OK;
}

static int wanted(const char *list, const char *name)
{
  return !strcmp(list, "all") || !strcmp(list, name);
}

enum mt_status mt_layouts_print(const struct mt_config *config, const struct mt_cluster *cluster, const char *loads,
                                int json)
{
  static const enum mt_layout_policy kinds[] = {MT_LAYOUT_STATIC, MT_LAYOUT_FLEXMOE, MT_LAYOUT_EPLB, MT_LAYOUT_LAER,
                                                MT_LAYOUT_MOTLEY};
  static const char *const dispatches[] = {"lite", "solved"};
  struct planning p = {.config = config, .cluster = cluster};
  enum mt_status status = set_up(&p, loads);
  mt_json *all = !status && json ? mt_json_array() : NULL;
  if (!status && !json)
    print_header(&p, loads);
  for (int k = 0; !status && k < (int)(sizeof kinds / sizeof *kinds); k++)
    for (int d = 0; d < 2; d++) {
      const char *name = mt_policy_name(kinds[k]);
      if (!wanted(config->plan.policy, name) || !wanted(config->plan.dispatch, dispatches[d]))
        continue;
      mt_json *layers = json ? mt_json_array() : NULL;
      const struct figures f = replay(&p, kinds[k], (enum mt_dispatch_kind)d, layers);
      if (json)
        mt_json_push(all, figures_to_json(name, dispatches[d], &f, layers));
      else
        print_line(name, dispatches[d], &f);
    }
  if (all) {
    char *text = mt_json_print(all, 1);
    mt_write(text, (long)strlen(text));
    mt_write("\n", 1);
    mt_free(text);
    mt_json_free(all);
  }
  mt_policy_free(p.policy);
  mt_shares_free(p.shares);
  mt_replay_free(&p.replay);
  mt_free(p.slots);
  mt_free(p.sum);
  mt_free(p.sample);
  return status;
}
