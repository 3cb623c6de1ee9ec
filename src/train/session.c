/* The common part of train, eval and generate; see session.h. */
#include "train/session.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/devices.h"
#include "comm/measure.h"
#include "comm/way.h"
#include "experts/sizes.h"
#include "train/batch.h"
#include "train/predict.h"
#include "train/sharding.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A model cannot be run without weights. */
static enum mt_status say_no_weights(const struct mt_session *session)
{
  if (session->comm->rank == 0) {
    char *dir = mt_state_dir(session->config);
    if (!strcmp(session->config->checkpoint.resume, "never"))
      mt_error(
          "checkpoint.resume: found never, expected auto or the path of a checkpoint to read weights from");
    else
      mt_error("%s: found no complete checkpoint, expected one to read weights from", dir);
    mt_free(dir);
  }
  return MT_USAGE;
}

/* A run that starts over in the folder of another leaves files behind that the next resume = auto would take
 * for its own. */
static void warn_of_later(const struct mt_session *session)
{
  char *dir = mt_state_dir(session->config);
  int64_t last = mt_checkpoint_last(session->comm, dir);
  if (session->comm->rank == 0 && last > session->progress.step &&
      strcmp(session->config->checkpoint.resume, "auto"))
    mt_warn("%s holds a checkpoint of step %lld, and this run starts after step %lld: checkpoint.resume = "
            "auto will take the "
            "larger step; use another checkpoint.dir, or move the old files away",
            dir, (long long)last, (long long)session->progress.step);
  mt_free(dir);
}

static enum mt_status find_weights(struct mt_session *session, int training)
{
  session->from.before = INT64_MAX;
  MT_TRY(mt_state_find(session->comm, session->config, training, &session->from));
  return training || session->from.path ? MT_OK : say_no_weights(session);
}

/* What was found is known to be damaged only when it is read; then, with resume = auto, the next older one's
 * turn comes. */
static enum mt_status load_weights(struct mt_session *session, int training)
{
  while (session->from.path) {
    enum mt_status status = mt_state_load(session->comm, session->model, session->config, &session->from, training);
    if (status != MT_CORRUPT || strcmp(session->config->checkpoint.resume, "auto"))
      return status;
    session->from.settled = 1; /* the model has the size of this rank's share */
    MT_TRY(mt_state_find(session->comm, session->config, training, &session->from));
  }
  mt_model_init(session->model, (uint64_t)session->config->train.seed);
  return MT_OK;
}

/* Are exchange or sharding chosen by cost, or are there shares or layouts to be weighed? Places that look alike are taken to be
 * equally fast without looking: a start should be quick, and chance no reason to deal unevenly. */
static int decides(const struct mt_comm *comm, const struct mt_config *config)
{
  const int moe = config->model.num_local_experts > 0, follows = moe && config->parallel.layout != MT_LAYOUT_STATIC;
  if (moe && comm->nnode > 1 &&
      (config->parallel.exchange == MT_EXCHANGE_AUTO || config->parallel.sharding == MT_SHARDING_AUTO))
    return 1;
  for (int p = 1; p < comm->size && (follows || !strcmp(config->parallel.shares, "auto")); p++)
    if (!mt_place_alike(&comm->cluster->place[0], &comm->cluster->place[p]))
      return 1;
  return 0;
}

/* Speeds and links, if anything is decided by them. Those that a checkpoint of the same places brought stay. */
static void measure(const struct mt_session *session)
{
  struct mt_comm *comm = session->comm;
  const struct mt_config *config = session->config;
  if (config->parallel.measure == MT_MEASURE_OFF ||
      (config->parallel.measure == MT_MEASURE_AUTO && !decides(comm, config)))
    return;
  double start = mt_time();
  int stored = mt_measured(comm->cluster);
  if (!stored)
    mt_measure(comm, session->device);
  const struct mt_link *node = &comm->cluster->link[MT_LEVEL_NODE], *net = &comm->cluster->link[MT_LEVEL_NET];
  int64_t low = INT64_MAX, high = 0;
  for (int p = 0; p < comm->size; p++) {
    int64_t speed = comm->cluster->place[p].speed;
    low = speed < low ? speed : low;
    high = speed > high ? speed : high;
  }
  struct mt_text_buffer line = {0};
  if (node->beta_ps)
    mt_text_add(&line, "; in a node %.2f us, %.3g GB/s", 1e-3 * (double)node->alpha_ns, 1e3 / (double)node->beta_ps);
  if (net->beta_ps)
    mt_text_add(&line, "; between nodes %.2f us, %.3g GB/s", 1e-3 * (double)net->alpha_ns, 1e3 / (double)net->beta_ps);
  if (stored)
    mt_text_add(&line, "; as %s has it", session->from.path);
  else
    mt_text_add(&line, "; took %.1f s", mt_time() - start);
  mt_info("measured: %.3g to %.3g GFLOP/s a rank%s", 1e-3 * (double)low, 1e-3 * (double)high, line.text);
  mt_free(line.text);
}

/* What parallel.exchange comes to at the sizes of a full micro-step. */
static void say_exchange(const struct mt_session *session, int64_t max_B, int64_t T)
{
  const struct mt_config *config = session->config;
  if (!session->model->moe || session->comm->rank != 0)
    return;
  int64_t rows = max_B * T * config->model.num_experts_per_tok;
  int64_t width = config->model.hidden_size * (config->parallel.wire == MT_WIRE_BF16 ? 2 : 4);
  char *text = mt_way_explain(session->comm->cluster, (int)config->parallel.exchange, rows, width);
  mt_info("%s", text);
  mt_free(text);
}

struct name {
  char text[16];
};

static int by_name(const void *a, const void *b)
{
  return strcmp(((const struct name *)a)->text, ((const struct name *)b)->text);
}

/* Unlike ranks compute with unlike kernels: which ones is said once, with the number of ranks of each. */
static void say_kernels(const struct mt_session *session)
{
  const int P = session->comm->size;
  struct name mine = {""}, *all = MT_NEW(MT_TAG_MISC, struct name, P);
  snprintf(mine.text, sizeof mine.text, "%s", session->device->name);
  mt_allgather(session->comm, &mine, all, sizeof mine);
  if (session->comm->rank == 0) {
    struct mt_text_buffer line = {0};
    qsort(all, (size_t)P, sizeof *all, by_name);
    for (int r = 0, end; r < P; r = end) {
      for (end = r; end < P && !by_name(&all[r], &all[end]);)
        end++;
      mt_text_add(&line, "%s%s on %d", r ? ", " : "", all[r].text, end - r);
    }
    mt_info("kernels, by ranks: %s", line.text);
    mt_free(line.text);
  }
  mt_free(all);
}

/* What parallel.sharding = auto comes to; a run that goes on bit for bit keeps what it had. */
static enum mt_status choose_sharding(struct mt_session *session, int training)
{
  struct mt_comm *comm = session->comm;
  enum mt_sharding *sharding = &session->chosen.parallel.sharding;
  if (*sharding != MT_SHARDING_AUTO)
    return MT_OK;
  if (!training || (session->from.path && session->from.same)) {
    *sharding = training ? session->from.sharding : MT_SHARDING_FULL;
    return MT_OK;
  }
  enum mt_status status = comm->rank == 0 ? mt_sharding_choose(&session->chosen, comm->cluster, sharding) : MT_OK;
  mt_bcast(comm, sharding, sizeof *sharding, 0);
  return mt_agree(comm, status);
}

/* A precision of GPUs where no rank drives one: refused if only CPUs were asked for, else said. Collective, agreed. */
static enum mt_status check_precision(struct mt_comm *comm, const struct mt_config *config, const char *kind)
{
  static const char *const name[] = {"auto", "f32", "tf32", "bf16"};
  enum { GPUS, WISHED, PRECISION };
  int64_t most[] = {strcmp(kind, "cpu") != 0, strcmp(config->parallel.device, "cpu") != 0, (int64_t)config->parallel.precision};
  mt_max_int(comm, most, 3);
  if (most[GPUS] || most[PRECISION] <= MT_COMPUTE_F32)
    return MT_OK;
  if (comm->rank == 0 && most[WISHED])
    mt_warn("parallel.precision: found %s, which only GPUs compute in, and no GPU; all compute in f32", name[most[PRECISION]]);
  else if (comm->rank == 0)
    mt_error("parallel.precision: found %s, which only GPUs compute in; expected auto or f32 with parallel.device = cpu",
             name[most[PRECISION]]);
  return most[WISHED] ? MT_OK : MT_USAGE;
}

enum mt_status mt_session_device(struct mt_comm *comm, const struct mt_config *config, int say, struct mt_device **device)
{
  static const char *const suffix[] = {"", "-f32", "-tf32", "-bf16"};
  char kind[32], name[64], *report;
  MT_TRY(mt_devices_choose(comm, config->parallel.device, kind, sizeof kind, &report));
  if (report && say) /* generated text is alone on stdout */
    for (char *line = strtok(report, "\n"); line; line = strtok(NULL, "\n"))
      mt_info("%s", line);
  mt_free(report);
  MT_TRY(check_precision(comm, config, kind));
  enum mt_compute precision = config->parallel.precision;
  if (!strcmp(kind, "cpu"))
    precision = MT_COMPUTE_AUTO;
  else if (precision == MT_COMPUTE_AUTO)
    precision = strncmp(kind, "cuda", 4) ? MT_COMPUTE_F32 : MT_COMPUTE_BF16;
  snprintf(name, sizeof name, "%s%s", kind, suffix[precision]);
  return mt_agree(comm, mt_device_open(name, comm->cluster->place[comm->rank].threads, device));
}

enum mt_status mt_session_open(struct mt_comm *comm, const struct mt_config *config, int64_t max_B, int64_t T,
                               int training, struct mt_session *session)
{
  *session = (struct mt_session){.comm = comm, .config = config, .chosen = *config};
  if (training && mt_predict_overlaps(config, comm->cluster))
    mt_comm_beside(comm);
  enum mt_status status = mt_session_device(comm, config, training, &session->device);
  if (status == MT_OK)
    status = find_weights(session, training);
  if (status == MT_OK)
    status = mt_agree(comm, comm->rank == 0 ? mt_batch_check(config, comm->cluster) : MT_OK);
  if (status == MT_OK)
    status = mt_agree(comm, comm->rank == 0 ? mt_sizes_check(config, comm->cluster) : MT_OK);
  if (status == MT_OK && training) {
    measure(session);
    max_B = mt_batch_max_B(config, comm->cluster, comm->rank);
  }
  if (status == MT_OK)
    status = choose_sharding(session, training);
  session->config = config = &session->chosen;
  if (status == MT_OK)
    status = mt_model_new(comm, session->device, config, max_B, T, training, &session->model);
  if (status == MT_OK)
    status = load_weights(session, training);
  if (status != MT_OK) {
    mt_session_close(session);
    return status;
  }
  session->progress = session->from.progress;
  if (session->from.path && session->model->moe && session->model->moe->relayout)
    session->layouts = session->from.layouts ? MT_LAYOUTS_GO_ON : MT_LAYOUTS_ANEW;
  if (training) {
    say_kernels(session);
    say_exchange(session, max_B, T);
    warn_of_later(session);
  }
  mt_model_publish(session->model);
  return MT_OK;
}

void mt_session_close(struct mt_session *session)
{
  mt_model_free(session->model);
  if (session->device)
    session->device->ops->close(session->device);
  mt_free(session->from.path);
  mt_free(session->from.remark);
  mt_free(session->from.layout);
  mt_free(session->from.schedule);
  *session = (struct mt_session){0};
}
