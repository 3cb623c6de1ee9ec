/* Vectorisable pieces: exponential, sums, maxima.
 *
 * The problem: without -ffast-math a compiler may not reorder a float sum, and libm's expf is a call.
 * The idea: sums are written with vectors of the build's native width (four independent accumulators, then a
 * fixed tree), functions without branches, so that the plain loops around them vectorise. */
#ifndef MT_CPU_SIMD_H
#define MT_CPU_SIMD_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined __AVX512F__
#define MT_W 16
#elif defined __AVX__
#define MT_W 8
#else
#define MT_W 4
#endif
typedef float mt_vf __attribute__((vector_size(4 * MT_W), may_alias));
typedef float mt_vfu __attribute__((vector_size(4 * MT_W), aligned(4), may_alias));
typedef int32_t mt_vi __attribute__((vector_size(4 * MT_W)));
typedef double mt_vd __attribute__((vector_size(8 * MT_W)));
#define MT_LOAD(p) ((mt_vf) * (const mt_vfu *)(p))

/* exp(x) to 1.5 ulp; 0 below -86.9 (no denormals), NaN for NaN; above 88.72, where it would be infinite,
 * anything. x = n ln 2 + r with ln 2 in two parts (Cody and Waite, Software Manual for the Elementary
 * Functions, 1980, chapter 6), n by adding 1.5 * 2^23; then exp(r) = 1 + r + r^2 q(r), q interpolated at
 * Chebyshev nodes of |r| <= ln 2 / 2: relative error of the polynomial 1e-8, a sixth of a rounding error. 2^n
 * is applied as 2^(n-1) * 2, so that n = 128 works. What is out of range is selected afterwards rather than
 * clamped before: on SSE2, which has no blend, selecting a zero is two instructions, a clamp four. */
static inline float mt_exp_low(float x)
{
  float shifted = x * 1.44269504f + 12582912.0f;
  float n = shifted - 12582912.0f;
  float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float q = 0x1.6d1100p-10f;
  q = q * r + 0x1.120b62p-7f;
  q = q * r + 0x1.55551ap-5f;
  q = q * r + 0x1.5554dep-3f;
  q = q * r + 0.5f;
  float e = 1.0f + (r + r * r * q);
  uint32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 126u) << 23; /* the low bits of `shifted` hold n */
  float power;
  memcpy(&power, &bits, sizeof power);
  e = e * power * 2.0f;
  return x < -86.9f ? 0.0f : e;
}

/* exp(x), infinity above 88.72. */
static inline float mt_exp(float x)
{
  float e = mt_exp_low(x);
  return x > 88.72f ? INFINITY : e;
}

/* 1 / (1 + exp(-x)); 0 below -86.9 */
static inline float mt_sigmoid(float x)
{
  float s = 1.0f / (1.0f + mt_exp_low(-x));
  return x < -86.9f ? 0.0f : s;
}

/* Sum of the lanes, as a tree. */
static inline float mt_lanes(mt_vf v)
{
  float lane[MT_W];
  memcpy(lane, &v, sizeof v);
  for (int half = MT_W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++)
      lane[i] += lane[i + half];
  return lane[0];
}

#define MT_SUM(NAME, PARAMETERS, VECTOR, SCALAR)                                                             \
  static inline float NAME PARAMETERS                                                                        \
  {                                                                                                          \
    mt_vf s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};                                                            \
    int64_t i = 0;                                                                                           \
    for (; i + 4 * MT_W <= n; i += 4 * MT_W) {                                                               \
      s0 += VECTOR(i);                                                                                       \
      s1 += VECTOR(i + MT_W);                                                                                \
      s2 += VECTOR(i + 2 * MT_W);                                                                            \
      s3 += VECTOR(i + 3 * MT_W);                                                                            \
    }                                                                                                        \
    for (; i + MT_W <= n; i += MT_W)                                                                         \
      s0 += VECTOR(i);                                                                                       \
    float sum = mt_lanes((s0 + s1) + (s2 + s3));                                                             \
    for (; i < n; i++)                                                                                       \
      sum += SCALAR;                                                                                         \
    return sum;                                                                                              \
  }

#define MT_V(i) MT_LOAD(a + (i))
MT_SUM(mt_sum, (const float *a, int64_t n), MT_V, a[i]) /* sum of a */
#undef MT_V
#define MT_V(i) MT_LOAD(a + (i)) * MT_LOAD(b + (i))
MT_SUM(mt_dot, (const float *a, const float *b, int64_t n), MT_V, a[i] * b[i]) /* sum of a b */
#undef MT_V
#define MT_V(i) (MT_LOAD(a + (i)) - m) * (MT_LOAD(a + (i)) - m)
MT_SUM(mt_spread, (const float *a, float m, int64_t n), MT_V, (a[i] - m) * (a[i] - m)) /* sum of (a - m)^2 */
#undef MT_V
#define MT_V(i) MT_LOAD(a + (i)) * MT_LOAD(b + (i)) * (MT_LOAD(c + (i)) - m)
/* sum of a b (c - m) */
MT_SUM(mt_dot3_shift, (const float *a, const float *b, const float *c, float m, int64_t n), MT_V,
       a[i] * b[i] * (c[i] - m))
#undef MT_V

static inline mt_vf mt_larger(mt_vf m, mt_vf v)
{
  mt_vi larger = v > m;
  return (mt_vf)(((mt_vi)v & larger) | ((mt_vi)m & ~larger));
}

/* The largest of a; -infinity where n = 0. NaN is passed over: the sum that follows shows it. */
static inline float mt_largest(const float *a, int64_t n)
{
  mt_vf m0 = (mt_vf){0} - INFINITY, m1 = m0, m2 = m0, m3 = m0;
  int64_t i = 0;
  for (; i + 4 * MT_W <= n; i += 4 * MT_W) {
    m0 = mt_larger(m0, MT_LOAD(a + i));
    m1 = mt_larger(m1, MT_LOAD(a + i + MT_W));
    m2 = mt_larger(m2, MT_LOAD(a + i + 2 * MT_W));
    m3 = mt_larger(m3, MT_LOAD(a + i + 3 * MT_W));
  }
  for (; i + MT_W <= n; i += MT_W)
    m0 = mt_larger(m0, MT_LOAD(a + i));
  m0 = mt_larger(mt_larger(m0, m1), mt_larger(m2, m3));
  float lane[MT_W], top = -INFINITY;
  memcpy(lane, &m0, sizeof m0);
  for (int k = 0; k < MT_W; k++)
    top = lane[k] > top ? lane[k] : top;
  for (; i < n; i++)
    top = a[i] > top ? a[i] : top;
  return top;
}

#endif
