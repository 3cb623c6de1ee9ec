/* Rows that move: embedding, rotary embedding, gather and combine.
 *
 * The trap: embed_back and combine add several rows into one. Bits must not depend on the threads, so a sum
 * is never shared: embed_back gives each thread its own columns (all tokens, in order), combine gives each
 * its own tokens. */
#include "build.h"
#include "simd.h"
#include "bf16.h"

static void embed(struct mt_device *device, void *x_, const int32_t *token, const int32_t *position,
                  const void *wte_, const void *wpe_, int64_t n, int64_t c)
{
  float *x = x_;
  const float *wte = wte_, *wpe = wpe_;
#pragma omp parallel for num_threads(mt_team(device, n *c)) schedule(static)
  for (int64_t r = 0; r < n; r++) {
    const float *a = wte + token[r] * c, *b = wpe ? wpe + position[r] * c : NULL;
    float *to = x + r * c;
    if (b) {
#pragma omp simd
      for (int64_t i = 0; i < c; i++)
        to[i] = a[i] + b[i];
    } else {
      memcpy(to, a, (size_t)c * sizeof *to);
    }
  }
}

static void embed_back(struct mt_device *device, float *dwte, float *dwpe, const void *dx_,
                       const int32_t *token, const int32_t *position, int64_t n, int64_t c)
{
  const float *dx = dx_;
  int64_t pieces = mt_pieces(c, 64);
#pragma omp parallel for num_threads(mt_team(device, n *c)) schedule(static)
  for (int64_t k = 0; k < pieces; k++) {
    int64_t c0 = mt_piece(c, pieces, k), width = mt_piece(c, pieces, k + 1) - c0;
    for (int64_t r = 0; r < n; r++) {
      const float *g = dx + r * c + c0;
      float *a = dwte + token[r] * c + c0, *b = dwpe ? dwpe + position[r] * c + c0 : NULL;
#pragma omp simd
      for (int64_t i = 0; i < width; i++)
        a[i] += g[i];
      if (b)
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
          b[i] += g[i];
    }
  }
}

static void rope(struct mt_device *device, void *x_, int64_t n, int64_t stride, int64_t heads, int64_t D,
                 const int32_t *position, const float *table, int inverse)
{
  float *x = x_, sign = inverse ? -1.0f : 1.0f;
  int64_t half = D / 2;
#pragma omp parallel for num_threads(mt_team(device, n *heads *D)) schedule(static)
  for (int64_t r = 0; r < n; r++) {
    const float *turn = table + position[r] * D;
    for (int64_t h = 0; h < heads; h++) {
      float *low = x + r * stride + h * D, *high = low + half;
#pragma omp simd
      for (int64_t i = 0; i < half; i++) {
        float c = turn[2 * i], s = sign * turn[2 * i + 1], a = low[i], b = high[i];
        low[i] = a * c - b * s;
        high[i] = b * c + a * s;
      }
    }
  }
}

/* to[n] = from[n], of any types. */
static void copy_row(void *to, enum mt_dtype to_type, const void *from, enum mt_dtype from_type, int64_t n)
{
  if (to_type == from_type) {
    memcpy(to, from, (size_t)(n * mt_dtype_size(to_type)));
  } else if (to_type == MT_BF16) {
    uint16_t *t = to;
    const float *f = from;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
      t[i] = mt_bf16_from_f32(f[i]);
  } else {
    float *t = to;
    const uint16_t *f = from;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
      t[i] = mt_bf16_to_f32(f[i]);
  }
}

static void gather(struct mt_device *device, void *to, enum mt_dtype to_type, const void *from,
                   enum mt_dtype from_type, const int32_t *index, int64_t rows, int64_t width)
{
  int64_t to_bytes = width * mt_dtype_size(to_type), from_bytes = width * mt_dtype_size(from_type);
#pragma omp parallel for num_threads(mt_team(device, rows *width)) schedule(static)
  for (int64_t r = 0; r < rows; r++)
    copy_row((char *)to + r * to_bytes, to_type, (const char *)from + index[r] * from_bytes, from_type,
             width);
}

static void convert(struct mt_device *device, void *to, enum mt_dtype to_type, const void *from,
                    enum mt_dtype from_type, int64_t n)
{
  int64_t pieces = mt_pieces(n, 4096);
#pragma omp parallel for num_threads(mt_team(device, n)) schedule(static)
  for (int64_t k = 0; k < pieces; k++) {
    int64_t i = mt_piece(n, pieces, k);
    copy_row((char *)to + i * mt_dtype_size(to_type), to_type,
             (const char *)from + i * mt_dtype_size(from_type), from_type, mt_piece(n, pieces, k + 1) - i);
  }
}

/* y[n] (+)= w row[n] */
static void add_row(float *y, int add, float w, const void *row, enum mt_dtype type, int64_t n)
{
  const float *f = row;
  const uint16_t *h = row;
  if (type == MT_F32 && add) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
      y[j] += w * f[j];
  } else if (type == MT_F32) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
      y[j] = w * f[j];
  } else if (add) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
      y[j] += w * mt_bf16_to_f32(h[j]);
  } else {
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
      y[j] = w * mt_bf16_to_f32(h[j]);
  }
}

static void combine(struct mt_device *device, void *y_, int add, const void *row, enum mt_dtype row_type,
                    const int32_t *first, const int32_t *place, const float *weight, int64_t n, int64_t width)
{
  float *y = y_;
  int64_t bytes = width * mt_dtype_size(row_type);
#pragma omp parallel for num_threads(mt_team(device, 2 * n * width)) schedule(static)
  for (int64_t t = 0; t < n; t++) {
    float *to = y + t * width;
    if (!add && first[t] == first[t + 1])
      memset(to, 0, (size_t)width * sizeof *to);
    for (int64_t i = first[t]; i < first[t + 1]; i++)
      add_row(to, add || i > first[t], weight ? weight[i] : 1.0f, (const char *)row + place[i] * bytes,
              row_type, width);
  }
}

/* <dy, row> of any type of row */
static float dot_row(const float *dy, const void *row, enum mt_dtype type, int64_t n)
{
  enum { PIECE = 256 };
  float piece[PIECE], sum = 0.0f;
  if (type == MT_F32)
    return mt_dot(dy, row, n);
  for (int64_t j = 0; j < n; j += PIECE) {
    int64_t width = mt_min(PIECE, n - j);
    copy_row(piece, MT_F32, (const uint16_t *)row + j, MT_BF16, width);
    sum += mt_dot(dy + j, piece, width);
  }
  return sum;
}

static void combine_back(struct mt_device *device, void *drow, float *dweight, const void *dy_,
                         const void *row, enum mt_dtype row_type, const int32_t *first, const int32_t *place,
                         const float *weight, int64_t n, int64_t width)
{
  const float *dy = dy_;
  int64_t bytes = width * mt_dtype_size(row_type);
#pragma omp parallel for num_threads(mt_team(device, 2 * n * width)) schedule(static)
  for (int64_t t = 0; t < n; t++) {
    const float *g = dy + t * width;
    for (int64_t i = first[t]; i < first[t + 1]; i++) {
      float w = weight ? weight[i] : 1.0f;
      void *to = (char *)drow + place[i] * bytes;
      if (dweight)
        dweight[i] = dot_row(g, (const char *)row + place[i] * bytes, row_type, width);
      if (row_type == MT_F32) {
        float *f = to;
#pragma omp simd
        for (int64_t j = 0; j < width; j++)
          f[j] = w * g[j];
      } else {
        uint16_t *h = to;
#pragma omp simd
        for (int64_t j = 0; j < width; j++)
          h[j] = mt_bf16_from_f32(w * g[j]);
      }
    }
  }
}

void MT_CPU_NAME(mt_cpu_rows)(struct mt_kernels *kernels)
{
  kernels->embed = embed;
  kernels->embed_back = embed_back;
  kernels->rope = rope;
  kernels->gather = gather;
  kernels->convert = convert;
  kernels->combine = combine;
  kernels->combine_back = combine_back;
}
