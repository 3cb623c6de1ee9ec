/* Runs descriptions of kernel calls on devices and compares; see ops_harness.h.
 *
 * The trap: each ck_assert that holds writes to a file; what is checked per element only calls Check when it
 * fails. */
#include "ops_harness.h"
#include "bf16.h"
#include <check.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Repeated, this halfword is a NaN as bf16, f32 and f64, and far outside any array as an index. */
static const uint16_t POISON = 0x7ff1;
enum { GUARD = 64 };
static const double DIFFERENCE_BOUND = 1e-3;    /* finite differences of f32 values */
static const int64_t DIFFERENCE_ELEMENTS = 800; /* larger cases take no differences */

/* ---- values ---- */

static uint64_t state;

uint64_t ops_bits(void) /* SplitMix64: Steele, Lea, Flood, OOPSLA 2014 */
{
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

double ops_uniform(void)
{
  return (double)(ops_bits() >> 11) * 0x1p-53;
}

static double normal(void)
{
  return sqrt(-2 * log(1 - ops_uniform())) * cos(6.283185307179586 * ops_uniform());
}

static int64_t size_of(const struct ops_buffer *b)
{
  static const int64_t size[] = {[OPS_F32] = 4, [OPS_BF16] = 2, [OPS_F64] = 8, [OPS_I32] = 4};
  return size[b->type];
}

double ops_get(const struct ops_buffer *b, const void *contents, int64_t index)
{
  switch (b->type) {
  case OPS_F32:
    return ((const float *)contents)[index];
  case OPS_BF16:
    return mt_bf16_to_f32(((const uint16_t *)contents)[index]);
  case OPS_F64:
    return ((const double *)contents)[index];
  default:
    return ((const int32_t *)contents)[index];
  }
}

void ops_set(struct ops_buffer *b, int64_t index, double value)
{
  if (b->type == OPS_F32)
    ((float *)b->start)[index] = (float)value;
  else if (b->type == OPS_BF16)
    ((uint16_t *)b->start)[index] = mt_bf16_from_f32((float)value);
  else if (b->type == OPS_F64)
    ((double *)b->start)[index] = value;
  else
    ((int32_t *)b->start)[index] = (int32_t)value;
}

static void poison(void *to, int64_t bytes)
{
  for (int64_t i = 0; i < bytes / 2; i++)
    memcpy((char *)to + 2 * i, &POISON, 2);
}

static int is_poison(const void *from, int64_t bytes)
{
  for (int64_t i = 0; i < bytes / 2; i++)
    if (memcmp((const char *)from + 2 * i, &POISON, 2))
      return 0;
  return 1;
}

static int is_poison_at(const struct ops_buffer *b, const void *contents, int64_t index)
{
  return is_poison((const char *)contents + index * size_of(b), size_of(b));
}

void ops_poison(struct ops_buffer *b, int64_t index)
{
  poison((char *)b->start + index * size_of(b), size_of(b));
}

void ops_fill(struct ops_buffer *b, double mean, double deviation)
{
  for (int64_t i = 0; i < b->n; i++)
    ops_set(b, i, mean + deviation * normal());
}

void ops_fill_below(struct ops_buffer *b, int64_t limit)
{
  for (int64_t i = 0; i < b->n; i++)
    ops_set(b, i, (double)(ops_bits() % (uint64_t)limit));
}

void ops_copy(struct ops_buffer *to, const struct ops_buffer *from)
{
  memcpy(to->start, from->start, (size_t)(from->n * size_of(from)));
}

/* ---- descriptions ---- */

struct ops_buffer *ops_add(struct ops_case *c, int id, const char *name, enum ops_type type,
                           enum ops_role role, int64_t n)
{
  ck_assert_msg(id == c->nbuffer && id < OPS_MAX_BUFFER, "%s: buffer %s out of order", c->op, name);
  struct ops_buffer *b = &c->buffer[c->nbuffer++];
  *b = (struct ops_buffer){.name = name, .type = type, .role = role, .n = n, .of = -1};
  b->ctype = type == OPS_CTYPE;
  if (b->ctype)
    b->type = c->ctype == MT_F32 ? OPS_F32 : OPS_BF16;
  b->start = mt_zalloc(MT_TAG_MISC, n * size_of(b));
  b->result = mt_zalloc(MT_TAG_MISC, n * size_of(b));
  if (type != OPS_I32)
    ops_fill(b, 0, 1);
  return b;
}

struct ops_buffer *ops_add_of(struct ops_case *c, int id, const char *name, enum ops_type type,
                              enum ops_role role, int64_t n, int of)
{
  struct ops_buffer *b = ops_add(c, id, name, type, role, n);
  b->of = of;
  return b;
}

void ops_none(struct ops_case *c, int id, const char *name)
{
  ops_add(c, id, name, OPS_F32, OPS_IN, 0)->n = -1;
}

void ops_label(struct ops_case *c, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(c->label, sizeof c->label, format, args);
  va_end(args);
}

static int make(const struct ops_test *test, struct ops_case *c, int index, enum mt_dtype ctype)
{
  *c = (struct ops_case){.op = test->name, .index = index, .ctype = ctype};
  state = (uint64_t)index;
  for (const char *s = test->name; *s; s++)
    state = state * 31 + (unsigned char)*s;
  return test->make(c, index);
}

static void unmake(struct ops_case *c)
{
  for (int i = 0; i < c->nbuffer; i++) {
    mt_free(c->buffer[i].start);
    mt_free(c->buffer[i].result);
  }
}

/* ---- calls ---- */

/* Before and after the contents: a guard, and in every second case one element of displacement. */
static int64_t lead(const struct ops_case *c, const struct ops_buffer *b)
{
  return GUARD + (c->index & 1) * size_of(b);
}

static int64_t block_bytes(const struct ops_case *c, const struct ops_buffer *b)
{
  return lead(c, b) + b->n * size_of(b) + GUARD;
}

static void upload(const struct ops_case *c, struct ops_buffer *b, struct mt_device *device)
{
  if (b->n < 0)
    return;
  int64_t bytes = block_bytes(c, b);
  char *image = mt_alloc(MT_TAG_MISC, bytes);
  poison(image, bytes);
  if (b->role != OPS_OUT && b->role != OPS_SPARSE)
    memcpy(image + lead(c, b), b->start, (size_t)(b->n * size_of(b)));
  b->block =
      b->host ? mt_alloc(MT_TAG_MISC, bytes) : device->ops->alloc(device, MT_TAG_MISC, MT_DEVICE, bytes);
  if (b->host)
    memcpy(b->block, image, (size_t)bytes);
  else {
    device->ops->copy(device, MT_DEV_MATH, b->block, image, bytes);
    device->ops->sync(device, MT_DEV_MATH); /* image ends here */
  }
  b->device = (char *)b->block + lead(c, b);
  mt_free(image);
}

/* Contents to result; what is wrong with them, or NULL. After forward only SAVED may have changed, after run
 * all others. */
static const char *download(const struct ops_case *c, struct ops_buffer *b, struct mt_device *device,
                            int forward)
{
  if (b->n < 0)
    return NULL;
  int64_t bytes = block_bytes(c, b), content = b->n * size_of(b), before = lead(c, b);
  char *image = mt_alloc(MT_TAG_MISC, bytes);
  if (b->host) {
    memcpy(image, b->block, (size_t)bytes);
    mt_free(b->block);
  } else {
    device->ops->copy(device, MT_DEV_MATH, image, b->block, bytes);
    device->ops->sync(device, MT_DEV_MATH);
    device->ops->free(device, MT_DEVICE, b->block);
  }
  b->device = b->block = NULL;
  const char *wrong = NULL;
  if (!is_poison(image, before))
    wrong = "written before its first element";
  else if (!is_poison(image + before + content, GUARD))
    wrong = "written after its last element";
  else if (!forward && (b->role == OPS_IN || b->role == OPS_SAVED) &&
           memcmp(image + before, b->start, (size_t)content))
    wrong = "an input, but written";
  memcpy(b->result, image + before, (size_t)content);
  mt_free(image);
  return wrong;
}

/* Sets up a workspace of exactly the promised size, poisoned, with a guard behind it. Returns its bytes. */
static int64_t lend_work(const struct ops_test *test, const struct ops_case *c, struct mt_device *device)
{
  int64_t bytes = test->work ? test->work(c, device) : 0;
  if (bytes == 0)
    return 0;
  mt_device_reserve(device, bytes + GUARD);
  char *image = mt_alloc(MT_TAG_MISC, bytes + GUARD);
  poison(image, bytes + GUARD);
  device->ops->copy(device, MT_DEV_MATH, device->work, image, bytes + GUARD);
  device->ops->sync(device, MT_DEV_MATH);
  mt_free(image);
  return bytes;
}

static int work_is_whole(struct mt_device *device, int64_t bytes)
{
  char guard[GUARD];
  if (bytes == 0)
    return 1;
  device->ops->copy(device, MT_DEV_MATH, guard, (char *)device->work + bytes, GUARD);
  device->ops->sync(device, MT_DEV_MATH);
  return is_poison(guard, GUARD);
}

/* Runs forward or run of a case; results are in result. */
static void call(const struct ops_test *test, struct ops_case *c, struct mt_device *device, int forward)
{
  for (int i = 0; i < c->nbuffer; i++)
    upload(c, &c->buffer[i], device);
  int64_t work = lend_work(test, c, device);
  (forward ? test->forward : test->run)(c, device);
  device->ops->sync(device, MT_DEV_MATH);
  ck_assert_msg(work_is_whole(device, work), "%s on %s, %s: wrote behind a workspace of %lld bytes", c->op,
                device->name, c->label, (long long)work);
  for (int i = 0; i < c->nbuffer; i++) {
    const char *wrong = download(c, &c->buffer[i], device, forward);
    if (wrong)
      ck_abort_msg("%s on %s, %s: %s is %s", c->op, device->name, c->label, c->buffer[i].name, wrong);
  }
}

/* What forward leaves becomes an input. */
static void save_forward(const struct ops_test *test, struct ops_case *c, struct mt_device *ref)
{
  if (!test->forward)
    return;
  call(test, c, ref, 1);
  for (int i = 0; i < c->nbuffer; i++) {
    struct ops_buffer *b = &c->buffer[i];
    if (b->role == OPS_SAVED && b->n > 0)
      memcpy(b->start, b->result, (size_t)(b->n * size_of(b)));
  }
}

static int is_output(const struct ops_buffer *b)
{
  return b->n >= 0 && b->role != OPS_IN && b->role != OPS_SAVED;
}

/* ---- comparisons ---- */

static double infinite_if_nan(double error)
{
  return isnan(error) ? INFINITY : error;
}

/* Norm-wise error of got[n] and, so that one bad element does not drown in many, the worst element's error
 * relative to its own size plus the root mean square. NaN counts as infinite. *worst is the worst element. */
static double difference(const double *got, const double *expected, int64_t n, double floor,
                         double *worst_error, int64_t *worst)
{
  double error = 0, size = 0;
  for (int64_t i = 0; i < n; i++) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  double rms = fmax(sqrt(size / (double)(n ? n : 1)), floor);
  *worst_error = 0, *worst = 0;
  for (int64_t i = 0; i < n; i++) {
    double off = infinite_if_nan(fabs(got[i] - expected[i]));
    double relative = off == 0 ? 0 : off / (fabs(expected[i]) + rms);
    if (relative > *worst_error)
      *worst_error = relative, *worst = i;
  }
  error = infinite_if_nan(error);
  return error == 0 ? 0 : sqrt(error) / (rms * sqrt((double)n));
}

/* Elements of a buffer's contents without gaps, as doubles; the caller frees. */
static double *values(const struct ops_buffer *b, const void *contents, const void *gaps)
{
  double *v = MT_NEW(MT_TAG_MISC, double, b->n);
  for (int64_t i = 0; i < b->n; i++)
    v[i] = is_poison_at(b, gaps, i) ? 0 : ops_get(b, contents, i);
  return v;
}

/* result of every output against expected[]. */
static void compare(const struct ops_test *test, const struct ops_case *c, const struct mt_device *device,
                    void *const *expected)
{
  for (int i = 0; i < c->nbuffer; i++) {
    const struct ops_buffer *b = &c->buffer[i];
    if (!is_output(b))
      continue;
    int64_t bytes = b->n * size_of(b);
    for (int64_t j = 0; j < b->n; j++)
      if (is_poison_at(b, expected[i], j) && !is_poison_at(b, b->result, j))
        ck_abort_msg("%s on %s (%d threads), %s: %s[%lld] was written but is none of its elements", c->op,
                     device->name, device->threads, c->label, b->name, (long long)j);
    double *got = values(b, b->result, expected[i]), *want = values(b, expected[i], expected[i]);
    double bound = b->type == OPS_I32 ? 0 : test->bound * (1 + c->slack), worst_bound = 32 * bound,
           worst_error;
    double roundings = c->roundings > 1 ? c->roundings : 1;
    if (b->type == OPS_BF16 && bound > 0)
      bound = fmax(bound, roundings * 0x1p-9), worst_bound = roundings * 0x1p-7; /* one may fall the other way */
    int64_t worst;
    double floor = b->role == OPS_ADD ? fmax(b->floor, 0.3)
                                      : b->floor; /* what is added to is about 1, sums may cancel */
    double error = difference(got, want, b->n, floor, &worst_error, &worst);
    int same = !memcmp(b->result, expected[i], (size_t)bytes);
    ck_assert_msg(
        bound > 0 ? error <= bound && worst_error <= worst_bound : same,
        "%s on %s (%d threads), %s: %s[%lld] is %.9g, expected %.9g; norm-wise error %.3g, bound %.3g; "
        "element's error %.3g, bound %.3g",
        c->op, device->name, device->threads, c->label, b->name, (long long)worst, b->n ? got[worst] : 0,
        b->n ? want[worst] : 0, error, bound, worst_error, worst_bound);
    mt_free(got);
    mt_free(want);
  }
}

static void keep_results(const struct ops_case *c, void **kept)
{
  for (int i = 0; i < c->nbuffer; i++) {
    const struct ops_buffer *b = &c->buffer[i];
    int64_t bytes = b->n > 0 ? b->n * size_of(b) : 0;
    kept[i] = mt_alloc(MT_TAG_MISC, bytes);
    memcpy(kept[i], b->result, (size_t)bytes);
  }
}

static void free_results(const struct ops_case *c, void **kept)
{
  for (int i = 0; i < c->nbuffer; i++)
    mt_free(kept[i]);
}

/* ---- finite differences, on ref ---- */

/* Elements of inputs whose gradient the case computes. */
static int64_t differentiable(const struct ops_case *c)
{
  int64_t n = 0;
  for (int i = 0; i < c->nbuffer; i++)
    if (is_output(&c->buffer[i]) && c->buffer[i].of >= 0)
      n += c->buffer[i].n;
  return n;
}

static double loss(const struct ops_test *test, const struct ops_case *c, struct mt_device *ref)
{
  test->forward(c, ref);
  double sum = test->loss ? test->loss(c) : 0;
  for (int i = 0; i < c->nbuffer; i++) {
    const struct ops_buffer *g = &c->buffer[i];
    if (g->n <= 0 || g->of < 0 || c->buffer[g->of].role != OPS_SAVED)
      continue;
    const struct ops_buffer *y = &c->buffer[g->of];
    for (int64_t j = 0; j < g->n; j++)
      sum += ops_get(g, g->device, j) * ops_get(y, y->device, j);
  }
  return sum;
}

/* d loss / d x[index]: central differences of fourth order, with the step that f32 really takes. */
static double slope(const struct ops_test *test, const struct ops_case *c, struct mt_device *ref, float *x)
{
  if (!isfinite(*x)) /* a row that does not count */
    return 0;
  double part[2];
  float keep = *x, step = 0x1p-6f * fmaxf(1, fabsf(keep));
  for (int i = 0; i < 2; i++, step *= 2) {
    float up = keep + step, down = keep - step;
    *x = up;
    double above = loss(test, c, ref);
    *x = down;
    part[i] = (above - loss(test, c, ref)) / ((double)up - down);
  }
  *x = keep;
  return (4 * part[0] - part[1]) / 3;
}

/* The gradients in result against finite differences of forward. */
static void check_differences(const struct ops_test *test, struct ops_case *c, struct mt_device *ref)
{
  for (int i = 0; i < c->nbuffer; i++) {
    const struct ops_buffer *g = &c->buffer[i];
    if (!is_output(g) || g->of < 0 || g->n == 0)
      continue;
    struct ops_buffer *x = &c->buffer[g->of];
    double *expected = MT_NEW(MT_TAG_MISC, double, g->n), *got = values(g, g->result, g->result), worst_error;
    int64_t worst;
    for (int k = 0; k < c->nbuffer; k++) {
      c->buffer[k].device = c->buffer[k].n < 0 ? NULL : mt_alloc(MT_TAG_MISC, c->buffer[k].n * 8);
      if (c->buffer[k].n > 0)
        memcpy(c->buffer[k].device, c->buffer[k].start, (size_t)(c->buffer[k].n * size_of(&c->buffer[k])));
    }
    int64_t work = lend_work(test, c, ref);
    for (int64_t j = 0; j < g->n; j++) {
      int gap = is_poison_at(g, g->result, j);
      expected[j] = gap ? 0 : slope(test, c, ref, (float *)x->device + j);
      if (!gap && g->role == OPS_ADD)
        got[j] -= ops_get(g, g->start, j);
    }
    ck_assert(work_is_whole(ref, work));
    for (int k = 0; k < c->nbuffer; k++) {
      mt_free(c->buffer[k].device);
      c->buffer[k].device = NULL;
    }
    double error = difference(got, expected, g->n, g->floor, &worst_error, &worst);
    ck_assert_msg(error <= DIFFERENCE_BOUND,
                  "%s, %s: %s[%lld] is %.9g, by finite differences %.9g; norm-wise error %.3g, bound %.3g",
                  c->op, c->label, g->name, (long long)worst, got[worst], expected[worst], error,
                  DIFFERENCE_BOUND);
    mt_free(expected);
    mt_free(got);
  }
}

/* ---- ops ---- */

static struct mt_device *open_ref(enum mt_dtype ctype)
{
  struct mt_device *ref;
  ck_assert_int_eq(mt_device_open(ctype == MT_F32 ? "ref" : "ref-bf16", 1, &ref), MT_OK);
  return ref;
}

/* Outputs are written whole, gaps not at all. */
static void check_coverage(const struct ops_case *c)
{
  for (int i = 0; i < c->nbuffer; i++) {
    const struct ops_buffer *b = &c->buffer[i];
    int kept = b->role == OPS_ADD || b->role == OPS_INPLACE;
    for (int64_t j = 0; j < b->n; j++) {
      int poison = is_poison_at(b, b->result, j);
      if (b->role == OPS_OUT && poison)
        ck_abort_msg("%s, %s: %s[%lld] was not written", c->op, c->label, b->name, (long long)j);
      if (kept && poison != is_poison_at(b, b->start, j))
        ck_abort_msg("%s, %s: the gap at %s[%lld] was written", c->op, c->label, b->name, (long long)j);
    }
  }
}

void ops_on_ref(const struct ops_test *test)
{
  struct mt_device *ref = open_ref(MT_F32);
  struct ops_case c;
  int index = 0, differences = 0;
  for (; make(test, &c, index, MT_F32); index++) {
    save_forward(test, &c, ref);
    call(test, &c, ref, 0);
    check_coverage(&c);
    const char *wrong = test->check ? test->check(&c) : NULL;
    ck_assert_msg(!wrong, "%s, %s: %s", c.op, c.label, wrong);
    int64_t n = differentiable(&c);
    if (test->forward && !c.rough && n > 0 && n <= DIFFERENCE_ELEMENTS) {
      check_differences(test, &c, ref);
      differences++;
    }
    unmake(&c);
  }
  unmake(&c);
  ck_assert_msg(index > 0, "%s has no case", test->name);
  ck_assert_msg(!test->forward || differences > 2, "%s has %d cases with finite differences", test->name,
                differences);
  ref->ops->close(ref);
}

/* The same case in both types, from the same values: they differ by the rounding of the result. */
void ops_on_ref_bf16(const struct ops_test *test)
{
  struct mt_device *ref = open_ref(MT_F32), *half = open_ref(MT_BF16);
  struct ops_case c, h;
  for (int index = 0; make(test, &c, index, MT_F32); index++) {
    make(test, &h, index, MT_BF16);
    for (int i = 0; i < c.nbuffer; i++)
      for (int64_t j = 0; j < c.buffer[i].n && c.buffer[i].ctype; j++)
        if (!is_poison_at(&c.buffer[i], c.buffer[i].start, j))
          ops_set(&c.buffer[i], j, ops_get(&h.buffer[i], h.buffer[i].start, j));
    save_forward(test, &c, ref);
    save_forward(test, &h, half);
    call(test, &c, ref, 0);
    call(test, &h, half, 0);
    for (int i = 0; i < c.nbuffer; i++) {
      const struct ops_buffer *b = &c.buffer[i];
      if (!is_output(b) || (!b->ctype && !memcmp(b->result, h.buffer[i].result, (size_t)(b->n * size_of(b)))))
        continue;
      double *want = values(b, b->result, b->result),
             *got = values(&h.buffer[i], h.buffer[i].result, h.buffer[i].result);
      double worst_error, error;
      int64_t worst;
      error = difference(got, want, b->n, b->floor, &worst_error, &worst);
      if (!(error <= 0x1p-8 && worst_error <= 0x1p-8))
        ck_abort_msg("%s in bf16, %s: %s[%lld] is %.9g, in f32 %.9g; norm-wise error %.3g", c.op, c.label,
                     b->name, (long long)worst, got[worst], want[worst], error);
      mt_free(want);
      mt_free(got);
    }
    unmake(&c);
    unmake(&h);
  }
  unmake(&c);
  ref->ops->close(ref);
  half->ops->close(half);
}

int ops_on_backend(const struct ops_test *test, const struct ops_backend *backend)
{
  struct mt_device *device[OPS_MAX_DEVICES];
  int ndevice = 0;
  for (; ndevice < OPS_MAX_DEVICES && backend->device[ndevice].threads; ndevice++)
    if (mt_device_open(backend->device[ndevice].name, backend->device[ndevice].threads, &device[ndevice]) != MT_OK)
      return 0;
  struct mt_device *ref = open_ref(device[0]->ctype);
  const struct ops_test same_bits = {.name = test->name, .bound = 0};
  struct ops_case c;
  for (int index = 0; make(test, &c, index, ref->ctype); index++) {
    void *expected[OPS_MAX_BUFFER], *first[OPS_MAX_BUFFER];
    save_forward(test, &c, ref);
    call(test, &c, ref, 0);
    keep_results(&c, expected);
    call(test, &c, device[0], 0);
    compare(test, &c, device[0], expected);
    const char *wrong = test->check ? test->check(&c) : NULL;
    ck_assert_msg(!wrong, "%s on %s, %s: %s", c.op, device[0]->name, c.label, wrong);
    keep_results(&c, first);
    int64_t elements = 0;
    for (int i = 0; i < c.nbuffer; i++)
      elements += c.buffer[i].n > 0 ? c.buffer[i].n : 0;
    for (int t = 1; t < ndevice && (!backend->most || elements <= backend->most); t++) {
      call(test, &c, device[t], 0);
      compare(&same_bits, &c, device[t], first);
    }
    free_results(&c, expected);
    free_results(&c, first);
    unmake(&c);
  }
  unmake(&c);
  ref->ops->close(ref);
  for (int t = 0; t < ndevice; t++)
    device[t]->ops->close(device[t]);
  return 1;
}
