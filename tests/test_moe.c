/* The MoE layers from step to step: nothing of one step, micro-step or layout shows in the next. ranks: 1 3 4
 */
#include "model_case.h"
#include "test.h"
#include <math.h>
#include <mpi.h>
#include <string.h>

enum { MOST_LAYERS = 4, MOST_EXPERTS = 8 };

/* What a step says of itself. */
struct said {
  double ce, aux, z, loss, load[MOST_LAYERS];
  int64_t per_expert[MOST_LAYERS * MOST_EXPERTS];
};

static struct said run(struct model_case *c, int64_t number, int64_t batch)
{
  const struct mt_step_result *result = mt_step_run(c->step, number, batch * c->B);
  struct said said;
  memset(&said, 0, sizeof said);
  said.ce = result->ce;
  said.aux = result->aux;
  said.z = result->z;
  said.loss = result->loss;
  const int nmoe = c->model->params.nmoe, E = c->model->params.nexpert;
  ck_assert(nmoe <= MOST_LAYERS && E <= MOST_EXPERTS);
  memcpy(said.load, result->load, sizeof(double) * (size_t)nmoe);
  memcpy(said.per_expert, result->per_expert, sizeof(int64_t) * (size_t)(nmoe * E));
  return said;
}

/* The same batch gives the same bits whenever it comes, without updates in between; another batch gives
 * others. */
START_TEST(test_repeated)
{
  static const char *const scope[2] = {"moe.aux_scope=sequence", "moe.aux_scope=micro_batch"};
  for (int i = 0; i < 4; i++) {
    struct model_case *c =
        model_case_open(i % 2 ? "gpt2" : "mixtral", model_case_ragged(), "cpu", 1, 1, 0, 4, /* solved shares would level the loads */
                        (const char *[]){scope[i / 2], "train.micro_batch=1", "parallel.slots=5", "parallel.dispatch=lite"});
    struct said a = run(c, 1, 0), b = run(c, 2, 1), a2 = run(c, 3, 0), b2 = run(c, 4, 1);
    ck_assert_msg(!memcmp(&a, &a2, sizeof a),
                  "batch 0 again: loss %.17g, then %.17g; balance %.17g, then %.17g", a.loss, a2.loss, a.aux,
                  a2.aux);
    ck_assert(!memcmp(&b, &b2, sizeof b));
    ck_assert_double_ne(a.aux, b.aux);
    ck_assert_int_ne(memcmp(a.per_expert, b.per_expert, sizeof a.per_expert), 0);
    if (model_case_ranks() > 1)
      ck_assert_int_ne(memcmp(a.load, b.load, sizeof a.load), 0);
    model_case_close(c);
  }
}
END_TEST

/* Loads and rows of experts count all micro-steps. Without replicas a rank's rows are those of its experts.
 */
START_TEST(test_load)
{
  struct model_case *c = model_case_open(_i ? "gpt2" : "mixtral", model_case_ragged(), "cpu", 1, 1, 0, 1,
                                         (const char *[]){"train.micro_batch=1"});
  const int E = c->model->params.nexpert, P = c->comm->size;
  const struct mt_step_result *result = mt_step_run(c->step, 1, 0);
  for (int l = 0; l < c->model->params.nmoe; l++) {
    const struct mt_layout *layout = c->model->moe->layer[l].layout;
    int64_t most = 0, sum = 0;
    for (int r = 0; r < P; r++) {
      int64_t rows = 0;
      for (int s = layout->slot_first[r]; s < layout->slot_first[r + 1]; s++)
        rows += result->per_expert[l * E + layout->slot_expert[s]];
      sum += rows;
      most = rows > most ? rows : most;
    }
    ck_assert_int_eq(sum, result->tokens * c->model->moe->K);
    ck_assert_double_eq_tol(result->load[l], (double)most * P / (double)sum, 1e-12);
  }
  model_case_close(c);
}
END_TEST

/* Pooled over micro-steps of one sequence, the balance loss is the mean of the sequences' own. */
START_TEST(test_pooled)
{
  if (model_case_ranks() > 1) /* a micro-step there is one sequence of every rank */
    return;
  static const char *const name[2] = {"mixtral", "gpt2-odd"};
  struct model_case *c =
      model_case_open(name[_i], NULL, "cpu", 1, 0, 0, 2,
                      (const char *[]){"moe.aux_scope=micro_batch", "train.micro_batch=1"});
  double all = mt_step_run(c->step, 1, 0)->aux, sum = 0;
  const int64_t B = c->B;
  model_case_close(c);
  c = model_case_open(
      name[_i], NULL, "cpu", 1, 0, 0, 3,
      (const char *[]){"moe.aux_scope=micro_batch", "train.global_batch=1", "train.micro_batch=1"});
  for (int64_t b = 0; b < B; b++)
    sum += mt_step_run(c->step, 1, b)->aux / (double)B;
  model_case_close(c);
  ck_assert_double_eq_tol(all, sum, 1e-6 * sum);
}
END_TEST

/* parallel.layout = random: another layout for every layer and micro-step, the same whenever a step is
 * repeated. */
START_TEST(test_layouts_change)
{
  enum { STEPS = 4, SLOTS = 16, MOST = SLOTS * 8 };
  struct model_case *c =
      model_case_open("mixtral", model_case_ragged(), "cpu", 1, 1, 0, 3,
                      (const char *[]){"parallel.layout=random", "parallel.slots=16", "train.micro_batch=1"});
  const struct mt_moe *moe = c->model->moe;
  static int seen[STEPS][2][MOST];
  static const int64_t number[STEPS] = {1, 2, 3, 1};
  int64_t revision[STEPS][2];
  for (int i = 0; i < STEPS; i++) {
    run(c, number[i], 0);
    for (int l = 0; l < 2; l++) {
      const struct mt_layout *layout = moe->layer[l].layout;
      revision[i][l] = layout->revision;
      memcpy(seen[i][l], layout->slot_expert, sizeof(int) * (size_t)layout->slot_first[layout->nrank]);
    }
  }
  for (int i = 0; i < 2 * STEPS; i++)
    for (int k = 0; k < i; k++) {
      int same = i % 2 == k % 2 && number[i / 2] == number[k / 2];
      ck_assert_int_eq(memcmp(seen[i / 2][i % 2], seen[k / 2][k % 2], sizeof seen[0][0]) == 0, same);
      if (i % 2 == k % 2)
        ck_assert_int_eq(revision[i / 2][i % 2] == revision[k / 2][k % 2], same);
    }
  ck_assert(mt_same(c->comm, seen, sizeof seen)); /* all ranks have the same */
  model_case_close(c);
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  Suite *suite = suite_create("moe");
  TCase *tests = tcase_create("moe");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, test_repeated);
  tcase_add_loop_test(tests, test_load, 0, 2);
  tcase_add_loop_test(tests, test_pooled, 0, 2);
  tcase_add_test(tests, test_layouts_change);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
