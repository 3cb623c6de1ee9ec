/* Activations: SwiGLU and GELU (tanh form).
 *
 * The idea: both are products with a sigmoid, for (1 + tanh u) / 2 = sigmoid(2 u); one exponential each, and
 * no cancellation for large negative arguments. */
#include "build.h"
#include "simd.h"

/* Long rows are cut too, so that few rows keep all threads busy. */
enum { CHUNK = 2048 };

static void swiglu(struct mt_device *device, void *h_, const void *gu_, int64_t n, int64_t f)
{
  float *h = h_;
  const float *gu = gu_;
  int64_t pieces = mt_pieces(f, CHUNK);
#pragma omp parallel for num_threads(mt_team(device, 4 * n * f)) schedule(static)
  for (int64_t k = 0; k < n * pieces; k++) {
    int64_t r = k / pieces, i0 = mt_piece(f, pieces, k % pieces), i1 = mt_piece(f, pieces, k % pieces + 1);
    const float *g = gu + r * 2 * f, *u = g + f;
    float *to = h + r * f;
#pragma omp simd
    for (int64_t i = i0; i < i1; i++)
      to[i] = g[i] * mt_sigmoid(g[i]) * u[i];
  }
}

static void swiglu_back(struct mt_device *device, void *dgu_, const void *dh_, const void *gu_, int64_t n,
                        int64_t f)
{
  float *dgu = dgu_;
  const float *dh = dh_, *gu = gu_;
  int64_t pieces = mt_pieces(f, CHUNK);
#pragma omp parallel for num_threads(mt_team(device, 4 * n * f)) schedule(static)
  for (int64_t k = 0; k < n * pieces; k++) {
    int64_t r = k / pieces, i0 = mt_piece(f, pieces, k % pieces), i1 = mt_piece(f, pieces, k % pieces + 1);
    const float *g = gu + r * 2 * f, *u = g + f, *d = dh + r * f;
    float *dg = dgu + r * 2 * f, *du = dg + f;
#pragma omp simd
    for (int64_t i = i0; i < i1; i++) {
      float s = mt_sigmoid(g[i]), gi = g[i], ui = u[i];
      dg[i] = d[i] * ui * s * (1.0f + gi * (1.0f - s));
      du[i] = d[i] * gi * s;
    }
  }
}

/* 2 sqrt(2 / pi) and its product with 0.044715: gelu(x) = x sigmoid(A x + B x^3). */
#define GELU_A 1.5957691216f
#define GELU_B 0.0713548163f

static void gelu(struct mt_device *device, void *y_, const void *x_, int64_t n)
{
  float *y = y_;
  const float *x = x_;
  int64_t pieces = mt_pieces(n, CHUNK);
#pragma omp parallel for num_threads(mt_team(device, 4 * n)) schedule(static)
  for (int64_t k = 0; k < pieces; k++)
#pragma omp simd
    for (int64_t i = mt_piece(n, pieces, k); i < mt_piece(n, pieces, k + 1); i++)
      y[i] = x[i] * mt_sigmoid(x[i] * (GELU_A + GELU_B * x[i] * x[i]));
}

static void gelu_back(struct mt_device *device, void *dx_, const void *dy_, const void *x_, int64_t n)
{
  float *dx = dx_;
  const float *dy = dy_, *x = x_;
  int64_t pieces = mt_pieces(n, CHUNK);
#pragma omp parallel for num_threads(mt_team(device, 4 * n)) schedule(static)
  for (int64_t k = 0; k < pieces; k++)
#pragma omp simd
    for (int64_t i = mt_piece(n, pieces, k); i < mt_piece(n, pieces, k + 1); i++) {
      float v = x[i], s = mt_sigmoid(v * (GELU_A + GELU_B * v * v));
      dx[i] = dy[i] * s * (1.0f + v * (1.0f - s) * (GELU_A + 3.0f * GELU_B * v * v));
    }
}

void MT_CPU_NAME(mt_cpu_activation)(struct mt_kernels *kernels)
{
  kernels->swiglu = swiglu;
  kernels->swiglu_back = swiglu_back;
  kernels->gelu = gelu;
  kernels->gelu_back = gelu_back;
}
