/* What a step needs of memory; see forecast.h.
 *
 * The sums follow the allocations of model.c, moe.c, tree.c and exchange.c one by one, over the same table of parameters,
 * cuts and layouts; only bookkeeping (counts, tasks, requests) is estimated as a whole. tests/test_forecast.c holds it
 * against the counted memory of real steps. */
#include "train/forecast.h"
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "experts/shares.h"
#include "experts/sizes.h"
#include "model/model.h"
#include "train/batch.h"
#include "train/predict.h"

static int64_t grown(int64_t held, int64_t need)
{
  return need <= held ? held : need > held + held / 2 ? need : held + held / 2;
}

/* What a layer's rows take on this rank after a step, if every expert is picked equally often: rows that there is room for
 * in all chunks' buffers and in the largest's, and bytes of the exchange's staging. Shares and the exchange's plan are
 * functions of the counts, so they are made for each chunk of each micro-step; buffers grow by half, or to what is needed.
 * `part` of the picks count. */
static void rows_kept(const struct mt_config *config, const struct mt_layout *layout, struct mt_comm *comm,
                      const struct mt_batch *batch, double part, const struct mt_plan *cut, int64_t *rows, int64_t *shared,
                      int64_t *staging)
{
  const int P = comm->size, E = layout->nexpert, me = comm->rank, first = comm->node_first[comm->node];
  const int wire = config->parallel.wire == MT_WIRE_BF16 ? 2 : 4;
  const struct mt_cluster *cluster = comm->cluster;
  const struct mt_work work = mt_work_of(config->model.hidden_size, config->model.intermediate_size,
                                         config->model.family != MT_FAMILY_GPT2, wire, config->train.recompute,
                                         config->parallel.sharding);
  const double picks = part * (double)(config->data.seq_length * config->model.num_experts_per_tok);
  int64_t *counts = MT_NEW(MT_TAG_PLAN, int64_t, (int64_t)P * E);
  struct mt_shares *shares = mt_shares_new(cluster, E, layout->slot_first[P]);
  struct mt_exchange *exchange = mt_exchange_new(comm, (int)config->parallel.exchange);
  struct mt_exchange_plan *plan = mt_exchange_plan_new();
  const int several = comm->nnode > 1; /* else nothing is staged, and no pattern needed, which may be large */
  struct mt_pattern pattern = several ? mt_pattern_new(comm) : (struct mt_pattern){0};
  int64_t held[MT_MOST_CHUNKS] = {0};
  const int degree = cut->degree[0], of = degree / cut->chunks;
  *rows = *shared = 0;
  for (int64_t i = 0; i < batch->nmicro * degree; i++) {
    const int64_t m = i / degree, c = i % degree;
    for (int s = 0; s < P; s++) {
      int64_t from, sequences = mt_part_range(mt_part_count(&batch->share, s), batch->nmicro, m, &from);
      int64_t all = (int64_t)(picks * (double)mt_part_range(sequences, cut->chunks, c / of, &from) + 0.5);
      int64_t n = mt_part_range(all, of, c % of, &from);
      for (int e = 0; e < E; e++)
        counts[(int64_t)s * E + e] = mt_part_range(n, E, e, &from);
    }
    mt_shares_deal(shares, config->parallel.dispatch, cluster, &work, layout, counts);
    if (several) {
      memset(pattern.in, 0, sizeof(int64_t) * (size_t)P * (size_t)comm->node_size);
      memset(pattern.out, 0, sizeof(int64_t) * (size_t)P * (size_t)comm->node_size);
    }
    int64_t here = 0;
    for (int s = 0; s < P; s++)
      for (int i = shares->first[(int64_t)s * E]; i < shares->first[((int64_t)s + 1) * E]; i++) {
        int to = layout->slot_rank[shares->slot[i]], out = cluster->node_of[s] == comm->node;
        here += to == me ? shares->rows[i] : 0;
        if (several && out)
          pattern.out[(int64_t)(s - first) * P + to] += shares->rows[i];
        if (several && cluster->node_of[to] == comm->node)
          pattern.in[(int64_t)s * comm->node_size + (to - first)] += shares->rows[i];
      }
    held[c] = grown(held[c], here);
    *shared = grown(*shared, here);
    if (several) {
      mt_exchange_plan(exchange, plan, &pattern, config->model.hidden_size * wire);
      mt_exchange_reserve(exchange, plan);
    }
  }
  for (int c = 0; c < degree; c++)
    *rows += held[c];
  *staging = mt_exchange_staging(exchange);
  mt_pattern_free(&pattern);
  mt_exchange_plan_free(plan);
  mt_exchange_free(exchange);
  mt_shares_free(shares);
  mt_free(counts);
}

/* Staging of the tree: its plan is a function of layout and cut alone, so it is made. */
static double tree_staging(const struct mt_layout *layout, struct mt_comm *comm, const struct mt_cut *cut)
{
  struct mt_tree *tree = mt_tree_new(comm, NULL, cut, 1);
  mt_tree_plan(tree, 0, layout);
  double bytes = (double)mt_tree_staging_bytes(tree);
  mt_tree_free(tree);
  return bytes;
}

static void add_experts(const struct mt_config *config, struct mt_comm *comm, const struct mt_params *params,
                        const struct mt_layout *layout, const struct mt_batch *batch, struct mt_step_size step, double N,
                        double B, double bytes[MT_NTAG])
{
  const double E = (double)config->model.num_local_experts, K = (double)config->model.num_experts_per_tok;
  const double C = (double)config->model.hidden_size, F = (double)config->model.intermediate_size;
  const double wide = config->model.family != MT_FAMILY_GPT2 ? 2 * F : F, L = params->nmoe, P = comm->size;
  const double length = (double)params->expert_length, wire = config->parallel.wire == MT_WIRE_BF16 ? 2 : 4;
  struct mt_cut cut = mt_sizes_experts(config, params, comm, layout);
  const double mine = (double)cut.before[cut.npart] * (cut.npart == 1 ? E : 1) * L;
  const int nslot = layout->slot_first[comm->rank + 1] - layout->slot_first[comm->rank];
  int whole = nslot > 0 && mt_relayout_policy(config, comm->size, layout->slot_first[comm->size], 1) == MT_LAYOUT_STATIC;
  for (int s = layout->slot_first[comm->rank]; s < layout->slot_first[comm->rank + 1]; s++) {
    int e = layout->slot_expert[s];
    const int *first = layout->expert_first + e * layout->nnode;
    whole &= mt_part_count(&cut.part[e % cut.npart], comm->rank) == params->expert_length &&
             first[layout->nnode] - first[0] == 1;
  }
  bytes[MT_TAG_PARAM] += 4 * mine;
  bytes[MT_TAG_OPTIMIZER] += 12 * mine;
  bytes[MT_TAG_SLOT] += whole ? 0 : (8 + 4 * (step.overlaps ? 2 : 1)) * nslot * length;
  /* router and its copies, of each layer and shared */
  bytes[MT_TAG_ACTIVATION] += L * (4 * N * E + 4 * N + 12 * N * K + 4 * (B + 1) * E) + 4 * N * E + 4 * N * K +
                              (B + 1) * (4 * E + 16 * (E + 1));
  /* rows: fixed ones (K a token) and those that arrive */
  const double factor = config->moe.capacity_factor, R = N * K;
  int64_t received, shared, staging;
  rows_kept(config, layout, comm, batch, factor > 0 && factor < 1 ? factor : 1, &step.plan, &received, &shared, &staging);
  const double Q = (double)received;
  if (factor > 0) { /* the picks that count */
    bytes[MT_TAG_ACTIVATION] += L * (8 * (N + MT_MOST_CHUNKS) + 16 * R) + 12 * R;
    bytes[MT_TAG_PLAN] += 16 * P * E * step.plan.chunks;
  }
  bytes[MT_TAG_ROW] += L * (R * (4 + C * wire)) + R * (4 + 2 * C * wire);
  bytes[MT_TAG_ROW] += L * Q * (8 + 4 * C) + Q * C * wire;
  bytes[MT_TAG_ROW] += (config->train.recompute ? 0 : L) * Q * 4 * wide;
  bytes[MT_TAG_ROW] += (double)shared * (4 * C + (config->train.recompute ? 4 * wide : 0));
  bytes[MT_TAG_ROW] += (step.plan.tiled ? Q : (double)shared) * 4 * (F + wide);
  bytes[MT_TAG_COMM] += tree_staging(layout, comm, &cut);
  bytes[MT_TAG_COMM] += (double)staging;
  bytes[MT_TAG_PLAN] += L * (8 * P * E + 8 * R + 8 * Q) + 16 * P * comm->node_size + 8 * N;
  mt_cut_free(&cut);
}

static enum mt_status forecast(const struct mt_config *config, const struct mt_cluster *cluster, int rank,
                               struct mt_step_size step, int64_t result[MT_NTAG])
{
  /* A rank's view of the cluster, as if it were running. */
  struct mt_comm comm = {.rank = rank, .size = cluster->nplace, .node = cluster->node_of[rank], .nnode = cluster->nnode,
                         .node_first = cluster->node_first, .cluster = (struct mt_cluster *)(uintptr_t)cluster};
  comm.node_size = comm.node_first[comm.node + 1] - comm.node_first[comm.node];
  comm.node_rank = rank - comm.node_first[comm.node];
  struct mt_arch arch;
  struct mt_params params = {0};
  mt_family_build(config, &arch, &params);
  double bytes[MT_NTAG] = {0};
  struct mt_batch batch = mt_batch_cut(config, cluster, config->train.global_batch);
  const double C = (double)arch.C, T = (double)config->data.seq_length, B = (double)mt_batch_most(&batch, rank), N = B * T;
  const double HD = (double)(arch.H * arch.D), QKV = HD + 2.0 * (double)(arch.KV * arch.D), wide = (double)arch.F * (arch.gated ? 2 : 1);
  const double L = (double)arch.L, dense = L - params.nmoe;
  enum mt_status status = MT_OK;
  if (params.nmoe) {
    int slots[comm.size];
    status = mt_layout_slots(config->parallel.slots, (int)arch.E, comm.size, slots);
    if (status == MT_OK) {
      struct mt_layout *layout = mt_layout_new(cluster, (int)arch.E, slots);
      add_experts(config, &comm, &params, layout, &batch, step, N, B, bytes);
      mt_layout_free(layout);
    }
  }
  mt_part_free(&batch.share);
  if (status != MT_OK) {
    mt_params_free(&params);
    mt_free(arch.block);
    return status;
  }
  struct mt_cut cut = mt_sizes_shared(config, &params, &comm);
  const int blocks = mt_sizes_blocks(&params, &comm);
  bytes[MT_TAG_PARAM] += 8 * (double)params.shared_length + 4 * (double)cut.before[1] * blocks;
  bytes[MT_TAG_OPTIMIZER] += 12 * (double)cut.before[1] * blocks;
  struct mt_layout *everywhere = mt_layout_everywhere(cluster, blocks);
  bytes[MT_TAG_COMM] += tree_staging(everywhere, &comm, &cut);
  mt_layout_free(everywhere);
  mt_cut_free(&cut);
  const double kept = config->train.recompute ? 1 : L, kept_dense = config->train.recompute ? dense > 0 : dense;
  const double rows = (double)mt_model_head_rows(arch.V, (int64_t)N);
  bytes[MT_TAG_ACTIVATION] += 4 * N * (kept * (3 * C + 4 + QKV + HD + (double)arch.H) + kept_dense * wide); /* layers */
  bytes[MT_TAG_ACTIVATION] += 4 * N * ((L + 1) * C + 3 * C + QKV + HD + 2 + 9);                              /* stream, scratch */
  bytes[MT_TAG_ACTIVATION] += config->data.document != MT_DOCUMENT_NONE ? 8 * N : 0;
  bytes[MT_TAG_ACTIVATION] += dense > 0 ? 4 * N * ((double)arch.F + wide) : 0;
  bytes[MT_TAG_ACTIVATION] += 4 * rows * (double)arch.V + (arch.rope ? 4 * (double)(arch.Tmax * arch.D) : 0);
  struct mt_device *device; /* for its workspace alone */
  const struct mt_attention attention = {.B = (int64_t)B, .T = (int64_t)T, .H = arch.H, .KV = arch.KV, .D = arch.D, .causal = 1,
                                       .window = arch.window};
  if ((status = mt_device_open("cpu", cluster->place[rank].threads, &device)) == MT_OK) {
    bytes[MT_TAG_ACTIVATION] += (double)device->kernels->attention_work(device, &attention);
    device->ops->close(device);
  }
  bytes[MT_TAG_PLAN] += (double)step.task_bytes;
  for (int tag = 0; tag < MT_NTAG; tag++)
    result[tag] = (int64_t)bytes[tag];
  mt_params_free(&params);
  mt_free(arch.block);
  return status;
}

enum mt_status mt_forecast(const struct mt_config *config, const struct mt_cluster *cluster, int rank, int64_t bytes[MT_NTAG])
{
  return forecast(config, cluster, rank, mt_predict_step_size(config, cluster), bytes);
}

static int64_t total(const int64_t bytes[MT_NTAG])
{
  int64_t sum = 0;
  for (int tag = 0; tag < MT_NTAG; tag++)
    sum += bytes[tag];
  return sum;
}

/* Ranks alike in all that their memory mostly depends on. */
struct like {
  int node_size, slots, threads;
  int64_t B, size; /* size: weight of its shards */
};
enum { EXACT = 64, LIKE = 256 };

/* Ranks of a small cluster one by one; of a large one, one of each kind stands for the others, since a plan for each of
 * thousands takes minutes (they differ in staging alone: who is bridge or home of a little more). */
static enum mt_status forecast_rank(const struct mt_config *config, const struct mt_cluster *cluster, int r, const int *slots,
                                    const struct mt_batch *batch, const int64_t *sizes, struct mt_step_size step, struct like *like, int64_t (*known)[MT_NTAG], int *nlike,
                                    int64_t bytes[MT_NTAG])
{
  int q = cluster->node_of[r];
  struct like this;
  memset(&this, 0, sizeof this);
  this.node_size = cluster->node_first[q + 1] - cluster->node_first[q];
  this.slots = slots[r];
  this.threads = cluster->place[r].threads;
  this.B = mt_batch_most(batch, r);
  this.size = sizes[r];
  for (int i = 0; i < *nlike && cluster->nplace > EXACT; i++)
    if (!memcmp(&like[i], &this, sizeof this)) {
      memcpy(bytes, known[i], sizeof(int64_t) * MT_NTAG);
      return MT_OK;
    }
  MT_TRY(forecast(config, cluster, r, step, bytes));
  if (*nlike < LIKE) {
    like[*nlike] = this;
    memcpy(known[(*nlike)++], bytes, sizeof(int64_t) * MT_NTAG);
  }
  return MT_OK;
}

/* What all ranks of a cluster need. */
struct forecast {
  int64_t most[MT_NTAG], least[MT_NTAG]; /* of the ranks that need most and least */
  int rank_most, rank_least;
};

/* Fills it, and need[nnode] with the sums of the nodes. */
static enum mt_status forecast_all(const struct mt_config *config, const struct mt_cluster *cluster, struct forecast *all,
                                   int64_t *need)
{
  *all = (struct forecast){.rank_most = 0};
  memset(need, 0, sizeof *need * (size_t)cluster->nnode);
  struct like like[LIKE];
  int64_t known[LIKE][MT_NTAG];
  int nlike = 0, slots[cluster->nplace];
  memset(slots, 0, sizeof slots);
  if (config->model.num_local_experts > 0)
    MT_TRY(mt_layout_slots(config->parallel.slots, (int)config->model.num_local_experts, cluster->nplace, slots));
  struct mt_arch arch;
  struct mt_params params = {0};
  mt_family_build(config, &arch, &params);
  int64_t *sizes = MT_ZNEW(MT_TAG_PLAN, int64_t, cluster->nplace);
  mt_sizes(config, &params, cluster, sizes);
  mt_params_free(&params);
  mt_free(arch.block);
  struct mt_batch batch = mt_batch_cut(config, cluster, config->train.global_batch);
  const struct mt_step_size step = mt_predict_step_size(config, cluster);
  enum mt_status status = MT_OK;
  for (int r = 0; r < cluster->nplace && status == MT_OK; r++) {
    int64_t bytes[MT_NTAG];
    status = forecast_rank(config, cluster, r, slots, &batch, sizes, step, like, known, &nlike, bytes);
    need[cluster->node_of[r]] += total(bytes);
    if (!r || total(bytes) > total(all->most)) {
      memcpy(all->most, bytes, sizeof all->most);
      all->rank_most = r;
    }
    if (!r || total(bytes) < total(all->least)) {
      memcpy(all->least, bytes, sizeof all->least);
      all->rank_least = r;
    }
  }
  mt_part_free(&batch.share);
  mt_free(sizes);
  return status;
}

/* 0 = the cluster does not say */
static int64_t memory_of(const struct mt_cluster *cluster, int node)
{
  return cluster->place[cluster->node_first[node]].mem_bytes;
}

int mt_forecast_fits(const struct mt_config *config, const struct mt_cluster *cluster)
{
  struct forecast all;
  int64_t need[cluster->nnode];
  int fits = forecast_all(config, cluster, &all, need) == MT_OK;
  for (int q = 0; q < cluster->nnode && fits; q++)
    fits = memory_of(cluster, q) <= 0 || need[q] <= memory_of(cluster, q);
  return fits;
}

enum mt_status mt_forecast_print(const struct mt_config *config, const struct mt_cluster *cluster)
{
  int64_t need[cluster->nnode], most = 0; /* of nodes that do not say what they have */
  int unfit = 0, unknown = 0;
  struct forecast all;
  MT_TRY(mt_batch_check(config, cluster));
  MT_TRY(mt_sizes_check(config, cluster));
  struct mt_arch arch;
  struct mt_params params = {0};
  mt_family_build(config, &arch, &params);
  mt_info("%s on %d ranks, %d nodes: %.4g parameters (%.4g of them in the %lld experts of %d layers)",
          arch.gated ? "SwiGLU transformer" : "GELU transformer", cluster->nplace, cluster->nnode,
          (double)mt_params_total(&params), (double)params.expert_length * params.nmoe * params.nexpert, (long long)arch.E,
          params.nmoe);
  mt_params_free(&params);
  mt_free(arch.block);
  MT_TRY(forecast_all(config, cluster, &all, need));
  char *assumed = mt_work_assumed(cluster); /* shares and sizes of shards follow from it */
  if (assumed)
    mt_info("%s", assumed);
  mt_free(assumed);
  mt_info("memory in GB if routing is balanced  %14s %d %12s %d", "most: rank", all.rank_most, "least: rank", all.rank_least);
  for (int tag = 0; tag < MT_NTAG; tag++)
    if (all.most[tag] || all.least[tag])
      mt_info("  %-32s %18.3f %20.3f", mt_memory_tag_name((enum mt_tag)tag), (double)all.most[tag] / 1e9,
              (double)all.least[tag] / 1e9);
  mt_info("  %-32s %18.3f %20.3f", "in all", (double)total(all.most) / 1e9, (double)total(all.least) / 1e9);
  for (int q = 0; q < cluster->nnode; q++) {
    int n = cluster->node_first[q + 1] - cluster->node_first[q];
    int64_t memory = memory_of(cluster, q);
    unknown += memory <= 0;
    most = memory <= 0 && need[q] > most ? need[q] : most;
    if (memory <= 0)
      continue;
    int fits = need[q] <= memory;
    unfit += !fits;
    if (q < 8 || !fits)
      mt_info("node %d (%s): %d ranks need %.1f GB of %.1f GB: %s", q, cluster->place[cluster->node_first[q]].host, n,
              (double)need[q] / 1e9, (double)memory / 1e9, fits ? "fits" : "does not fit");
  }
  if (unknown)
    mt_info("memory of %d of %d nodes is not known, nor whether it is enough: the largest needs %.1f GB", unknown, cluster->nnode,
            (double)most / 1e9);
  if (!unfit)
    return MT_OK;
  mt_error("%d of %d nodes have too little memory; more ranks on more nodes, a smaller train.micro_batch, train.recompute or "
           "fewer parallel.slots need less", unfit, cluster->nnode);
  return MT_FAILED;
}
