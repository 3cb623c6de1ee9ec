/* Cases of what works row by row: norms, embedding, rotary embedding, activations. */
#include "ops_tests.h"
#include <math.h>

/* ---- norms ---- */

static const struct norm_shape {
  int64_t n, c;
} norm_shapes[] = {{0, 7},   {1, 1},    {3, 1},     {2, 2},    {3, 7},   {7, 17},   {17, 33}, {5, 63},
                   {33, 65}, {65, 127}, {130, 130}, {63, 257}, {257, 3}, {2, 1031}, {4, 16}};
enum { NNORM = sizeof norm_shapes / sizeof *norm_shapes };
enum { N_X, N_W, N_B, N_Y, N_MEAN, N_RSTD, N_DX, N_DW, N_DB, N_DY };
static const float EPS = 1e-5f;

/* flag[0]: kind; flag[1]: dx is 0 overwritten, 1 added to, 2 dy itself. */
static int norm_case(struct ops_case *c, int index, int variants)
{
  if (index >= 2 * variants * NNORM)
    return 0;
  const struct norm_shape *s = c->shape = &norm_shapes[index / (2 * variants)];
  int layer = c->flag[0] = index % 2 ? MT_NORM_LAYER : MT_NORM_RMS;
  c->flag[1] = index / 2 % variants;
  ops_label(c, "%s n=%lld c=%lld dx=%d", layer ? "layer" : "rms", (long long)s->n, (long long)s->c,
            c->flag[1]);
  enum ops_role out = variants > 1 ? OPS_SAVED : OPS_OUT;
  c->rough = s->n > 100; /* of many short rows some are nearly constant and too curved there */
  ops_fill(ops_add(c, N_X, "x", OPS_CTYPE, OPS_IN, s->n * s->c), 2, 1);
  ops_fill(ops_add(c, N_W, "w", OPS_F32, OPS_IN, s->c), 1, 0.5);
  if (layer)
    ops_add(c, N_B, "b", OPS_F32, OPS_IN, s->c);
  else
    ops_none(c, N_B, "b");
  ops_add(c, N_Y, "y", OPS_CTYPE, out, s->n * s->c);
  if (layer)
    ops_add(c, N_MEAN, "mean", OPS_F32, out, s->n);
  else
    ops_none(c, N_MEAN, "mean");
  ops_add(c, N_RSTD, "rstd", OPS_F32, out, s->n);
  return 1;
}

static int norm_make(struct ops_case *c, int index)
{
  return norm_case(c, index, 1);
}

static int norm_back_make(struct ops_case *c, int index)
{
  if (!norm_case(c, index, 3))
    return 0;
  const struct norm_shape *s = c->shape;
  static const enum ops_role roles[] = {OPS_OUT, OPS_ADD, OPS_INPLACE};
  struct ops_buffer *dx = ops_add_of(c, N_DX, "dx", OPS_CTYPE, roles[c->flag[1]], s->n * s->c, N_X);
  ops_add_of(c, N_DW, "dw", OPS_F32, OPS_ADD, s->c, N_W)->floor = 1;
  if (c->flag[0] == MT_NORM_LAYER)
    ops_add_of(c, N_DB, "db", OPS_F32, OPS_ADD, s->c, N_B);
  else
    ops_none(c, N_DB, "db");
  struct ops_buffer *dy = ops_add_of(c, N_DY, "dy", OPS_CTYPE, OPS_IN, s->n * s->c, N_Y);
  if (c->flag[1] == 2)
    ops_copy(dx, dy);
  /* One or two columns leave next to nothing of the gradient, which is a difference of numbers of size rstd.
   */
  dx->floor = s->c == 1 ? 1 / sqrt(EPS) : s->c == 2 ? 10 : 1;
  return 1;
}

static void norm_run(const struct ops_case *c, struct mt_device *device)
{
  const struct norm_shape *s = c->shape;
  device->kernels->norm(device, (enum mt_norm_kind)c->flag[0], ops_at(c, N_Y), ops_at(c, N_MEAN),
                        ops_at(c, N_RSTD), ops_at(c, N_X), ops_at(c, N_W), ops_at(c, N_B), s->n, s->c, EPS);
}

static void norm_back_run(const struct ops_case *c, struct mt_device *device)
{
  const struct norm_shape *s = c->shape;
  const void *dy = ops_at(c, c->flag[1] == 2 ? N_DX : N_DY);
  device->kernels->norm_back(device, (enum mt_norm_kind)c->flag[0], ops_at(c, N_DX), c->flag[1] == 1,
                             ops_at(c, N_DW), ops_at(c, N_DB), dy, ops_at(c, N_X), ops_at(c, N_MEAN),
                             ops_at(c, N_RSTD), ops_at(c, N_W), s->n, s->c);
}

const struct ops_test ops_norm = {.name = "norm", .make = norm_make, .run = norm_run, .bound = 2e-6};
const struct ops_test ops_norm_back = {
    .name = "norm_back", .make = norm_back_make, .forward = norm_run, .run = norm_back_run, .bound = 5e-6};

/* ---- embedding ---- */

static const struct embed_shape {
  int64_t n, c, V, T;
} embed_shapes[] = {{0, 5, 3, 2},    {1, 1, 1, 1},        {2, 3, 5, 2},      {7, 17, 3, 7},
                    {33, 33, 2, 17}, {65, 63, 257, 9},    {130, 65, 11, 65}, {257, 130, 7, 33},
                    {63, 2, 1, 1},   {127, 257, 130, 127}};
enum { NEMBED = sizeof embed_shapes / sizeof *embed_shapes };
enum { E_TOKEN, E_POSITION, E_WTE, E_WPE, E_X, E_DWTE, E_DWPE, E_DX };

/* flag[0]: with positions. Tokens and positions repeat. */
static int embed_case(struct ops_case *c, int index, enum ops_role out)
{
  if (index >= 2 * NEMBED)
    return 0;
  const struct embed_shape *s = c->shape = &embed_shapes[index / 2];
  c->flag[0] = index % 2;
  ops_label(c, "n=%lld c=%lld V=%lld positions=%d", (long long)s->n, (long long)s->c, (long long)s->V,
            c->flag[0]);
  ops_fill_below(ops_add(c, E_TOKEN, "token", OPS_I32, OPS_IN, s->n), s->V);
  ops_fill_below(ops_add(c, E_POSITION, "position", OPS_I32, OPS_IN, s->n), s->T);
  ops_add(c, E_WTE, "wte", OPS_CTYPE, OPS_IN, s->V * s->c);
  if (c->flag[0])
    ops_add(c, E_WPE, "wpe", OPS_CTYPE, OPS_IN, s->T * s->c);
  else
    ops_none(c, E_WPE, "wpe");
  ops_add(c, E_X, "x", OPS_CTYPE, out, s->n * s->c);
  return 1;
}

static int embed_make(struct ops_case *c, int index)
{
  return embed_case(c, index, OPS_OUT);
}

static int embed_back_make(struct ops_case *c, int index)
{
  if (!embed_case(c, index, OPS_SAVED))
    return 0;
  const struct embed_shape *s = c->shape;
  ops_add_of(c, E_DWTE, "dwte", OPS_F32, OPS_ADD, s->V * s->c, E_WTE);
  if (c->flag[0])
    ops_add_of(c, E_DWPE, "dwpe", OPS_F32, OPS_ADD, s->T * s->c, E_WPE);
  else
    ops_none(c, E_DWPE, "dwpe");
  ops_add_of(c, E_DX, "dx", OPS_CTYPE, OPS_IN, s->n * s->c, E_X);
  return 1;
}

static void embed_run(const struct ops_case *c, struct mt_device *device)
{
  const struct embed_shape *s = c->shape;
  device->kernels->embed(device, ops_at(c, E_X), ops_at(c, E_TOKEN), ops_at(c, E_POSITION), ops_at(c, E_WTE),
                         ops_at(c, E_WPE), s->n, s->c);
}

static void embed_back_run(const struct ops_case *c, struct mt_device *device)
{
  const struct embed_shape *s = c->shape;
  device->kernels->embed_back(device, ops_at(c, E_DWTE), ops_at(c, E_DWPE), ops_at(c, E_DX),
                              ops_at(c, E_TOKEN), ops_at(c, E_POSITION), s->n, s->c);
}

const struct ops_test ops_embed = {.name = "embed", .make = embed_make, .run = embed_run, .bound = 0};
const struct ops_test ops_embed_back = {
    .name = "embed_back", .make = embed_back_make, .forward = embed_run, .run = embed_back_run, .bound = 0};

/* ---- rotary embedding ---- */

static const struct rope_shape {
  int64_t n, heads, D, gap, T; /* rows end with `gap` elements that are not rotated */
} rope_shapes[] = {{0, 2, 8, 0, 4},    {1, 1, 2, 0, 1},    {3, 2, 2, 5, 3},
                   {7, 3, 8, 0, 17},   {4, 0, 8, 16, 4},   {17, 2, 64, 64, 33},
                   {33, 1, 80, 3, 33}, {65, 4, 8, 7, 130}, {130, 2, 80, 0, 130}};
enum { NROPE = sizeof rope_shapes / sizeof *rope_shapes };
enum { R_X, R_POSITION, R_TABLE, R_Y, R_DX, R_DY };

/* flag[0]: inverse. The inverse is the gradient: dx is rotated in place, starting as dy. */
static int rope_make(struct ops_case *c, int index)
{
  if (index >= 2 * NROPE)
    return 0;
  const struct rope_shape *s = c->shape = &rope_shapes[index / 2];
  int64_t stride = s->heads * s->D + s->gap, size = s->n * stride;
  c->flag[0] = index % 2;
  ops_label(c, "n=%lld heads=%lld D=%lld stride=%lld inverse=%d", (long long)s->n, (long long)s->heads,
            (long long)s->D, (long long)stride, c->flag[0]);
  struct ops_buffer *x = ops_add(c, R_X, "x", OPS_CTYPE, OPS_IN, size);
  ops_fill_below(ops_add(c, R_POSITION, "position", OPS_I32, OPS_IN, s->n), s->T);
  struct ops_buffer *table = ops_add(c, R_TABLE, "table", OPS_F32, OPS_IN, s->T * s->D);
  for (int64_t i = 0; i < s->T * s->D / 2; i++) {
    double angle = (double)(i / (s->D / 2)) * pow(10000, -2.0 * (double)(i % (s->D / 2)) / (double)s->D);
    ops_set(table, 2 * i, cos(angle));
    ops_set(table, 2 * i + 1, sin(angle));
  }
  ops_add(c, R_Y, "y", OPS_CTYPE, OPS_SAVED, size);
  struct ops_buffer *dx = ops_add_of(c, R_DX, "dx", OPS_CTYPE, OPS_INPLACE, size, c->flag[0] ? R_X : -1);
  struct ops_buffer *dy = ops_add_of(c, R_DY, "dy", OPS_CTYPE, OPS_IN, size, c->flag[0] ? R_Y : -1);
  for (int64_t i = 0; i < size; i++)
    if (i % stride >= stride - s->gap) {
      ops_set(x, i, 0);
      ops_set(dy, i, 0);
    }
  ops_copy(dx, dy);
  for (int64_t i = 0; i < size; i++)
    if (i % stride >= stride - s->gap)
      ops_poison(dx, i);
  return 1;
}

static void rope_forward(const struct ops_case *c, struct mt_device *device)
{
  const struct rope_shape *s = c->shape;
  int64_t stride = s->heads * s->D + s->gap;
  device->ops->copy(device, MT_DEV_MATH, ops_at(c, R_Y), ops_at(c, R_X),
                    s->n * stride * mt_dtype_size(device->ctype));
  device->kernels->rope(device, ops_at(c, R_Y), s->n, stride, s->heads, s->D, ops_at(c, R_POSITION),
                        ops_at(c, R_TABLE), 0);
}

static void rope_run(const struct ops_case *c, struct mt_device *device)
{
  const struct rope_shape *s = c->shape;
  device->kernels->rope(device, ops_at(c, R_DX), s->n, s->heads * s->D + s->gap, s->heads, s->D,
                        ops_at(c, R_POSITION), ops_at(c, R_TABLE), c->flag[0]);
}

const struct ops_test ops_rope = {
    .name = "rope", .make = rope_make, .forward = rope_forward, .run = rope_run, .bound = 1e-6};

/* ---- activations ---- */

static const struct act_shape {
  int64_t n, f;
  int extreme; /* values up to +-80 */
} act_shapes[] = {{0, 3, 0},   {1, 1, 0},   {2, 3, 0},    {3, 7, 0},     {7, 17, 0},   {5, 33, 1},
                  {33, 63, 0}, {65, 65, 1}, {17, 127, 0}, {130, 130, 0}, {63, 257, 0}, {4, 0, 0}};
enum { NACT = sizeof act_shapes / sizeof *act_shapes };
enum { A_X, A_Y, A_DX, A_DY };

/* flag[0]: 1: dx is dy itself (gelu_back only). `twice`: x has 2 f columns. */
static int act_case(struct ops_case *c, int index, int back, int twice)
{
  int variants = back && !twice ? 2 : 1;
  if (index >= variants * NACT)
    return 0;
  const struct act_shape *s = c->shape = &act_shapes[index / variants];
  int64_t size = s->n * s->f;
  c->flag[0] = index % variants;
  ops_label(c, "n=%lld f=%lld extreme=%d in_place=%d", (long long)s->n, (long long)s->f, s->extreme,
            c->flag[0]);
  struct ops_buffer *x = ops_add(c, A_X, twice ? "gu" : "x", OPS_CTYPE, OPS_IN, twice ? 2 * size : size);
  c->rough = s->extreme;
  if (s->extreme)
    ops_fill(x, 0, 25);
  for (int64_t i = 0; i < x->n && s->extreme; i += 5)
    ops_set(x, i, i % 2 ? 80 : -80);
  ops_add(c, A_Y, twice ? "h" : "y", OPS_CTYPE, back ? OPS_SAVED : OPS_OUT, size);
  if (!back)
    return 1;
  struct ops_buffer *dx =
      ops_add_of(c, A_DX, twice ? "dgu" : "dx", OPS_CTYPE, c->flag[0] ? OPS_INPLACE : OPS_OUT, x->n, A_X);
  struct ops_buffer *dy = ops_add_of(c, A_DY, twice ? "dh" : "dy", OPS_CTYPE, OPS_IN, size, A_Y);
  if (c->flag[0])
    ops_copy(dx, dy);
  return 1;
}

static int swiglu_make(struct ops_case *c, int index)
{
  return act_case(c, index, 0, 1);
}

static int swiglu_back_make(struct ops_case *c, int index)
{
  return act_case(c, index, 1, 1);
}

static int gelu_make(struct ops_case *c, int index)
{
  return act_case(c, index, 0, 0);
}

static int gelu_back_make(struct ops_case *c, int index)
{
  return act_case(c, index, 1, 0);
}

static void swiglu_run(const struct ops_case *c, struct mt_device *device)
{
  const struct act_shape *s = c->shape;
  device->kernels->swiglu(device, ops_at(c, A_Y), ops_at(c, A_X), s->n, s->f);
}

static void swiglu_back_run(const struct ops_case *c, struct mt_device *device)
{
  const struct act_shape *s = c->shape;
  device->kernels->swiglu_back(device, ops_at(c, A_DX), ops_at(c, A_DY), ops_at(c, A_X), s->n, s->f);
}

static void gelu_run(const struct ops_case *c, struct mt_device *device)
{
  device->kernels->gelu(device, ops_at(c, A_Y), ops_at(c, A_X), c->buffer[A_X].n);
}

static void gelu_back_run(const struct ops_case *c, struct mt_device *device)
{
  const void *dy = ops_at(c, c->flag[0] ? A_DX : A_DY);
  device->kernels->gelu_back(device, ops_at(c, A_DX), dy, ops_at(c, A_X), c->buffer[A_X].n);
}

const struct ops_test ops_swiglu = {.name = "swiglu", .make = swiglu_make, .run = swiglu_run, .bound = 2e-6};
const struct ops_test ops_swiglu_back = {.name = "swiglu_back",
                                         .make = swiglu_back_make,
                                         .forward = swiglu_run,
                                         .run = swiglu_back_run,
                                         .bound = 2e-6};
const struct ops_test ops_gelu = {.name = "gelu", .make = gelu_make, .run = gelu_run, .bound = 2e-6};
const struct ops_test ops_gelu_back = {
    .name = "gelu_back", .make = gelu_back_make, .forward = gelu_run, .run = gelu_back_run, .bound = 2e-6};
