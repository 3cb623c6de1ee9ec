/* The grids of layers on which FSMoE and Mast were evaluated, on descriptions of their testbeds.
 *
 * `motley simulate --grid` runs every scheme on every layer and puts the averages beside the published ones. FSMoE's
 * grid is published (1458 layers); Mast's is not, and the one here (432 layers) is our reconstruction. */
#ifndef MT_GRID_H
#define MT_GRID_H
#include "base/status.h"
#include "schedule/scheme.h"

/* A straight line: milliseconds and milliseconds a unit (element of 4 bytes, multiply-accumulate). */
struct mt_line {
  double alpha, beta;
};

struct mt_testbed {
  const char *name, *devices;
  int group;                            /* ranks of a node that share heads and experts; 1 = no groups */
  struct mt_line a2a, ag, rs, ar, gemm; /* all-to-all, all-gather, reduce-scatter, all-reduce, a product */
  double experts, attention;            /* products take so many times the fitted line in a layer, as measured there */
  double softmax;                       /* milliseconds an element of the attention matrix */
  int slow, wires; /* thousandths: computing and communication while both go on; both kinds of communication */
};

/* A layer of a grid. */
struct mt_grid_layer {
  int B, T, C, F, heads, K;
  double factor; /* capacity factor */
  int products;  /* of an expert: 2, or 3 (gated) */
};

struct mt_grid {
  const char *name;
  int nlayer, ntestbed;
  const struct mt_testbed *testbed;
  void (*layer)(const struct mt_testbed *testbed, int number, struct mt_grid_layer *layer);
  enum mt_scheme base; /* speed-ups are over this scheme's times, or (each = 1) they are this scheme's over each */
  int each;
  double published[2][MT_NSCHEME]; /* by testbed; 0 = nothing is published */
  const char *note;
};
extern const struct mt_grid mt_grids[2];

/* Terms that can be switched off, to see what they explain. */
enum { MT_TERM_CONTENTION = 1, MT_TERM_GRADIENT = 2, MT_TERM_MEASURED = 4, MT_TERM_ALL = 7 };

/* Shape and costs of a layer, forward and backward: four like it in a row, so that gradients have somewhere to go.
 * Pure. */
void mt_grid_costs(const struct mt_testbed *testbed, const struct mt_grid_layer *layer, unsigned terms,
                   struct mt_shape *shape, struct mt_costs *costs);
/* Predicted nanoseconds of layer `number` under each scheme; 0 for auto and laer, which say nothing new here. Pure. */
void mt_grid_times(const struct mt_grid *grid, const struct mt_testbed *testbed, int number, unsigned terms,
                   int64_t time[MT_NSCHEME]);
/* Mean speed-ups over all layers. Pure. */
void mt_grid_means(const struct mt_grid *grid, const struct mt_testbed *testbed, unsigned terms,
                   double mean[MT_NSCHEME]);
/* Prints the grid's table. MT_USAGE, said once, for an unknown name. Local. */
enum mt_status mt_grid_print(const char *name);

#endif
