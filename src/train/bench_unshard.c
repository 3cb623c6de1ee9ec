/* `motley bench unshard`: experts from shards to slots, and their gradients back, beside what the links allow.
 *
 * The bound of both is the longer of two times: of all nodes the most bytes that one sends or gets, over its uplink;
 * and of all ranks the most bytes that one sends or gets within its node, at the node's measured rate. What one way
 * sends the other way gets, so the larger of both counts stands for sending and getting. */
#include "train/bench_unshard.h"
#include <math.h>
#include <string.h>
#include "base/log.h"
#include "experts/moe.h"
#include "model/model.h"
#include "train/bench_exchange.h"
#include "train/sharding.h"
#include "train/turns.h"

enum { UNSHARD, RESHARD, NRUN };
static const char *const name[NRUN] = {"unshard", "reshard"};

static void run(void *self, int which)
{
  struct mt_moe *moe = self;
  moe->version++; /* else the slots are known to hold the layer already */
  if (which == UNSHARD) {
    mt_moe_unshard_inter(moe, 0);
    mt_moe_unshard_intra(moe, 0);
  } else {
    mt_moe_reshard_intra(moe, 0);
    mt_moe_reshard_inter(moe, 0);
  }
}

struct traffic {
  double messages[MT_NLEVEL], bytes[MT_NLEVEL]; /* of all ranks */
  double node, rank;                            /* most bytes that a node sends to others, a rank within its node */
};

/* What one run of each sends. */
static void count(struct mt_comm *comm, struct mt_moe *moe, int which, struct traffic *traffic)
{
  int64_t messages[MT_NLEVEL], bytes[MT_NLEVEL];
  memcpy(messages, comm->sent_messages, sizeof messages);
  memcpy(bytes, comm->sent_bytes, sizeof bytes);
  run(moe, which);
  const int nnode = comm->nnode;
  double sum[2 * MT_NLEVEL + nnode];
  memset(sum, 0, sizeof sum);
  for (int level = 0; level < MT_NLEVEL; level++) {
    sum[level] = (double)(comm->sent_messages[level] - messages[level]);
    sum[MT_NLEVEL + level] = (double)(comm->sent_bytes[level] - bytes[level]);
  }
  sum[2 * MT_NLEVEL + comm->node] = sum[MT_NLEVEL + MT_LEVEL_NET];
  traffic->rank = sum[MT_NLEVEL + MT_LEVEL_NODE];
  mt_max(comm, &traffic->rank, 1);
  mt_sum(comm, sum, 2 * MT_NLEVEL + nnode);
  memcpy(traffic->messages, sum, sizeof traffic->messages);
  memcpy(traffic->bytes, sum + MT_NLEVEL, sizeof traffic->bytes);
  traffic->node = 0;
  for (int q = 0; q < nnode; q++)
    traffic->node = fmax(traffic->node, sum[2 * MT_NLEVEL + q]);
}

static void measure(struct mt_comm *comm, const struct mt_config *config, double uplink, struct mt_moe *moe)
{
  struct traffic traffic[NRUN];
  struct mt_spread spread[NRUN];
  for (int which = 0; which < NRUN; which++)
    count(comm, moe, which, &traffic[which]);
  int times = mt_turns(comm, config->bench.seconds, NRUN, run, moe, spread);
  const double node = fmax(traffic[UNSHARD].node, traffic[RESHARD].node);
  const double rank = fmax(traffic[UNSHARD].rank, traffic[RESHARD].rank);
  const double net_s = uplink > 0 ? node / uplink : 0;
  const double node_s = rank * 1e-12 * (double)comm->cluster->link[MT_LEVEL_NODE].beta_ps;
  const double bound = fmax(net_s, node_s);
  mt_info(
      "a layer of %d experts of %.1f KiB on %d slots%s: a node sends or gets %.1f KiB at most, a rank within its node "
      "%.1f: bound %.0f us by %s; %d times each",
      moe->E, (double)moe->stride / 256, moe->fixed->slot_first[comm->size],
      moe->in_place ? ", which are the shards themselves" : "", node / 1024, rank / 1024, 1e6 * bound,
      net_s > node_s ? "the uplink" : "the node", times);
  mt_info("  %-17s %17s %17s %10s %21s %8s", "", "between nodes, KiB", "within nodes, KiB", "median us", "quartiles",
          "x bound");
  for (int i = 0; i < NRUN; i++) {
    const struct traffic *t = &traffic[i];
    mt_info("  %-17s %6.0f %11.1f %6.0f %11.1f %10.*f %10.*f %10.*f %8.2f", name[i], t->messages[MT_LEVEL_NET],
            t->bytes[MT_LEVEL_NET] / 1024, t->messages[MT_LEVEL_NODE], t->bytes[MT_LEVEL_NODE] / 1024,
            MT_SHOWN(1e6 * spread[i].median), MT_SHOWN(1e6 * spread[i].quarter), MT_SHOWN(1e6 * spread[i].three_quarters),
            bound > 0 ? spread[i].median / bound : 0);
  }
}

enum mt_status mt_bench_unshard(struct mt_comm *comm, const struct mt_config *config)
{
  struct mt_arch arch = {0};
  struct mt_params params = {0};
  mt_family_build(config, &arch, &params);
  struct mt_device *device = NULL;
  struct mt_moe *moe = NULL;
  enum mt_status status = params.nmoe > 0 ? MT_OK : MT_USAGE;
  if (status && comm->rank == 0)
    mt_error("bench unshard: found a model without experts, expected model.num_local_experts > 0 and an MoE layer");
  if (status == MT_OK)
    status = mt_agree(comm, mt_device_open("cpu", comm->cluster->place[comm->rank].threads, &device));
  params.nmoe = 1; /* one layer will do, and next to no rows */
  struct mt_config chosen = *config;
  if (status == MT_OK && comm->rank == 0)
    status = mt_sharding_choose(config, comm->cluster, &chosen.parallel.sharding);
  mt_bcast(comm, &chosen.parallel.sharding, sizeof chosen.parallel.sharding, 0);
  status = mt_agree(comm, status);
  if (status == MT_OK)
    status = mt_moe_new(comm, device, &chosen, &params, 1, 1, 1, &moe);
  if (status == MT_OK) {
    mt_moe_begin_micro(moe, 0, 0, 0);
    measure(comm, config, mt_bench_uplink(comm, config), moe);
    mt_moe_free(moe);
  }
  if (device)
    device->ops->close(device);
  mt_params_free(&params);
  mt_free(arch.block);
  return status;
}
