/* The forecast of memory against the counted memory of real steps. ranks: 1 3 4
 *
 * Routing is forced to be balanced, as the forecast assumes. Every tag that matters (a tenth of the whole or more) and the
 * whole must be within a tenth of the truth, on every rank. */
#include "train/forecast.h"
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "test.h"
#include "train/session.h"
#include "train/step.h"

static enum mt_status zeros(void *self, int64_t position, int32_t *token)
{
  const struct mt_config *config = self;
  (void)position;
  memset(token, 0, sizeof(int32_t) * (size_t)(config->data.seq_length + 1));
  return MT_OK;
}

static const char *const base[] = {
    "model.hidden_size=64", "model.num_hidden_layers=4", "model.num_attention_heads=4", "model.intermediate_size=96",
    "model.num_local_experts=6", "model.num_experts_per_tok=2", "model.vocab_size=500", "model.max_position_embeddings=64",
    "data.seq_length=48", "data.train=none", "data.format=uint16", "train.steps=2", "train.global_batch=12",
    "train.micro_batch=3", "parallel.sharding=full", "parallel.layout=static", "moe.router=balanced", "checkpoint.resume=never"};
enum { NBASE = sizeof base / sizeof *base };

static const struct {
  const char *nodes[5]; /* by ranks */
  const char *more[5];
  const char *cut[5]; /* by ranks */
  int fast;           /* 1: a network as fast as memory, where several bridges share the work */
} cases[] = {
    {{NULL}, {"model.family=mixtral"}, {NULL}, 0},
    {{0, 0, 0, "1,2", "1,3"}, {"model.family=mixtral", "parallel.slots=7"}, {NULL}, 0},
    {{0, 0, 0, "1,2", "1,3"}, {"model.family=mixtral", "parallel.wire=bf16", "parallel.sharding=node"}, {NULL}, 0},
    {{NULL}, {"model.family=mixtral", "train.recompute=true", "parallel.sharding=owner"}, {NULL}, 0},
    {{0, 0, 0, "2,1", "2,2"}, {"model.family=gpt2", "model.decoder_sparse_step=2"}, {NULL}, 0},
    {{NULL}, {"model.family=gpt2", "model.decoder_sparse_step=2", "train.recompute=true"}, {NULL}, 0},
    {{0, 0, 0, "1,2", "1,3"}, {"model.family=qwen", "model.sliding_window=9", "moe.capacity_factor=1.25"}, {NULL}, 0},
    {{NULL}, {"model.family=mixtral", "moe.capacity_factor=0.5", "model.num_experts_per_tok=4"}, {NULL}, 0},
    {{0, 0, 0, "2,1", "3,1"}, {"model.family=mixtral", "parallel.exchange=hierarchical"}, {NULL}, 1},
    {{0, 0, 0, "2,1", "2,2"}, {"model.family=mixtral", "parallel.exchange=hierarchical", "model.hidden_size=512"}, {NULL}, 1},
    {{0, 0, 0, "2,1", "3,1"}, {"model.family=mixtral", "schedule.policy=coconet", "schedule.degree=4"}, {NULL}, 0},
    {{0, 0, 0, "2,1", "3,1"},
     {"model.family=mixtral", "schedule.policy=mast", "schedule.degree=4", "moe.capacity_factor=1", "train.recompute=true"},
     {NULL}, 0},
    {{0, 0, 0, "2,1", "3,1"}, {"model.family=mixtral"}, {0, 0, 0, "parallel.shares=3,1,0", "parallel.shares=1,0,2,5"}, 0},
    {{0, 0, 0, "2,1", "3,1"}, {"model.family=mixtral"}, {0, 0, 0, "parallel.shard_sizes=3,1,0", "parallel.shard_sizes=1,0,2,5"}, 0},
};

START_TEST(test_forecast)
{
  int size;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const char *nodes = cases[_i].nodes[size];
  if (nodes)
    setenv("MOTLEY_NODES", nodes, 1);
  else
    unsetenv("MOTLEY_NODES");
  struct mt_comm *comm;
  ck_assert_int_eq(mt_comm_new(NULL, NULL, &comm), MT_OK);
  struct mt_override overrides[NBASE + 6];
  int n = 0;
  for (; n < NBASE; n++)
    overrides[n].text = base[n];
  for (int i = 0; i < 5 && cases[_i].more[i]; i++)
    overrides[n++].text = cases[_i].more[i];
  if (cases[_i].cut[size])
    overrides[n++].text = cases[_i].cut[size];
  struct mt_config config;
  ck_assert_int_eq(mt_config_read(NULL, overrides, n, MT_CMD_TRAIN, &config), MT_OK);

  if (cases[_i].fast) {
    static const struct mt_link link[MT_NLEVEL] = {{0, 100, 0}, {1000, 250, 200}, {1500, 40, 300}};
    for (int p = 0; p < comm->size; p++)
      comm->cluster->place[p].speed = 1000;
    memcpy(comm->cluster->link, link, sizeof link);
  }
  int64_t before[MT_NTAG], bytes[MT_NTAG], whole = 0, truth = 0;
  for (int tag = 0; tag < MT_NTAG; tag++)
    before[tag] = mt_memory_tag((enum mt_tag)tag);
  struct mt_session session;
  ck_assert_int_eq(mt_session_open(comm, &config, 0, config.data.seq_length, 1, &session), MT_OK);
  struct mt_step *step = mt_step_new(comm, session.model, &config, (struct mt_source){zeros, &config});
  for (int s = 1; s <= 2; s++)
    mt_step_run(step, s, 0);
  ck_assert_int_eq(mt_forecast(&config, comm->cluster, comm->rank, bytes), MT_OK);
  for (int tag = 0; tag < MT_NTAG; tag++) {
    whole += bytes[tag];
    truth += mt_memory_tag((enum mt_tag)tag) - before[tag];
  }
  int64_t wrong = fabs((double)(whole - truth)) > 0.1 * (double)truth;
  if (wrong)
    mt_error("case %d: %lld bytes foreseen, %lld in use", _i, (long long)whole, (long long)truth);
  for (int tag = 0; tag < MT_NTAG; tag++) {
    int64_t used = mt_memory_tag((enum mt_tag)tag) - before[tag];
    int off = used * 10 > truth && fabs((double)(bytes[tag] - used)) > 0.1 * (double)used;
    if (off || wrong)
      mt_error("case %d, %s: %lld bytes foreseen, %lld in use", _i, mt_memory_tag_name((enum mt_tag)tag), (long long)bytes[tag],
               (long long)used);
    wrong += off;
  }
  mt_step_free(step);
  mt_session_close(&session);
  mt_config_free(&config);
  mt_max_int(comm, &wrong, 1);
  mt_comm_free(comm);
  ck_assert_msg(!wrong, "the forecast is off");
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  Suite *suite = suite_create("forecast");
  TCase *tests = tcase_create("forecast");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_forecast, 0, sizeof cases / sizeof *cases);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
