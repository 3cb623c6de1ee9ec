/* Generation: continues a prompt, one token a forward pass.
 *
 * Experts are spread over the ranks, so all ranks take part: rank 0 has the one sequence, the others none ("zero is a
 * value"). The window is the model's; where the text outgrows it, its newest half is kept. Tokens are bytes with data.format
 * = bytes, otherwise the prompt is ids separated by commas and ids are printed. */
#include "train/train.h"
#include "base/log.h"
#include "base/random.h"
#include "train/pass.h"
#include "train/sample.h"
#include "train/session.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The prompt's tokens: *n of them in token[length of the prompt]; decided by rank 0. */
static enum mt_status read_prompt(const struct mt_config *config, int32_t *token, int64_t *n)
{
  const char *prompt = config->generate.prompt;
  *n = 0;
  if (config->data.format == MT_FORMAT_BYTES) {
    for (const char *at = prompt; *at; at++)
      token[(*n)++] = (unsigned char)*at;
  } else {
    for (const char *at = prompt; *at;) {
      char *end;
      long long id = strtoll(at, &end, 10);
      while (isspace((unsigned char)*end))
        end++;
      if (end == at || id < 0 || id >= config->model.vocab_size || (*end && *end != ',')) {
        mt_error("generate.prompt: found '%s', expected token ids from 0 to %lld separated by commas", at,
                 (long long)config->model.vocab_size - 1);
        return MT_USAGE;
      }
      token[(*n)++] = (int32_t)id;
      at = *end ? end + 1 : end;
    }
  }
  if (!*n) {
    mt_error("generate.prompt: found nothing, expected at least one token to go on from");
    return MT_USAGE;
  }
  return MT_OK;
}

static void show(const struct mt_config *config, const int32_t *token, int64_t n, int first)
{
  for (int64_t i = 0; i < n; i++) {
    char text[32] = {(char)token[i]};
    long length = 1;
    if (config->data.format != MT_FORMAT_BYTES)
      length = snprintf(text, sizeof text, "%s%d", first && i == 0 ? "" : ",", token[i]);
    mt_write(text, length);
  }
}

static enum mt_status generate(struct mt_session *session, int64_t T)
{
  struct mt_comm *comm = session->comm;
  struct mt_model *model = session->model;
  const struct mt_config *config = session->config;
  const int64_t V = model->arch.V;
  int64_t n = 0;
  int32_t *token = model->host_token; /* rank 0's window */
  enum mt_status status = MT_OK;
  if (comm->rank == 0) {
    int32_t *prompt = MT_NEW(MT_TAG_MISC, int32_t, strlen(config->generate.prompt));
    status = read_prompt(config, prompt, &n);
    if (status == MT_OK) {
      show(config, prompt, n, 1);
      int64_t kept = n < T ? n : T; /* the newest */
      memcpy(token, prompt + n - kept, sizeof(int32_t) * (size_t)kept);
      n = kept;
    }
    mt_free(prompt);
  }
  MT_TRY(mt_agree(comm, status));
  float *logits = MT_NEW(MT_TAG_MISC, float, V);
  struct mt_candidate *work = MT_NEW(MT_TAG_MISC, struct mt_candidate, V);
  const struct mt_sampling sampling = {config->generate.temperature, config->generate.top_k, config->generate.top_p};
  struct mt_task_times times = {0};
  struct mt_tasks forward = mt_pass_tasks(model, &(struct mt_plan){.serial = 1, .chunks = 1, .degree = {1, 1}}, NULL, 1, 0);
  for (int i = 0; i < forward.n; i++) /* the head is computed for one position alone */
    if (forward.task[i].kind == MT_TASK_HEAD)
      forward.task[i].run = NULL;
  for (int64_t i = 0; i < config->generate.length; i++) {
    mt_model_batch(model, comm->rank == 0);
    if (model->moe) { /* keys of their own, as those of evaluations */
      mt_moe_begin_step(model->moe, 0, (double)T, 1);
      mt_moe_begin_micro(model->moe, 0, model->B, ((int64_t)1 << 41) + i);
    }
    mt_tasks_run(&forward, &times, NULL);
    if (comm->rank == 0) {
      mt_model_logits(model, n - 1, 1, logits);
      if (n == T) {
        memmove(token, token + T - T / 2, sizeof(int32_t) * (size_t)(T / 2));
        n = T / 2;
      }
      token[n++] = mt_sample(logits, V, &sampling,
                             mt_random_uniform((uint64_t)config->generate.seed, MT_STREAM_SAMPLE, (uint64_t)i), work);
      show(config, token + n - 1, 1, 0);
    }
  }
  mt_tasks_free(&forward);
  mt_free(work);
  mt_free(logits);
  mt_write("\n", 1);
  return MT_OK;
}

enum mt_status mt_generate_run(struct mt_comm *comm, const struct mt_config *config)
{
  /* no longer a window than the text needs */
  int64_t T = config->model.max_position_embeddings, need = (int64_t)strlen(config->generate.prompt) + config->generate.length;
  T = config->data.seq_length > 0 && config->data.seq_length < T ? config->data.seq_length : T;
  T = need < T ? need : T;
  T = T < 1 ? 1 : T;
  struct mt_session session;
  enum mt_status status = mt_session_open(comm, config, 1, T, 0, &session);
  if (status == MT_OK) {
    status = generate(&session, T);
    mt_session_close(&session);
  }
  return status;
}
