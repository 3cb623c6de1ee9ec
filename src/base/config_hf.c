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
enum rule { NUMBER /* or boolean */, WORD, LIST_OF_WORD, EMPTY /* list or object */, ONLY_NULL, ANY_VALUE };
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
    {"qkv_bias", NUMBER, 0, "false"},
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
    {"layer_types", LIST_OF_WORD, 0, "full_attention"},
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
  case LIST_OF_WORD:
    for (int64_t i = 0; i < mt_json_size(value); i++)
      if (strcmp(mt_json_as_string(mt_json_at(value, i), ""), key->ours))
        return 0;
    return mt_json_is_array(value);
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
  if (!mt_option_set(family, reading->config, name)) {
    mt_error("%s: model_type: found \"%s\", expected mixtral or gpt2", reading->config->model.config, name);
    return MT_USAGE;
  }
  if (source->origin > MT_FROM_JSON && before != reading->config->model.family) {
    reading->config->model.family = before;
    return mt_reading_refuse(reading, "model.family",
                             "found another family than model_type of %s, expected %s",
                             reading->config->model.config, name);
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

/* A key that is neither an option nor in the table, but needs a thought. 1: dealt with. */
static int read_special(struct mt_reading *reading, const mt_json *root, const char *key,
                        const mt_json *value, enum mt_status *status)
{
  int mixtral = reading->config->model.family == MT_FAMILY_MIXTRAL;
  if (!strcmp(key, "sliding_window")) { /* compared with the sequence length when that is known */
    const mt_json *use = mt_json_get(root, "use_sliding_window");
    if (mt_json_is_integer(value) && mt_json_as_integer(value, 0) > 0) {
      if (mt_json_as_boolean(use, 1))
        reading->sliding_window = mt_json_as_integer(value, 0);
    } else if (!mt_json_is_null(value)) {
      *status = refuse(reading, key, value, "null or a number of positions");
    }
    return 1;
  }
  if (!strcmp(key, "use_sliding_window"))
    return 1;
  if (!strcmp(key, "rope_parameters") && mixtral) {
    *status = read_rope(reading, value);
    return 1;
  }
  if (!strcmp(key, "moe_intermediate_size")) { /* experts and dense MLPs have one width here */
    const mt_json *dense = mt_json_get(root, "intermediate_size");
    if (!mt_json_is_null(value) && mt_json_as_integer(value, 0) != mt_json_as_integer(dense, 0))
      *status = refuse(reading, key, value, "the same as intermediate_size");
    return 1;
  }
  return 0;
}

static enum mt_status read_key(struct mt_reading *reading, const mt_json *root, const char *key,
                               const mt_json *value)
{
  enum mt_status status = MT_OK;
  const struct mt_option *option = mt_option_find("model", key);
  if (option && strcmp(key, "config") && strcmp(key, "family")) {
    int family = option->need == MT_NEED_MIXTRAL || option->need == MT_NEED_GPT2;
    if (!family || !mt_option_unread(option, reading->config))
      return take(reading, option, key, value);
    if (!mt_json_is_null(value))
      set_aside(reading, key);
    return MT_OK;
  }
  if (read_special(reading, root, key, value, &status))
    return status;
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
  char *text;
  int64_t bytes;
  int error = mt_text_read_file(path, &text, &bytes);
  if (error)
    return mt_reading_refuse(reading, "model.config", "%s: %s, expected a config.json", path,
                             strerror(error));
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
  mt_json_free(root);
  return status;
}
