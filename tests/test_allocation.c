/* A training step allocates nothing after warm-up but row buffers that follow the routing. ranks: 1 3 4
 *
 * Row buffers that grow are counted apart, so that "nothing else" is: as many allocations as growths, on
 * every rank. With forced balance the routing never changes and nothing may grow either. */
#include "model_case.h"
#include "test.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include "comm/comm_mpi.h"

enum { WARM_UP = 2, STEPS = 8, MAX_OVERRIDE = 8 };

struct run {
  int64_t allocations, growths; /* of the steps after warm-up, the most of any rank */
  int64_t besides;              /* allocations that were no growths, likewise */
  int64_t reported;             /* growths as the steps' results tell */
  int64_t bytes;                /* by which memory in use changed where nothing grew */
};

static struct run run(const char *name, const char *nodes, int n, const char *const *overrides)
{
  struct model_case *c = model_case_open(name, nodes, "cpu", 2, 1, 1, n, overrides);
  int64_t step = 1, reported = 0;
  for (; step <= WARM_UP || c->step->replan.trial; step++) /* plans are tried in the first steps */
    mt_step_run(c->step, step, (step - 1) * c->B);
  int64_t allocations = mt_memory_allocations(), growths = mt_memory_growths(), bytes = mt_memory_bytes();
  for (; step <= WARM_UP + STEPS; step++) {
    const struct mt_step_result *result = mt_step_run(c->step, step, (step - 1) * c->B);
    reported += result->growths;
    ck_assert_int_eq(result->updated, 1);
  }
  allocations = mt_memory_allocations() - allocations;
  growths = mt_memory_growths() - growths;
  bytes = growths ? 0 : llabs(mt_memory_bytes() - bytes);
  int64_t most[4] = {allocations, growths, llabs(allocations - growths), bytes};
  mt_max_int(c->comm, most, 4);
  model_case_close(c);
  return (struct run){most[0], most[1], most[2], reported, most[3]};
}

static const struct {
  int n;
  const char *override[MAX_OVERRIDE];
} variants[] = {
    {1, {"train.micro_batch=3"}},
    {1, {"train.micro_batch=1"}},
    {2, {"train.micro_batch=2", "parallel.exchange=pairwise"}},
    {2, {"train.micro_batch=2", "parallel.exchange=hierarchical"}},
    {2, {"train.micro_batch=2", "parallel.slots=5"}},
    {2, {"train.micro_batch=2", "moe.aux_scope=micro_batch"}},
    {2, {"train.micro_batch=2", "moe.capacity_factor=0.9"}},
    {2, {"train.micro_batch=2", "parallel.sharding=owner"}},
    {3, {"train.micro_batch=3", "schedule.policy=coconet", "schedule.degree=4"}},
    {4, {"train.micro_batch=3", "schedule.policy=mast", "schedule.degree=4", "moe.capacity_factor=0.9"}},
    {3, {"train.micro_batch=1", "parallel.sharding=node", "parallel.wire=bf16"}},
    {3, {"train.micro_batch=1", "parallel.slots=4", "parallel.layout=laer"}},
    {2, {"train.micro_batch=1", "schedule.policy=laer"}},
    {4, {"train.micro_batch=2", "parallel.slots=5", "parallel.layout=motley", "parallel.sharding=node"}},
    /* the last: other slots get the rows in every micro-step, so these grow even under forced balance */
    {5,
     {"train.micro_batch=1", "parallel.slots=5", "parallel.layout=random", "schedule.policy=sequential",
      "schedule.degree=1"}},
};
enum { NVARIANT = sizeof variants / sizeof *variants };

START_TEST(test_only_growths)
{
  const char *name = _i % 2 ? "gpt2" : "mixtral";
  struct run r = run(name, model_case_ragged(), variants[_i / 2].n, variants[_i / 2].override);
  ck_assert_msg(r.besides == 0, "%s, %s: %lld allocations, %lld growths", name, variants[_i / 2].override[0],
                (long long)r.allocations, (long long)r.growths);
  ck_assert_int_ge(r.reported, r.growths); /* steps report the most of any rank */
  ck_assert_int_eq(r.bytes, 0);
  if (_i / 2 == NVARIANT - 1 && model_case_ragged() != NULL && strcmp(model_case_ragged(), "1"))
    ck_assert_int_gt(r.growths, 0);
}
END_TEST

START_TEST(test_balanced)
{
  const char *name = _i % 2 ? "gpt2" : "mixtral", *all[MAX_OVERRIDE + 1] = {"moe.router=balanced"};
  const int n = variants[_i / 2].n;
  for (int i = 0; i < n; i++)
    all[i + 1] = variants[_i / 2].override[i];
  struct run r = run(name, model_case_ragged(), n + 1, all);
  ck_assert_int_eq(r.allocations, 0);
  ck_assert_int_eq(r.growths, 0);
  ck_assert_int_eq(r.reported, 0);
  ck_assert_int_eq(r.bytes, 0);
}
END_TEST

/* Messages above the longest piece that MPI is given travel in several: more requests, also after warm-up. */
START_TEST(test_pieces)
{
  int64_t kept = mt_comm_piece;
  mt_comm_piece = 256;
  for (int exchange = 0; exchange < 2; exchange++) {
    struct run r =
        run("gpt2", model_case_ragged(), 4,
            (const char *[]){"train.micro_batch=1", "parallel.slots=5", "parallel.layout=random",
                             exchange ? "parallel.exchange=pairwise" : "parallel.exchange=hierarchical"});
    ck_assert_msg(r.besides == 0, "%lld allocations, %lld growths", (long long)r.allocations,
                  (long long)r.growths);
  }
  mt_comm_piece = kept;
}
END_TEST

int main(int argc, char **argv)
{
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  Suite *suite = suite_create("allocation");
  TCase *tests = tcase_create("allocation");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_only_growths, 0, 2 * NVARIANT);
  tcase_add_loop_test(tests, test_balanced, 0, 2 * (NVARIANT - 1));
  tcase_add_test(tests, test_pieces);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
