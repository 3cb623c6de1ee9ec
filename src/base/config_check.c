/* Defaults that depend on other options, and what must hold between options. */
#include "config_table.h"
#include "log.h"
#include "memory.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Gives the option a value unless somebody else did. A value out of range leaves it open: what it derives
 * from is missing. */
static void derive(struct mt_reading *reading, const char *name, const char *value)
{
  const struct mt_option *option = mt_option_named(name);
  struct mt_source *source = &reading->source[option - mt_options];
  if (source->origin == MT_FROM_DEFAULT && mt_option_set(option, reading->config, value))
    source->origin = MT_FROM_DERIVED;
}

static void derive_integer(struct mt_reading *reading, const char *name, int64_t value)
{
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  derive(reading, name, text);
}

void mt_config_derive(struct mt_reading *reading)
{
  struct mt_config *c = reading->config;
  int gpt2 = c->model.family == MT_FAMILY_GPT2;
  if (mt_reading_origin(reading, "model.family") != MT_FROM_DEFAULT) {
    derive_integer(reading, "model.num_local_experts", gpt2 ? 0 : 8);
    derive(reading, "model.hidden_act", gpt2 ? "gelu_new" : "silu");
    derive(reading, "model.tie_word_embeddings", gpt2 ? "true" : "false");
    if (gpt2)
      derive_integer(reading, "model.intermediate_size", 4 * c->model.hidden_size);
    else
      derive(reading, "model.rms_norm_eps", c->model.family == MT_FAMILY_QWEN ? "1e-06" : "1e-05");
  }
  derive_integer(reading, "model.num_key_value_heads", c->model.num_attention_heads);
  if (c->model.num_attention_heads)
    derive_integer(reading, "model.head_dim", c->model.hidden_size / c->model.num_attention_heads);
  if (c->data.format == MT_FORMAT_BYTES)
    derive_integer(reading, "model.vocab_size", 256);
  derive_integer(reading, "model.max_position_embeddings", c->data.seq_length);
  derive_integer(reading, "data.seq_length", c->model.max_position_embeddings);
  derive_integer(reading, "train.micro_batch", c->train.global_batch < 4 ? c->train.global_batch : 4);
  if (c->model.hidden_size) {
    derive_integer(reading, "bench.width", 4 * c->model.hidden_size);
    if (c->data.seq_length && c->model.num_local_experts)
      derive_integer(reading, "bench.rows",
                     c->train.micro_batch * c->data.seq_length * c->model.num_experts_per_tok);
  }
  derive_integer(reading, "schedule.degree", !strcmp(c->schedule.policy, "tutel") ? 2 : 0);
  char *path = mt_format("%s/checkpoints", c->log.dir);
  derive(reading, "checkpoint.dir", path);
  mt_free(path);
}

/* Options that somebody gave and nothing reads. One from config.json is no mistake: that file is not written
 * for us. */
static enum mt_status check_unread(struct mt_reading *reading)
{
  for (int i = 0; i < mt_noption; i++) {
    const struct mt_option *option = &mt_options[i];
    enum mt_origin origin = reading->source[i].origin;
    const char *why = mt_option_unread(option, reading->config);
    if (!why || origin < MT_FROM_JSON || !(mt_section_find(option->section)->commands & reading->command))
      continue;
    if (origin == MT_FROM_JSON && option->fallback) {
      mt_text_add(&reading->warning, "%s%s", reading->warning.text ? ", " : "", option->key);
      mt_option_set(option, reading->config, option->fallback);
      continue;
    }
    struct mt_text_buffer where = {0};
    mt_reading_where(reading, option, &where);
    mt_error("%s: is not read %s; leave it out", where.text, why);
    mt_free(where.text);
    return MT_USAGE;
  }
  return MT_OK;
}

static int is_empty_text(const struct mt_option *option, const struct mt_config *config)
{
  return option->type == MT_OPTION_TEXT && !**(char *const *)((const char *)config + option->offset);
}

static enum mt_status check_required(struct mt_reading *reading)
{
  for (int i = 0; i < mt_noption; i++) {
    const struct mt_option *option = &mt_options[i];
    int absent = reading->source[i].origin == MT_FROM_DEFAULT || is_empty_text(option, reading->config);
    if (!(option->required & reading->command) || !absent)
      continue;
    struct mt_text_buffer expected = {0};
    mt_option_expected(option, &expected);
    mt_error("%s: %s.%s is missing, expected %s (%s)", reading->path ? reading->path : "configuration",
             option->section, option->key, expected.text, option->help);
    mt_free(expected.text);
    return MT_USAGE;
  }
  return MT_OK;
}

static enum mt_status check_model(struct mt_reading *r)
{
  struct mt_config *c = r->config;
  long long C = c->model.hidden_size, H = c->model.num_attention_heads, E = c->model.num_local_experts;
  long long V = c->model.vocab_size, T = c->data.seq_length, positions = c->model.max_position_embeddings;
  int gpt2 = c->model.family == MT_FAMILY_GPT2;
  enum mt_activation act = gpt2 ? MT_ACTIVATION_GELU_NEW : MT_ACTIVATION_SILU;
  if (c->model.hidden_act != act)
    return mt_reading_refuse(r, "model.hidden_act", "found %s, expected %s, the activation of %s",
                             act == MT_ACTIVATION_SILU ? "gelu_new" : "silu",
                             act == MT_ACTIVATION_SILU ? "silu" : "gelu_new",
                             gpt2                                      ? "gpt2"
                             : c->model.family == MT_FAMILY_QWEN ? "qwen"
                                                                 : "mixtral");
  if (mt_reading_origin(r, "model.head_dim") <= MT_FROM_DERIVED && C % H)
    return mt_reading_refuse(r, "model.num_attention_heads",
                             "found %lld, expected a divisor of hidden_size (%lld)%s", H, C,
                             gpt2 ? "" : " or head_dim given");
  if (H % c->model.num_key_value_heads)
    return mt_reading_refuse(r, "model.num_key_value_heads",
                             "found %lld, expected a divisor of num_attention_heads (%lld)",
                             (long long)c->model.num_key_value_heads, H);
  if (!gpt2 && c->model.head_dim % 2)
    return mt_reading_refuse(r, "model.head_dim",
                             "found %lld, expected an even number (rotary positions turn pairs)",
                             (long long)c->model.head_dim);
  if (E && c->model.num_experts_per_tok > E)
    return mt_reading_refuse(r, "model.num_experts_per_tok",
                             "found %lld, expected at most num_local_experts (%lld)",
                             (long long)c->model.num_experts_per_tok, E);
  if (E && c->model.decoder_sparse_step > c->model.num_hidden_layers)
    return mt_reading_refuse(r, "model.decoder_sparse_step",
                             "found %lld, expected at most num_hidden_layers (%lld): no layer would be MoE",
                             (long long)c->model.decoder_sparse_step, (long long)c->model.num_hidden_layers);
  if (T > positions)
    return mt_reading_refuse(r, "data.seq_length",
                             "found %lld, expected at most model.max_position_embeddings (%lld)", T,
                             positions);
  if (c->data.format == MT_FORMAT_BYTES && V < 256)
    return mt_reading_refuse(r, "model.vocab_size",
                             "found %lld, expected at least 256 with data.format = bytes", V);
  if (c->data.format == MT_FORMAT_UINT16 && V > 65536)
    return mt_reading_refuse(r, "model.vocab_size",
                             "found %lld, expected at most 65536 with data.format = uint16", V);
  return MT_OK;
}

static enum mt_status check_data(struct mt_reading *r)
{
  struct mt_config *c = r->config;
  if (c->data.document == MT_DOCUMENT_NONE)
    return MT_OK;
  if (mt_reading_origin(r, "data.document_id") == MT_FROM_DEFAULT)
    return mt_reading_refuse(r, "data.document",
                             "found no data.document_id with it, expected the token id at the %s of documents",
                             c->data.document == MT_DOCUMENT_START ? "start" : "end");
  if (c->data.document_id >= c->model.vocab_size)
    return mt_reading_refuse(r, "data.document_id", "found %lld, expected less than model.vocab_size (%lld)",
                             (long long)c->data.document_id, (long long)c->model.vocab_size);
  return MT_OK;
}

static enum mt_status check_training(struct mt_reading *r)
{
  struct mt_config *c = r->config;
  if (c->train.micro_batch > c->train.global_batch)
    return mt_reading_refuse(r, "train.micro_batch", "found %lld, expected at most global_batch (%lld)",
                             (long long)c->train.micro_batch, (long long)c->train.global_batch);
  if (c->train.schedule == MT_SCHEDULE_CONSTANT || !(r->command & MT_CMD_TRAIN))
    return MT_OK;
  /* a run that ends during warm-up is a short run, but a decay that ends before it begins is a mistake */
  if (c->train.decay_steps && c->train.warmup > c->train.decay_steps)
    return mt_reading_refuse(r, "train.warmup", "found %lld, expected at most train.decay_steps (%lld)",
                             (long long)c->train.warmup, (long long)c->train.decay_steps);
  if (c->train.min_lr > c->train.lr)
    return mt_reading_refuse(r, "train.min_lr", "found %g, expected at most train.lr (%g)", c->train.min_lr,
                             c->train.lr);
  return MT_OK;
}

/* Rows are numbered in 32 bits, and sizes of arrays computed in 64. In doubles nothing overflows. */
static enum mt_status check_sizes(struct mt_reading *r)
{
  const struct mt_config *c = r->config;
  const double most = 0x1p58; /* bytes, of all parameters or an array of a micro-step */
  const double C = (double)c->model.hidden_size, F = (double)c->model.intermediate_size, D = (double)c->model.head_dim;
  const double QKV = D * (double)(c->model.num_attention_heads + 2 * c->model.num_key_value_heads);
  const double E = (double)c->model.num_local_experts, T = (double)c->data.seq_length;
  const double K = E > 0 ? (double)c->model.num_experts_per_tok : 1, rows = (double)c->train.micro_batch * T * K;
  if (rows >= INT32_MAX)
    return mt_reading_refuse(r, "train.micro_batch",
                             "found %lld sequences of %lld tokens, %.0f experts a token; expected less than 2^31 rows in a "
                             "micro-step", (long long)c->train.micro_batch, (long long)c->data.seq_length, K);
  double parameters = (double)c->model.num_hidden_layers * (2 * QKV * C + (E + 1) * C + 3 * fmax(E, 1) * F * C) +
                      2 * (double)c->model.vocab_size * C + (double)c->model.max_position_embeddings * fmax(C, D);
  if (4 * parameters >= most)
    return mt_reading_refuse(r, "model.hidden_size", "found %lld, and so some %.1e parameters; expected less than %.1e",
                             (long long)c->model.hidden_size, parameters, most / 4);
  double width = fmax(fmax(C, 2 * F), fmax(QKV, E + 1));
  if (8 * rows * width >= most)
    return mt_reading_refuse(r, "train.micro_batch", "found %lld, and so %.0f rows of %.0f numbers; expected less than %.1e bytes",
                             (long long)c->train.micro_batch, rows, width, most);
  return MT_OK;
}

static enum mt_status check_loads(struct mt_reading *r)
{
  const struct mt_config *c = r->config;
  if (c->model.num_local_experts && c->moe.router == MT_ROUTER_REPLAY && !*c->moe.loads)
    return mt_reading_refuse(r, "moe.router", "found replay and no moe.loads, expected a file of loads there");
  return MT_OK;
}

static enum mt_status check_slots(struct mt_reading *r)
{
  const char *text = r->config->parallel.slots;
  long long sum = 0, E = r->config->model.num_local_experts;
  if (!strchr(text, ','))
    return MT_OK; /* one number for each rank, and the ranks are not known here */
  for (const char *p = text; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
    char part[32] = "";
    int64_t n = 0;
    size_t blanks = strspn(p, " "), length = strcspn(p + blanks, ", ");
    memcpy(part, p + blanks, length < sizeof part ? length : 0);
    mt_text_integer(part, &n);
    sum += n;
  }
  if (sum < E)
    return mt_reading_refuse(r, "parallel.slots",
                             "found %lld slots in all, expected at least num_local_experts (%lld)", sum, E);
  return MT_OK;
}

enum mt_status mt_config_check(struct mt_reading *reading)
{
  if (!(mt_section_find("model")->commands & reading->command))
    return MT_OK; /* a command without a model */
  MT_TRY(check_unread(reading));
  MT_TRY(check_required(reading));
  MT_TRY(check_model(reading));
  MT_TRY(check_data(reading));
  MT_TRY(check_training(reading));
  MT_TRY(check_sizes(reading));
  MT_TRY(check_slots(reading));
  MT_TRY(check_loads(reading));
  if (!*reading->config->log.dir)
    return mt_reading_refuse(reading, "log.dir", "found nothing, expected a folder");
  if (reading->warning.text)
    mt_warn("%s: not used here: %s", reading->config->model.config, reading->warning.text);
  return MT_OK;
}
