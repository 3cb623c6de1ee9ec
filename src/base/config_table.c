/* The table of options: to add one, add a member to struct mt_config and a row here. */
#include "config_table.h"
#include "memory.h"
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define AT(member) offsetof(struct mt_config, member)
#define ANY HUGE_VAL
#define RANKED (MT_CMD_TRAIN | MT_CMD_EVAL | MT_CMD_GENERATE)
#define MODEL (RANKED | MT_CMD_SIMULATE | MT_CMD_PLAN) /* with a model */

const struct mt_section mt_sections[] = {
    {"model", MODEL, "the model, in the words of Hugging Face's config.json"},
    {"moe", MODEL, "routing and its losses"},
    {"data", MODEL, "text or token files"},
    {"train", MT_CMD_TRAIN | MT_CMD_EVAL | MT_CMD_SIMULATE | MT_CMD_PLAN, "training"},
    {"parallel", MODEL, "where experts live and how rows travel"},
    {"schedule", MT_CMD_TRAIN, "in which order a step computes and communicates"},
    {"checkpoint", RANKED, "saving and going on"},
    {"generate", MT_CMD_GENERATE, "sampling text"},
    {"log", RANKED, "what a run leaves behind"},
    {"plan", MT_CMD_PLAN, "what motley plan compares"},
    {"bench", MT_CMD_BENCH, "motley bench; width, rows and skew are read by bench exchange"},
};
const int mt_nsection = sizeof mt_sections / sizeof *mt_sections;

/* Rows of the table by type; what else differs follows as designated initialisers. */
#define TEXT(s, k, ...) {.section = #s, .key = #k, .type = MT_OPTION_TEXT, .offset = AT(s.k), __VA_ARGS__},
#define INTEGER(s, k, from, to, ...)                                                                         \
  {.section = #s,                                                                                            \
   .key = #k,                                                                                                \
   .type = MT_OPTION_INTEGER,                                                                                \
   .offset = AT(s.k),                                                                                        \
   .low = from,                                                                                              \
   .high = to,                                                                                               \
   __VA_ARGS__},
#define REAL(s, k, from, to, ...)                                                                            \
  {.section = #s, .key = #k, .type = MT_OPTION_REAL, .offset = AT(s.k), .low = from, .high = to, __VA_ARGS__},
#define BOOLEAN(s, k, ...)                                                                                   \
  {.section = #s, .key = #k, .type = MT_OPTION_BOOLEAN, .offset = AT(s.k), __VA_ARGS__},
#define CHOICE(s, k, of, ...)                                                                                \
  {.section = #s, .key = #k, .type = MT_OPTION_CHOICE, .offset = AT(s.k), .choices = of, __VA_ARGS__},
#define SHAPE .meaning = MT_MEANS_SHAPE
#define COURSE .meaning = MT_MEANS_COURSE

const struct mt_option mt_options[] = {
    /* clang-format off */
  TEXT(model, config, .fallback = "", .help = "path of a Hugging Face config.json for what the keys below leave open")
  CHOICE(model, family, "mixtral|gpt2|qwen", SHAPE, .required = MODEL, .derived = "model_type of config.json",
         .help = "kind of model")
  INTEGER(model, hidden_size, 1, 1 << 20, SHAPE, .alias = {"n_embd"}, .required = MODEL, .help = "width of the model")
  INTEGER(model, num_hidden_layers, 1, 1 << 16, SHAPE, .alias = {"n_layer"}, .required = MODEL,
          .help = "transformer blocks")
  INTEGER(model, num_attention_heads, 1, 1 << 16, SHAPE, .alias = {"n_head"}, .required = MODEL,
          .help = "attention heads")
  INTEGER(model, num_key_value_heads, 1, 1 << 16, SHAPE, .need = MT_NEED_ROTARY, .derived = "num_attention_heads",
          .help = "heads of keys and values, shared by groups of attention heads")
  INTEGER(model, head_dim, 1, 1 << 16, SHAPE, .need = MT_NEED_ROTARY, .derived = "hidden_size / num_attention_heads",
          .help = "width of a head")
  INTEGER(model, intermediate_size, 1, 1 << 24, SHAPE, .alias = {"n_inner"}, .required = MODEL,
          .derived = "gpt2: 4 hidden_size", .help = "width of an expert and of a dense MLP")
  INTEGER(model, num_local_experts, 0, 1 << 16, SHAPE, .alias = {"num_experts"}, .derived = "8, gpt2: 0",
          .help = "experts of an MoE layer; 0 = a dense model")
  INTEGER(model, num_experts_per_tok, 1, 1 << 16, COURSE, .need = MT_NEED_EXPERTS, .fallback = "2",
          .help = "experts that each token visits")
  INTEGER(model, decoder_sparse_step, 1, 1 << 16, SHAPE, .need = MT_NEED_EXPERTS, .fallback = "1",
          .help = "n: layer i is MoE when (i + 1) mod n = 0")
  INTEGER(model, vocab_size, 2, INT32_MAX, SHAPE, .required = MODEL, .derived = "data.format bytes: 256",
          .help = "token ids")
  INTEGER(model, max_position_embeddings, 1, 1 << 30, SHAPE, .alias = {"n_positions"}, .required = MODEL,
          .derived = "data.seq_length", .help = "longest sequence")
  INTEGER(model, sliding_window, 0, 1 << 30, COURSE, .need = MT_NEED_ROTARY, .fallback = "0",
          .help = "positions that attention sees, its own included; 0 = all earlier ones")
  REAL(model, rope_theta, 0, ANY, COURSE, .open = MT_OPEN_LOW, .need = MT_NEED_ROTARY, .fallback = "1000000",
       .help = "base of the rotary positions")
  {.section = "model", .key = "rms_norm_eps", .type = MT_OPTION_REAL, .offset = AT(model.norm_eps), .high = ANY, COURSE,
   .open = MT_OPEN_LOW, .need = MT_NEED_ROTARY, .derived = "1e-05, qwen: 1e-06", .help = "added to the mean square in RMSNorm"},
  {.section = "model", .key = "layer_norm_epsilon", .type = MT_OPTION_REAL, .offset = AT(model.norm_eps), .high = ANY,
   COURSE, .open = MT_OPEN_LOW, .need = MT_NEED_GPT2, .fallback = "1e-05", .help = "added to the variance in LayerNorm"},
  CHOICE(model, hidden_act, "silu|gelu_new", COURSE, .alias = {"activation_function"},
         .derived = "silu, gpt2: gelu_new", .help = "activation")
  REAL(model, initializer_range, 0, ANY, COURSE, .fallback = "0.02", .help = "standard deviation of initial weights")
  BOOLEAN(model, tie_word_embeddings, SHAPE, .derived = "false, gpt2: true",
          .help = "the head is the token embedding")
  REAL(model, router_aux_loss_coef, 0, ANY, COURSE, .need = MT_NEED_EXPERTS, .fallback = "0.001",
       .help = "coefficient of the balance loss")

  CHOICE(moe, router, "learned|balanced|zipf|replay", COURSE, .need = MT_NEED_EXPERTS, .fallback = "learned",
         .help = "who picks a token's experts; to measure: in turn (balanced), or at random by Zipf's law or a file")
  REAL(moe, skew, 0, ANY, COURSE, .need = MT_NEED_ZIPF, .fallback = "1",
       .help = "zipf: the i-th most popular expert is picked in proportion to i^-skew")
  REAL(moe, drift, 0, ANY, COURSE, .need = MT_NEED_ZIPF, .fallback = "0",
       .help = "zipf: steps in which the order of popularity moves on by one expert; 0 = it stays")
  TEXT(moe, loads, COURSE, .need = MT_NEED_REPLAY, .fallback = "",
       .help = "replay: CSV of the rows of each rank and expert, step by step; over and over")
  REAL(moe, capacity_factor, 0, ANY, COURSE, .need = MT_NEED_EXPERTS, .fallback = "0",
       .help = "f: an expert takes ceil(f K T / E) tokens of a sequence, the first ones; 0 = any number")
  CHOICE(moe, aux_scope, "sequence|micro_batch", COURSE, .need = MT_NEED_EXPERTS, .fallback = "sequence",
         .help = "tokens that the balance loss pools")
  REAL(moe, z_loss, 0, ANY, COURSE, .need = MT_NEED_EXPERTS, .fallback = "0",
       .help = "coefficient of the router's z-loss")

  TEXT(data, train, .fallback = "", .required = MT_CMD_TRAIN, .help = "files to train on, separated by commas; patterns like *.bin")
  TEXT(data, valid, .fallback = "", .required = MT_CMD_EVAL, .help = "files to evaluate on, likewise; several sets: \"wiki: a.txt, b.txt, code: c.txt\"")
  INTEGER(data, seq_length, 1, 1 << 30, COURSE, .derived = "max_position_embeddings", .required = MODEL,
          .help = "tokens of a sequence")
  CHOICE(data, format, "bytes|uint16|uint32|llmc", COURSE, .fallback = "bytes",
         .help = "token ids in a file: raw (nanoGPT's are uint16) or llm.c's shards with their header")
  CHOICE(data, document, "none|start|end", COURSE, .fallback = "none",
         .help = "where document_id stands in documents, which attention then keeps apart (llm.c: start, nanoGPT: end)")
  INTEGER(data, document_id, 0, INT32_MAX - 1, COURSE, .need = MT_NEED_DOCUMENT, .help = "the id between documents (GPT-2: 50256)")

  INTEGER(train, steps, 0, ANY, .required = MT_CMD_TRAIN, .help = "number of the last step")
  INTEGER(train, global_batch, 1, 1 << 30, COURSE, .fallback = "32", .help = "sequences of a step, all ranks together")
  INTEGER(train, micro_batch, 1, 1 << 30, COURSE, .derived = "the smaller of 4 and global_batch",
          .help = "most sequences that a rank computes at once")
  REAL(train, lr, 0, ANY, COURSE, .fallback = "0.0003", .help = "learning rate after warm-up")
  CHOICE(train, schedule, "constant|linear|cosine|wsd", COURSE, .fallback = "constant",
         .help = "learning rate after warm-up (wsd: stable, then a decay in the last steps)")
  INTEGER(train, warmup, 0, ANY, COURSE, .fallback = "0", .help = "steps over which the learning rate rises from 0")
  INTEGER(train, decay_steps, 0, ANY, COURSE, .need = MT_NEED_DECAY, .fallback = "0",
          .help = "step at which min_lr is reached; 0 = steps")
  REAL(train, decay_ratio, 0, 1, COURSE, .need = MT_NEED_WSD, .fallback = "0.2",
       .help = "part of the steps up to decay_steps in which the learning rate falls")
  CHOICE(train, decay_type, "linear|sqrt|cosine", COURSE, .need = MT_NEED_WSD, .fallback = "sqrt",
         .help = "how it falls, x being the part of the decay that is over: 1 - x, 1 - sqrt x, half a cosine")
  REAL(train, min_lr, 0, ANY, COURSE, .need = MT_NEED_DECAY, .fallback = "0", .help = "where the decay ends")
  REAL(train, weight_decay, 0, ANY, COURSE, .fallback = "0.1", .help = "AdamW's decay of weight matrices")
  {.section = "train", .key = "betas", .type = MT_OPTION_PAIR, .offset = AT(train.beta1), .high = 1, COURSE,
   .open = MT_OPEN_HIGH, .fallback = "0.9,0.95", .help = "AdamW's averaging of gradients and of their squares"},
  REAL(train, eps, 0, ANY, COURSE, .open = MT_OPEN_LOW, .fallback = "1e-08", .help = "AdamW's epsilon")
  REAL(train, clip, 0, ANY, COURSE, .fallback = "1", .help = "largest norm of the global gradient; 0 = any")
  INTEGER(train, seed, -0x1p63, ANY, COURSE, .fallback = "1", .help = "of initial weights and sample order")
  INTEGER(train, valid_interval, 0, ANY, .need = MT_NEED_VALID, .fallback = "0",
          .help = "steps between validations; 0 = never")
  BOOLEAN(train, recompute, .fallback = "false",
          .help = "keep less of the forward pass and compute it again in the backward pass")
  CHOICE(train, nonfinite, "skip|abort", COURSE, .fallback = "skip", .help = "what to do with a step that has NaN or Inf")

  CHOICE(parallel, sharding, "full|node|owner|auto", .need = MT_NEED_EXPERTS, .fallback = "auto",
         .help = "ranks over which an expert's master weights are cut: all, a node's, one; or by predicted time and memory")
  CHOICE(parallel, measure, "auto|on|off", .fallback = "auto",
         .help = "measure speeds and links at start, unless a checkpoint of the same places has them (auto: if exchange or "
                 "sharding = auto have nodes to choose between, or shares = auto or a layout that follows has ranks that are unlike)")
  {.section = "parallel", .key = "shard_sizes", .type = MT_OPTION_COUNTS, .offset = AT(parallel.shard_sizes), .high = 1 << 30,
   .choices = "auto|even", .fallback = "auto",
   .help = "a rank's part of master weights and moments: by memory and links, evenly, or by a list of one number a rank"},
  {.section = "parallel", .key = "shares", .type = MT_OPTION_COUNTS, .offset = AT(parallel.shares), .high = 1 << 30,
   .choices = "auto|even", .fallback = "auto",
   .help = "the global batch's cut over ranks, by measured speed, evenly, or by a list of one number a rank"},
  CHOICE(parallel, wire, "f32|bf16", .need = MT_NEED_EXPERTS, .fallback = "f32", .help = "type of token rows between ranks")
  {.section = "parallel", .key = "slots", .type = MT_OPTION_COUNTS, .offset = AT(parallel.slots), .high = 1 << 16,
   .need = MT_NEED_EXPERTS, .fallback = "", .derived = "by the layout",
   .help = "experts a rank holds at a time: one number, or one for each rank"},
  CHOICE(parallel, layout, "static|random|laer|eplb|flexmoe|motley", .need = MT_NEED_EXPERTS, .fallback = "motley",
         .help = "policy by which ranks hold experts; all but static follow the load (random: for tests)")
  CHOICE(parallel, dispatch, "lite|solved", .need = MT_NEED_EXPERTS, .fallback = "solved",
         .help = "how rows are dealt over an expert's slots: evenly in the node, or so that the last rank is done early")
  INTEGER(parallel, relayout_interval, 1, ANY, .need = MT_NEED_FOLLOWING, .fallback = "1",
          .help = "steps between plans of layouts")
  INTEGER(parallel, relayout_window, 1, 16, .need = MT_NEED_FOLLOWING, .fallback = "5",
          .help = "last steps whose loads a plan sees, each with twice the weight of the one before it")
  CHOICE(parallel, exchange, "auto|pairwise|hierarchical", .need = MT_NEED_EXPERTS, .fallback = "auto",
         .help = "way of rows between ranks")
  {.section = "parallel", .key = "device", .type = MT_OPTION_WORD, .offset = AT(parallel.device), 
   .choices = "auto|cpu|cuda|cuda:N|emulated|emulated:N", .fallback = "auto",
   .help = "what computes: CPUs, GPUs (N as CUDA numbers it), for tests GPUs that are not there; auto: GPUs where there are any"},
  CHOICE(parallel, precision, "auto|f32|tf32|bf16", .fallback = "auto",
         .help = "what a GPU computes in; CPUs compute in f32 (auto: bf16, emulated f32)")
  CHOICE(parallel, device_memory, "auto|direct|staged", .need = MT_NEED_EXPERTS, .fallback = "auto",
         .help = "way of rows from a GPU: MPI itself, or through the host's memory, in chunks (auto: what MPI can)")

  {.section = "schedule", .key = "policy", .type = MT_OPTION_WORD, .offset = AT(schedule.policy),
   .choices = "auto|sequential|tutel|pipemoe|tutel-gar|lina|coconet|fsmoe-one|fsmoe|mast|laer", .need = MT_NEED_EXPERTS,
   .fallback = "auto", .help = "published schedule that orders computing and communication, or the one that costs least"},
  INTEGER(schedule, degree, 0, 8, .need = MT_NEED_EXPERTS, .derived = "0, tutel: 2",
          .help = "chunks of an MoE layer's tokens; 0 = as many as cost least by prediction")

  TEXT(checkpoint, dir, .derived = "log.dir/checkpoints", .help = "folder of the checkpoints")
  INTEGER(checkpoint, interval, 0, ANY, .fallback = "1000", .help = "steps between checkpoints; 0 = at the end only")
  INTEGER(checkpoint, keep, 0, INT32_MAX, .fallback = "3", .help = "newest checkpoints to keep; 0 = all")
  TEXT(checkpoint, resume, .fallback = "auto", .help = "auto (the newest complete), never, or a path")

  TEXT(generate, prompt, .fallback = "", .required = MT_CMD_GENERATE, .help = "text to continue")
  INTEGER(generate, length, 0, INT32_MAX, .fallback = "200", .help = "tokens to add")
  REAL(generate, temperature, 0, ANY, .fallback = "1", .help = "0 = always the likeliest token")
  INTEGER(generate, top_k, 0, INT32_MAX, .need = MT_NEED_TEMPERATURE, .fallback = "0",
          .help = "choose among the k likeliest tokens; 0 = all")
  REAL(generate, top_p, 0, 1, .open = MT_OPEN_LOW, .need = MT_NEED_TEMPERATURE, .fallback = "1",
       .help = "then among the fewest that are p of the probability; 1 = all")
  INTEGER(generate, seed, -0x1p63, ANY, .need = MT_NEED_TEMPERATURE, .fallback = "1", .help = "of the choices")

  TEXT(log, dir, .fallback = "run", .help = "folder of the log, RUN")
  CHOICE(log, loads, "summary|full", .need = MT_NEED_EXPERTS, .fallback = "summary",
         .help = "full: tokens of each expert in each step's line")
  {.section = "log", .key = "trace", .type = MT_OPTION_COUNTS, .offset = AT(log.trace), .low = 1, .high = ANY,
   .fallback = "",
   .help = "steps whose lanes go into RUN/trace.json, measured and predicted: 3,10 (opens in Perfetto)"},

  {.section = "plan", .key = "policy", .type = MT_OPTION_WORD, .offset = AT(plan.policy),
   .choices = "all|static|laer|eplb|flexmoe|motley", .fallback = "all", .help = "policy of layouts, or each of them"},
  {.section = "plan", .key = "dispatch", .type = MT_OPTION_WORD, .offset = AT(plan.dispatch), .choices = "all|lite|solved",
   .fallback = "all", .help = "way of dealing rows over an expert's slots, or both"},
  INTEGER(plan, steps, 1, 1 << 12, .fallback = "12", .help = "of loads that are made up")
  INTEGER(plan, warmup, 0, 1 << 16, .fallback = "2", .help = "first steps that are not counted")
  BOOLEAN(plan, keep, .fallback = "false", .help = "solved: rows leave their node only where it has no slot for them")
  BOOLEAN(plan, hidden, .fallback = "false", .help = "experts' weights travel while experts compute")

  {.section = "bench", .key = "width", .type = MT_OPTION_COUNTS, .offset = AT(bench.width), .low = 1, .high = 1 << 24,
   .fallback = "1024,16384", .derived = "hidden_size floats, or 1024,16384", .help = "bytes of a row"},
  {.section = "bench", .key = "rows", .type = MT_OPTION_COUNTS, .offset = AT(bench.rows), .high = 1 << 24,
   .fallback = "8,128,1024", .derived = "rows of a micro-batch, or 8,128,1024", .help = "rows that each rank sends"},
  {.section = "bench", .key = "skew", .type = MT_OPTION_WORD, .offset = AT(bench.skew), .choices = "all|uniform|zipf|node",
   .fallback = "all", .help = "where rows go: everywhere alike, by Zipf's law over experts, all to the last node; or each in turn"},
  REAL(bench, uplink_mbit, 0, ANY, .fallback = "0", .help = "Mbit/s of a node's uplink, for the bound; 0 = as measured")
  REAL(bench, seconds, 0, ANY, .fallback = "2", .help = "time for a case, about")
    /* clang-format on */
};
const int mt_noption = sizeof mt_options / sizeof *mt_options;

static int named(const struct mt_option *option, const char *key)
{
  return !strcmp(key, option->key) || (option->alias[0] && !strcmp(key, option->alias[0])) ||
         (option->alias[1] && !strcmp(key, option->alias[1]));
}

const struct mt_option *mt_option_find(const char *section, const char *key)
{
  for (int i = 0; i < mt_noption; i++)
    if (!strcmp(section, mt_options[i].section) && named(&mt_options[i], key))
      return &mt_options[i];
  return NULL;
}

const struct mt_option *mt_option_named(const char *name)
{
  const char *dot = strchr(name, '.');
  for (int i = 0; dot && i < mt_noption; i++)
    if (!strncmp(name, mt_options[i].section, (size_t)(dot - name)) && !strcmp(dot + 1, mt_options[i].key))
      return &mt_options[i];
  MT_CHECK(0, "no option is called %s", name);
}

const struct mt_section *mt_section_find(const char *name)
{
  for (int i = 0; i < mt_nsection; i++)
    if (!strcmp(name, mt_sections[i].name))
      return &mt_sections[i];
  return NULL;
}

/* The number of the word in "a|b|c", or -1. */
static int choice_number(const char *choices, const char *word)
{
  size_t length = strlen(word);
  for (int i = 0;; i++) {
    size_t n = strcspn(choices, "|");
    if (n == length && !strncmp(choices, word, n))
      return i;
    if (!choices[n])
      return -1;
    choices += n + 1;
  }
}

/* "cuda:3" where "cuda:N" is a choice. */
static int is_numbered(const char *choices, const char *word)
{
  int64_t number;
  size_t n = strcspn(word, ":") + 1;
  char pattern[32];
  if (!word[n - 1] || n + 2 > sizeof pattern || !mt_text_integer(word + n, &number) || number < 0 || number > 1 << 16)
    return 0;
  snprintf(pattern, sizeof pattern, "%.*sN", (int)n, word);
  return choice_number(choices, pattern) >= 0;
}

static int in_range(const struct mt_option *option, double value)
{
  return (option->open & MT_OPEN_LOW ? value > option->low : value >= option->low) &&
         (option->open & MT_OPEN_HIGH ? value < option->high : value <= option->high);
}

/* The next part of a comma-separated list without the blanks around it, or NULL at the end. */
static const char *list_part(const char *list, char *part, size_t size)
{
  size_t n = strcspn(list, ","), blanks = strspn(list, " ");
  snprintf(part, size, "%.*s", (int)(n > blanks ? n - blanks : 0), list + blanks);
  for (size_t end = strlen(part); end > 0 && part[end - 1] == ' ';)
    part[--end] = 0;
  return list[n] ? list + n + 1 : NULL;
}

static int is_counts(const struct mt_option *option, const char *text)
{
  if (option->choices && choice_number(option->choices, text) >= 0)
    return 1;
  if (option->choices && !*text)
    return 0;
  int64_t value;
  char part[32];
  for (const char *rest = *text ? text : NULL; rest;) {
    rest = list_part(rest, part, sizeof part);
    if (!mt_text_integer(part, &value) || !in_range(option, (double)value))
      return 0;
  }
  return 1;
}

int mt_option_set(const struct mt_option *option, struct mt_config *config, const char *text)
{
  void *member = (char *)config + option->offset;
  int64_t integer;
  double real[2];
  int number;
  char part[32];
  switch (option->type) {
  case MT_OPTION_INTEGER:
    if (!mt_text_integer(text, &integer) || !in_range(option, (double)integer))
      return 0;
    *(int64_t *)member = integer;
    return 1;
  case MT_OPTION_REAL:
    if (!mt_text_real(text, &real[0]) || !in_range(option, real[0]))
      return 0;
    *(double *)member = real[0] + 0.0; /* no -0 */
    return 1;
  case MT_OPTION_PAIR:
    for (int i = 0; i < 2; i++) {
      if (!text)
        return 0;
      text = list_part(text, part, sizeof part);
      if (!mt_text_real(part, &real[i]) || !in_range(option, real[i]))
        return 0;
    }
    if (text)
      return 0;
    memcpy(member, real, sizeof real);
    return 1;
  case MT_OPTION_BOOLEAN:
    return mt_text_boolean(text, member);
  case MT_OPTION_CHOICE:
    number = choice_number(option->choices, text);
    if (number < 0)
      return 0;
    memcpy(member, &number, sizeof number);
    return 1;
  case MT_OPTION_WORD:
    if (choice_number(option->choices, text) < 0 && !is_numbered(option->choices, text))
      return 0;
    break;
  case MT_OPTION_COUNTS:
    if (!is_counts(option, text))
      return 0;
    break;
  case MT_OPTION_TEXT:
    break;
  }
  char *copy = mt_strdup(text); /* before the old value goes: text may be it */
  mt_free(*(char **)member);
  *(char **)member = copy;
  return 1;
}

void mt_option_print(const struct mt_option *option, const struct mt_config *config,
                     struct mt_text_buffer *out)
{
  const void *member = (const char *)config + option->offset;
  char text[2][32];
  int number;
  const char *word = option->choices;
  switch (option->type) {
  case MT_OPTION_INTEGER:
    mt_text_add(out, "%lld", (long long)*(const int64_t *)member);
    break;
  case MT_OPTION_REAL:
    mt_text_add(out, "%s", mt_text_print_real(*(const double *)member, text[0]));
    break;
  case MT_OPTION_PAIR:
    mt_text_add(out, "%s,%s", mt_text_print_real(((const double *)member)[0], text[0]),
                mt_text_print_real(((const double *)member)[1], text[1]));
    break;
  case MT_OPTION_BOOLEAN:
    mt_text_add(out, "%s", *(const int *)member ? "true" : "false");
    break;
  case MT_OPTION_CHOICE:
    memcpy(&number, member, sizeof number);
    while (number-- > 0)
      word += strcspn(word, "|") + 1;
    mt_text_add(out, "%.*s", (int)strcspn(word, "|"), word);
    break;
  default:
    mt_text_add(out, "%s", *(char *const *)member);
  }
}

void mt_option_expected(const struct mt_option *option, struct mt_text_buffer *out)
{
  char low[32], high[32];
  const char *what = "a number", *word;
  switch (option->type) {
  case MT_OPTION_TEXT:
    mt_text_add(out, "a text");
    return;
  case MT_OPTION_BOOLEAN:
    mt_text_add(out, "true or false");
    return;
  case MT_OPTION_CHOICE:
  case MT_OPTION_WORD:
    mt_text_add(out, "%s", strchr(option->choices, '|') ? "one of " : "");
    for (word = option->choices; *word; word++)
      mt_text_add(out, *word == '|' ? ", " : "%c", *word);
    return;
  case MT_OPTION_COUNTS:
    for (word = option->choices; word && *word; word++)
      mt_text_add(out, *word == '|' ? ", " : "%c", *word);
    what = option->choices ? " or one integer for each rank (\"2,1,4\")," : "one integer or several (\"2\" or \"2,1,4\"),";
    break;
  case MT_OPTION_INTEGER:
    what = "an integer";
    break;
  case MT_OPTION_PAIR:
    what = "two numbers \"a,b\",";
    break;
  case MT_OPTION_REAL:
    break;
  }
  snprintf(low, sizeof low, "%.0f", option->low);
  snprintf(high, sizeof high, "%.0f", option->high);
  mt_text_add(out, "%s", what);
  int bounded = option->high < ANY, any = option->low <= -0x1p63;
  if (bounded && !option->open)
    mt_text_add(out, " from %s to %s", low, high);
  else if (!any && option->open & MT_OPEN_LOW)
    mt_text_add(out, " above %s", low);
  else if (!any)
    mt_text_add(out, "%s at least %s", what[strlen(what) - 1] == ',' ? "" : ",", low);
  else
    mt_text_add(out, " of 64 bits");
  if (bounded && option->open)
    mt_text_add(out, " and %s %s", option->open & MT_OPEN_HIGH ? "below" : "at most", high);
}

const char *mt_option_unread(const struct mt_option *option, const struct mt_config *config)
{
  switch (option->need) {
  case MT_NEED_ROTARY:
    return config->model.family != MT_FAMILY_GPT2 ? NULL : "with model.family = gpt2";
  case MT_NEED_GPT2:
    return config->model.family == MT_FAMILY_GPT2   ? NULL
           : config->model.family == MT_FAMILY_QWEN ? "with model.family = qwen"
                                                    : "with model.family = mixtral";
  case MT_NEED_EXPERTS:
    return config->model.num_local_experts ? NULL : "with model.num_local_experts = 0 (a dense model)";
  case MT_NEED_REPLAY:
    return config->moe.router == MT_ROUTER_REPLAY && config->model.num_local_experts ? NULL : "unless moe.router = replay";
  case MT_NEED_ZIPF:
    return config->moe.router == MT_ROUTER_ZIPF && config->model.num_local_experts ? NULL : "unless moe.router = zipf";
  case MT_NEED_FOLLOWING:
    if (!config->model.num_local_experts)
      return "with model.num_local_experts = 0 (a dense model)";
    return config->parallel.layout == MT_LAYOUT_STATIC   ? "with parallel.layout = static"
           : config->parallel.layout == MT_LAYOUT_RANDOM ? "with parallel.layout = random"
                                                         : NULL;
  case MT_NEED_DECAY:
    return config->train.schedule != MT_SCHEDULE_CONSTANT ? NULL : "with train.schedule = constant";
  case MT_NEED_WSD:
    return config->train.schedule == MT_SCHEDULE_WSD ? NULL : "unless train.schedule = wsd";
  case MT_NEED_VALID:
    return *config->data.valid ? NULL : "without data.valid";
  case MT_NEED_DOCUMENT:
    return config->data.document != MT_DOCUMENT_NONE ? NULL : "with data.document = none";
  case MT_NEED_TEMPERATURE:
    return config->generate.temperature > 0 ? NULL
                                            : "with generate.temperature = 0 (always the likeliest token)";
  case MT_NEED_NOTHING:
    break;
  }
  return NULL;
}

static int is_owned_text(const struct mt_option *option)
{
  return option->type == MT_OPTION_TEXT || option->type == MT_OPTION_WORD || option->type == MT_OPTION_COUNTS;
}

void mt_config_defaults(struct mt_config *config)
{
  memset(config, 0, sizeof *config);
  for (int i = 0; i < mt_noption; i++) {
    const struct mt_option *option = &mt_options[i];
    if (option->fallback)
      MT_CHECK(mt_option_set(option, config, option->fallback), "the default of %s.%s is not allowed",
               option->section, option->key);
    else if (is_owned_text(option))
      *(char **)((char *)config + option->offset) = mt_strdup("");
  }
}

void mt_config_free(struct mt_config *config)
{
  for (int i = 0; i < mt_noption; i++)
    if (is_owned_text(&mt_options[i]))
      mt_free(*(char **)((char *)config + mt_options[i].offset));
  memset(config, 0, sizeof *config);
}

void mt_config_help(unsigned commands)
{
  for (int s = 0; s < mt_nsection; s++) {
    if (!(mt_sections[s].commands & commands))
      continue;
    printf("\n[%s]  %s\n", mt_sections[s].name, mt_sections[s].help);
    for (int i = 0; i < mt_noption; i++) {
      const struct mt_option *option = &mt_options[i];
      if (strcmp(option->section, mt_sections[s].name))
        continue;
      printf("  %-24s %s", option->key, option->help);
      for (const char *word = option->choices ? option->choices : ""; *word;) {
        int n = (int)strcspn(word, "|");
        printf("%s%.*s", word == option->choices ? ": " : ", ", n, word);
        word += n + (word[n] != 0);
      }
      const char *fallback = option->derived ? option->derived : option->fallback;
      if (fallback && *fallback)
        printf(" (%s)", fallback);
      for (int a = 0; a < 2 && option->alias[a]; a++)
        printf("; also %s", option->alias[a]);
      printf("\n");
    }
  }
}
