/* Cases of the loss and of plain vectors: sums, conversions, the optimizer. */
#include "ops_tests.h"
#include <math.h>
#include <string.h>

/* ---- cross_entropy ---- */

static const struct loss_shape {
  int64_t n, V;
  int extreme; /* 1: logits of +-80; 2: all equal */
} loss_shapes[] = {{0, 5, 0},    {1, 1, 0},    {3, 1, 0},    {2, 2, 0},   {3, 7, 0},
                   {7, 33, 0},   {17, 17, 1},  {33, 63, 0},  {65, 65, 1}, {130, 127, 2},
                   {63, 130, 0}, {17, 257, 0}, {5, 1031, 1}, {3, 5003, 0}};
enum { NLOSS = sizeof loss_shapes / sizeof *loss_shapes };
enum { L_LOGITS, L_TARGET, L_SCALE, L_LOSS0, L_LOSS, L_DLOGITS };

static int loss_case(struct ops_case *c, int index, int back)
{
  if (index >= NLOSS)
    return 0;
  const struct loss_shape *s = c->shape = &loss_shapes[index];
  c->rough = s->extreme;
  ops_label(c, "n=%lld V=%lld extreme=%d", (long long)s->n, (long long)s->V, s->extreme);
  struct ops_buffer *logits = ops_add(c, L_LOGITS, "logits", OPS_CTYPE, OPS_IN, s->n * s->V);
  for (int64_t i = 0; i < logits->n; i++)
    if (s->extreme == 2)
      ops_set(logits, i, (double)(i / s->V) - 40);
    else if (s->extreme && ops_bits() % 3)
      ops_set(logits, i, ops_bits() % 2 ? 80 : -80);
  struct ops_buffer *target = ops_add(c, L_TARGET, "target", OPS_I32, OPS_IN, s->n);
  ops_fill_below(target, s->V);
  struct ops_buffer *scale = ops_add_of(c, L_SCALE, "scale", OPS_F32, OPS_IN, s->n, back ? L_LOSS0 : -1);
  ops_add(c, L_LOSS0, "loss of forward", OPS_F32, OPS_SAVED, s->n);
  ops_add(c, L_LOSS, "loss", OPS_F32, OPS_OUT, s->n)->floor = 1e-2;
  for (int64_t r = 1; r < s->n;
       r += 3) { /* rows that do not count: the target is no index, the logits no numbers */
    ops_set(scale, r, 0);
    ops_set(target, r, r % 2 ? -100 : 0x7fffffff);
    for (int64_t v = 0; v < s->V && r % 2; v++)
      ops_set(logits, r * s->V + v, v % 2 ? NAN : INFINITY);
  }
  if (back) {
    struct ops_buffer *d = ops_add_of(c, L_DLOGITS, "dlogits", OPS_CTYPE, OPS_INPLACE, s->n * s->V, L_LOGITS);
    ops_copy(d, logits);
    d->floor = s->V == 1 ? 1 : 0; /* one class only: no gradient */
  }
  return 1;
}

static int cross_entropy_make(struct ops_case *c, int index)
{
  return loss_case(c, index, 0);
}

static int cross_entropy_back_make(struct ops_case *c, int index)
{
  return loss_case(c, index, 1);
}

static void cross_entropy_forward(const struct ops_case *c, struct mt_device *device)
{
  const struct loss_shape *s = c->shape;
  device->kernels->cross_entropy(device, ops_at(c, L_LOSS0), ops_at(c, L_LOGITS), ops_at(c, L_TARGET),
                                 ops_at(c, L_SCALE), s->n, s->V, 0);
}

static void cross_entropy_run(const struct ops_case *c, struct mt_device *device)
{
  const struct loss_shape *s = c->shape;
  device->kernels->cross_entropy(device, ops_at(c, L_LOSS), ops_at(c, L_LOGITS), ops_at(c, L_TARGET),
                                 ops_at(c, L_SCALE), s->n, s->V, 0);
}

static void cross_entropy_back_run(const struct ops_case *c, struct mt_device *device)
{
  const struct loss_shape *s = c->shape;
  device->kernels->cross_entropy(device, ops_at(c, L_LOSS), ops_at(c, L_DLOGITS), ops_at(c, L_TARGET),
                                 ops_at(c, L_SCALE), s->n, s->V, 1);
}

const struct ops_test ops_cross_entropy = {
    .name = "cross_entropy", .make = cross_entropy_make, .run = cross_entropy_run, .bound = 2e-6};
const struct ops_test ops_cross_entropy_back = {.name = "cross_entropy_back",
                                                .make = cross_entropy_back_make,
                                                .forward = cross_entropy_forward,
                                                .run = cross_entropy_back_run,
                                                .bound = 5e-6};

/* ---- add, convert, sum_squares ---- */

static const int64_t sizes[] = {0, 1, 2, 3, 7, 17, 33, 63, 65, 127, 130, 257, 1031, 70001};
enum { NSIZE = sizeof sizes / sizeof *sizes };
enum { V_X, V_Y };

static int vector_case(struct ops_case *c, int index)
{
  if (index >= NSIZE)
    return 0;
  c->shape = &sizes[index];
  ops_label(c, "n=%lld", (long long)sizes[index]);
  return 1;
}

static int64_t vector_n(const struct ops_case *c)
{
  return *(const int64_t *)c->shape;
}

static int add_make(struct ops_case *c, int index)
{
  if (!vector_case(c, index))
    return 0;
  ops_add(c, V_X, "x", OPS_F32, OPS_IN, vector_n(c));
  ops_add(c, V_Y, "y", OPS_F32, OPS_ADD, vector_n(c));
  return 1;
}

static int add_act_make(struct ops_case *c, int index)
{
  if (!vector_case(c, index))
    return 0;
  ops_add(c, V_X, "x", OPS_CTYPE, OPS_IN, vector_n(c));
  ops_add(c, V_Y, "y", OPS_CTYPE, OPS_ADD, vector_n(c));
  return 1;
}

static void add_run(const struct ops_case *c, struct mt_device *device)
{
  device->kernels->add(device, ops_at(c, V_Y), ops_at(c, V_X), vector_n(c));
}

static void add_act_run(const struct ops_case *c, struct mt_device *device)
{
  device->kernels->add_act(device, ops_at(c, V_Y), ops_at(c, V_X), vector_n(c));
}

const struct ops_test ops_vector_add = {.name = "add", .make = add_make, .run = add_run, .bound = 0};
const struct ops_test ops_add_act = {.name = "add_act", .make = add_act_make, .run = add_act_run, .bound = 0};

/* flag[0], flag[1]: types from and to. The values are random bits, so ties, infinities, NaNs and subnormals
 * come up. */
static int convert_make(struct ops_case *c, int index)
{
  if (!vector_case(c, index / 4))
    return 0;
  c->flag[0] = index % 2;
  c->flag[1] = index / 2 % 2;
  ops_label(c, "n=%lld from %s to %s", (long long)vector_n(c), c->flag[0] ? "bf16" : "f32",
            c->flag[1] ? "bf16" : "f32");
  struct ops_buffer *x = ops_add(c, V_X, "x", c->flag[0] ? OPS_BF16 : OPS_F32, OPS_IN, vector_n(c));
  static const uint32_t special[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x00000001, 0x80000000,
                                     0x3f808000, 0x3f818000, 0x7f7fffff, 0x3f807fff, 0x3f808001};
  for (int64_t i = 0; i < x->n; i++) {
    uint32_t bits = (uint32_t)ops_bits();
    if (i % 16 < 10)
      bits = special[i % 16];
    if ((bits & 0x7fffffff) > 0x7f800000)
      bits =
          0x7fc00000 | (bits & 0x80000000); /* one NaN of each sign: which payload is kept is not promised */
    if (x->type == OPS_F32)
      ((uint32_t *)x->start)[i] = bits;
    else
      ((uint16_t *)x->start)[i] = (uint16_t)(bits >> 16);
  }
  for (int64_t i = 0; i < x->n && x->type == OPS_BF16; i++)
    if ((((uint16_t *)x->start)[i] & 0x7fff) > 0x7f80)
      ((uint16_t *)x->start)[i] = 0x7fc0;
  ops_add(c, V_Y, "y", c->flag[1] ? OPS_BF16 : OPS_F32, OPS_OUT, vector_n(c));
  return 1;
}

static void convert_run(const struct ops_case *c, struct mt_device *device)
{
  device->kernels->convert(device, ops_at(c, V_Y), (enum mt_dtype)c->flag[1], ops_at(c, V_X),
                           (enum mt_dtype)c->flag[0], vector_n(c));
}

const struct ops_test ops_convert = {.name = "convert", .make = convert_make, .run = convert_run, .bound = 0};

static int sum_squares_make(struct ops_case *c, int index)
{
  if (!vector_case(c, index))
    return 0;
  ops_add(c, V_X, "x", OPS_F32, OPS_IN, vector_n(c));
  ops_add(c, V_Y, "sum", OPS_F64, OPS_OUT, 1)->host = 1;
  return 1;
}

static void sum_squares_run(const struct ops_case *c, struct mt_device *device)
{
  device->kernels->sum_squares(device, ops_at(c, V_Y), ops_at(c, V_X), vector_n(c));
}

const struct ops_test ops_sum_squares = {
    .name = "sum_squares", .make = sum_squares_make, .run = sum_squares_run, .bound = 1e-12};

/* ---- adamw ---- */

static const struct mt_adamw steps[] = {
    {.lr = 1e-3f,
     .beta1 = 0.9f,
     .beta2 = 0.999f,
     .eps = 1e-8f,
     .weight_decay = 0.1f,
     .correction1 = 0.1f,
     .correction2 = 0.001f,
     .grad_scale = 1},
    {.lr = 0.5f,
     .beta1 = 0.8f,
     .beta2 = 0.95f,
     .eps = 1e-3f,
     .weight_decay = 0,
     .correction1 = 1,
     .correction2 = 1,
     .grad_scale = 0.01f},
};
enum { NSTEP = sizeof steps / sizeof *steps };
enum { AD_W, AD_M, AD_V, AD_GRAD };

static int adamw_make(struct ops_case *c, int index)
{
  if (!vector_case(c, index / NSTEP))
    return 0;
  c->flag[0] = index % NSTEP;
  ops_label(c, "n=%lld step=%d", (long long)vector_n(c), c->flag[0]);
  int64_t n = vector_n(c);
  ops_add(c, AD_W, "w", OPS_F32, OPS_INPLACE, n);
  struct ops_buffer *m = ops_add(c, AD_M, "m", OPS_F32, OPS_INPLACE, n),
                    *v = ops_add(c, AD_V, "v", OPS_F32, OPS_INPLACE, n);
  struct ops_buffer *grad = ops_add(c, AD_GRAD, "grad", OPS_F32, OPS_IN, n);
  for (int64_t i = 0; i < n; i++) {
    ops_set(v, i, ops_uniform());
    if (i % 4 == 0) /* a parameter that never had a gradient stays but for decay */
      ops_set(m, i, 0), ops_set(v, i, 0);
    if (i % 8 == 0)
      ops_set(grad, i, 0);
  }
  return 1;
}

static void adamw_run(const struct ops_case *c, struct mt_device *device)
{
  device->kernels->adamw(device, ops_at(c, AD_W), ops_at(c, AD_M), ops_at(c, AD_V), ops_at(c, AD_GRAD),
                         vector_n(c), &steps[c->flag[0]]);
}

const struct ops_test ops_adamw = {.name = "adamw", .make = adamw_make, .run = adamw_run, .bound = 1e-6};
