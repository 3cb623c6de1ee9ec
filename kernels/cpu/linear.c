/* Linear layers over groups of rows: the experts of a rank, or one group for a dense layer.
 *
 * The problem: experts get uneven numbers of rows, from none to all, and a loop over experts with a threaded
 * GEMM inside leaves threads idle on the small ones. The idea: one flat list of blocks over all groups, dealt
 * out dynamically; each block is one single-threaded GEMM. Blocks are about 256 x 512: large enough that
 * oneDNN's packing costs little (within some percent of one large call); smaller where there would be few.
 * The trap: the cut may depend on the shapes only, never on the number of threads, because dnnl_sgemm's bits
 * may depend on the size of a block. */
#include "build.h"
#include "gemm.h"
#include "simd.h"

/* The blocks of a [rows of group g, width] matrix for every group. */
struct blocks {
  const struct mt_linear *linear;
  int64_t width;
  int64_t rows;  /* at most so many rows a block */
  int64_t ncol;  /* pieces of the width */
  int64_t total; /* blocks of all groups */
};

/* One of them: rows [r0, r1) (global), columns [c0, c1) of group g. */
struct block {
  int g;
  int64_t r0, r1, c0, c1;
};

/* Where the last search ended: group g's first block is number `base`. */
struct cursor {
  int g;
  int64_t base;
};

static int64_t rows_of(const struct mt_linear *linear, int g)
{
  return linear->first[g + 1] - linear->first[g];
}

static struct blocks cut(const struct mt_linear *linear, int64_t width)
{
  enum { ENOUGH = 32 };
  struct blocks blocks = {linear, width, 0, 0, 0};
  for (int shrink = 1; shrink <= 4 && blocks.total < ENOUGH; shrink *= 2) {
    blocks.rows = 256 / shrink;
    blocks.ncol = mt_pieces(width, 512 / shrink);
    blocks.total = 0;
    for (int g = 0; g < linear->ngroup; g++)
      blocks.total += mt_pieces(rows_of(linear, g), blocks.rows) * blocks.ncol;
  }
  return blocks;
}

static struct block find(const struct blocks *blocks, int64_t number, struct cursor *at)
{
  const struct mt_linear *linear = blocks->linear;
  if (number < at->base)
    *at = (struct cursor){0, 0};
  int64_t nrow, here;
  for (;; at->g++, at->base += here) {
    nrow = mt_pieces(rows_of(linear, at->g), blocks->rows);
    here = nrow * blocks->ncol;
    if (number < at->base + here)
      break;
  }
  int64_t row = (number - at->base) / blocks->ncol, col = (number - at->base) % blocks->ncol;
  int64_t first = linear->first[at->g], n = rows_of(linear, at->g);
  return (struct block){at->g, first + mt_piece(n, nrow, row), first + mt_piece(n, nrow, row + 1),
                        mt_piece(blocks->width, blocks->ncol, col),
                        mt_piece(blocks->width, blocks->ncol, col + 1)};
}

static int team(const struct mt_device *device, const struct mt_linear *linear)
{
  return mt_team(device, linear->first[linear->ngroup] * linear->in / 16 * linear->out);
}

static void linear(struct mt_device *device, const struct mt_linear *l, void *y_, const void *x_,
                   const void *w_, const void *b_, int add)
{
  float *y = y_;
  const float *x = x_, *w = w_, *b = b_;
  struct blocks blocks = cut(l, l->out);
#pragma omp parallel num_threads(team(device, l))
  {
    struct cursor cursor = {0, 0};
    mt_gemm_region();
#pragma omp for schedule(dynamic)
    for (int64_t number = 0; number < blocks.total; number++) {
      struct block k = find(&blocks, number, &cursor);
      int64_t width = k.c1 - k.c0;
      float *to = y + k.r0 * l->out + k.c0;
      mt_gemm('N', 'T', k.r1 - k.r0, width, l->in, 1.0f, x + k.r0 * l->in, l->in,
              w + k.g * l->wstride + k.c0 * l->in, l->in, add ? 1.0f : 0.0f, to, l->out);
      if (!b)
        continue;
      const float *bias = b + k.g * l->bstride + k.c0;
      for (int64_t i = 0; i < k.r1 - k.r0; i++)
#pragma omp simd
        for (int64_t j = 0; j < width; j++)
          to[i * l->out + j] += bias[j];
    }
  }
}

static void linear_dx(struct mt_device *device, const struct mt_linear *l, void *dx_, const void *dy_,
                      const void *w_, int add)
{
  float *dx = dx_;
  const float *dy = dy_, *w = w_;
  struct blocks blocks = cut(l, l->in);
#pragma omp parallel num_threads(team(device, l))
  {
    struct cursor cursor = {0, 0};
    mt_gemm_region();
#pragma omp for schedule(dynamic)
    for (int64_t number = 0; number < blocks.total; number++) {
      struct block k = find(&blocks, number, &cursor);
      mt_gemm('N', 'N', k.r1 - k.r0, k.c1 - k.c0, l->out, 1.0f, dy + k.r0 * l->out, l->out,
              w + k.g * l->wstride + k.c0, l->in, add ? 1.0f : 0.0f, dx + k.r0 * l->in + k.c0, l->in);
    }
  }
}

/* sum[j] += column sums of a[n, width] at a stride: in blocks of rows, so that rounding errors grow with the
 * number of blocks instead of that of rows. width <= 256. */
static void column_sums(float *sum, const float *a, int64_t n, int64_t width, int64_t stride)
{
  float part[256];
  for (int64_t i0 = 0; i0 < n; i0 += 64) {
    int64_t i1 = mt_min(n, i0 + 64);
    memset(part, 0, sizeof part);
    for (int64_t i = i0; i < i1; i++)
#pragma omp simd
      for (int64_t j = 0; j < width; j++)
        part[j] += a[i * stride + j];
#pragma omp simd
    for (int64_t j = 0; j < width; j++)
      sum[j] += part[j];
  }
}

/* Blocks are tiles of dw here, 256 x 512 or narrower; each sums over all rows of its group, in slices that
 * fit the cache.
 */
static void linear_dw(struct mt_device *device, const struct mt_linear *l, float *dw, float *db,
                      const void *dy_, const void *x_)
{
  enum { SLICE = 512, ENOUGH = 16 };
  const float *dy = dy_, *x = x_;
  int64_t nin = mt_max(1, mt_pieces(l->in, 512)), nout = 0; /* 1: db is there without inputs too */
  for (int64_t size = 256; size >= 64 && nout * nin * l->ngroup < ENOUGH; size /= 2)
    nout = mt_pieces(l->out, size);
  int64_t tiles = nout * nin;
#pragma omp parallel num_threads(team(device, l))
  {
    mt_gemm_region();
#pragma omp for schedule(dynamic)
    for (int64_t number = 0; number < tiles * l->ngroup; number++) {
      int64_t g = number / tiles, i = number % tiles / nin, j = number % tiles % nin;
      int64_t i0 = mt_piece(l->out, nout, i), i1 = mt_piece(l->out, nout, i + 1);
      int64_t j0 = mt_piece(l->in, nin, j), j1 = mt_piece(l->in, nin, j + 1);
      float *to = dw + g * l->wstride + i0 * l->in + j0;
      int64_t n = rows_of(l, (int)g), slices = mt_pieces(n, SLICE);
      for (int64_t k = 0; k < slices; k++) {
        int64_t r0 = l->first[g] + mt_piece(n, slices, k), r1 = l->first[g] + mt_piece(n, slices, k + 1);
        mt_gemm('T', 'N', i1 - i0, j1 - j0, r1 - r0, 1.0f, dy + r0 * l->out + i0, l->out, x + r0 * l->in + j0,
                l->in, 1.0f, to, l->in);
      }
      if (db && j == 0)
        column_sums(db + g * l->bstride + i0, dy + l->first[g] * l->out + i0, n, i1 - i0, l->out);
    }
  }
}

void MT_CPU_NAME(mt_cpu_linear)(struct mt_kernels *kernels)
{
  kernels->linear = linear;
  kernels->linear_dx = linear_dx;
  kernels->linear_dw = linear_dw;
}
