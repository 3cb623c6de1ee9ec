/* Layers and testbeds of published evaluations; see grid.h.
 *
 * Sources. FSMoE's lines are those of its figure 5, as its released optimiser has them (the caption permutes testbed
 * A's), per element of four bytes. Its measured layer times (table 2) say how much longer products take within a layer
 * than its fitted line, and what the attention matrix costs. How much links within and between nodes slow each other
 * down is our one fitted number: the same on both testbeds, chosen so that FSMoE's gain over its "Tutel" is the
 * published one. Mast's testbeds are not described; the same group's clusters of 32 devices stand in: PipeMoE's
 * constants of its RTX2080Ti cluster, and FSMoE's code's for 32 A6000. */
#include "schedule/grid.h"
#include <stdio.h>
#include <string.h>
#include "base/log.h"

/* clang-format off */
static const struct mt_testbed fsmoe_testbed[] = {
    {.name = "A", .devices = "6 nodes of 8 RTX A6000", .group = 8, .a2a = {0.287, 2.320e-6}, .ag = {0.337, 2.348e-7},
     .rs = {0.395, 2.217e-7}, .ar = {0.511, 4.951e-6}, .gemm = {0.0426, 2.29e-11}, .experts = 3, .attention = 2.9,
     .softmax = 8.2e-8, .slow = 1000, .wires = 1300},
    {.name = "B", .devices = "8 nodes of 4 RTX 2080Ti", .group = 4, .a2a = {0.175, 1.224e-6}, .ag = {0.0320, 6.72e-7},
     .rs = {0.0391, 6.68e-7}, .ar = {0.0837, 2.396e-6}, .gemm = {0.0924, 4.42e-11}, .experts = 3, .attention = 1.5,
     .softmax = 1.24e-7, .slow = 1000, .wires = 1300},
};

static const struct mt_testbed mast_testbed[] = {
    {.name = "1", .devices = "8 nodes of 4 RTX 2080Ti (assumed)", .group = 1, .a2a = {0.209, 1.42e-6},
     .ar = {0.0837, 2.396e-6}, .gemm = {0.15, 1.49e-10}, .experts = 1, .attention = 1, .softmax = 1.24e-7,
     .slow = 1100, .wires = 1000},
    {.name = "2", .devices = "4 nodes of 8 RTX A6000 (assumed)", .group = 1, .a2a = {0.287, 1.854e-6},
     .ar = {0.511, 3.495e-6}, .gemm = {0.0426, 2.29e-11}, .experts = 3, .attention = 2.9, .softmax = 8.2e-8,
     .slow = 1100, .wires = 1000},
};
/* clang-format on */

/* Takes the next digit of a mixed-radix number. */
static int digit(int *number, int radix)
{
  int d = *number % radix;
  *number /= radix;
  return d;
}

static void fsmoe_layer(const struct mt_testbed *testbed, int number, struct mt_grid_layer *layer)
{
  static const double factors[3] = {1.2, 2.4, 1.0}; /* the last: no token is dropped */
  layer->B = 1 << digit(&number, 3);
  layer->heads = 8 << digit(&number, 3);
  layer->T = (testbed->name[0] == 'A' ? 512 : 256) << digit(&number, 3);
  layer->C = 1024 << digit(&number, 3);
  layer->F = layer->C * (2 + digit(&number, 3));
  layer->factor = factors[digit(&number, 3)];
  layer->products = 2 + digit(&number, 2);
  layer->K = 2;
}

static void mast_layer(const struct mt_testbed *testbed, int number, struct mt_grid_layer *layer)
{
  (void)testbed;
  layer->B = 2 << digit(&number, 3);
  layer->T = 512 << digit(&number, 3);
  layer->C = 1024 << digit(&number, 3);
  layer->F = layer->C * (2 << digit(&number, 2));
  layer->K = 1 + digit(&number, 2);
  layer->factor = digit(&number, 2) ? 1.2 : 1.0;
  layer->heads = 16 << digit(&number, 2);
  layer->products = 2;
}

const struct mt_grid mt_grids[2] = {
    {"fsmoe",
     1458,
     2,
     fsmoe_testbed,
     fsmoe_layer,
     MT_SCHEME_PIPEMOE,
     0,
     {{[MT_SCHEME_TUTEL_GAR] = 1.09, [MT_SCHEME_FSMOE_ONE] = 1.12, [MT_SCHEME_FSMOE] = 1.18},
      {[MT_SCHEME_TUTEL_GAR] = 1.08, [MT_SCHEME_FSMOE_ONE] = 1.16, [MT_SCHEME_FSMOE] = 1.22}},
     "speed-ups are over pipemoe, which is what FSMoE calls Tutel; fsmoe-one is its No-IIO, tutel-gar its "
     "Tutel-Improved"},
    {"mast",
     432,
     2,
     mast_testbed,
     mast_layer,
     MT_SCHEME_MAST,
     1,
     {{0}, {0}},
     "speed-ups are mast's over each; published are averages of 1.13 to 1.43 over DeepSpeed-MoE (sequential), Tutel, "
     "PipeMoE\n"
     "and CoCoNet, not which is which. Layers, testbeds and the scheme itself are our reconstruction"},
};

static struct mt_cost line(struct mt_line l, double work, double times)
{
  return (struct mt_cost){(int64_t)(1e6 * l.alpha * times + 0.5), (int64_t)(1e6 * l.beta * work * times + 0.5)};
}

static struct mt_cost twice(struct mt_cost cost)
{
  return (struct mt_cost){2 * cost.alpha_ns, 2 * cost.rest_ns};
}

void mt_grid_costs(const struct mt_testbed *testbed, const struct mt_grid_layer *layer, unsigned terms,
                   struct mt_shape *shape, struct mt_costs *costs)
{
  enum { LAYERS = 4 };
  const double G = testbed->group, B = layer->B, T = layer->T, C = layer->C, tokens = B * T;
  const double rows = layer->K * layer->factor * tokens; /* of a rank, padded to the capacity */
  const int products = layer->products;
  static const struct mt_shape_layer same[LAYERS] = {
      {0, MT_WHOLE / LAYERS, 0}, {0, MT_WHOLE / LAYERS, 0}, {0, MT_WHOLE / LAYERS, 0}, {0, MT_WHOLE / LAYERS, 0}};
  *shape = (struct mt_shape){.nlayer = LAYERS,
                             .layer = same,
                             .nmicro = 1,
                             .sequences = layer->B,
                             .several = 1,
                             .grouped = G > 1,
                             .gated = products == 3,
                             .backward = 1};
  *costs = (struct mt_costs){0};
  if (terms & MT_TERM_CONTENTION)
    *costs = (struct mt_costs){.slow_compute = testbed->slow, .slow_comm = testbed->slow, .slow_wires = testbed->wires};
  struct mt_cost *kind = costs->kind;
  kind[MT_TASK_DISPATCH] = kind[MT_TASK_COMBINE] = line(testbed->a2a, rows * C / G, 1);
  kind[MT_TASK_DISPATCH_BACK] = kind[MT_TASK_COMBINE_BACK] = kind[MT_TASK_DISPATCH];
  if (G > 1) {
    kind[MT_TASK_ROWS_GATHER] = line(testbed->ag, rows * C, 1);
    kind[MT_TASK_ROWS_SCATTER] = line(testbed->rs, rows * C, 1);
    kind[MT_TASK_HEADS_GATHER] = line(testbed->ag, tokens * C, 1);
    kind[MT_TASK_HEADS_SCATTER] = line(testbed->rs, tokens * C, 1);
  }
  struct mt_line gemm = testbed->gemm;
  gemm.beta *= terms & MT_TERM_MEASURED ? testbed->experts : 1;
  kind[MT_TASK_EXPERTS] =
      line((struct mt_line){gemm.alpha * products, gemm.beta}, rows * C * layer->F / G * products, 1);
  kind[MT_TASK_EXPERTS_BACK] = twice(kind[MT_TASK_EXPERTS]);
  gemm = testbed->gemm;
  gemm.beta *= terms & MT_TERM_MEASURED ? testbed->attention : 1;
  struct mt_cost attention =
      line((struct mt_line){4 * gemm.alpha, gemm.beta}, (4 * tokens * C * C + 2 * tokens * T * C) / G, 1);
  if (terms & MT_TERM_MEASURED)
    attention.rest_ns += (int64_t)(1e6 * testbed->softmax * tokens * T * layer->heads / G);
  kind[MT_TASK_ATTENTION] = attention;
  kind[MT_TASK_ATTENTION_BACK] = twice(attention);
  double gradients = LAYERS * 4 * C * C / G; /* of the four matrices of attention */
  shape->gradient_bytes = (int64_t)(4 * gradients);
  if (terms & MT_TERM_GRADIENT)
    kind[MT_TASK_REDUCE] = line(testbed->ar, gradients, 1);
}

void mt_grid_times(const struct mt_grid *grid, const struct mt_testbed *testbed, int number, unsigned terms,
                   int64_t time[MT_NSCHEME])
{
  struct mt_grid_layer layer;
  struct mt_shape shape;
  struct mt_costs costs;
  grid->layer(testbed, number, &layer);
  mt_grid_costs(testbed, &layer, terms, &shape, &costs);
  memset(time, 0, sizeof *time * MT_NSCHEME);
  for (enum mt_scheme scheme = MT_SCHEME_SEQUENTIAL; scheme < MT_SCHEME_LAER; scheme++) {
    struct mt_plan plan = mt_scheme_plan(scheme, 0, &shape, &costs);
    time[scheme] = mt_plan_simulate(&shape, &plan, &costs).total_ns / shape.nlayer;
  }
}

void mt_grid_means(const struct mt_grid *grid, const struct mt_testbed *testbed, unsigned terms,
                   double mean[MT_NSCHEME])
{
  memset(mean, 0, sizeof *mean * MT_NSCHEME);
  for (int i = 0; i < grid->nlayer; i++) {
    int64_t time[MT_NSCHEME];
    mt_grid_times(grid, testbed, i, terms, time);
    for (enum mt_scheme scheme = MT_SCHEME_SEQUENTIAL; scheme < MT_SCHEME_LAER; scheme++) {
      double ratio = (double)time[grid->base] / (double)time[scheme];
      mean[scheme] += (grid->each ? 1 / ratio : ratio) / grid->nlayer;
    }
  }
}

enum mt_status mt_grid_print(const char *name)
{
  const struct mt_grid *grid = NULL;
  for (int i = 0; i < 2; i++)
    grid = strcmp(name, mt_grids[i].name) ? grid : &mt_grids[i];
  if (!grid) {
    mt_error("--grid: found \"%s\", expected fsmoe or mast", name);
    return MT_USAGE;
  }
  mt_info("%s: %d layers, forward and backward, averages of speed-ups by the simulator", grid->name, grid->nlayer);
  mt_info("%s", grid->note);
  if (grid->testbed[0].group > 1)
    mt_info("heads and experts are cut over the ranks of a node (model-parallel and expert-sharding groups): such "
            "groups exist in "
            "the simulator only, motley train has none");
  for (int t = 0; t < grid->ntestbed; t++) {
    const struct mt_testbed *testbed = &grid->testbed[t];
    double mean[MT_NSCHEME], alone[MT_NSCHEME];
    mt_grid_means(grid, testbed, MT_TERM_ALL, mean);
    mt_grid_means(grid, testbed, MT_TERM_ALL & ~MT_TERM_CONTENTION, alone);
    mt_info("testbed %s, %s", testbed->name, testbed->devices);
    mt_info("  %-11s %9s %9s %19s", "", "here", "published", "without contention");
    for (enum mt_scheme scheme = MT_SCHEME_SEQUENTIAL; scheme < MT_SCHEME_LAER; scheme++) {
      char published[16] = "";
      if (grid->published[t][scheme] > 0)
        snprintf(published, sizeof published, "%.2f", grid->published[t][scheme]);
      mt_info("  %-11s %9.3f %9s %19.3f", mt_scheme_name(scheme), mean[scheme], published, alone[scheme]);
    }
  }
  return MT_OK;
}
