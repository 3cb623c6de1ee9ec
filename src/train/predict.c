/* Predicted steps; see predict.h. */
#include "train/predict.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/log.h"
#include "base/memory.h"
#include "comm/way.h"
#include "experts/layout.h"
#include "experts/sizes.h"
#include "model/model.h"
#include "schedule/observe.h"
#include "schedule/trace.h"
#include "train/pass.h"
#include "train/step.h"

/* Where a rank's speed was not measured: MFLOP/s of each of its threads. */
enum { USUAL_SPEED = 25000 };

const struct mt_plan mt_plan_sequential = {.serial = 1, .chunks = 1, .degree = {1, 1}, .one_wire = 1};

struct prediction {
  const struct mt_config *config;
  const struct mt_cluster *cluster;
  struct mt_arch arch;
  struct mt_params params;
  struct mt_layout *layout; /* owned; NULL for a dense model */
  struct mt_cut cut;        /* owned with the layout */
  struct mt_link link[MT_NLEVEL];
  struct mt_cost *kind;
  struct mt_batch batch;
  double B; /* most sequences of a rank's micro-step */
};

static double speed_of(const struct mt_place *place)
{
  return place->speed ? (double)place->speed : (double)USUAL_SPEED * place->threads;
}

/* Nanoseconds of work that each token of a micro-step causes, on the rank that takes longest. */
static double token_work(const struct prediction *p, double flops)
{
  double longest = 0;
  for (int r = 0; r < p->cluster->nplace; r++) {
    double tokens = (double)mt_batch_most(&p->batch, r) * (double)p->config->data.seq_length;
    longest = fmax(longest, tokens * flops * 1e3 / speed_of(&p->cluster->place[r]));
  }
  return longest;
}

static void set(struct prediction *p, enum mt_task_kind kind, double alpha_ns, double rest_ns)
{
  p->kind[kind] = (struct mt_cost){(int64_t)(alpha_ns + 0.5), (int64_t)(rest_ns + 0.5)};
}

/* A transfer: latencies of so many messages at once and the bytes behind them; nothing where there are no bytes. */
static void set_transfer(struct prediction *p, enum mt_task_kind kind, enum mt_level level, double messages,
                         double bytes)
{
  const struct mt_link *link = &p->link[level];
  double alpha = (double)link->alpha_ns + (double)link->gap_ns * fmax(messages - 1, 0);
  set(p, kind, bytes > 0 ? alpha : 0, 1e-3 * bytes * (double)link->beta_ps);
}

static int node_size(const struct mt_cluster *cluster, int q)
{
  return cluster->node_first[q + 1] - cluster->node_first[q];
}

static int slots_on(const struct mt_layout *layout, int e, int q)
{
  const int *first = layout->expert_first + e * layout->nnode;
  return q < 0 ? first[layout->nnode] - first[0] : first[q + 1] - first[q];
}

/* Rows: each rank sends `rows`, evenly over experts, to replicas in its own node if there are any. What the busiest
 * uplink and the busiest rank carry, and the slowest rank's experts. */
static void predict_rows(struct prediction *p, double rows, double row_flops)
{
  const struct mt_cluster *cluster = p->cluster;
  const struct mt_layout *layout = p->layout;
  const int E = layout->nexpert, P = cluster->nplace, nnode = cluster->nnode;
  double per_expert = rows / E, width = (double)p->arch.C * (p->config->parallel.wire == MT_WIRE_BF16 ? 2 : 4);
  double uplink = 0, within = 0, experts_ns = 0, most = 0;
  double *away = MT_ZNEW(MT_TAG_PLAN, double, E); /* rows of an expert from nodes without a replica */
  for (int e = 0; e < E; e++)
    for (int q = 0; q < nnode; q++)
      away[e] += slots_on(layout, e, q) ? 0 : per_expert * node_size(cluster, q);
  for (int q = 0; q < nnode; q++) {
    double out = 0, in = 0;
    for (int e = 0; e < E; e++) {
      int here = slots_on(layout, e, q);
      out += here ? 0 : per_expert * node_size(cluster, q);
      in += here ? away[e] * here / slots_on(layout, e, -1) : 0;
    }
    uplink = fmax(uplink, fmax(out, in));
  }
  for (int r = 0; r < P; r++) {
    double got = 0, local = 0;
    for (int s = layout->slot_first[r]; s < layout->slot_first[r + 1]; s++) {
      int e = layout->slot_expert[s], q = cluster->node_of[r], here = slots_on(layout, e, q);
      double from_node = per_expert * node_size(cluster, q) / here;
      got += from_node + away[e] / slots_on(layout, e, -1);
      local += from_node * (node_size(cluster, q) - 1) / node_size(cluster, q);
    }
    most = fmax(most, got);
    within = fmax(within, local);
    experts_ns = fmax(experts_ns, got * row_flops * 1e3 / speed_of(&cluster->place[r]));
  }
  mt_free(away);
  enum mt_task_kind ways[4] = {MT_TASK_DISPATCH, MT_TASK_COMBINE, MT_TASK_COMBINE_BACK, MT_TASK_DISPATCH_BACK};
  const struct mt_link *node = &p->link[MT_LEVEL_NODE];
  int largest = 1;
  for (int q = 0; q < nnode; q++)
    largest = node_size(cluster, q) > largest ? node_size(cluster, q) : largest;
  for (int i = 0; i < 4; i++) {
    if (nnode == 1) {
      set_transfer(p, ways[i], MT_LEVEL_NODE, P - 1, within * width);
      continue;
    }
    /* Directly, a message to every rank outside; over bridges fewer, and two more steps within the nodes. */
    set_transfer(p, ways[i], MT_LEVEL_NET, fmin(P - largest, rows), uplink * width);
    if (p->config->parallel.exchange == MT_EXCHANGE_PAIRWISE)
      continue;
    struct mt_cost direct = p->kind[ways[i]];
    set_transfer(p, ways[i], MT_LEVEL_NET, (nnode - 1.0) / largest, uplink * width);
    p->kind[ways[i]].alpha_ns += 2 * (node->alpha_ns + node->gap_ns * (largest - 1));
    p->kind[ways[i]].rest_ns += (int64_t)(2e-3 * uplink * width / (nnode - 1) * (double)node->beta_ps);
    if (p->config->parallel.exchange == MT_EXCHANGE_AUTO &&
        direct.alpha_ns + direct.rest_ns < p->kind[ways[i]].alpha_ns + p->kind[ways[i]].rest_ns)
      p->kind[ways[i]] = direct;
  }
  double copy = 1e-3 * (double)p->link[MT_LEVEL_SELF].beta_ps;
  set(p, MT_TASK_EXPERTS, 0, experts_ns + copy * most * width);
  set(p, MT_TASK_EXPERTS_BACK, 0, experts_ns * (p->config->train.recompute ? 3 : 2) + copy * most * width);
  enum mt_task_kind copies[4] = {MT_TASK_PACK, MT_TASK_MERGE, MT_TASK_PACK_BACK, MT_TASK_MERGE_BACK};
  for (int i = 0; i < 4; i++)
    set(p, copies[i], 0, copy * rows * width);
  /* Counts: all ranks' E numbers to all, along a tree. */
  int last = nnode > 1 ? MT_LEVEL_NET : MT_LEVEL_NODE;
  set(p, MT_TASK_COUNTS, P > 1 ? ceil(log2(P)) * (double)p->link[last].alpha_ns : 0,
      P > 1 ? 8e-3 * (double)P * E * (double)p->link[last].beta_ps : 0);
}

/* Weights: an expert comes once into each node that holds it, and goes to each rank there that does. */
static void predict_weights(struct prediction *p)
{
  const struct mt_cluster *cluster = p->cluster;
  const struct mt_layout *layout = p->layout;
  const double length = 4 * (double)p->params.expert_length;
  const int P = cluster->nplace;
  double net = 0, node = 0, messages = 0;
  double *out = MT_ZNEW(MT_TAG_PLAN, double, cluster->nnode);
  for (int q = 0; q < cluster->nnode; q++) {
    double in = 0, from = 0;
    for (int e = 0; e < layout->nexpert; e++) {
      if (!slots_on(layout, e, q))
        continue;
      const struct mt_part *part = &p->cut.part[e % p->cut.npart];
      double all = (double)part->first[P];
      for (int o = 0; o < cluster->nnode; o++) {
        double piece =
            (double)(part->first[cluster->node_first[o + 1]] - part->first[cluster->node_first[o]]) / all * length;
        in += o != q ? piece : 0;
        out[o] += o != q ? piece : 0;
        from +=
            o != q && piece > 0 ? (p->config->parallel.sharding == MT_SHARDING_OWNER ? 1 : node_size(cluster, o)) : 0;
      }
    }
    net = fmax(net, in);
    messages = fmax(messages, from / node_size(cluster, q));
  }
  for (int q = 0; q < cluster->nnode; q++)
    net = fmax(net, out[q]);
  mt_free(out);
  for (int r = 0; r < P; r++) {
    double in = 0;
    int q = cluster->node_of[r];
    for (int s = layout->slot_first[r]; s < layout->slot_first[r + 1]; s++) {
      const struct mt_part *part = &p->cut.part[layout->slot_expert[s] % p->cut.npart];
      double mine = (double)mt_part_count(part, r) / (double)part->first[P],
             copies = slots_on(layout, layout->slot_expert[s], q);
      double near = (double)(part->first[cluster->node_first[q + 1]] - part->first[cluster->node_first[q]]) /
                    (double)part->first[P];
      in += length * (near - mine + (1 - near) * (1 - 1 / copies));
    }
    node = fmax(node, in);
  }
  set_transfer(p, MT_TASK_UNSHARD_INTER, MT_LEVEL_NET, messages, net);
  set_transfer(p, MT_TASK_UNSHARD_INTRA, MT_LEVEL_NODE, P - 1 < 8 ? P - 1 : 8, node);
  p->kind[MT_TASK_RESHARD_INTER] = p->kind[MT_TASK_UNSHARD_INTER];
  p->kind[MT_TASK_RESHARD_INTRA] = p->kind[MT_TASK_UNSHARD_INTRA];
}

/* Shared parameters: one sum a node goes to the owners, new values come back the same way. */
static void predict_shared(struct prediction *p)
{
  const struct mt_cluster *cluster = p->cluster;
  const double length = 4 * (double)p->params.shared_length, P = cluster->nplace, nnode = cluster->nnode;
  double net = 0, largest = 1;
  for (int q = 0; q < cluster->nnode && nnode > 1; q++) {
    double here = node_size(cluster, q) / P;
    net = fmax(net, length * fmax(1 - here, here * (nnode - 1)));
  }
  for (int q = 0; q < cluster->nnode; q++)
    largest = fmax(largest, node_size(cluster, q));
  double node = length * (largest - 1) / largest;
  enum mt_task_kind both[2] = {MT_TASK_REDUCE, MT_TASK_PUBLISH};
  for (int i = 0; i < 2; i++) {
    set_transfer(p, both[i], MT_LEVEL_NODE, largest - 1, node);
    struct mt_cost inside = p->kind[both[i]];
    set_transfer(p, both[i], MT_LEVEL_NET, P - largest, net);
    p->kind[both[i]].alpha_ns += inside.alpha_ns;
    p->kind[both[i]].rest_ns += inside.rest_ns;
  }
  double mine =
      4 *
      ((double)p->params.shared_length + (double)p->params.nmoe * p->params.nexpert * (double)p->params.expert_length) /
      P;
  set(p, MT_TASK_NORM, 0, 1e-3 * mine * (double)p->link[MT_LEVEL_SELF].beta_ps);
  set(p, MT_TASK_UPDATE, 0, 1e-3 * 7 * mine * (double)p->link[MT_LEVEL_SELF].beta_ps); /* four read, three written */
  double hop = (double)p->link[nnode > 1 ? MT_LEVEL_NET : MT_LEVEL_NODE].alpha_ns;
  set(p, MT_TASK_STATISTICS, P > 1 ? 3 * ceil(log2(P)) * hop : 0, 0);
}

static void predict_compute(struct prediction *p)
{
  const struct mt_arch *a = &p->arch;
  const double C = (double)a->C, T = (double)p->config->data.seq_length, HD = (double)(a->H * a->D),
               KV = (double)(a->KV * a->D);
  double seen = a->window && (double)a->window < T ? (double)a->window : T / 2;
  double attention = 2 * C * (HD + 2 * KV) + 2 * HD * C + 4 * seen * HD,
         mlp = 2 * C * (double)a->F * (a->gated ? 3 : 2);
  double copy = 1e-3 * (double)p->link[MT_LEVEL_SELF].beta_ps * 4 * C * p->B * T;
  set(p, MT_TASK_BATCH, 0, 0);
  set(p, MT_TASK_EMBED, 0, copy);
  set(p, MT_TASK_EMBED_BACK, 0, copy);
  set(p, MT_TASK_ATTENTION, 0, token_work(p, attention) + 2 * copy);
  set(p, MT_TASK_ATTENTION_BACK, 0, 2 * token_work(p, attention) + 4 * copy);
  set(p, MT_TASK_MLP, 0, token_work(p, mlp));
  set(p, MT_TASK_MLP_BACK, 0, 2 * token_work(p, mlp));
  set(p, MT_TASK_GATE, 0, token_work(p, 2 * C * (double)a->E));
  set(p, MT_TASK_GATE_BACK, 0, 2 * token_work(p, 2 * C * (double)a->E));
  set(p, MT_TASK_HEAD, 0, token_work(p, 6 * C * (double)a->V));
  if (p->layout)
    predict_rows(p, p->B * T * (double)a->K, mlp);
}

enum mt_status mt_predict(const struct mt_config *config, const struct mt_cluster *cluster, struct mt_shape_layer *layer,
                          struct mt_shape *shape, struct mt_costs *costs)
{
  struct prediction p = {.config = config, .cluster = cluster, .kind = costs->kind};
  *costs = (struct mt_costs){0};
  MT_TRY(mt_batch_check(config, cluster));
  MT_TRY(mt_sizes_check(config, cluster));
  mt_family_build(config, &p.arch, &p.params);
  for (int level = 0; level < MT_NLEVEL; level++)
    p.link[level] = mt_link_usual(cluster, (enum mt_level)level);
  struct mt_comm comm = {.size = cluster->nplace,
                         .nnode = cluster->nnode,
                         .node_first = cluster->node_first,
                         .cluster = (struct mt_cluster *)(uintptr_t)cluster};
  p.batch = mt_batch_cut(config, cluster, config->train.global_batch);
  for (int r = 0; r < cluster->nplace; r++)
    p.B = fmax(p.B, (double)mt_batch_most(&p.batch, r));
  enum mt_status status = MT_OK;
  if (p.params.nmoe) {
    int *slots = MT_NEW(MT_TAG_PLAN, int, cluster->nplace);
    status = mt_layout_slots(config->parallel.slots, (int)p.arch.E, cluster->nplace, slots);
    if (!status) {
      p.layout = mt_layout_new(cluster, (int)p.arch.E, slots);
      p.cut = mt_sizes_experts(config, &p.params, &comm, p.layout);
    }
    mt_free(slots);
  }
  if (!status) {
    *shape = mt_pass_shape(config, cluster, &p.arch, &p.params, p.layout ? p.layout->slot_first[cluster->nplace] : 0, layer);
    shape->nmicro = (int)p.batch.nmicro;
    shape->sequences = (int)p.B;
    predict_compute(&p);
    if (p.layout)
      predict_weights(&p);
    predict_shared(&p);
    mt_costs_learn(costs, &cluster->learnt, cluster->nplace == 1);
  }
  if (p.layout)
    mt_cut_free(&p.cut);
  mt_layout_free(p.layout);
  mt_part_free(&p.batch.share);
  mt_params_free(&p.params);
  mt_free(p.arch.block);
  return status;
}

int mt_predict_overlaps(const struct mt_config *config, const struct mt_cluster *cluster)
{
  return cluster->nplace > 1 && config->model.num_local_experts > 0 &&
         mt_scheme_named(config->schedule.policy) != MT_SCHEME_SEQUENTIAL;
}

int mt_predict_learns_first(const struct mt_config *config, const struct mt_cluster *cluster)
{
  return mt_predict_overlaps(config, cluster) && !config->schedule.degree && !cluster->learnt.n &&
         mt_scheme_named(config->schedule.policy) == MT_SCHEME_AUTO;
}

/* The plan, the shape that it is for and costs. */
static struct mt_plan choose(const struct mt_config *config, const struct mt_cluster *cluster, int degree,
                             struct mt_shape_layer *layer, struct mt_shape *shape, struct mt_costs *costs,
                             enum mt_scheme *scheme)
{
  struct mt_plan plan = mt_plan_sequential;
  *scheme = MT_SCHEME_SEQUENTIAL;
  enum mt_status status = mt_predict(config, cluster, layer, shape, costs);
  shape->run = 1;
  if (!status && cluster->nplace > 1 && config->model.num_local_experts > 0)
    plan = mt_scheme_choose(mt_scheme_named(config->schedule.policy), degree, shape, costs, scheme);
  return plan;
}

struct mt_plan mt_predict_plan(const struct mt_config *config, const struct mt_cluster *cluster, int degree,
                               enum mt_scheme *scheme, struct mt_costs *costs)
{
  struct mt_shape shape = {0};
  struct mt_shape_layer *layer = MT_ZNEW(MT_TAG_PLAN, struct mt_shape_layer, config->model.num_hidden_layers);
  struct mt_plan plan = choose(config, cluster, degree, layer, &shape, costs, scheme);
  mt_free(layer);
  return plan;
}

struct mt_costs mt_predict_costs(const struct mt_config *config, const struct mt_cluster *cluster)
{
  struct mt_cluster ignorant = *cluster; /* arrays borrowed */
  struct mt_shape shape = {0};
  struct mt_costs costs;
  ignorant.learnt = (struct mt_learnt){0};
  struct mt_shape_layer *layer = MT_ZNEW(MT_TAG_PLAN, struct mt_shape_layer, config->model.num_hidden_layers);
  (void)mt_predict(config, &ignorant, layer, &shape, &costs); /* it has been when the run began */
  mt_free(layer);
  return costs;
}

struct mt_step_size mt_predict_step_size(const struct mt_config *config, const struct mt_cluster *cluster)
{
  struct mt_shape shape = {0};
  struct mt_costs costs;
  enum mt_scheme scheme;
  struct mt_shape_layer *layer = MT_ZNEW(MT_TAG_PLAN, struct mt_shape_layer, config->model.num_hidden_layers);
  struct mt_plan plan = choose(config, cluster, (int)config->schedule.degree, layer, &shape, &costs, &scheme);
  if (mt_predict_learns_first(config, cluster))
    plan = mt_plan_sequential; /* what it has allocated stays, chunks need less */
  int64_t micro = shape.nmicro, n[3]; /* of evaluation, of one micro-step, of two: all others are alike */
  for (int i = 0; i < 3; i++) {
    shape.nmicro = i ? i : 1;
    shape.backward = i > 0;
    struct mt_tasks tasks = mt_plan_tasks(&shape, &plan);
    n[i] = tasks.n;
    mt_tasks_free(&tasks);
  }
  mt_free(layer);
  const int64_t step = n[1] + (micro - 1) * (n[2] - n[1]);
  return (struct mt_step_size){.task_bytes = (n[0] + step) * (int64_t)sizeof(struct mt_task) +
                                             step * (int64_t)sizeof(struct mt_span),
                               .plan = plan,
                               .overlaps = mt_predict_overlaps(config, cluster)};
}

/* ---- motley simulate ---- */

static void print_line(const char *name, const struct mt_plan *plan, const struct mt_simulation *s,
                       double sequential_ns)
{
  char degree[32];
  double total = (double)s->total_ns;
  snprintf(degree, sizeof degree, "%d x %d,%d", plan->chunks, plan->degree[0] / plan->chunks,
           plan->degree[1] / plan->chunks);
  mt_info("%-11s %-9s %10.4g %8.3f %10.4g  %10.4g %10.4g %10.4g %10.4g  %3.0f %3.0f %3.0f %3.0f", name, degree,
          1e-9 * total, sequential_ns / total, 1e-9 * (double)mt_simulation_bound(s), 1e-9 * (double)s->lane_ns[0],
          1e-9 * (double)s->lane_ns[1], 1e-9 * (double)s->lane_ns[2], 1e-9 * (double)s->latency_ns,
          100 * (double)s->lane_ns[0] / total, 100 * (double)s->lane_ns[1] / total, 100 * (double)s->lane_ns[2] / total,
          100 * (double)s->exposed_ns / total);
}

static void trace_plan(struct mt_trace *trace, const char *name, const struct mt_shape *shape,
                       const struct mt_plan *plan, const struct mt_costs *costs)
{
  struct mt_tasks tasks = mt_plan_costed(shape, plan, costs);
  struct mt_span *span = MT_NEW(MT_TAG_PLAN, struct mt_span, tasks.n);
  mt_simulate(&tasks, costs, span);
  mt_trace_add(trace, name, &tasks, span);
  mt_free(span);
  mt_tasks_free(&tasks);
}

enum mt_status mt_predict_print(const struct mt_config *config, const struct mt_cluster *cluster, const char *path)
{
  struct mt_shape shape;
  struct mt_costs costs;
  struct mt_shape_layer *layer = MT_ZNEW(MT_TAG_PLAN, struct mt_shape_layer, config->model.num_hidden_layers);
  enum mt_status status = mt_predict(config, cluster, layer, &shape, &costs);
  if (status) {
    mt_free(layer);
    return status;
  }
  int measured = cluster->place[0].speed > 0, linked = cluster->link[MT_LEVEL_NET].beta_ps || cluster->nnode == 1;
  mt_info("a step on %d ranks, %d nodes: %d layers, %d micro-steps of at most %d sequences of %lld tokens a rank; "
          "routing balanced",
          cluster->nplace, cluster->nnode, shape.nlayer, shape.nmicro, shape.sequences,
          (long long)config->data.seq_length);
  if (!measured || !linked)
    mt_info("not measured, so assumed: %s%s%s", measured ? "" : "25 GFLOP/s a thread", measured || linked ? "" : ", ",
            linked ? "" : "links of 10 Gbit/s between nodes");
  if (cluster->learnt.n)
    mt_info("costs as training measured them: factors of %lld kinds of tasks", (long long)cluster->learnt.n);
  mt_info("%-11s %-9s %10s %8s %10s  %10s %10s %10s %10s  %s", "policy", "degrees", "step s", "speed-up", "bound s",
          "compute s", "intra s", "inter s", "latency s", "% of it: compute, intra, inter, exposed");
  struct mt_trace trace = {0};
  struct mt_plan plan;
  double sequential = 0;
  for (enum mt_scheme scheme = MT_SCHEME_SEQUENTIAL; scheme < MT_NSCHEME; scheme++) {
    if (scheme == MT_SCHEME_FSMOE_ONE) /* differs from fsmoe where there are groups only */
      continue;
    plan = mt_scheme_choose(scheme, 0, &shape, &costs, NULL);
    struct mt_simulation s = mt_plan_simulate(&shape, &plan, &costs);
    if (scheme == MT_SCHEME_SEQUENTIAL)
      sequential = (double)s.total_ns;
    if (scheme == MT_SCHEME_SEQUENTIAL && path)
      trace_plan(&trace, "sequential, predicted", &shape, &plan, &costs);
    print_line(mt_scheme_name(scheme), &plan, &s, sequential);
  }
  enum mt_scheme chosen = MT_SCHEME_SEQUENTIAL;
  plan = mt_scheme_choose(MT_SCHEME_AUTO, 0, &shape, &costs, &chosen);
  struct mt_simulation s = mt_plan_simulate(&shape, &plan, &costs);
  print_line("auto", &plan, &s, sequential);
  mt_info("auto is %s%s", mt_scheme_name(chosen),
          plan.prefetch && chosen != MT_SCHEME_LAER ? " with experts fetched ahead" : "");
  if (path) {
    trace_plan(&trace, "auto, predicted", &shape, &plan, &costs);
    status = mt_trace_write(&trace, path);
    mt_trace_free(&trace);
  }
  mt_free(layer);
  return status;
}
