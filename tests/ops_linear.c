/* Cases of the linear layers: ragged groups, empty groups, gaps between the groups' weights. */
#include "ops_tests.h"

struct shape {
  int ngroup;
  int64_t rows[8]; /* of each group */
  int64_t in, out;
  int64_t wgap, bgap; /* elements between neighbouring groups' weights and biases */
};

static const struct shape shapes[] = {
    {1, {1}, 1, 1, 0, 0},
    {1, {2}, 3, 7, 0, 0},
    {1, {3}, 7, 2, 0, 0},
    {1, {7}, 17, 33, 0, 0},
    {1, {17}, 33, 17, 0, 0},
    {1, {33}, 63, 65, 0, 0},
    {1, {63}, 65, 63, 0, 0},
    {1, {65}, 127, 130, 0, 0},
    {1, {127}, 130, 127, 0, 0},
    {1, {130}, 257, 63, 0, 0},
    {1, {257}, 33, 130, 0, 0},
    {1, {1}, 257, 257, 0, 0},
    {1, {3}, 1031, 65, 0, 0},
    {1, {5}, 64, 512, 0, 0},
    {1, {0}, 7, 3, 0, 0},
    {1, {3}, 0, 5, 0, 0},
    {1, {3}, 5, 0, 0, 0},
    {0, {0}, 4, 4, 0, 0},
    {2, {2, 3}, 4, 3, 5, 2},
    {3, {0, 0, 0}, 17, 7, 3, 1},
    {3, {0, 0, 3}, 33, 2, 7, 3},
    {4, {3, 0, 1, 2}, 5, 4, 1, 1},
    {4, {1, 1, 1, 1}, 65, 7, 0, 0},
    {5, {5, 0, 1, 17, 0}, 33, 17, 13, 5},
    {3, {40, 0, 7}, 64, 64, 0, 0},
    {6, {2, 33, 0, 63, 1, 7}, 130, 65, 30, 3},
    {8, {0, 130, 0, 1, 0, 17, 3, 0}, 63, 127, 1, 65},
    {1, {300}, 520, 260, 0, 0},
    {2, {1, 530}, 65, 330, 0, 0},
};
enum { NSHAPE = sizeof shapes / sizeof *shapes };

enum { X, W, B, Y, DX, DW, DB, DY };

static struct mt_linear layer(const struct ops_case *c)
{
  const struct shape *s = c->shape;
  return (struct mt_linear){s->ngroup, c->first, s->in, s->out, s->in * s->out + s->wgap, s->out + s->bgap};
}

/* Elements of ngroup arrays of `each` that are `stride` apart, the gaps poisoned. */
static struct ops_buffer *groups(struct ops_case *c, int id, const char *name, enum ops_type type,
                                 enum ops_role role, int64_t each, int64_t stride, int of)
{
  const struct shape *s = c->shape;
  int64_t n = s->ngroup ? (s->ngroup - 1) * stride + each : 0;
  struct ops_buffer *b = ops_add_of(c, id, name, type, role, n, of);
  for (int64_t i = 0; i < n && role != OPS_SAVED; i++)
    if (i % stride >= each)
      ops_poison(b, i);
  return b;
}

/* flag[0]: with bias; flag[1]: add. `kind` is the buffer that the kernel writes: Y, DX or DW. */
static int make(struct ops_case *c, int index, int kind)
{
  if (index >= 4 * NSHAPE)
    return 0;
  const struct shape *s = c->shape = &shapes[index / 4];
  c->flag[0] = index % 2;
  c->flag[1] = index / 2 % 2;
  for (int g = 0; g < s->ngroup; g++)
    c->first[g + 1] = c->first[g] + s->rows[g];
  struct mt_linear l = layer(c);
  int64_t n = c->first[s->ngroup];
  c->roundings = c->flag[0] && c->flag[1] ? 2 : 1; /* a bias and a product may be added to y one after the other */
  enum ops_role added = c->flag[1] ? OPS_ADD : OPS_OUT;
  ops_label(c, "groups=%d rows=%lld in=%lld out=%lld bias=%d add=%d", s->ngroup, (long long)n,
            (long long)s->in, (long long)s->out, c->flag[0], c->flag[1]);
  ops_add(c, X, "x", OPS_CTYPE, OPS_IN, n * s->in);
  groups(c, W, "w", OPS_CTYPE, OPS_IN, s->in * s->out, l.wstride, -1);
  if (c->flag[0])
    groups(c, B, "b", OPS_CTYPE, OPS_IN, s->out, l.bstride, -1);
  else
    ops_none(c, B, "b");
  ops_add(c, Y, "y", OPS_CTYPE, kind == Y ? added : OPS_SAVED, n * s->out);
  if (kind == Y)
    return 1;
  if (kind == DX)
    ops_add_of(c, DX, "dx", OPS_CTYPE, added, n * s->in, X);
  else
    ops_none(c, DX, "dx");
  if (kind == DW)
    groups(c, DW, "dw", OPS_F32, OPS_ADD, s->in * s->out, l.wstride, W);
  else
    ops_none(c, DW, "dw");
  if (kind == DW && c->flag[0])
    groups(c, DB, "db", OPS_F32, OPS_ADD, s->out, l.bstride, B);
  else
    ops_none(c, DB, "db");
  ops_add_of(c, DY, "dy", OPS_CTYPE, OPS_IN, n * s->out, Y);
  return 1;
}

static int make_y(struct ops_case *c, int index)
{
  return make(c, index, Y);
}

static int make_dx(struct ops_case *c, int index)
{
  return make(c, index, DX);
}

static int make_dw(struct ops_case *c, int index)
{
  return make(c, index, DW);
}

static void forward(const struct ops_case *c, struct mt_device *device)
{
  struct mt_linear l = layer(c);
  device->kernels->linear(device, &l, ops_at(c, Y), ops_at(c, X), ops_at(c, W), ops_at(c, B), 0);
}

static void run_y(const struct ops_case *c, struct mt_device *device)
{
  struct mt_linear l = layer(c);
  device->kernels->linear(device, &l, ops_at(c, Y), ops_at(c, X), ops_at(c, W), ops_at(c, B), c->flag[1]);
}

static void run_dx(const struct ops_case *c, struct mt_device *device)
{
  struct mt_linear l = layer(c);
  device->kernels->linear_dx(device, &l, ops_at(c, DX), ops_at(c, DY), ops_at(c, W), c->flag[1]);
}

static void run_dw(const struct ops_case *c, struct mt_device *device)
{
  struct mt_linear l = layer(c);
  device->kernels->linear_dw(device, &l, ops_at(c, DW), ops_at(c, DB), ops_at(c, DY), ops_at(c, X));
}

const struct ops_test ops_linear = {.name = "linear", .make = make_y, .run = run_y, .bound = 2e-6};
const struct ops_test ops_linear_dx = {
    .name = "linear_dx", .make = make_dx, .forward = forward, .run = run_dx, .bound = 2e-6};
const struct ops_test ops_linear_dw = {
    .name = "linear_dw", .make = make_dw, .forward = forward, .run = run_dw, .bound = 2e-6};
