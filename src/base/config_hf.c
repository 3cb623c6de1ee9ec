/* model.config: a Hugging Face config.json.
 *
 * The trap: such a file describes a model to another program, in words that change over the years, and a word
 * that is not understood may mean other mathematics. So every key is one of four: an option of ours, one that
 * must have a certain value (else the file is refused), one that says nothing about the model, or one that is
 * named in a warning. */
#include "config_table.h"
#include "json.h"
#include "log.h"
#include "memory.h"
#include <stdio.h>
#include <string.h>

/* Keys whose other values are other mathematics, with the value that is ours. A key that ends with '*' stands
 * for all that start like it, one that starts with '*' for all that end like it. null always means "not
 * there". */
enum rule { NUMBER /* or boolean */, WORD, EMPTY /* list or object */, ONLY_NULL, ANY_VALUE };
static const struct fixed {
  const char *key;
  enum rule rule;
  double number;
  const char *ours; /* the word, and what a message says was expected */
} fixed[] = {
    {"summary_*", ANY_VALUE, 0, ""}, /* heads that are not language modelling: any value */
    {"*dropout", NUMBER, 0, "0"},
    {"*_pdrop", NUMBER, 0, "0"},
    {"*dropout_prob", NUMBER, 0, "0"},
    {"router_jitter_noise", NUMBER, 0, "0"},
    {"attention_bias", NUMBER, 0, "false"},
    {"mlp_bias", NUMBER, 0, "false"},
    {"clip_qkv", ONLY_NULL, 0, "null"},
    {"use_qk_norm", NUMBER, 0, "false"},
    {"scale_attn_weights", NUMBER, 1, "true"},
    {"scale_attn_by_inverse_layer_idx", NUMBER, 0, "false"},
    {"partial_rotary_factor", NUMBER, 1, "1"},
    {"add_cross_attention", NUMBER, 0, "false"},
    {"is_encoder_decoder", NUMBER, 0, "false"},
    {"norm_topk_prob", NUMBER, 1, "true"},
    {"scoring_func", WORD, 0, "softmax"},
    {"n_group", NUMBER, 1, "1"},
    {"topk_group", NUMBER, 1, "1"},
    {"routed_scaling_factor", NUMBER, 1, "1"},
    {"n_shared_experts", NUMBER, 0, "0"},
    {"num_shared_experts", NUMBER, 0, "0"},
    {"shared_expert_intermediate_size", NUMBER, 0, "0"},
    {"first_k_dense_replace", NUMBER, 0, "0"},
    {"moe_layer_freq", NUMBER, 1, "1"},
    {"logits_scaling", NUMBER, 1, "1"},
    {"embedding_multiplier", NUMBER, 1, "1"},
    {"residual_multiplier", NUMBER, 1, "1"},
    {"attention_multiplier", ONLY_NULL, 0, "null"},
    {"final_logit_softcapping", ONLY_NULL, 0, "null"},
    {"attn_logit_softcapping", ONLY_NULL, 0, "null"},
    {"rope_scaling", ONLY_NULL, 0, "null"},
    {"quantization_config", ONLY_NULL, 0, "null"},
    {"pruned_heads", EMPTY, 0, "none"},
    {"mlp_only_layers", EMPTY, 0, "none"},
};

/* Our family for a model_type. A Mistral is a Mixtral without experts: the same blocks under the same names. */
static const struct {
  const char *model_type, *family;
} families[] = {{"mixtral", "mixtral"}, {"mistral", "mixtral"}, {"gpt2", "gpt2"}, {"qwen2_moe", "qwen"}};

/* What Hugging Face takes where a key is missing and ours would be another value; value NULL: a model that we do not
 * have, so the key must be there. */
static const struct {
  const char *model_type, *key, *value, *meaning;
} absent[] = {
    {"mistral", "num_local_experts", "0", NULL},   {"mistral", "sliding_window", "4096", NULL},
    {"mistral", "rope_theta", "10000", NULL},      {"mistral", "rms_norm_eps", "1e-06", NULL},
    {"qwen2_moe", "num_experts", "60", NULL},      {"qwen2_moe", "num_experts_per_tok", "4", NULL},
    {"qwen2_moe", "rope_theta", "10000", NULL},    {"qwen2_moe", "moe_intermediate_size", NULL, "1408"},
    {"qwen2_moe", "norm_topk_prob", NULL, "false"}, {"qwen2_moe", "shared_expert_intermediate_size", NULL, "5632"},
};

/* About the file, not about the model. */
static const char *const silent[] = {"architectures", "transformers_version", "_name_or_path",
                                     "model_type",    "torch_dtype",          "dtype",
                                     "use_cache"};

static int matches(const char *pattern, const char *key)
{
  size_t n = strlen(pattern), m = strlen(key);
  if (pattern[0] == '*')
    return m >= n - 1 && !strcmp(key + m - (n - 1), pattern + 1);
  if (pattern[n - 1] == '*')
    return !strncmp(key, pattern, n - 1);
  return !strcmp(key, pattern);
}

static int is_silent(const char *key)
{
  for (size_t i = 0; i < sizeof silent / sizeof *silent; i++)
    if (!strcmp(silent[i], key))
      return 1;
  return 0;
}

static int is_number(const mt_json *value, double number)
{
  return mt_json_is_boolean(value) ? mt_json_as_boolean(value, 0) == number
                                   : mt_json_is_number(value) && mt_json_as_real(value, 0) == number;
}

static int is_ours(const struct fixed *key, const mt_json *value)
{
  if (mt_json_is_null(value))
    return 1;
  switch (key->rule) {
  case NUMBER:
    return is_number(value, key->number);
  case WORD:
    return !strcmp(mt_json_as_string(value, ""), key->ours);
  case EMPTY:
    return (mt_json_is_array(value) || mt_json_is_object(value)) && mt_json_size(value) == 0;
  case ONLY_NULL:
    return 0;
  case ANY_VALUE:
    break;
  }
  return 1;
}

static enum mt_status refuse(const struct mt_reading *reading, const char *key, const mt_json *value,
                             const char *expected)
{
  char *text = mt_json_print(value, 0);
  mt_error("%s: %s: found %.200s, expected %s", reading->config->model.config, key, text, expected);
  mt_free(text);
  return MT_USAGE;
}

static void set_aside(struct mt_reading *reading, const char *key)
{
  mt_text_add(&reading->warning, "%s%s", reading->warning.text ? ", " : "", key);
}

/* Sets one of our options, unless something stronger did. */
static enum mt_status take(struct mt_reading *reading, const struct mt_option *option, const char *key,
                           const mt_json *value)
{
  struct mt_source *source = &reading->source[option - mt_options];
  if (mt_json_is_null(value) || source->origin > MT_FROM_JSON)
    return MT_OK;
  struct mt_text_buffer expected = {0};
  char *text = mt_json_is_string(value) ? mt_strdup(mt_json_as_string(value, "")) : mt_json_print(value, 0);
  if (!strcmp(option->key, "hidden_act") &&
      !strcmp(text, "gelu_pytorch_tanh")) { /* another name of the same function */
    mt_free(text);
    text = mt_strdup("gelu_new");
  }
  enum mt_status status = MT_OK;
  int same = 1;
  if (source->origin == MT_FROM_JSON) { /* a second name of the option */
    struct mt_text_buffer known = {0};
    mt_option_print(option, reading->config, &known);
    same = !strcmp(known.text, text);
    if (!same)
      mt_text_add(&expected, "%s as %s is under another name", known.text, option->key);
    mt_free(known.text);
  } else if (!mt_option_set(option, reading->config, text)) {
    mt_option_expected(option, &expected);
  }
  if (expected.text)
    status = refuse(reading, key, value, expected.text);
  source->origin = MT_FROM_JSON;
  mt_free(expected.text);
  mt_free(text);
  return status;
}

static enum mt_status read_family(struct mt_reading *reading, const mt_json *root)
{
  const struct mt_option *family = mt_option_named("model.family");
  struct mt_source *source = &reading->source[family - mt_options];
  const mt_json *type = mt_json_get(root, "model_type");
  const char *name = mt_json_as_string(type, "");
  enum mt_family before = reading->config->model.family;
  if (!type)
    return MT_OK;
  const char *ours = NULL;
  for (size_t i = 0; i < sizeof families / sizeof *families; i++)
    ours = !strcmp(families[i].model_type, name) ? families[i].family : ours;
  if (!ours)
    return refuse(reading, "model_type", type, "mixtral, mistral, qwen2_moe or gpt2");
  mt_option_set(family, reading->config, ours);
  if (source->origin > MT_FROM_JSON && before != reading->config->model.family) {
    reading->config->model.family = before;
    return mt_reading_refuse(reading, "model.family",
                             "found another family than model_type of %s, expected %s",
                             reading->config->model.config, ours);
  }
  if (source->origin < MT_FROM_JSON)
    source->origin = MT_FROM_JSON;
  return MT_OK;
}

/* The newer form of rope_theta and rope_scaling in one. */
static enum mt_status read_rope(struct mt_reading *reading, const mt_json *value)
{
  if (mt_json_is_null(value))
    return MT_OK;
  const char *type = mt_json_as_string(mt_json_get(value, "rope_type"), "default");
  if (strcmp(type, "default"))
    return refuse(reading, "rope_parameters", value, "rope_type default");
  const mt_json *part = mt_json_get(value, "partial_rotary_factor");
  if (!mt_json_is_null(part) && !is_number(part, 1))
    return refuse(reading, "rope_parameters", value, "partial_rotary_factor 1");
  return take(reading, mt_option_named("model.rope_theta"), "rope_parameters.rope_theta",
              mt_json_get(value, "rope_theta"));
}

/* The window that the file's sliding_window stands for; 0 = none. Qwen's counts only where use_sliding_window says so. */
static int64_t window_of(const struct mt_reading *reading, const mt_json *root)
{
  int qwen = reading->config->model.family == MT_FAMILY_QWEN;
  int used = mt_json_as_boolean(mt_json_get(root, "use_sliding_window"), !qwen);
  return used ? mt_json_as_integer(mt_json_get(root, "sliding_window"), 0) : 0;
}

/* A window holds for all layers or for none. Qwen's files mean every other layer where they do not list them. */
static enum mt_status read_window(struct mt_reading *reading, const mt_json *root, const mt_json *value)
{
  if (mt_json_is_null(value))
    return MT_OK;
  if (!mt_json_is_integer(value) || mt_json_as_integer(value, 0) < 1)
    return refuse(reading, "sliding_window", value, "null or a number of positions");
  if (!window_of(reading, root))
    return MT_OK;
  if (reading->config->model.family == MT_FAMILY_QWEN && mt_json_is_null(mt_json_get(root, "layer_types"))) {
    mt_error("%s: layer_types: missing, which means every other layer with use_sliding_window, expected "
             "sliding_attention for each layer",
             reading->config->model.config);
    return MT_USAGE;
  }
  return take(reading, mt_option_named("model.sliding_window"), "sliding_window", value);
}

static enum mt_status read_layer_types(struct mt_reading *reading, const mt_json *root, const mt_json *value)
{
  const char *ours = window_of(reading, root) > 0 ? "sliding_attention" : "full_attention";
  int same = mt_json_is_null(value) || mt_json_is_array(value);
  for (int64_t i = 0; same && i < mt_json_size(value); i++)
    same = !strcmp(mt_json_as_string(mt_json_at(value, i), ""), ours);
  return same ? MT_OK : refuse(reading, "layer_types", value, ours);
}

/* Experts and dense MLPs have one width here. Where Qwen has no dense layer, only the experts' counts. */
static enum mt_status read_width(struct mt_reading *reading, const mt_json *root, const char *key,
                                 const mt_json *value)
{
  const mt_json *experts = mt_json_get(root, "moe_intermediate_size");
  const struct mt_option *option = mt_option_named("model.intermediate_size");
  int is_experts = !strcmp(key, "moe_intermediate_size");
  if (reading->config->model.family == MT_FAMILY_QWEN && !mt_json_is_null(experts) &&
      mt_json_as_integer(mt_json_get(root, "decoder_sparse_step"), 1) == 1)
    return is_experts ? take(reading, option, key, value) : MT_OK;
  if (!is_experts)
    return take(reading, option, key, value);
  const mt_json *dense = mt_json_get(root, "intermediate_size");
  if (!mt_json_is_null(value) && mt_json_as_integer(value, 0) != mt_json_as_integer(dense, 0))
    return refuse(reading, key, value, "the same as intermediate_size");
  return MT_OK;
}

/* A key that needs a thought. 1: dealt with. */
static int read_special(struct mt_reading *reading, const mt_json *root, const char *key,
                        const mt_json *value, enum mt_status *status)
{
  enum mt_family family = reading->config->model.family;
  if (!strcmp(key, "sliding_window") && family != MT_FAMILY_GPT2) {
    *status = read_window(reading, root, value);
    return 1;
  }
  if (!strcmp(key, "layer_types")) {
    *status = read_layer_types(reading, root, value);
    return 1;
  }
  if (!strcmp(key, "use_sliding_window") || !strcmp(key, "max_window_layers"))
    return 1; /* said by layer_types */
  if (!strcmp(key, "rope_parameters") && family != MT_FAMILY_GPT2) {
    *status = read_rope(reading, value);
    return 1;
  }
  if (!strcmp(key, "intermediate_size") || !strcmp(key, "moe_intermediate_size")) {
    *status = read_width(reading, root, key, value);
    return 1;
  }
  if (!strcmp(key, "qkv_bias")) {
    int ours = family == MT_FAMILY_QWEN;
    if (!mt_json_is_null(value) && !is_number(value, ours))
      *status = refuse(reading, key, value, ours ? "true" : "false");
    return 1;
  }
  return 0;
}

/* Keys that are not there, after those that are. */
static enum mt_status read_absent(struct mt_reading *reading, const mt_json *root)
{
  const char *type = mt_json_as_string(mt_json_get(root, "model_type"), "");
  for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
    const char *key = absent[i].key;
    if (strcmp(absent[i].model_type, type) || mt_json_get(root, key))
      continue;
    if (!absent[i].value) {
      mt_error("%s: %s: missing, which means %s, expected it to be given", reading->config->model.config, key,
               absent[i].meaning);
      return MT_USAGE;
    }
    const struct mt_option *option = mt_option_find("model", key);
    struct mt_source *source = &reading->source[option - mt_options];
    if (source->origin < MT_FROM_JSON) {
      mt_option_set(option, reading->config, absent[i].value);
      source->origin = MT_FROM_JSON;
    }
  }
  return MT_OK;
}

static enum mt_status read_key(struct mt_reading *reading, const mt_json *root, const char *key,
                               const mt_json *value)
{
  enum mt_status status = MT_OK;
  if (read_special(reading, root, key, value, &status))
    return status;
  const struct mt_option *option = mt_option_find("model", key);
  if (option && strcmp(key, "config") && strcmp(key, "family")) {
    int family = option->need == MT_NEED_ROTARY || option->need == MT_NEED_GPT2;
    if (!family || !mt_option_unread(option, reading->config))
      return take(reading, option, key, value);
    if (!mt_json_is_null(value))
      set_aside(reading, key);
    return MT_OK;
  }
  for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
    if (matches(fixed[i].key, key))
      return is_ours(&fixed[i], value) ? MT_OK : refuse(reading, key, value, fixed[i].ours);
  if (!is_silent(key) && !mt_json_is_null(value))
    set_aside(reading, key);
  return MT_OK;
}

enum mt_status mt_config_read_hf(struct mt_reading *reading)
{
  const char *path = reading->config->model.config;
  char *text, *fault;
  if (mt_text_read(path, &text, &fault)) {
    mt_reading_refuse(reading, "model.config", "%s, expected a config.json", fault);
    mt_free(fault);
    return MT_USAGE;
  }
  mt_json *root = NULL;
  enum mt_status status = mt_json_parse(path, text, &root);
  mt_free(text);
  if (status)
    return MT_USAGE;
  if (!mt_json_is_object(root)) {
    mt_error("%s: expected a JSON object", path);
    status = MT_USAGE;
  }
  if (!status)
    status = read_family(reading, root);
  for (int64_t i = 0; !status && i < mt_json_size(root); i++) {
    mt_json *value;
    const char *key = mt_json_key_at(root, i, &value);
    status = read_key(reading, root, key, value);
  }
  if (!status)
    status = read_absent(reading, root);
  mt_json_free(root);
  return status;
}
