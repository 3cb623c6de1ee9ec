/* RMS and layer norm over rows, forward and backward.
 *
 * The trap: dw and db sum over rows, dx is per row, and dx may overwrite dy. So dw and db come first, each
 * thread with its own columns: every sum is one thread's, in the order of rows. */
#include "build.h"
#include "simd.h"

enum { COLUMNS = 64, ROWS = 64 };

static void norm(struct mt_device *device, enum mt_norm_kind kind, void *y_, float *mean, float *rstd,
                 const void *x_, const float *w, const float *b, int64_t n, int64_t c, float eps)
{
  float *y = y_;
  const float *x = x_, count = (float)mt_max(c, 1);
#pragma omp parallel for num_threads(mt_team(device, n *c)) schedule(static)
  for (int64_t r = 0; r < n; r++) {
    const float *from = x + r * c;
    float *to = y + r * c;
    if (kind == MT_NORM_RMS) {
      float s = 1.0f / sqrtf(mt_dot(from, from, c) / count + eps);
      rstd[r] = s;
#pragma omp simd
      for (int64_t i = 0; i < c; i++)
        to[i] = from[i] * s * w[i];
    } else {
      float mu = mt_sum(from, c) / count;
      float s = 1.0f / sqrtf(mt_spread(from, mu, c) / count + eps);
      mean[r] = mu;
      rstd[r] = s;
#pragma omp simd
      for (int64_t i = 0; i < c; i++)
        to[i] = (from[i] - mu) * s * w[i] + b[i];
    }
  }
}

/* dw += and, for LAYER, db += over columns [c0, c1), no more than COLUMNS, in blocks of ROWS rows. */
static void norm_dw(enum mt_norm_kind kind, float *dw, float *db, const float *dy, const float *x,
                    const float *mean, const float *rstd, int64_t n, int64_t c, int64_t c0, int64_t c1)
{
  float w_part[COLUMNS], b_part[COLUMNS];
  int64_t width = c1 - c0;
  for (int64_t r0 = 0; r0 < n; r0 += ROWS) {
    memset(w_part, 0, sizeof w_part);
    memset(b_part, 0, sizeof b_part);
    for (int64_t r = r0; r < mt_min(n, r0 + ROWS); r++) {
      const float *g = dy + r * c + c0, *from = x + r * c + c0;
      float mu = kind == MT_NORM_LAYER ? mean[r] : 0.0f, s = rstd[r];
#pragma omp simd
      for (int64_t i = 0; i < width; i++) {
        w_part[i] += g[i] * ((from[i] - mu) * s);
        b_part[i] += g[i];
      }
    }
    for (int64_t i = 0; i < width; i++)
      dw[c0 + i] += w_part[i];
    for (int64_t i = 0; i < width && kind == MT_NORM_LAYER; i++)
      db[c0 + i] += b_part[i];
  }
}

static void norm_back(struct mt_device *device, enum mt_norm_kind kind, void *dx_, int add, float *dw,
                      float *db, const void *dy_, const void *x_, const float *mean, const float *rstd,
                      const float *w, int64_t n, int64_t c)
{
  float *dx = dx_;
  const float *dy = dy_, *x = x_;
  int64_t pieces = mt_pieces(c, COLUMNS);
#pragma omp parallel num_threads(mt_team(device, n *c))
  {
#pragma omp for schedule(static)
    for (int64_t k = 0; k < pieces; k++)
      norm_dw(kind, dw, db, dy, x, mean, rstd, n, c, mt_piece(c, pieces, k), mt_piece(c, pieces, k + 1));
      /* Here all wait for all: dy may be overwritten below. */
#pragma omp for schedule(static)
    for (int64_t r = 0; r < n; r++) {
      const float *g = dy + r * c, *from = x + r * c;
      float *to = dx + r * c, s = rstd[r];
      float mu = kind == MT_NORM_LAYER ? mean[r] : 0.0f;
      float g_mean = kind == MT_NORM_LAYER ? mt_dot(g, w, c) / (float)c : 0.0f;
      float gu_mean = mt_dot3_shift(g, w, from, mu, c) * s / (float)c;
      if (add) {
#pragma omp simd
        for (int64_t i = 0; i < c; i++)
          to[i] += s * (g[i] * w[i] - g_mean - (from[i] - mu) * s * gu_mean);
      } else {
#pragma omp simd
        for (int64_t i = 0; i < c; i++)
          to[i] = s * (g[i] * w[i] - g_mean - (from[i] - mu) * s * gu_mean);
      }
    }
  }
}

void MT_CPU_NAME(mt_cpu_norm)(struct mt_kernels *kernels)
{
  kernels->norm = norm;
  kernels->norm_back = norm_back;
}
