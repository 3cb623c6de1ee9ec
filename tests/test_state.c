/* What a run makes of the state in checkpoints: which file it takes, and what was measured when.
 * ranks: 1 3 */
#include "test.h"
#include "comm/comm.h"
#include "train/state.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct mt_comm *comm;
static struct mt_config config;
static char *dir; /* a folder that rank 0 made, the same text on all ranks */

static const char MODEL[] = "[model]\nfamily = gpt2\nhidden_size = 8\nnum_hidden_layers = 1\nnum_attention_heads = 2\n"
                            "max_position_embeddings = 8\n";
static const char PROGRESS[] = "{\"sequence\": 40, \"updates\": 4}";

static void configure(const char *resume)
{
  char *text = mt_format("%s[checkpoint]\ndir = %s\nresume = %s\n", MODEL, dir, resume);
  ck_assert_int_eq(mt_config_parse("test", text, &config, NULL), MT_OK);
  mt_free(text);
}

static void setup(void)
{
  char path[] = "/tmp/motley-state-XXXXXX", *made = NULL;
  if (comm->rank == 0)
    made = mkdtemp(path);
  dir = mt_bcast_text(comm, made, 0);
  ck_assert_ptr_nonnull(dir);
  configure("auto");
  for (int p = 0; p < comm->size; p++)
    comm->cluster->place[p].speed = 0;
}

static void teardown(void)
{
  mt_barrier(comm);
  char *command = mt_format("rm -rf '%s'", dir);
  int bad = comm->rank == 0 && system(command) != 0;
  mt_free(command);
  mt_config_free(&config);
  mt_free(dir);
  ck_assert(!bad);
}

/* A checkpoint without weights, by the settings MODEL and `more`, of places that are as fast as `speed` says (0: no
 * cluster). */
static void save(int step, const char *more, const char *progress, int64_t speed)
{
  char *ini = mt_format("%s%s", MODEL, more);
  char schedule[32];
  snprintf(schedule, sizeof schedule, "{\"degree\": %d}", step);
  struct mt_text text[4] = {{"/config/ini", ini},
                            {"/state/progress", (char *)(uintptr_t)progress},
                            {"/state/schedule", schedule},
                            {"/state/cluster", NULL}};
  struct mt_checkpoint checkpoint = {.step = step, .tokens = 8 * step, .ntext = 3, .text = text};
  if (speed) {
    int64_t was = comm->cluster->place[0].speed;
    struct mt_learnt learnt = comm->cluster->learnt;
    comm->cluster->place[0].speed = speed;
    comm->cluster->learnt = (struct mt_learnt){.hand_ns = 10 * speed, .n = 1, .task = {{"experts", speed, 1000 + speed}}};
    mt_json *json = mt_cluster_to_json(comm->cluster);
    comm->cluster->place[0].speed = was;
    comm->cluster->learnt = learnt;
    text[3].text = mt_json_print(json, 0);
    mt_json_free(json);
    checkpoint.ntext = 4;
  }
  int64_t bytes;
  ck_assert_int_eq(mt_checkpoint_save(comm, dir, 0, &checkpoint, &bytes), MT_OK);
  mt_free(text[3].text);
  mt_free(ini);
}

/* Messages that a test expects do not belong on the screen; how many lines there were, on all ranks together. */
static int64_t said;
static enum mt_status find(struct mt_resume *resume)
{
  char *name = mt_format("%s/said.%d", dir, comm->rank);
  int old = dup(STDERR_FILENO), file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
  dup2(file, STDERR_FILENO);
  enum mt_status status = mt_state_find(comm, &config, 1, resume);
  dup2(old, STDERR_FILENO);
  close(old);
  char text[4096];
  ssize_t n = pread(file, text, sizeof text, 0);
  close(file);
  unlink(name);
  mt_free(name);
  double lines = 0;
  for (ssize_t i = 0; i < n; i++)
    lines += text[i] == '\n';
  mt_sum(comm, &lines, 1);
  said = (int64_t)lines;
  return status;
}

static void release(struct mt_resume *resume)
{
  mt_free(resume->path);
  mt_free(resume->remark);
  mt_free(resume->layout);
  mt_free(resume->schedule);
}

/* Files that are whole and yet of no use are passed over, whatever it is that is wrong with them. */
START_TEST(test_fall_back)
{
  static const struct {
    const char *more, *progress;
    int lines;
  } bad[] = {
      {"", "{\"sequence\": 40}", 1},
      {"", "[]", 1},
      {"", "{\"sequence\"", 2},
      {"[train]\nsteps = many\n", PROGRESS, 2},
  };
  struct mt_resume resume = {.before = INT64_MAX};
  save(3, "", PROGRESS, 0);
  save(4, bad[_i].more, bad[_i].progress, 0);
  ck_assert_int_eq(find(&resume), MT_OK);
  ck_assert_int_eq(resume.progress.step, 3);
  ck_assert_int_eq(resume.progress.sequence, 40);
  ck_assert_int_eq(resume.before, 3);
  ck_assert_int_eq(said, bad[_i].lines);
  ck_assert_int_eq(find(&resume), MT_CORRUPT); /* none that is older */
  release(&resume);
  mt_config_free(&config);
  char *path = mt_format("%s/step-00000004.h5", dir);
  configure(path);
  mt_free(path);
  resume = (struct mt_resume){.before = INT64_MAX};
  ck_assert_int_eq(find(&resume), MT_CORRUPT);
  release(&resume);
}
END_TEST

/* Another version's settings: what is not known is named once; what changes the model still ends the run. */
START_TEST(test_other_version)
{
  struct mt_resume resume = {.before = INT64_MAX};
  save(3, "", PROGRESS, 0);
  save(4, "rotor = 3\nwings = two\n[hangar]\ndoors = 1\n[train]\nsteps = 77\n", PROGRESS, 0);
  ck_assert_int_eq(find(&resume), MT_OK);
  ck_assert_int_eq(resume.progress.step, 4);
  ck_assert_int_eq(said, 0); /* only when it is taken */
  if (comm->rank == 0) {
    ck_assert_ptr_nonnull(resume.remark);
    ck_assert_ptr_nonnull(strstr(resume.remark, "does not know its model.rotor, model.wings, hangar.doors"));
  }
  release(&resume);
  save(5, "n_inner = 9\n", PROGRESS, 0);
  resume = (struct mt_resume){.before = INT64_MAX};
  ck_assert_int_eq(find(&resume), MT_USAGE);
  release(&resume);
}
END_TEST

/* What was measured comes with the file, but not any more when the model has the size that it led to. */
START_TEST(test_settled)
{
  struct mt_resume resume = {.before = INT64_MAX};
  int64_t *speed = &comm->cluster->place[0].speed;
  save(2, "", PROGRESS, 500);
  save(3, "", PROGRESS, 700);
  save(4, "", PROGRESS, 500);
  ck_assert_int_eq(find(&resume), MT_OK);
  ck_assert_int_eq(*speed, 500);
  ck_assert_int_eq(comm->cluster->learnt.hand_ns, 5000);
  ck_assert_int_eq(comm->cluster->learnt.n, 1);
  ck_assert_int_eq(comm->cluster->learnt.task[0].thousandths, 1500);
  ck_assert_str_eq(resume.schedule, "{\"degree\": 4}");
  ck_assert(resume.same);
  resume.settled = 1;
  ck_assert_int_eq(find(&resume), MT_OK);
  ck_assert_int_eq(resume.progress.step, 3);
  ck_assert_str_eq(resume.schedule, "{\"degree\": 3}");
  ck_assert_int_eq(*speed, 500);
  ck_assert(!resume.same);
  ck_assert_int_eq(find(&resume), MT_OK);
  ck_assert_int_eq(resume.progress.step, 2);
  ck_assert(resume.same);
  release(&resume);
}
END_TEST

static void end(void)
{
  mt_comm_free(comm);
}

int main(int argc, char **argv)
{
  if (mt_comm_new(&argc, &argv, &comm) != MT_OK)
    return EXIT_FAILURE;
  Suite *suite = suite_create("state");
  TCase *tests = tcase_create("state");
  tcase_add_checked_fixture(tests, setup, teardown);
  tcase_add_loop_test(tests, test_fall_back, 0, 4);
  tcase_add_test(tests, test_other_version);
  tcase_add_test(tests, test_settled);
  suite_add_tcase(suite, tests);
  return mt_test_run_then(suite, end);
}
