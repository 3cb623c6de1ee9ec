/* Configuration: sources and their precedence, refusals, what is printed reads back. ranks: 1 */
#include "test.h"
#include "base/config.h"
#include "base/random.h"
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/motley-config-XXXXXX";
static char said[1 << 16]; /* what was written to stderr during the last read */

/* The path of a file of ours; stays valid. */
static const char *in_folder(const char *name)
{
  static char path[16][100];
  int i = 0;
  for (; i < 15 && path[i][0]; i++)
    if (!strcmp(strrchr(path[i], '/') + 1, name))
      return path[i];
  snprintf(path[i], sizeof path[i], "%s/%s", folder, name);
  return path[i];
}

static const char *write_file(const char *name, const char *text)
{
  const char *path = in_folder(name);
  FILE *file = fopen(path, "w");
  ck_assert_ptr_nonnull(file);
  fputs(text, file);
  fclose(file);
  return path;
}

/* Keeps what is said on stderr in between. */
static int hear(void)
{
  fflush(stderr);
  int kept = dup(STDERR_FILENO), file = open(in_folder("stderr"), O_RDWR | O_CREAT | O_TRUNC, 0600);
  ck_assert(kept >= 0 && file >= 0);
  dup2(file, STDERR_FILENO);
  close(file);
  return kept;
}

static void heard(int kept)
{
  ssize_t bytes = pread(STDERR_FILENO, said, sizeof said - 1, 0);
  said[bytes > 0 ? bytes : 0] = 0;
  dup2(kept, STDERR_FILENO);
  close(kept);
}

/* Reads with n overrides and keeps what was said on stderr. */
static enum mt_status reads(const char *path, enum mt_command command, struct mt_config *config, int n, ...)
{
  struct mt_override overrides[8];
  va_list args;
  va_start(args, n);
  for (int i = 0; i < n; i++)
    overrides[i].text = va_arg(args, const char *);
  va_end(args);
  int kept = hear();
  enum mt_status status = mt_config_read(path, overrides, n, command, config);
  heard(kept);
  return status;
}

static const char MIXTRAL[] = "[model]\n"
                              "family = mixtral\n"
                              "hidden_size = 64\n"
                              "num_hidden_layers = 2\n"
                              "num_attention_heads = 4 ; a comment\n"
                              "intermediate_size = 96\n"
                              "max_position_embeddings = 32 # another\n"
                              "[data]\n"
                              "train = a.txt, b.txt\n"
                              "[train]\n"
                              "steps = 10\n";

/* The text is refused with MT_USAGE and one line that holds all of the words. */
static void refused_by(const char *text, enum mt_command command, const char *override,
                       const char *const *words)
{
  struct mt_config config;
  const char *path = write_file("bad.ini", text);
  enum mt_status status = reads(path, command, &config, override != NULL, override);
  ck_assert_msg(status == MT_USAGE, "accepted: %s with %s", text, override ? override : "nothing");
  for (; *words; words++)
    ck_assert_msg(strstr(said, *words) != NULL, "no \"%s\" in: %s", *words, said);
  ck_assert_msg(strchr(said, '\n') == said + strlen(said) - 1, "not one line: %s", said);
  ck_assert_ptr_null(config.log.dir); /* empty after a failure */
}
#define REFUSED(text, command, override, ...)                                                                \
  refused_by(text, command, override, (const char *const[]){__VA_ARGS__, NULL})

static char *with(const char *more)
{
  static char text[2][8192];
  static int next;
  next = !next;
  snprintf(text[next], sizeof text[next], "%s%s", MIXTRAL, more);
  return text[next];
}

START_TEST(test_defaults)
{
  struct mt_config c;
  ck_assert_int_eq(reads(write_file("run.ini", MIXTRAL), MT_CMD_TRAIN, &c, 0), MT_OK);
  ck_assert_str_eq(said, "");
  ck_assert_int_eq(c.model.family, MT_FAMILY_MIXTRAL);
  ck_assert_int_eq(c.model.num_attention_heads, 4);
  ck_assert_int_eq(c.model.num_key_value_heads, 4);
  ck_assert_int_eq(c.model.head_dim, 16);
  ck_assert_int_eq(c.model.num_local_experts, 8);
  ck_assert_int_eq(c.model.num_experts_per_tok, 2);
  ck_assert_int_eq(c.model.vocab_size, 256);
  ck_assert_int_eq(c.model.hidden_act, MT_ACTIVATION_SILU);
  ck_assert_int_eq(c.model.tie_word_embeddings, 0);
  ck_assert_double_eq(c.model.norm_eps, 1e-5);
  ck_assert_int_eq(c.data.seq_length, 32);
  ck_assert_str_eq(c.data.train, "a.txt, b.txt");
  ck_assert_int_eq(c.train.micro_batch, 4);
  ck_assert_double_eq(c.train.beta2, 0.95);
  ck_assert_str_eq(c.log.dir, "run");
  ck_assert_str_eq(c.checkpoint.dir, "run/checkpoints");
  ck_assert_str_eq(c.checkpoint.resume, "auto");
  mt_config_free(&c);
  ck_assert_ptr_null(c.log.dir);
  mt_config_free(&c);
}
END_TEST

START_TEST(test_gpt2_names)
{
  struct mt_config c;
  const char *path =
      write_file("run.ini", "[model]\nfamily=gpt2\n  n_embd: 48\n\tn_layer=3\nn_head = 3\r\n"
                            "n_positions=16\nlayer_norm_epsilon = 1e-6\nactivation_function = gelu_new\n"
                            "[data]\nvalid = x\n[log]\ndir = \"/a b/c ; d\"\n");
  ck_assert_int_eq(reads(path, MT_CMD_EVAL, &c, 0), MT_OK);
  ck_assert_int_eq(c.model.hidden_size, 48);
  ck_assert_int_eq(c.model.num_hidden_layers, 3);
  ck_assert_int_eq(c.model.intermediate_size, 192);
  ck_assert_int_eq(c.model.num_local_experts, 0);
  ck_assert_int_eq(c.model.tie_word_embeddings, 1);
  ck_assert_double_eq(c.model.norm_eps, 1e-6);
  ck_assert_str_eq(c.checkpoint.dir, "/a b/c ; d/checkpoints");
  mt_config_free(&c);
}
END_TEST

START_TEST(test_precedence)
{
  struct mt_config c;
  const char *path = write_file("run.ini", with("lr = 1\n"));
  ck_assert_int_eq(reads(path, MT_CMD_TRAIN, &c, 0), MT_OK);
  ck_assert_double_eq(c.train.lr, 1);
  mt_config_free(&c);
  setenv("MOTLEY_TRAIN_LR", "2", 1);
  setenv("MOTLEY_MODEL_N_EMBD", "32", 1);
  ck_assert_int_eq(reads(path, MT_CMD_TRAIN, &c, 0), MT_OK);
  ck_assert_double_eq(c.train.lr, 2);
  ck_assert_int_eq(c.model.hidden_size, 32);
  mt_config_free(&c);
  ck_assert_int_eq(
      reads(path, MT_CMD_TRAIN, &c, 3, "train.lr=3", "train.lr=4e0", "generate.prompt=a = \"b\" ; c"), MT_OK);
  ck_assert_double_eq(c.train.lr, 4);
  ck_assert_str_eq(c.generate.prompt, "a = \"b\" ; c");
  mt_config_free(&c);
  unsetenv("MOTLEY_TRAIN_LR");
  unsetenv("MOTLEY_MODEL_N_EMBD");
}
END_TEST

START_TEST(test_located_errors)
{
  REFUSED(with("lr = abc\n"), MT_CMD_TRAIN, NULL,
          "bad.ini:12: train.lr: found \"abc\", expected a number, at least 0");
  REFUSED(with("lr = -1\n"), MT_CMD_TRAIN, NULL, "bad.ini:12: train.lr: found \"-1\"");
  REFUSED(with("eps = 0\n"), MT_CMD_TRAIN, NULL, "train.eps: found \"0\", expected a number above 0");
  REFUSED(with("lr = nan\n"), MT_CMD_TRAIN, NULL, "train.lr");
  REFUSED(with("global_batch = 3.5\n"), MT_CMD_TRAIN, NULL, "found \"3.5\", expected an integer from 1 to");
  REFUSED(with("global_batch =\n"), MT_CMD_TRAIN, NULL, "bad.ini:12", "found \"\"");
  REFUSED(with("betas = 0.9\n"), MT_CMD_TRAIN, NULL, "expected two numbers \"a,b\", at least 0 and below 1");
  REFUSED(with("betas = 0.9,1\n"), MT_CMD_TRAIN, NULL, "train.betas");
  REFUSED(with("betas = 0.9,0.9,0.9\n"), MT_CMD_TRAIN, NULL, "train.betas");
  REFUSED(with("schedule = linaer\n"), MT_CMD_TRAIN, NULL, "expected one of constant, linear, cosine, wsd");
  REFUSED(with("recompute = maybe\n"), MT_CMD_TRAIN, NULL,
          "bad.ini:12: train.recompute: found \"maybe\", expected true or false");
  REFUSED(with("[moe]\nskew = 2\n"), MT_CMD_TRAIN, NULL, "bad.ini:13: moe.skew: is not read unless moe.router = zipf");
  REFUSED(with("[parallel]\nslots = 2,x\n"), MT_CMD_TRAIN, NULL, "parallel.slots: found \"2,x\"");
  REFUSED(with("[parallel]\nslots = 2,\n"), MT_CMD_TRAIN, NULL, "parallel.slots: found \"2,\"");
  REFUSED(with("[log]\ntrace = 3,0\n"), MT_CMD_TRAIN, NULL,
          "log.trace: found \"3,0\", expected one integer or several (\"2\" or \"2,1,4\"), at least 1");
  REFUSED(with("[parallel]\nslots = 2,1,4\n"), MT_CMD_TRAIN, NULL,
          "found 7 slots in all, expected at least num_local_experts (8)");
  REFUSED(with("[parallel]\nshares = odd\n"), MT_CMD_TRAIN, NULL,
          "parallel.shares: found \"odd\", expected auto, even or one integer for each rank (\"2,1,4\"), from 0");
  REFUSED(with("[parallel]\ndevice_memory = mapped\n"), MT_CMD_TRAIN,
          NULL, "parallel.device_memory: found \"mapped\", expected one of auto, direct, staged");
  REFUSED(with("[parallel]\nshares = 2,,1\n"), MT_CMD_TRAIN, NULL, "parallel.shares: found \"2,,1\"");
  REFUSED(with("[parallel]\nshares =\n"), MT_CMD_TRAIN, NULL, "parallel.shares: found \"\"");
  REFUSED(with("[parallel]\ndevice = tpu\n"), MT_CMD_TRAIN, NULL, "expected one of auto, cpu, cuda, cuda:N");
  REFUSED(with("no sense\n"), MT_CMD_TRAIN, NULL,
          "bad.ini:12: found \"no sense\", expected [section] or key = value");
  REFUSED(with("[train\n"), MT_CMD_TRAIN, NULL, "bad.ini:12");
  REFUSED(with("lr = 1\n\n# x\nlr = 1\n"), MT_CMD_TRAIN, NULL,
          "bad.ini:15: train.lr is given twice, first in line 12");
  REFUSED(with("[model]\nn_embd = 64\n"), MT_CMD_TRAIN, NULL, "bad.ini:13", "(that is hidden_size)",
          "line 3");
  REFUSED("hidden_size = 3\n", MT_CMD_TRAIN, NULL, "bad.ini:1", "before any section");
  REFUSED(with("[generate]\nprompt = \"abc\n"), MT_CMD_TRAIN, NULL, "bad.ini:13", "no closing quote");
  REFUSED(with("[generate]\nprompt = \"a\" b\n"), MT_CMD_TRAIN, NULL, "bad.ini:13", "behind");
  REFUSED(with("[generate]\nprompt = \"\\q\"\n"), MT_CMD_TRAIN, NULL, "bad.ini:13", "\\q");
}
END_TEST

START_TEST(test_unknown)
{
  REFUSED(with("leraning_rate = 1\n"), MT_CMD_TRAIN, NULL, "bad.ini:12",
          "unknown key \"leraning_rate\" in [train]");
  REFUSED(with("warmpu = 1\n"), MT_CMD_TRAIN, NULL, "did you mean \"warmup\"?");
  REFUSED(with("seq_length = 1\n"), MT_CMD_TRAIN, NULL, "seq_length is a key of [data]");
  REFUSED(with("[modle]\nfamily = gpt2\n"), MT_CMD_TRAIN, NULL,
          "bad.ini:13: unknown section [modle]; did you mean [model]?");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "train.lrr=1", "--set train.lrr", "did you mean \"lr\"?");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "nonsense", "--set nonsense: expected --set section.key=value");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "lr=1", "--set lr=1: expected --set section.key=value");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "train.lr=1x", "--set: train.lr: found \"1x\"");
  setenv("MOTLEY_TRIAN_LR", "1", 1);
  REFUSED(MIXTRAL, MT_CMD_TRAIN, NULL,
          "environment MOTLEY_TRIAN_LR: unknown name; did you mean MOTLEY_TRAIN_LR?");
  REFUSED(MIXTRAL, MT_CMD_TOPO, NULL, "MOTLEY_TRIAN_LR");
  unsetenv("MOTLEY_TRIAN_LR");
  setenv("MOTLEY_TRAIN_LR", "fast", 1);
  REFUSED(MIXTRAL, MT_CMD_TRAIN, NULL, "environment MOTLEY_TRAIN_LR: train.lr: found \"fast\"");
  unsetenv("MOTLEY_TRAIN_LR");
  setenv("MOTLEY_NODE", "2,1", 1);
  REFUSED(MIXTRAL, MT_CMD_TRAIN, NULL, "did you mean MOTLEY_NODES?");
  unsetenv("MOTLEY_NODE");
  char *level = mt_strdup(getenv("MOTLEY_LOG"));
  setenv("MOTLEY_LOG", "loud", 1);
  REFUSED(MIXTRAL, MT_CMD_TRAIN, NULL,
          "environment MOTLEY_LOG: found \"loud\", expected one of error, warn, info, debug");
  if (level)
    setenv("MOTLEY_LOG", level, 1);
  else
    unsetenv("MOTLEY_LOG");
  mt_free(level);
  /* Names that are not options but known. */
  static const char *const known[] = {"MOTLEY_NODES",   "MOTLEY_SLOW",   "MOTLEY_FAIL",        "MOTLEY_LOG",
                                      "MOTLEY_TIMEOUT", "MOTLEY_MPIRUN", "MOTLEY_TEST_TIMEOUT"};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    struct mt_config c;
    char *before = mt_strdup(getenv(known[i]));
    setenv(known[i], strcmp(known[i], "MOTLEY_LOG") ? "1" : "warn", 1);
    ck_assert_int_eq(reads(write_file("run.ini", MIXTRAL), MT_CMD_TRAIN, &c, 0), MT_OK);
    mt_config_free(&c);
    if (before)
      setenv(known[i], before, 1);
    else
      unsetenv(known[i]);
    mt_free(before);
  }
}
END_TEST

START_TEST(test_unread)
{
  static const char GPT2[] = "[model]\nfamily=gpt2\nn_embd=48\nn_layer=3\nn_head=3\nn_positions=16\n"
                             "[data]\ntrain=x\n[train]\nsteps=1\n";
  struct mt_config c;
  REFUSED(GPT2, MT_CMD_TRAIN, "model.rope_theta=1",
          "--set: model.rope_theta: is not read with model.family = gpt2");
  REFUSED(GPT2, MT_CMD_TRAIN, "model.rms_norm_eps=1", "is not read");
  REFUSED(GPT2, MT_CMD_TRAIN, "model.num_key_value_heads=1", "is not read");
  REFUSED(GPT2, MT_CMD_TRAIN, "moe.z_loss=0", "is not read with model.num_local_experts = 0 (a dense model)");
  REFUSED(GPT2, MT_CMD_TRAIN, "train.min_lr=0", "is not read with train.schedule = constant");
  REFUSED(with("schedule = cosine\ndecay_ratio = 0.1\n"), MT_CMD_TRAIN, NULL,
          "bad.ini:13: train.decay_ratio: is not read unless train.schedule = wsd");
  REFUSED(GPT2, MT_CMD_TRAIN, "train.valid_interval=5", "is not read without data.valid");
  REFUSED(with("[model]\nlayer_norm_epsilon = 1\n"), MT_CMD_TRAIN, NULL,
          "bad.ini:13: model.layer_norm_epsilon: is not read");
  REFUSED(
      "[model]\nfamily=gpt2\nn_embd=48\nn_layer=3\nn_head=3\nn_positions=16\n[generate]\nprompt=x\nseed=3\n"
      "temperature=0\n",
      MT_CMD_GENERATE, NULL, "bad.ini:9: generate.seed: is not read with generate.temperature = 0");
  /* The same keys in sections that are not the command's are no business of it. */
  const char *path = write_file("run.ini", with("[generate]\ntemperature = 0\nseed = 3\n"));
  ck_assert_int_eq(reads(path, MT_CMD_TRAIN, &c, 0), MT_OK);
  mt_config_free(&c);
  path = write_file("run.ini", with("min_lr = 1e-4\n[generate]\nprompt = x\n"));
  ck_assert_int_eq(reads(path, MT_CMD_GENERATE, &c, 0), MT_OK);
  mt_config_free(&c);
}
END_TEST

START_TEST(test_required)
{
  struct mt_config c;
  REFUSED("", MT_CMD_TRAIN, NULL, "bad.ini: model.family is missing, expected one of mixtral, gpt2, qwen");
  REFUSED("[model]\nfamily=gpt2\n", MT_CMD_TRAIN, NULL, "model.hidden_size is missing, expected an integer");
  REFUSED("[model]\nfamily=mixtral\nn_embd=8\nn_layer=1\nn_head=1\n", MT_CMD_EVAL, NULL,
          "model.intermediate_size is missing");
  REFUSED("[model]\nfamily=gpt2\nn_embd=8\nn_layer=1\nn_head=1\n", MT_CMD_EVAL, NULL,
          "model.max_position_embeddings is missing");
  REFUSED(MIXTRAL, MT_CMD_EVAL, NULL, "data.valid is missing");
  REFUSED(MIXTRAL, MT_CMD_GENERATE, NULL, "generate.prompt is missing");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "data.train=", "data.train is missing");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "data.format=uint16", "model.vocab_size is missing");
  ck_assert_int_eq(reads(in_folder("absent.ini"), MT_CMD_TRAIN, &c, 0), MT_USAGE);
  ck_assert_ptr_nonnull(strstr(said, "absent.ini: No such file or directory, expected a configuration file"));
  ck_assert_int_eq(reads(folder, MT_CMD_TRAIN, &c, 0), MT_USAGE);
  ck_assert_ptr_nonnull(strstr(said, "Is a directory"));
  ck_assert_int_eq(reads("/bin/sh", MT_CMD_TRAIN, &c, 0), MT_USAGE);
  ck_assert_ptr_nonnull(strstr(said, "/bin/sh:1: byte 0: found 0x7f, which is no text, expected a configuration file\n"));
  ck_assert_int_eq(reads(NULL, MT_CMD_TOPO, &c, 0), MT_OK); /* needs no model */
  mt_config_free(&c);
}
END_TEST

START_TEST(test_combinations)
{
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "model.num_attention_heads=5",
          "--set: model.num_attention_heads: found 5, expected a divisor of hidden_size (64)");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "model.num_key_value_heads=3",
          "expected a divisor of num_attention_heads (4)");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "model.head_dim=15", "expected an even number");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "model.num_attention_heads=64",
          "model.head_dim (default): found 1, expected an even number");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "model.num_experts_per_tok=9",
          "found 9, expected at most num_local_experts (8)");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "model.decoder_sparse_step=3", "expected at most num_hidden_layers (2)");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "data.seq_length=33", "expected at most model.max_position_embeddings (32)");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "model.vocab_size=255", "expected at least 256");
  REFUSED(with("global_batch = 100000000\n"), MT_CMD_TRAIN, "train.micro_batch=33554432", /* 2^25 * 32 * 2 */
          "--set: train.micro_batch: found 33554432 sequences of 32 tokens, 2 experts a token; expected less than 2^31 rows");
  REFUSED("[model]\nfamily=mixtral\nn_embd=1048576\nn_layer=65536\nn_head=1024\nn_inner=16777216\nn_positions=32\n"
          "[data]\ntrain=x\n[train]\nsteps=1\n", MT_CMD_TRAIN, NULL,
          "bad.ini:3: model.hidden_size: found 1048576, and so some 2.8e+19 parameters; expected less than 7.2e+16");
  REFUSED(with("global_batch = 100000000\nmicro_batch = 33554431\n[model]\nhead_dim = 65536\n"), MT_CMD_TRAIN,
          "model.num_attention_heads=65536", "expected less than 2.9e+17 bytes");
  REFUSED(with("[model]\nvocab_size=65537\n"), MT_CMD_TRAIN, "data.format=uint16", "expected at most 65536");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "data.document=start", "data.document: found no data.document_id");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "data.document=both", "expected one of none, start, end");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "data.document_id=10", "is not read with data.document = none");
  REFUSED(with("[data]\ndocument=end\n"), MT_CMD_TRAIN, "data.document_id=256",
          "--set: data.document_id: found 256, expected less than model.vocab_size (256)");
  REFUSED(with("[data]\ndocument=end\n"), MT_CMD_TRAIN, "data.document_id=-1", "an integer from 0");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "train.micro_batch=33", "expected at most global_batch (32)");
  REFUSED(MIXTRAL, MT_CMD_TRAIN, "model.hidden_act=gelu_new", "found gelu_new, expected silu");
  REFUSED(with("schedule=cosine\nwarmup=11\ndecay_steps=9\n"), MT_CMD_TRAIN, NULL,
          "bad.ini:13: train.warmup: found 11, expected at most train.decay_steps (9)");
  REFUSED(with("schedule=linear\nlr=1e-3\nmin_lr=2e-3\n"), MT_CMD_TRAIN, NULL,
          "bad.ini:14: train.min_lr: found 0.002, expected at most train.lr (0.001)");
  struct mt_config c;
  const char *path = write_file("run.ini", with("[parallel]\nslots = 3, 1 ,4\n[model]\nhead_dim = 6\n"));
  ck_assert_int_eq(reads(path, MT_CMD_TRAIN, &c, 4, "model.num_attention_heads=5", "train.global_batch=1",
                         "train.seed=-9223372036854775808", "train.steps=9223372036854775807"),
                   MT_OK);
  ck_assert_int_eq(c.model.head_dim, 6);
  ck_assert_int_eq(c.train.micro_batch, 1);
  ck_assert_int_eq(c.train.seed, INT64_MIN);
  ck_assert_int_eq(c.train.steps, INT64_MAX);
  ck_assert_str_eq(c.parallel.slots, "3, 1 ,4");
  mt_config_free(&c);
}
END_TEST

/* What is printed is a file that gives the same configuration, whatever the texts hold. */
START_TEST(test_round_trip)
{
  static const char *const prompts[] = {"",           "plain",       " blanks ",     "a ; b # c",
                                        "\"quoted\"", "back\\slash", "two\nlines\t", "\x01\x7f\xc3\xa4\xff",
                                        "'",          "; x"};
  struct mt_config a, b;
  for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
    char *prompt = mt_format("generate.prompt=%s", prompts[i]);
    const char *path = write_file("run.ini", with(i % 2 ? "schedule = cosine\nmin_lr = 1e-5\n" : ""));
    ck_assert_int_eq(reads(path, MT_CMD_TRAIN, &a, 4, prompt, "train.lr=0.1234567890123456789",
                           "moe.z_loss=1e-300", "train.betas=0.3,0.7"),
                     MT_OK);
    char *text = mt_config_print(&a);
    ck_assert_int_eq(mt_config_parse("printed", text, &b, NULL), MT_OK);
    char *again = mt_config_print(&b);
    ck_assert_str_eq(text, again);
    ck_assert_str_eq(b.generate.prompt, prompts[i]);
    ck_assert(a.train.lr == b.train.lr && a.moe.z_loss == b.moe.z_loss && a.train.beta1 == b.train.beta1);
    ck_assert(!memcmp(&a.train, &b.train, sizeof a.train)); /* no texts in there */
    ck_assert_int_eq(a.model.head_dim, b.model.head_dim);
    ck_assert_ptr_null(mt_config_difference(&a, &b));
    mt_config_free(&b);
    ck_assert_int_eq(reads(write_file("again.ini", text), MT_CMD_TRAIN, &b, 0), MT_OK);
    ck_assert(!memcmp(&a.train, &b.train, sizeof a.train));
    mt_config_free(&a);
    mt_config_free(&b);
    mt_free(prompt);
    mt_free(text);
    mt_free(again);
  }
  ck_assert_int_eq(mt_config_parse("printed", "[train]\nlr = x\n", &b, NULL), MT_USAGE);
  /* another version's: what is not known is listed, the rest counts */
  char *unknown;
  ck_assert_int_eq(mt_config_parse("printed", "[train]\nlr = 0.5\nrotor = 3\n[hangar]\ndoors = 1\n", &b, &unknown), MT_OK);
  ck_assert_str_eq(unknown, "train.rotor, hangar.doors");
  mt_free(unknown);
  ck_assert_double_eq(b.train.lr, 0.5);
  mt_config_free(&b);
}
END_TEST

/* inih cuts lines at 200 bytes; ours may be longer. */
START_TEST(test_long_lines)
{
  char list[5000] = "", *text;
  struct mt_config c, d;
  for (int i = 0; i < 300; i++)
    snprintf(list + strlen(list), sizeof list - strlen(list), "%sfile-%03d.txt", i ? ", " : "", i);
  text = mt_format("%s# %s\n[data]\nvalid = %s ; %s\n", MIXTRAL, list, list, list);
  ck_assert_int_eq(reads(write_file("long.ini", text), MT_CMD_TRAIN, &c, 0), MT_OK);
  ck_assert_str_eq(c.data.valid, list);
  mt_free(text);
  text = mt_config_print(&c);
  ck_assert_int_eq(mt_config_parse("printed", text, &d, NULL), MT_OK);
  ck_assert_str_eq(d.data.valid, list);
  mt_free(text);
  mt_config_free(&c);
  mt_config_free(&d);
  text = mt_format("%s\n%s = 1\n", MIXTRAL, list);
  REFUSED(text, MT_CMD_TRAIN, NULL, "bad.ini:13: found \"file-000.txt");
  mt_free(text);
  text = mt_format("%s[%s]\n", MIXTRAL, list);
  REFUSED(text, MT_CMD_TRAIN, NULL, "bad.ini:12: found \"[file-000.txt");
  mt_free(text);
}
END_TEST

START_TEST(test_difference)
{
  static const struct {
    const char *set, *course, *shape;
  } cases[] = {
      {"train.lr=0.5", "train.lr (checkpoint 0.0003, now 0.5)", NULL},
      {"model.num_local_experts=16", "model.num_local_experts (checkpoint 8, now 16)",
       "model.num_local_experts (checkpoint 8, now 16)"},
      {"model.num_experts_per_tok=1", "model.num_experts_per_tok (checkpoint 2, now 1)", NULL},
      {"data.seq_length=16", "data.seq_length (checkpoint 32, now 16)", NULL},
      {"train.betas=0.9,0.99", "train.betas (checkpoint 0.9,0.95, now 0.9,0.99)", NULL},
      {"train.steps=11", NULL, NULL},
      {"data.train=other", NULL, NULL},
      {"train.micro_batch=2", NULL, NULL},
      {"checkpoint.interval=2", NULL, NULL},
      {"log.dir=elsewhere", NULL, NULL},
      {"parallel.exchange=pairwise", NULL, NULL},
      {"parallel.device_memory=staged", NULL, NULL},
  };
  struct mt_config a, b;
  const char *path = write_file("run.ini", MIXTRAL);
  ck_assert_int_eq(reads(path, MT_CMD_TRAIN, &a, 0), MT_OK);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ck_assert_msg(reads(path, MT_CMD_TRAIN, &b, 1, cases[i].set) == MT_OK, "%s: %s", cases[i].set, said);
    char *course = mt_config_difference(&a, &b), *shape = mt_config_model_difference(&a, &b);
    ck_assert_pstr_eq(course, cases[i].course);
    ck_assert_pstr_eq(shape, cases[i].shape);
    mt_free(course);
    mt_free(shape);
    mt_config_free(&b);
  }
  mt_config_free(&a);
  ck_assert_int_eq(reads(path, MT_CMD_TRAIN, &a, 1, "moe.aux_scope=micro_batch"), MT_OK);
  ck_assert_int_eq(reads(path, MT_CMD_TRAIN, &b, 2, "moe.aux_scope=micro_batch", "train.micro_batch=2"),
                   MT_OK);
  char *course = mt_config_difference(&a, &b);
  ck_assert_pstr_eq(course, "train.micro_batch (checkpoint 4, now 2)");
  mt_free(course);
  mt_config_free(&a);
  mt_config_free(&b);
}
END_TEST

static const char HF_MIXTRAL[] =
    "{\n  \"architectures\": [\"MixtralForCausalLM\"],\n  \"attention_dropout\": 0.0,\n  \"bos_token_id\": "
    "1,\n"
    "  \"hidden_act\": \"silu\",\n  \"hidden_size\": 64,\n  \"initializer_range\": 0.03,\n"
    "  \"intermediate_size\": 96,\n  \"max_position_embeddings\": 128,\n  \"model_type\": \"mixtral\",\n"
    "  \"num_attention_heads\": 4,\n  \"num_experts_per_tok\": 3,\n  \"num_hidden_layers\": 2,\n"
    "  \"num_key_value_heads\": 2,\n  \"num_local_experts\": 6,\n  \"output_router_logits\": false,\n"
    "  \"rms_norm_eps\": 1e-06,\n  \"rope_theta\": 1000000.0,\n  \"router_aux_loss_coef\": 0.02,\n"
    "  \"sliding_window\": null,\n  \"tie_word_embeddings\": false,\n  \"torch_dtype\": \"bfloat16\",\n"
    "  \"transformers_version\": \"4.36.0.dev0\",\n  \"use_cache\": true,\n  \"vocab_size\": 32000\n}\n";
static const char HF_GPT2[] =
    "{\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_head\": 3, \"n_layer\": 2, \"n_positions\": 64, "
    "\"n_ctx\": 64, \"n_inner\": null, \"attn_pdrop\": 0, \"embd_pdrop\": 0.0, \"resid_pdrop\": 0, "
    "\"summary_first_dropout\": 0.1, \"activation_function\": \"gelu_new\", "
    "\"layer_norm_epsilon\": 1e-05, \"vocab_size\": 50257, \"num_local_experts\": 4, "
    "\"scale_attn_weights\": true, \"initializer_range\": 0.02}";
static const char HF_QWEN[] =
    "{\"model_type\": \"qwen2_moe\", \"hidden_size\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"num_hidden_layers\": 2, \"intermediate_size\": 96, \"moe_intermediate_size\": 24, "
    "\"shared_expert_intermediate_size\": 0, \"num_experts\": 6, \"num_experts_per_tok\": 3, "
    "\"norm_topk_prob\": true, \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"hidden_act\": \"silu\", "
    "\"max_position_embeddings\": 128, \"max_window_layers\": 28, \"use_sliding_window\": false, "
    "\"sliding_window\": 32, \"rms_norm_eps\": 1e-06, \"rope_theta\": 500.0, \"vocab_size\": 1000}";
static const char HF_MISTRAL[] =
    "{\"model_type\": \"mistral\", \"hidden_size\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"num_hidden_layers\": 2, \"intermediate_size\": 96, \"max_position_embeddings\": 128, \"vocab_size\": 1000, "
    "\"rms_norm_eps\": 1e-05, \"sliding_window\": 127}";

/* Reads HF's text with one replacement under the given overrides. */
static enum mt_status reads_hf(const char *json, const char *old, const char *new, struct mt_config *c,
                               const char *more)
{
  const char *at = old ? strstr(json, old) : json;
  ck_assert_ptr_nonnull(at);
  char *text = mt_format("%.*s%s%s", (int)(at - json), json, old ? new : "", at + (old ? strlen(old) : 0));
  char *set = mt_format("model.config=%s", write_file("config.json", text));
  enum mt_status status = reads(NULL, MT_CMD_EVAL, c, 3, set, "data.valid=x", more ? more : "data.valid=x");
  mt_free(text);
  mt_free(set);
  return status;
}

START_TEST(test_hugging_face)
{
  struct mt_config c, d;
  ck_assert_int_eq(reads_hf(HF_MIXTRAL, NULL, NULL, &c, "data.seq_length=100"), MT_OK);
  ck_assert_int_eq(c.model.family, MT_FAMILY_MIXTRAL);
  ck_assert_int_eq(c.model.num_key_value_heads, 2);
  ck_assert_int_eq(c.model.num_local_experts, 6);
  ck_assert_int_eq(c.model.vocab_size, 32000);
  ck_assert_int_eq(c.data.seq_length, 100);
  ck_assert_double_eq(c.model.norm_eps, 1e-6);
  ck_assert_double_eq(c.model.rope_theta, 1e6);
  ck_assert_double_eq(c.model.initializer_range, 0.03);
  ck_assert_ptr_nonnull(strstr(said, "config.json: not used here: bos_token_id, output_router_logits\n"));
  ck_assert(strchr(said, '\n') == said + strlen(said) - 1); /* one warning */
  /* The printed form needs no config.json any more. */
  char *text = mt_config_print(&c);
  unlink(c.model.config);
  ck_assert_int_eq(mt_config_parse("printed", text, &d, NULL), MT_OK);
  ck_assert_ptr_null(mt_config_difference(&c, &d));
  mt_free(text);
  mt_config_free(&c);
  mt_config_free(&d);
  ck_assert_int_eq(reads_hf(HF_MIXTRAL, NULL, NULL, &c, "model.num_local_experts=3"), MT_OK);
  ck_assert_int_eq(c.model.num_local_experts, 3); /* whoever speaks for himself is heard */
  mt_config_free(&c);
  ck_assert_int_eq(reads_hf(HF_GPT2, NULL, NULL, &c, NULL), MT_OK);
  ck_assert_int_eq(c.model.family, MT_FAMILY_GPT2);
  ck_assert_int_eq(c.model.intermediate_size, 192);
  ck_assert_int_eq(c.model.num_local_experts, 4);
  ck_assert_ptr_nonnull(strstr(said, "not used here: n_ctx\n"));
  mt_config_free(&c);
  ck_assert_int_eq(reads_hf(HF_GPT2, "\"num_local_experts\": 4", "\"num_experts_per_tok\": 1", &c, NULL),
                   MT_OK);
  ck_assert_int_eq(c.model.num_experts_per_tok, 2); /* nothing reads it in a dense model: set aside */
  ck_assert_ptr_nonnull(strstr(said, "not used here: n_ctx, num_experts_per_tok\n"));
  mt_config_free(&c);
}
END_TEST

/* Qwen and Mistral: what their files say, and what they mean by saying nothing. */
START_TEST(test_hugging_face_families)
{
  struct mt_config c;
  ck_assert_int_eq(reads_hf(HF_QWEN, NULL, NULL, &c, NULL), MT_OK);
  ck_assert_str_eq(said, "");
  ck_assert_int_eq(c.model.family, MT_FAMILY_QWEN);
  ck_assert_int_eq(c.model.intermediate_size, 24); /* no dense layer */
  ck_assert_int_eq(c.model.num_local_experts, 6);
  ck_assert_int_eq(c.model.sliding_window, 0);
  ck_assert_double_eq(c.model.norm_eps, 1e-6);
  ck_assert_double_eq(c.model.rope_theta, 500);
  mt_config_free(&c);
  ck_assert_int_eq(reads_hf(HF_QWEN, "\"rms_norm_eps\": 1e-06, \"rope_theta\": 500.0, ", "", &c, NULL), MT_OK);
  ck_assert_double_eq(c.model.norm_eps, 1e-6);
  ck_assert_double_eq(c.model.rope_theta, 1e4);
  mt_config_free(&c);
  ck_assert_int_eq(reads_hf(HF_QWEN, "\"use_sliding_window\": false",
                            "\"use_sliding_window\": true, \"layer_types\": [\"sliding_attention\", \"sliding_attention\"]",
                            &c, NULL),
                   MT_OK);
  ck_assert_int_eq(c.model.sliding_window, 32);
  mt_config_free(&c);
  ck_assert_int_eq(reads_hf(HF_QWEN, "\"intermediate_size\": 96", "\"intermediate_size\": 24", &c,
                            "model.decoder_sparse_step=2"),
                   MT_OK);
  ck_assert_int_eq(c.model.intermediate_size, 24);
  mt_config_free(&c);
  ck_assert_int_eq(reads_hf(HF_MISTRAL, NULL, NULL, &c, NULL), MT_OK);
  ck_assert_str_eq(said, "");
  ck_assert_int_eq(c.model.family, MT_FAMILY_MIXTRAL);
  ck_assert_int_eq(c.model.num_local_experts, 0);
  ck_assert_int_eq(c.model.sliding_window, 127);
  ck_assert_double_eq(c.model.rope_theta, 1e4);
  mt_config_free(&c);
  ck_assert_int_eq(reads_hf(HF_MISTRAL, ", \"sliding_window\": 127", "", &c, "model.num_local_experts=4"), MT_OK);
  ck_assert_int_eq(c.model.num_local_experts, 4);
  ck_assert_int_eq(c.model.sliding_window, 4096);
  mt_config_free(&c);
  ck_assert_int_eq(reads_hf(HF_MISTRAL, "127", "null", &c, NULL), MT_OK);
  ck_assert_int_eq(c.model.sliding_window, 0);
  mt_config_free(&c);
  ck_assert_int_eq(reads_hf(HF_MIXTRAL, "\"sliding_window\": null", "\"sliding_window\": 127", &c, NULL), MT_OK);
  ck_assert_int_eq(c.model.sliding_window, 127);
  ck_assert_int_eq(c.data.seq_length, 128);
  mt_config_free(&c);
  const char *path = write_file("run.ini", with("[model]\nsliding_window = 5\n"));
  ck_assert_int_eq(reads(path, MT_CMD_TRAIN, &c, 1, "model.family=qwen"), MT_OK);
  ck_assert_double_eq(c.model.norm_eps, 1e-6);
  ck_assert_int_eq(c.model.sliding_window, 5);
  mt_config_free(&c);
  REFUSED(with("[model]\nlayer_norm_epsilon = 1\n"), MT_CMD_TRAIN, "model.family=qwen",
          "is not read with model.family = qwen");
}
END_TEST

START_TEST(test_hugging_face_refused)
{
  static const struct {
    const char *json, *old, *new, *words;
  } cases[] = {
      {HF_MIXTRAL, "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1",
       "attention_dropout: found 0.1, expected 0"},
      {HF_MIXTRAL, "\"use_cache\": true", "\"router_jitter_noise\": 0.01",
       "router_jitter_noise: found 0.01, expected 0"},
      {HF_MIXTRAL, "\"use_cache\": true", "\"rope_scaling\": {\"type\": \"yarn\"}",
       "rope_scaling: found {\"type\": \"yarn\"}, expected null"},
      {HF_MIXTRAL, "\"use_cache\": true", "\"attention_bias\": true",
       "attention_bias: found true, expected false"},
      {HF_MIXTRAL, "\"use_cache\": true", "\"norm_topk_prob\": false", "norm_topk_prob"},
      {HF_MIXTRAL, "\"use_cache\": true", "\"n_shared_experts\": 1", "n_shared_experts"},
      {HF_MIXTRAL, "\"use_cache\": true", "\"moe_intermediate_size\": 95", "moe_intermediate_size"},
      {HF_MIXTRAL, "\"use_cache\": true", "\"num_experts\": 8",
       "num_experts: found 8, expected 6 as num_local_experts is under another name"},
      {HF_MIXTRAL, "\"use_cache\": true", "\"hidden_size\": 8", "duplicate"},
      {HF_MIXTRAL, "\"silu\"", "\"relu\"", "hidden_act: found \"relu\", expected one of silu, gelu_new"},
      {HF_MIXTRAL, "\"silu\"", "\"gelu_new\"", "hidden_act: found gelu_new, expected silu"},
      {HF_MIXTRAL, "\"sliding_window\": null", "\"sliding_window\": 0",
       "sliding_window: found 0, expected null or a number of positions"},
      {HF_MIXTRAL, "\"use_cache\": true", "\"layer_types\": [\"sliding_attention\"]",
       "layer_types: found [\"sliding_attention\"], expected full_attention"},
      {HF_MIXTRAL, "\"use_cache\": true", "\"qkv_bias\": true", "qkv_bias: found true, expected false"},
      {HF_MIXTRAL, "\"hidden_size\": 64", "\"hidden_size\": 64.5",
       "hidden_size: found 64.5, expected an integer"},
      {HF_MIXTRAL, "\"hidden_size\": 64", "\"hidden_size\": \"64x\"", "hidden_size: found \"64x\""},
      {HF_MIXTRAL, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3",
       "config.json: model.num_key_value_heads: found 3, expected a divisor"},
      {HF_MIXTRAL, "\"mixtral\"", "\"llama\"", "model_type: found \"llama\", expected mixtral, mistral, qwen2_moe or gpt2"},
      {HF_MIXTRAL, "{", "[", "not JSON"},
      {HF_GPT2, "\"resid_pdrop\": 0", "\"resid_pdrop\": 0.1", "resid_pdrop: found 0.1, expected 0"},
      {HF_GPT2, "\"scale_attn_weights\": true", "\"scale_attn_weights\": false", "scale_attn_weights"},
      {HF_GPT2, "\"gelu_new\"", "\"gelu\"", "activation_function: found \"gelu\""},
      {HF_QWEN, "\"shared_expert_intermediate_size\": 0", "\"shared_expert_intermediate_size\": 5632",
       "shared_expert_intermediate_size: found 5632, expected 0"},
      {HF_QWEN, "\"shared_expert_intermediate_size\": 0", "\"use_cache\": true",
       "shared_expert_intermediate_size: missing, which means 5632, expected it to be given"},
      {HF_QWEN, "\"norm_topk_prob\": true", "\"norm_topk_prob\": false", "norm_topk_prob: found false, expected true"},
      {HF_QWEN, "\"norm_topk_prob\": true, ", "", "norm_topk_prob: missing, which means false"},
      {HF_QWEN, "\"moe_intermediate_size\": 24, ", "", "moe_intermediate_size: missing, which means 1408"},
      {HF_QWEN, "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2",
       "moe_intermediate_size: found 24, expected the same as intermediate_size"},
      {HF_QWEN, "\"norm_topk_prob\"", "\"qkv_bias\": false, \"norm_topk_prob\"",
       "qkv_bias: found false, expected true"},
      {HF_QWEN, "\"use_sliding_window\": false", "\"use_sliding_window\": true",
       "layer_types: missing, which means every other layer with use_sliding_window"},
      {HF_QWEN, "\"use_sliding_window\": false",
       "\"use_sliding_window\": true, \"layer_types\": [\"sliding_attention\", \"full_attention\"]",
       "layer_types: found [\"sliding_attention\", \"full_attention\"], expected sliding_attention"},
      {HF_QWEN, "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0]", "mlp_only_layers: found [0], expected none"},
  };
  struct mt_config c;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ck_assert_msg(reads_hf(cases[i].json, cases[i].old, cases[i].new, &c, NULL) == MT_USAGE, "accepted: %s",
                  cases[i].new);
    ck_assert_msg(strstr(said, cases[i].words) != NULL, "no \"%s\" in: %s", cases[i].words, said);
    ck_assert_msg(strchr(said, '\n') == said + strlen(said) - 1, "not one line: %s", said);
  }
  ck_assert_int_eq(reads_hf(HF_MIXTRAL, NULL, NULL, &c, "model.family=gpt2"), MT_USAGE);
  ck_assert_ptr_nonnull(strstr(said, "model.family"));
  ck_assert_int_eq(reads(NULL, MT_CMD_EVAL, &c, 1, "model.config=/no/such/file"), MT_USAGE);
  ck_assert_ptr_nonnull(strstr(said, "--set: model.config: /no/such/file: No such file or directory"));
  ck_assert_int_eq(reads_hf(HF_MIXTRAL, "\"rope_theta\": 1000000.0",
                            "\"rope_parameters\": {\"rope_theta\": 5.0, \"rope_type\": \"default\"}", &c,
                            NULL),
                   MT_OK);
  ck_assert_double_eq(c.model.rope_theta, 5);
  mt_config_free(&c);
}
END_TEST

/* Files with a few bytes changed are refused with one line or accepted, and what is accepted prints and reads
 * back. */
START_TEST(test_mutations)
{
  static const char alphabet[] = "\n\n=;#\"\\[]{},.:-0123456789eEx \t\r\xff";
  const char *const seeds[] = {MIXTRAL, HF_MIXTRAL, HF_GPT2, HF_QWEN};
  struct mt_config a, b;
  int accepted = 0, refused = 0;
  for (uint64_t i = 0; i < 1500; i++) {
    const char *seed = seeds[i % 4];
    char *text = mt_strdup(seed);
    uint64_t changes = 1 + mt_random_bits(3, MT_STREAM_TEST, 8 * i) % 3;
    for (uint64_t j = 1; j <= changes; j++) {
      uint64_t bits = mt_random_bits(3, MT_STREAM_TEST, 8 * i + j);
      text[bits % strlen(seed)] = alphabet[(bits >> 32) % (sizeof alphabet - 1)];
    }
    enum mt_status status = i % 4 ? reads_hf(text, NULL, NULL, &a, NULL)
                                  : reads(write_file("bad.ini", text), MT_CMD_TRAIN, &a, 0);
    if (status == MT_OK) {
      accepted++;
      char *printed = mt_config_print(&a);
      ck_assert_int_eq(mt_config_parse("printed", printed, &b, NULL), MT_OK);
      char *again = mt_config_print(&b);
      ck_assert_str_eq(printed, again);
      mt_free(printed);
      mt_free(again);
      mt_config_free(&a);
      mt_config_free(&b);
    } else {
      refused++;
      ck_assert_int_eq(status, MT_USAGE);
      ck_assert_msg(said[0] && strchr(said, '\n') == said + strlen(said) - 1, "not one line: %s", said);
    }
    mt_free(text);
  }
  ck_assert(accepted > 100 && refused > 100);
}
END_TEST

int main(void)
{
  if (!mkdtemp(folder))
    return EXIT_FAILURE;
  Suite *suite = suite_create("config");
  TCase *tests = tcase_create("config");
  tcase_add_test(tests, test_defaults);
  tcase_add_test(tests, test_gpt2_names);
  tcase_add_test(tests, test_precedence);
  tcase_add_test(tests, test_located_errors);
  tcase_add_test(tests, test_unknown);
  tcase_add_test(tests, test_unread);
  tcase_add_test(tests, test_required);
  tcase_add_test(tests, test_combinations);
  tcase_add_test(tests, test_round_trip);
  tcase_add_test(tests, test_long_lines);
  tcase_add_test(tests, test_difference);
  tcase_add_test(tests, test_hugging_face);
  tcase_add_test(tests, test_hugging_face_families);
  tcase_add_test(tests, test_hugging_face_refused);
  tcase_add_test(tests, test_mutations);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  static const char *const names[] = {"stderr", "bad.ini", "run.ini", "again.ini", "long.ini", "config.json"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    unlink(in_folder(names[i]));
  rmdir(folder);
  return code;
}
