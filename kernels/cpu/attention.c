/* Attention, forward and backward, in blocks.
 *
 * The problem: the matrix of scores is T x T for each head; holding it costs more memory than all other
 * activations. The idea: blocks of QUERIES x KEYS scores with a running maximum and sum per query (Dao et
 * al., FlashAttention, 2022; backward recomputes the probabilities from lse). The matrix products are small
 * sgemms. Keys and values are copied first, each head's in one piece: rows of
 * qkv may lie a power of two apart, and would then share few lines of the cache. A forward task is (sequence, head, block of queries); a backward task
 * is (sequence, key/value head), and where these are few a part of its blocks of queries: the parts' sums for dk
 * and dv are added up in order afterwards. The trap: masks. What a query sees of a block of keys is a range [lo,
 * hi) (causal, window), inside it a segment test; the rest is set to zero after the exponential, never
 * computed with. */
#include "build.h"
#include "gemm.h"
#include "simd.h"

enum { QUERIES = 64, KEYS = 512, BLOCK = QUERIES * KEYS };

/* Keys [lo, hi). */
struct range {
  int64_t lo, hi;
};

/* Parts of a backward task. By shapes alone: enough tasks for many threads, whatever their number here. */
static int64_t parts_of(const struct mt_attention *a)
{
  enum { ENOUGH = 16 };
  int64_t tasks = mt_max(1, a->B * a->KV), blocks = a->H / a->KV * mt_pieces(a->T, QUERIES);
  return mt_max(1, mt_min((ENOUGH + tasks - 1) / tasks, blocks));
}

/* Elements of a head's keys and values. */
static int64_t pair_of(const struct mt_attention *a)
{
  return 2 * a->T * a->D;
}

static int64_t attention_work(const struct mt_device *device, const struct mt_attention *a)
{
  int64_t most = 0;
  for (struct mt_attention fewer = *a; fewer.B > 0; fewer.B--) /* fewer sequences may have more parts */
    most = mt_max(most, fewer.B * fewer.KV * (1 + parts_of(&fewer)) * pair_of(&fewer));
  /* scores and their gradients; keys and values, and for each part the sums of their gradients */
  return (device->threads * (int64_t)(2 * BLOCK) + most) * (int64_t)sizeof(float);
}

/* pair[B KV][2][T][D] := keys and values. Called by a whole team. */
static void copy_pairs(const struct mt_attention *a, float *pair, const float *qkv)
{
  const int64_t T = a->T, KV = a->KV, D = a->D, stride = (a->H + 2 * KV) * D;
#pragma omp for schedule(static)
  for (int64_t i = 0; i < a->B * KV * T; i++) {
    int64_t task = i / T, t = i % T;
    const float *k = qkv + (task / KV * T + t) * stride + (a->H + task % KV) * D;
    float *to = pair + task * pair_of(a) + t * D;
    memcpy(to, k, (size_t)D * sizeof *to);
    memcpy(to + T * D, k + KV * D, (size_t)D * sizeof *to);
  }
}

/* The range of keys [k0, k1) outside of which query i sees nothing; inside it only segments hide keys. */
static struct range row_range(const struct mt_attention *a, const int32_t *segment, int64_t i, int64_t k0,
                              int64_t k1)
{
  struct range r = {k0, k1};
  if (a->window > 0)
    r.lo = mt_max(k0, i - a->window + 1);
  if (a->causal)
    r.hi = mt_min(k1, i + 1);
  if (r.lo >= r.hi || (segment && segment[i] < 0))
    r.lo = r.hi = k0;
  return r;
}

/* Shrinks a range of keys to what queries [q0, q1) may see by their segments; empty if there is nothing.
 * segment [T]. */
static struct range trim(const int32_t *segment, int64_t q0, int64_t q1, struct range r)
{
  int32_t low = INT32_MAX, high = -1;
  for (int64_t i = q0; i < q1; i++)
    if (segment[i] >= 0) {
      low = segment[i] < low ? segment[i] : low;
      high = segment[i] > high ? segment[i] : high;
    }
  while (r.lo < r.hi && (segment[r.lo] < low || segment[r.lo] > high))
    r.lo++;
  while (r.lo < r.hi && (segment[r.hi - 1] < low || segment[r.hi - 1] > high))
    r.hi--;
  return r;
}

/* All keys that queries [q0, q1) see, as one range. */
static struct range block_range(const struct mt_attention *a, const int32_t *segment, int64_t q0, int64_t q1)
{
  struct range r = {a->window > 0 ? mt_max(0, q0 - a->window + 1) : 0, a->causal ? q1 : a->T};
  return segment ? trim(segment, q0, q1, r) : r;
}

/* Row i's scores of keys [k0, k1) become exp(score - top) where seen, 0 elsewhere. */
static void exponentials(const struct mt_attention *a, const int32_t *segment, float *s, int64_t i,
                         int64_t k0, int64_t k1, float top)
{
  struct range r = row_range(a, segment, i, k0, k1);
  for (int64_t j = 0; j < r.lo - k0; j++)
    s[j] = 0.0f;
  if (segment) {
    const int32_t *theirs = segment + k0, mine = segment[i];
#pragma omp simd
    for (int64_t j = r.lo - k0; j < r.hi - k0; j++) {
      float e = mt_exp_low(s[j] - top);
      s[j] = theirs[j] == mine ? e : 0.0f;
    }
  } else {
#pragma omp simd
    for (int64_t j = r.lo - k0; j < r.hi - k0; j++)
      s[j] = mt_exp_low(s[j] - top);
  }
  for (int64_t j = r.hi - k0; j < k1 - k0; j++)
    s[j] = 0.0f;
}

/* The largest score that row i sees among keys [k0, k1); -infinity where it sees none. */
static float largest_seen(const struct mt_attention *a, const int32_t *segment, const float *s, int64_t i,
                          int64_t k0, int64_t k1)
{
  struct range r = row_range(a, segment, i, k0, k1);
  if (!segment)
    return mt_largest(s + r.lo - k0, r.hi - r.lo);
  float top = -INFINITY;
  for (int64_t j = r.lo; j < r.hi; j++)
    if (segment[j] == segment[i] && s[j - k0] > top)
      top = s[j - k0];
  return top;
}

/* out[q1 - q0, D] at stride H D, lse[q1 - q0] of one block of queries. q, k, v: position 0 of this sequence
 * and head, q at `stride`; s [QUERIES, KEYS] is workspace. */
static void forward_block(const struct mt_attention *a, const int32_t *segment, float *out, float *lse,
                          const float *q, int64_t stride, const float *k, const float *v, int64_t q0, int64_t q1,
                          float *s)
{
  float top[QUERIES], sum[QUERIES];
  int64_t n = q1 - q0, D = a->D, ldo = a->H * D;
  struct range all = block_range(a, segment, q0, q1);
  for (int64_t i = 0; i < n; i++) {
    top[i] = -INFINITY;
    sum[i] = 0.0f;
  }
  int begun = 0;
  for (int64_t k0 = all.lo; k0 < all.hi; k0 += KEYS) {
    int64_t k1 = mt_min(all.hi, k0 + KEYS);
    if (segment) {
      struct range some = trim(segment, q0, q1, (struct range){k0, k1});
      if (some.lo == some.hi)
        continue;
    }
    mt_gemm('N', 'T', n, k1 - k0, D, a->scale, q + q0 * stride, stride, k + k0 * D, D, 0.0f, s, KEYS);
    for (int64_t i = 0; i < n; i++) {
      float *row = s + i * KEYS;
      float here = largest_seen(a, segment, row, q0 + i, k0, k1);
      float next = here > top[i] ? here : top[i];
      float base = next == -INFINITY ? 0.0f : next;
      exponentials(a, segment, row, q0 + i, k0, k1, base);
      float shrink = mt_exp_low(top[i] - base);
      sum[i] = sum[i] * shrink + mt_sum(row, k1 - k0);
      top[i] = next;
      if (begun && shrink != 1.0f) {
#pragma omp simd
        for (int64_t d = 0; d < D; d++)
          out[i * ldo + d] *= shrink;
      }
    }
    mt_gemm('N', 'N', n, D, k1 - k0, 1.0f, s, KEYS, v + k0 * D, D, begun ? 1.0f : 0.0f, out, ldo);
    begun = 1;
  }
  for (int64_t i = 0; i < n; i++) {
    if (!begun || sum[i] == 0.0f) { /* sees nothing */
      memset(out + i * ldo, 0, (size_t)D * sizeof *out);
      lse[i] = 0.0f;
      continue;
    }
    float scale = 1.0f / sum[i];
#pragma omp simd
    for (int64_t d = 0; d < D; d++)
      out[i * ldo + d] *= scale;
    lse[i] = top[i] + logf(sum[i]);
  }
}

static int team(const struct mt_device *device, const struct mt_attention *a)
{
  return mt_team(device, a->B * a->H * a->T * a->T);
}

static void attention(struct mt_device *device, const struct mt_attention *a, void *out_, float *lse,
                      const void *qkv_)
{
  float *out = out_, *pair = (float *)device->work + device->threads * (int64_t)(2 * BLOCK);
  const float *qkv = qkv_;
  int64_t T = a->T, H = a->H, D = a->D, stride = (H + 2 * a->KV) * D, blocks = mt_pieces(T, QUERIES);
#pragma omp parallel num_threads(team(device, a))
  {
    float *s = (float *)device->work + omp_get_thread_num() * (int64_t)(2 * BLOCK);
    mt_gemm_region();
    copy_pairs(a, pair, qkv);
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < a->B * H * blocks; task++) {
      int64_t b = task / blocks / H, h = task / blocks % H, kv = h / (H / a->KV);
      int64_t block = blocks - 1 - task % blocks; /* the longest first */
      int64_t q0 = block * QUERIES, q1 = mt_min(T, q0 + QUERIES);
      const float *k = pair + (b * a->KV + kv) * pair_of(a);
      forward_block(a, a->segment ? a->segment + b * T : NULL, out + ((b * T + q0) * H + h) * D,
                    lse + (b * H + h) * T + q0, qkv + b * T * stride + h * D, stride, k, k + T * D, q0, q1, s);
    }
  }
}

/* One block of queries of one head, backward: dq overwritten, dk and dv of its keys added to. The pointers
 * are those of position 0 of this sequence and head: q and dq at `stride`; dout, out at stride H D. p and ds:
 * workspace [QUERIES, KEYS]. */
static void backward_block(const struct mt_attention *a, const int32_t *segment, float *dq, float *dk, float *dv,
                           const float *dout, const float *q, int64_t stride, const float *k, const float *v,
                           const float *out, const float *lse, int64_t q0, int64_t q1, float *p, float *ds)
{
  float delta[QUERIES]; /* <dout, out> = sum over keys of p dp */
  int64_t n = q1 - q0, D = a->D, ldo = a->H * D;
  struct range all = block_range(a, segment, q0, q1);
  for (int64_t i = 0; i < n; i++)
    delta[i] = mt_dot(dout + (q0 + i) * ldo, out + (q0 + i) * ldo, D);
  int begun = 0;
  for (int64_t k0 = all.lo; k0 < all.hi; k0 += KEYS) {
    int64_t k1 = mt_min(all.hi, k0 + KEYS), width = k1 - k0;
    if (segment) {
      struct range some = trim(segment, q0, q1, (struct range){k0, k1});
      if (some.lo == some.hi)
        continue;
    }
    mt_gemm('N', 'T', n, width, D, a->scale, q + q0 * stride, stride, k + k0 * D, D, 0.0f, p, KEYS);
    mt_gemm('N', 'T', n, width, D, 1.0f, dout + q0 * ldo, ldo, v + k0 * D, D, 0.0f, ds, KEYS);
    for (int64_t i = 0; i < n; i++) {
      float *pi = p + i * KEYS, *dsi = ds + i * KEYS, mean = delta[i];
      exponentials(a, segment, pi, q0 + i, k0, k1, lse[q0 + i]);
#pragma omp simd
      for (int64_t j = 0; j < width; j++)
        dsi[j] = pi[j] * (dsi[j] - mean);
    }
    mt_gemm('T', 'N', width, D, n, 1.0f, p, KEYS, dout + q0 * ldo, ldo, 1.0f, dv + k0 * D, D);
    mt_gemm('T', 'N', width, D, n, a->scale, ds, KEYS, q + q0 * stride, stride, 1.0f, dk + k0 * D, D);
    mt_gemm('N', 'N', n, D, width, a->scale, ds, KEYS, k + k0 * D, D, begun ? 1.0f : 0.0f,
            dq + q0 * stride, stride);
    begun = 1;
  }
  for (int64_t i = q0; i < q1 && !begun; i++)
    memset(dq + i * stride, 0, (size_t)D * sizeof *dq);
}

static void attention_back(struct mt_device *device, const struct mt_attention *a, void *dqkv_,
                           const void *dout_, const void *qkv_, const void *out_, const float *lse)
{
  float *dqkv = dqkv_, *pair = (float *)device->work + device->threads * (int64_t)(2 * BLOCK);
  float *sums = pair + a->B * a->KV * pair_of(a);
  const float *dout = dout_, *qkv = qkv_, *out = out_;
  const int64_t T = a->T, H = a->H, KV = a->KV, D = a->D, stride = (H + 2 * KV) * D, group = H / KV;
  const int64_t parts = parts_of(a), blocks = group * mt_pieces(T, QUERIES);
#pragma omp parallel num_threads(team(device, a))
  {
    float *p = (float *)device->work + omp_get_thread_num() * (int64_t)(2 * BLOCK), *ds = p + BLOCK;
    mt_gemm_region();
    copy_pairs(a, pair, qkv);
#pragma omp for schedule(dynamic)
    for (int64_t number = 0; number < a->B * KV * parts; number++) {
      int64_t task = number / parts, part = parts - 1 - number % parts; /* the longest first */
      int64_t b = task / KV, kv = task % KV;
      const float *k = pair + task * pair_of(a);
      float *dk = sums + (task * parts + part) * pair_of(a);
      memset(dk, 0, (size_t)pair_of(a) * sizeof *dk);
      for (int64_t i = part; i < blocks; i += parts) { /* all parts have short ones and long ones */
        int64_t h = kv * group + i % group, q0 = i / group * QUERIES;
        int64_t at_q = b * T * stride + h * D, at_out = (b * T * H + h) * D;
        backward_block(a, a->segment ? a->segment + b * T : NULL, dqkv + at_q, dk, dk + T * D, dout + at_out,
                       qkv + at_q, stride, k, k + T * D, out + at_out, lse + (b * H + h) * T, q0,
                       mt_min(T, q0 + QUERIES), p, ds);
      }
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < a->B * KV * T; i++) {
      int64_t task = i / T, t = i % T;
      float *to = dqkv + (task / KV * T + t) * stride + (H + task % KV) * D;
      const float *sum = sums + task * parts * pair_of(a) + t * D;
      for (int value = 0; value < 2; value++, to += KV * D, sum += T * D) { /* dk, then dv */
        memcpy(to, sum, (size_t)D * sizeof *to);
        for (int64_t part = 1; part < parts; part++)
#pragma omp simd
          for (int64_t d = 0; d < D; d++)
            to[d] += sum[part * pair_of(a) + d];
      }
    }
  }
}

void MT_CPU_NAME(mt_cpu_attention)(struct mt_kernels *kernels)
{
  kernels->attention_work = attention_work;
  kernels->attention = attention;
  kernels->attention_back = attention_back;
}
