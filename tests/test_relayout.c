/* Layouts that follow the load: windows, turns, adoption, checkpoints. ranks: 1 2 3 4 7
 *
 * Counts are made up, the same on all ranks, as in training. The oracle keeps all counts of all steps and asks the policy
 * itself. What a rank finds wrong is counted, and the sum over ranks is asserted. */
#include "experts/relayout.h"
#include "experts/policy.h"
#include "base/random.h"
#include "test.h"
#include <mpi.h>
#include <string.h>

enum { E = 6, LAYERS = 5, STEPS = 9, MICROS = 3, MOST_RANKS = 7 };

static const enum mt_layout_policy policies[] = {MT_LAYOUT_LAER, MT_LAYOUT_EPLB, MT_LAYOUT_FLEXMOE, MT_LAYOUT_MOTLEY};
enum { NPOLICY = sizeof policies / sizeof *policies };

struct play {
  struct mt_comm *comm;
  struct mt_config config;
  struct mt_work work;
  int slots[MOST_RANKS];
  struct mt_relayout *relayout;
  int64_t *counts; /* [STEPS, LAYERS, P E] of a step, 1-based steps at [step - 1] */
};

static struct mt_comm *open_comm(void)
{
  static const char *const nodes[] = {NULL, "1", "1,1", "2,1", "1,3", NULL, NULL, "2,1,4"};
  int n;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  setenv("MOTLEY_NODES", nodes[n], 1);
  struct mt_comm *comm;
  ck_assert_int_eq(mt_comm_new(NULL, NULL, &comm), MT_OK);
  unsetenv("MOTLEY_NODES");
  for (int p = 0; p < comm->size; p++) /* unlike, as measured */
    comm->cluster->place[p].speed = 1000 + 700 * (p % 3);
  return comm;
}

static void none(struct mt_comm *comm, int64_t faults, const char *what)
{
  mt_max_int(comm, &faults, 1);
  ck_assert_msg(faults == 0, "%s: %lld", what, (long long)faults);
}

/* Rows of a source and an expert in one micro-step: skewed, drifting. */
static int64_t rows(int64_t step, int micro, int layer, int p, int e)
{
  uint64_t index = (uint64_t)((((step * MICROS + micro) * LAYERS + layer) * MOST_RANKS + p) * E + e);
  int64_t popular = (e + layer + step / 3) % E;
  return (int64_t)(mt_random_bits(5, MT_STREAM_TEST, index) % 20) + 200 / (1 + popular * popular);
}

static void open_play(struct play *play, enum mt_layout_policy policy, int interval, int window)
{
  *play = (struct play){.comm = open_comm()};
  play->config.model.num_local_experts = E;
  play->config.parallel.layout = policy;
  play->config.parallel.dispatch = policy == MT_LAYOUT_LAER ? MT_DISPATCH_LITE : MT_DISPATCH_SOLVED;
  play->config.parallel.relayout_interval = interval;
  play->config.parallel.relayout_window = window;
  play->work = mt_work_of(64, 100, 1, 4, 0, MT_SHARDING_FULL);
  for (int p = 0; p < play->comm->size; p++) /* unequal; one rank has none */
    play->slots[p] = p == 1 ? 2 * (play->comm->size == 2) : p == 2 ? 5 : E / 2 + (p == 0) * 3;
  play->relayout = mt_relayout_new(play->comm, &play->config, policy, LAYERS, play->slots, &play->work);
  play->counts = MT_ZNEW(MT_TAG_MISC, int64_t, (int64_t)STEPS * LAYERS * play->comm->size * E);
}

static void close_play(struct play *play)
{
  mt_relayout_free(play->relayout);
  mt_free(play->counts);
  mt_comm_free(play->comm);
}

/* Micro-steps of a step: not always the same number, as with another batch after a resume. */
static int micros(int64_t step)
{
  return 1 + (int)(step % MICROS);
}

static const struct mt_relayout_report *run_step(struct play *play, struct mt_relayout *relayout, int64_t step)
{
  const int P = play->comm->size;
  int64_t counts[P * E];
  mt_relayout_begin(relayout, step);
  for (int l = 0; l < LAYERS; l++)
    memset(play->counts + ((step - 1) * LAYERS + l) * P * E, 0, sizeof counts);
  for (int m = 0; m < micros(step); m++)
    for (int l = 0; l < LAYERS; l++) {
      for (int p = 0; p < P; p++)
        for (int e = 0; e < E; e++) {
          counts[p * E + e] = rows(step, m, l, p, e);
          play->counts[((step - 1) * LAYERS + l) * P * E + p * E + e] += counts[p * E + e];
        }
      mt_relayout_count(relayout, l, counts);
    }
  mt_relayout_plan(relayout);
  mt_relayout_tell(relayout);
  return mt_relayout_adopt(relayout);
}

static int differ(const struct mt_layout *a, const struct mt_layout *b)
{
  return memcmp(a->slot_expert, b->slot_expert, sizeof(int) * (size_t)a->slot_first[a->nrank]) != 0;
}

/* In each step whose turn it is, every layer gets what the policy makes of the weighted window; in others nothing happens. */
static void check_follow(enum mt_layout_policy policy, int interval, int window)
{
  struct play play;
  open_play(&play, policy, interval, window);
  const int P = play.comm->size;
  struct mt_policy *oracle = mt_policy_new(play.comm->cluster, E, play.slots);
  struct mt_layout *now[LAYERS], *next = mt_layout_new(play.comm->cluster, E, play.slots);
  for (int l = 0; l < LAYERS; l++)
    now[l] = mt_layout_new(play.comm->cluster, E, play.slots);
  int64_t faults = 0, changes = 0, sum[P * E];
  for (int64_t step = 1; step <= STEPS; step++) {
    const struct mt_relayout_report *report = run_step(&play, play.relayout, step);
    faults += (report != NULL) != (step % interval == 0);
    int reported = 0;
    for (int l = 0; l < LAYERS && report; l++) {
      int64_t nstep = 0;
      memset(sum, 0, sizeof sum);
      for (int64_t at = step, weight = (int64_t)1 << ((step < window ? step : window) - 1); weight > 0; at--, weight /= 2) {
        nstep += weight * micros(at);
        for (int k = 0; k < P * E; k++)
          sum[k] += weight * play.counts[((at - 1) * LAYERS + l) * P * E + k];
      }
      struct mt_policy_problem problem = {.cluster = play.comm->cluster, .work = mt_work_of_layer(&play.work, l, LAYERS), .nstep = nstep,
                                          .dispatch = play.config.parallel.dispatch, .counts = sum, .before = now[l]};
      mt_policy_plan(oracle, policy, &problem, next);
      if (differ(next, now[l])) {
        faults += reported >= report->nlayer;
        int found = 0;
        for (int i = 0; i < report->nlayer; i++)
          found |= report->layer[i] == l;
        faults += !found;
        reported++;
        changes++;
      }
      memcpy(now[l]->slot_expert, next->slot_expert, sizeof(int) * (size_t)next->slot_first[P]);
      mt_layout_index(now[l], play.comm->cluster, next->revision);
    }
    if (report)
      faults += report->nlayer != reported || !(report->after_s > 0) || !(report->before_s > 0);
    for (int l = 0; l < LAYERS; l++) {
      const struct mt_layout *layout = mt_relayout_layout(play.relayout, l);
      faults += differ(layout, now[l]) || layout->revision != now[l]->revision;
      faults += memcmp(layout->slot_rank, now[l]->slot_rank, sizeof(int) * (size_t)layout->slot_first[P]) != 0;
      faults += memcmp(layout->by_expert, now[l]->by_expert, sizeof(int) * (size_t)layout->slot_first[P]) != 0;
      faults += !mt_same(play.comm, layout->slot_expert, (int64_t)sizeof(int) * layout->slot_first[P]);
    }
    none(play.comm, faults, "layouts that are not what the policy makes of the window");
  }
  if (P > 1)
    ck_assert_int_gt(changes, 0);
  for (int l = 0; l < LAYERS; l++)
    mt_layout_free(now[l]);
  mt_layout_free(next);
  mt_policy_free(oracle);
  close_play(&play);
}

START_TEST(test_follow)
{
  check_follow(policies[_i], 1, 1);
  check_follow(policies[_i], 1, 4);
  check_follow(policies[_i], 2, 3);
}
END_TEST

static void check_equal(const struct mt_relayout *a, const struct mt_relayout *b, struct mt_comm *comm, const char *what)
{
  int64_t faults = 0;
  for (int l = 0; l < LAYERS; l++)
    faults += differ(mt_relayout_layout(a, l), mt_relayout_layout(b, l)) ||
              mt_relayout_layout(a, l)->revision != mt_relayout_layout(b, l)->revision;
  none(comm, faults, what);
}

/* What a checkpoint keeps. */
struct kept {
  struct mt_relayout_state state;
  mt_json *what_for;
};

static struct kept saved(const struct play *play)
{
  struct kept kept;
  kept.state = mt_relayout_save(play->relayout, &kept.what_for);
  return kept;
}

static void forget(struct kept *kept)
{
  mt_relayout_state_free(&kept->state);
  mt_json_free(kept->what_for);
}

/* Through a file's form: the text is printed and read, the numbers are copied; only rank 0 reads layouts. 0: refused. */
static int restored(struct mt_relayout *relayout, const struct mt_comm *comm, const struct kept *kept)
{
  char *text = mt_json_print(kept->what_for, 2);
  mt_json *read;
  ck_assert_int_eq(mt_json_parse("kept", text, &read), MT_OK);
  mt_free(text);
  struct mt_relayout_state state = {0};
  int taken = mt_relayout_expect(relayout, read, &state);
  mt_json_free(read);
  if (taken) {
    ck_assert_int_eq(state.nlayer, kept->state.nlayer);
    ck_assert_int_eq(state.nslot, kept->state.nslot);
    ck_assert_int_eq(state.nstep, kept->state.nstep);
    ck_assert_int_eq(state.nown, kept->state.nown);
    if (comm->rank == 0)
      memcpy(state.expert, kept->state.expert, sizeof(int32_t) * (size_t)(state.nlayer * state.nslot));
    memcpy(state.loads, kept->state.loads, sizeof(int64_t) * (size_t)(state.nown * state.nstep * state.ncount));
    taken = mt_relayout_restore(relayout, &state);
  }
  mt_relayout_state_free(&state);
  return taken;
}

/* Stopped after any number of steps, also before the window is full, and gone on with: the same layouts from then on. */
START_TEST(test_resume)
{
  for (int64_t stop = 0; stop < STEPS; stop += 2) {
    struct play play;
    open_play(&play, policies[_i], 2, 3);
    for (int64_t step = 1; step <= stop; step++)
      run_step(&play, play.relayout, step);
    struct kept kept = saved(&play);
    struct mt_relayout *other = mt_relayout_new(play.comm, &play.config, policies[_i], LAYERS, play.slots, &play.work);
    ck_assert_int_eq(restored(other, play.comm, &kept), 1);
    forget(&kept);
    check_equal(play.relayout, other, play.comm, "layouts after restoring");
    for (int64_t step = stop + 1; step <= STEPS; step++) {
      run_step(&play, play.relayout, step);
      run_step(&play, other, step);
      check_equal(play.relayout, other, play.comm, "layouts of a resumed run");
    }
    mt_relayout_free(other);
    close_play(&play);
  }
}
END_TEST

/* A shorter window takes the newest steps of a longer one. */
START_TEST(test_window)
{
  struct play play;
  open_play(&play, MT_LAYOUT_LAER, 1, 4);
  for (int64_t step = 1; step <= 6; step++)
    run_step(&play, play.relayout, step);
  struct kept kept = saved(&play);
  play.config.parallel.relayout_window = 2;
  struct mt_relayout *fresh = mt_relayout_new(play.comm, &play.config, MT_LAYOUT_LAER, LAYERS, play.slots, &play.work);
  struct mt_relayout *taken = mt_relayout_new(play.comm, &play.config, MT_LAYOUT_LAER, LAYERS, play.slots, &play.work);
  run_step(&play, fresh, 6); /* the last but one step of a window of two */
  ck_assert_int_eq(restored(taken, play.comm, &kept), 1);
  forget(&kept);
  run_step(&play, fresh, 7);
  run_step(&play, taken, 7);
  int64_t faults = 0;
  for (int l = 0; l < LAYERS; l++)
    faults += differ(mt_relayout_layout(fresh, l), mt_relayout_layout(taken, l));
  none(play.comm, faults, "layouts by the newest two steps");
  mt_relayout_free(fresh);
  mt_relayout_free(taken);
  close_play(&play);
}
END_TEST

/* What is for other ranks, slots or experts, or is no layout, is refused, and nothing is changed by it. */
START_TEST(test_refused)
{
  enum { BAD = 8 };
  for (int i = 0; i <= BAD; i++) {
    struct play play;
    open_play(&play, MT_LAYOUT_EPLB, 1, 2);
    for (int64_t step = 1; step <= 3; step++)
      run_step(&play, play.relayout, step);
    struct kept kept = saved(&play);
    ck_assert_int_eq(kept.state.nstep, 2);
    struct mt_relayout *fresh = mt_relayout_new(play.comm, &play.config, MT_LAYOUT_EPLB, LAYERS, play.slots, &play.work);
    struct mt_relayout *other = mt_relayout_new(play.comm, &play.config, MT_LAYOUT_EPLB, LAYERS, play.slots, &play.work);
    const int64_t ones[MOST_RANKS + 17] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    int32_t *last = kept.state.expert + (LAYERS - 1) * kept.state.nslot;
    const char *const key[BAD] = {"experts", "slots", "slots", "revisions", "micro_steps"};
    mt_json *other_value[BAD] = {mt_json_integer(E + 1), mt_json_integers(ones, play.comm->size + 1),
                                 mt_json_integers(ones + MOST_RANKS + 10, play.comm->size), mt_json_array(),
                                 mt_json_integers(ones, 17)};
    for (int k = 0; k < BAD; k++)
      if (k == i && key[k])
        mt_json_set(kept.what_for, key[k], other_value[k]);
      else
        mt_json_free(other_value[k]);
    for (int s = 0; s < kept.state.nslot && i == 5; s++)
      last[s] = 1; /* five experts have no slot */
    if (i == 6)
      last[0] = E; /* no such expert */
    if (i == 7 && (LAYERS - 1) % play.comm->size == play.comm->rank) /* the one rank that keeps them */
      kept.state.loads[(LAYERS - 1) / play.comm->size * 2 * kept.state.ncount] = -1;
    ck_assert_msg(restored(other, play.comm, &kept) == (i == BAD), "variant %d", i);
    check_equal(i == BAD ? play.relayout : fresh, other, play.comm, "layouts after a refusal");
    forget(&kept);
    mt_relayout_free(fresh);
    mt_relayout_free(other);
    close_play(&play);
  }
}
END_TEST

/* Steps allocate nothing when warm, in the thread neither; growths are counted. */
START_TEST(test_allocation)
{
  struct play play;
  open_play(&play, policies[_i], 1, 3);
  for (int64_t step = 1; step <= 3; step++)
    run_step(&play, play.relayout, step);
  int64_t allocations = mt_memory_allocations(), growths = mt_memory_growths();
  for (int64_t step = 4; step <= STEPS; step++)
    run_step(&play, play.relayout, step);
  none(play.comm, mt_memory_allocations() - allocations - (mt_memory_growths() - growths), "allocations besides growths");
  close_play(&play);
}
END_TEST

/* No rows at all, and all of them for one expert. */
START_TEST(test_zero)
{
  struct play play;
  open_play(&play, policies[_i], 1, 2);
  const int P = play.comm->size;
  int64_t counts[P * E];
  for (int64_t step = 1; step <= 4; step++) {
    memset(counts, 0, sizeof counts);
    for (int p = 0; p < P && step > 2; p++)
      counts[p * E + 4] = p == 0 ? 0 : 1000;
    mt_relayout_begin(play.relayout, step);
    for (int l = 0; l < LAYERS; l++)
      mt_relayout_count(play.relayout, l, counts);
    mt_relayout_plan(play.relayout);
    mt_relayout_tell(play.relayout);
    ck_assert_ptr_nonnull(mt_relayout_adopt(play.relayout));
    for (int l = 0; l < LAYERS; l++) /* mt_layout_index dies where an expert has no slot */
      none(play.comm, !mt_same(play.comm, mt_relayout_layout(play.relayout, l)->slot_expert, (int64_t)sizeof(int) * E),
           "layouts that differ");
  }
  close_play(&play);
}
END_TEST

/* Where there is nothing to gain, or nothing to follow, layouts are static. */
START_TEST(test_policy)
{
  struct mt_config config = {0};
  config.model.num_local_experts = 8;
  config.parallel.layout = MT_LAYOUT_MOTLEY;
  ck_assert_int_eq(mt_relayout_policy(&config, 4, 8, 1), MT_LAYOUT_MOTLEY);
  ck_assert_int_eq(mt_relayout_policy(&config, 1, 8, 1), MT_LAYOUT_STATIC);
  ck_assert_int_eq(mt_relayout_policy(&config, 4, 8, 0), MT_LAYOUT_STATIC);
  config.parallel.sharding = MT_SHARDING_OWNER;
  ck_assert_int_eq(mt_relayout_policy(&config, 4, 8, 1), MT_LAYOUT_STATIC);
  ck_assert_ptr_nonnull(mt_relayout_why_static(&config, 4, 8));
  ck_assert_ptr_nonnull(mt_relayout_why_static(&config, 1, 9));
  ck_assert_int_eq(mt_relayout_policy(&config, 4, 9, 1), MT_LAYOUT_MOTLEY);
  ck_assert_ptr_null(mt_relayout_why_static(&config, 4, 9));
  config.parallel.layout = MT_LAYOUT_RANDOM;
  ck_assert_int_eq(mt_relayout_policy(&config, 1, 8, 0), MT_LAYOUT_RANDOM);
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  Suite *suite = suite_create("relayout");
  TCase *tests = tcase_create("relayout");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_follow, 0, NPOLICY);
  tcase_add_loop_test(tests, test_resume, 0, NPOLICY);
  tcase_add_test(tests, test_window);
  tcase_add_test(tests, test_refused);
  tcase_add_loop_test(tests, test_allocation, 0, NPOLICY);
  tcase_add_loop_test(tests, test_zero, 0, NPOLICY);
  tcase_add_test(tests, test_policy);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
