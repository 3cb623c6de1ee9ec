/* Configuration: one table (config_table.c) names every option, its section, type, range, default, help and
 * which commands use it; it drives the file, the environment, --set, the printed effective configuration and
 * the checkpoint's copy.
 *
 * Precedence: --set section.key=value, environment MOTLEY_SECTION_KEY, file, default. Reading is local and
 * deterministic; in a job rank 0 reads and the others read its printed form (see main.c), so an error is said
 * once. */
#ifndef MT_CONFIG_H
#define MT_CONFIG_H
#include <stdint.h>
#include "status.h"

enum mt_family { MT_FAMILY_MIXTRAL, MT_FAMILY_GPT2, MT_FAMILY_QWEN };
enum mt_router {
  MT_ROUTER_LEARNED,
  MT_ROUTER_BALANCED, /* token t of a micro-step takes experts (t K + k) mod E */
  MT_ROUTER_ZIPF,     /* made up, see experts/forced.h */
  MT_ROUTER_REPLAY    /* as a file of loads has it, likewise */
};
enum mt_aux_scope { MT_AUX_SEQUENCE, MT_AUX_MICRO_BATCH };
enum mt_format { MT_FORMAT_BYTES, MT_FORMAT_UINT16, MT_FORMAT_UINT32, MT_FORMAT_LLMC };
enum mt_document { MT_DOCUMENT_NONE, MT_DOCUMENT_START, MT_DOCUMENT_END };
enum mt_schedule_kind { MT_SCHEDULE_CONSTANT, MT_SCHEDULE_LINEAR, MT_SCHEDULE_COSINE, MT_SCHEDULE_WSD };
enum mt_decay_type { MT_DECAY_LINEAR, MT_DECAY_SQRT, MT_DECAY_COSINE };
enum mt_nonfinite { MT_NONFINITE_SKIP, MT_NONFINITE_ABORT };
enum mt_sharding { MT_SHARDING_FULL, MT_SHARDING_NODE, MT_SHARDING_OWNER, MT_SHARDING_AUTO /* see train/sharding.h */ };
enum mt_wire { MT_WIRE_F32, MT_WIRE_BF16 };
enum mt_exchange_kind { MT_EXCHANGE_AUTO, MT_EXCHANGE_PAIRWISE, MT_EXCHANGE_HIERARCHICAL };
enum mt_compute { MT_COMPUTE_AUTO, MT_COMPUTE_F32, MT_COMPUTE_TF32, MT_COMPUTE_BF16 };
enum mt_device_memory { MT_DEVICE_MEMORY_AUTO, MT_DEVICE_MEMORY_DIRECT, MT_DEVICE_MEMORY_STAGED }; /* see comm/devices.h */
enum mt_measure_when { MT_MEASURE_AUTO, MT_MEASURE_ON, MT_MEASURE_OFF };
enum mt_layout_policy { /* see experts/policy.h */
  MT_LAYOUT_STATIC,
  MT_LAYOUT_RANDOM, /* tests: another random layout every micro-step */
  MT_LAYOUT_LAER,
  MT_LAYOUT_EPLB,
  MT_LAYOUT_FLEXMOE,
  MT_LAYOUT_MOTLEY
};
enum mt_dispatch_kind { MT_DISPATCH_LITE, MT_DISPATCH_SOLVED };
enum mt_loads { MT_LOADS_SUMMARY, MT_LOADS_FULL };
enum mt_activation { MT_ACTIVATION_SILU, MT_ACTIVATION_GELU_NEW /* the tanh form */ };

/* Commands, as bits: an option is known to all commands, read by some. */
enum mt_command {
  MT_CMD_TRAIN = 1,
  MT_CMD_EVAL = 2,
  MT_CMD_GENERATE = 4,
  MT_CMD_TOPO = 8,
  MT_CMD_INSPECT = 16,
  MT_CMD_BENCH = 32,
  MT_CMD_SIMULATE = 64,
  MT_CMD_PLAN = 128
};

/* The effective configuration. Strings are owned by the struct, never NULL ("" = not given), freed by
 * mt_config_free. */
struct mt_config {
  struct {
    char *config; /* path of a Hugging Face config.json, "" = the keys below */
    enum mt_family family;
    int64_t hidden_size;             /* C; alias n_embd */
    int64_t num_hidden_layers;       /* L; alias n_layer */
    int64_t num_attention_heads;     /* H; alias n_head */
    int64_t num_key_value_heads;     /* default H */
    int64_t head_dim;                /* D, default C / H */
    int64_t intermediate_size;       /* F of experts and of dense MLPs; alias n_inner; gpt2 default 4 C */
    int64_t num_local_experts;       /* E; 0 = dense model; aliases num_experts */
    int64_t num_experts_per_tok;     /* K */
    int64_t vocab_size;              /* V */
    int64_t max_position_embeddings; /* alias n_positions */
    int64_t sliding_window;          /* positions that attention sees, its own included; 0 = all earlier */
    double rope_theta;               /* all but gpt2 */
    enum mt_activation
        hidden_act;  /* alias activation_function; gpt2 gelu_new, others silu, nothing else yet */
    double norm_eps; /* keys rms_norm_eps (mixtral 1e-5, qwen 1e-6), layer_norm_epsilon (gpt2) */
    double initializer_range;
    int64_t decoder_sparse_step; /* layer i is MoE when (i + 1) mod n = 0 */
    int tie_word_embeddings;     /* default: gpt2 true, others false */
    double router_aux_loss_coef;
  } model;
  struct {
    enum mt_router router;
    double skew, drift; /* of the zipf router, see experts/forced.h */
    char *loads;        /* of the replay router: a file, see experts/replay.h */
    double capacity_factor; /* an expert takes ceil(f K T / E) rows of a sequence; 0 = any number */
    enum mt_aux_scope aux_scope;
    double z_loss; /* coefficient */
  } moe;
  struct {
    char *train, *valid; /* comma-separated paths and patterns of the shell; valid: in sets (train/valid.h) */
    int64_t seq_length;  /* T */
    enum mt_format format;
    enum mt_document document; /* the id below stands at the start or the end of documents */
    int64_t document_id;
  } data;
  struct {
    int64_t steps, global_batch, micro_batch; /* batches in sequences */
    double lr, min_lr;
    int64_t warmup, decay_steps; /* decay_steps 0 = steps */
    enum mt_schedule_kind schedule;
    double decay_ratio; /* wsd: part of the steps that decay */
    enum mt_decay_type decay_type;
    double weight_decay, beta1, beta2, eps; /* key betas = "b1,b2" */
    double clip;                            /* largest global gradient norm, 0 = none */
    int64_t seed;
    int64_t valid_interval; /* steps, 0 = never */
    enum mt_nonfinite nonfinite;
    int recompute; /* 1: keep each layer's input and exchanged rows only, compute the rest again in backward */
  } train;
  struct {
    enum mt_sharding sharding;
    enum mt_wire wire; /* type of rows between ranks; gradients of parameters always travel in f32 */
    char *shard_sizes; /* of the ranks: auto | even | "n0,n1,..." */
    char *slots; /* "" = by the layout policy, "n" or "n0,n1,..." one per rank */
    enum mt_layout_policy layout;
    enum mt_dispatch_kind dispatch; /* of an expert's rows over its slots, see experts/shares.h */
    int64_t relayout_interval, relayout_window; /* steps, see experts/relayout.h */
    enum mt_exchange_kind exchange;
    enum mt_measure_when measure; /* auto: where the exchange is chosen by cost, between nodes, or shares of unlike ranks */
    char *shares; /* of the global batch: auto | even | "n0,n1,..." one per rank */
    char *device; /* auto | cpu | cuda | cuda:N | emulated | emulated:N; see train/session.h */
    enum mt_compute precision; /* of a GPU */
    enum mt_device_memory device_memory;
  } parallel;
  struct {
    char *policy;   /* a name of schedule/scheme.h */
    int64_t degree; /* chunks of an MoE layer's tokens; 0 = by prediction */
  } schedule;
  struct {
    char *dir; /* default RUN/checkpoints */
    int64_t interval, keep;
    char *resume; /* auto | never | PATH */
  } checkpoint;
  struct {
    char *prompt;
    int64_t length;
    double temperature; /* 0 = greedy */
    int64_t top_k;      /* 0 = all */
    double top_p;       /* 1 = all */
    int64_t seed;
  } generate;
  struct {
    char *dir; /* RUN */
    enum mt_loads loads;
    char *trace; /* steps whose lanes are drawn: "" or "3,10" */
  } log;
  struct {
    char *policy, *dispatch; /* one of them, or all */
    int64_t steps;           /* of made-up loads */
    int64_t warmup;          /* first steps that are not counted */
    int keep;                /* solved shares keep rows in their node */
    int hidden;              /* weights travel while experts compute */
  } plan;
  struct {       /* motley bench; the first three: exchange */
    char *width; /* bytes a row: "1024,16384" */
    char *rows;  /* that each rank sends */
    char *skew;  /* uniform | zipf | node | all */
    double uplink_mbit; /* of a node, for the bound; 0 = as measured */
    double seconds;     /* a case, about */
  } bench;
};

/* One --set, as given. */
struct mt_override {
  const char *text; /* "section.key=value", borrowed */
};

/* Reads `path` (NULL = no file), the environment and n overrides into *config and checks every value, range
 * and combination that needs no data and no ranks. Local. On failure one message (file:line, found, expected)
 * and MT_USAGE; *config is then empty. A key that this command's chosen settings ignore is refused
 * (rope_theta with gpt2; a key of [generate] under train is allowed, since its section is not train's).
 * model.config is read here (its unsupported keys are refused if they would change the mathematics, else
 * listed in one warning). */
enum mt_status mt_config_read(const char *path, const struct mt_override *overrides, int n,
                              unsigned command, struct mt_config *config);
/* Sets one key of *config as --set does, without any further check. Local. MT_USAGE, with one message. */
enum mt_status mt_config_override(struct mt_config *config, const struct mt_override *override);
/* The effective configuration as INI text in table order: every option that these settings read, so that the
 * text is itself a valid file; reading it back gives the same struct. The caller frees with mt_free. Local.
 */
char *mt_config_print(const struct mt_config *config);
/* The same of the sections that these commands (bits) read. */
char *mt_config_print_sections(const struct mt_config *config, unsigned commands);
/* Reads what mt_config_print made, perhaps that of another version: keys that this one does not know are passed over and listed
 * in *unknown (the caller frees; NULL = none; unknown itself may be NULL). No environment, no overrides, model.config is not opened, and what a command requires is not asked for; `name`
 * is used in messages. Local. MT_USAGE, with one message, for a value that is not allowed. */
enum mt_status mt_config_parse(const char *name, const char *text, struct mt_config *config, char **unknown);
/* Compares what the mathematics of training depends on ([model], [moe], [data] but the paths, [train] but
 * steps and intervals, and micro_batch only where moe.aux_scope = micro_batch gives it a meaning); returns
 * NULL if equal, else the first differing "section.key (checkpoint x, now y)"; caller frees. Local. */
char *mt_config_difference(const struct mt_config *checkpoint, const struct mt_config *now);
/* Only what changes what a trained model says of a text ([model] and [moe]); same form of answer. */
char *mt_config_told_difference(const struct mt_config *checkpoint, const struct mt_config *now);
/* Only the model's shape must match to load weights; same form of answer. */
char *mt_config_model_difference(const struct mt_config *checkpoint, const struct mt_config *now);
void mt_config_free(struct mt_config *config);
/* Prints the options of the sections that these commands read (bits; section.key, default, help) on stdout,
 * for --help. */
void mt_config_help(unsigned commands);

#endif
