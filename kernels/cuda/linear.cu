/* Linear layers: cuBLAS for the products, groups of rows for the experts of a rank's slots.
 *
 * The idea: the host knows how many rows each group has, so all groups go into one grouped product without asking the
 * device; equal groups into a strided one. cuBLAS is column-major: what it calls C[m,n] is our y[n,m]. The traps: the
 * grouped product may load 16 bytes at a time, so where anything is not aligned to that, groups go one by one; it knows
 * no bf16 product into f32, so weight gradients of bf16 do too; empty groups are left out, not passed on. A bias is put
 * where the sum will be before the product, which adds to it: so y is rounded once. */
#include "cuda.cuh"
#include <limits.h>

template <typename T> __global__ static void bias_kernel(T *y, const T *b, int64_t rows, int64_t out, int add)
{
  MT_FOR_EACH (i, rows * out)
    mt_put_add(y, i, mt_get(b, i % out), add);
}

/* db += column sums of dy[rows, out] */
template <typename T> __global__ static void column_kernel(float *db, const T *dy, int64_t rows, int64_t out)
{
  int line = threadIdx.x / MT_COLUMNS;
  int64_t o = (int64_t)blockIdx.x * MT_COLUMNS + threadIdx.x % MT_COLUMNS;
  float sum[1] = {};
  for (int64_t r = line; r < rows && o < out; r += MT_LINES)
    sum[0] += mt_get(dy, r * out + o);
  mt_add_lines(sum);
  if (line == 0 && o < out)
    db[o] += sum[0];
}

/* ---- grouped products ---- */

/* Where group g's matrices begin, in bytes: base + offset[g]. Passed to a kernel by value. */
struct places {
  const char *a, *b, *c;
  int64_t offset[3][MT_CUDA_GROUPS];
};

__global__ static void pointers_kernel(void **pointers, struct places p, int n)
{
  int g = threadIdx.x;
  if (g >= n)
    return;
  pointers[g] = (void *)(p.a + p.offset[0][g]);
  pointers[MT_CUDA_GROUPS + g] = (void *)(p.b + p.offset[1][g]);
  pointers[2 * MT_CUDA_GROUPS + g] = (void *)(p.c + p.offset[2][g]);
}

/* One product C[m,n] = op(A) op(B) (+ C) for each group; which of m, n, k is the number of rows depends on the problem.
 */
struct product {
  cublasOperation_t ta, tb;
  const void *a, *b;
  void *c;
  enum mt_dtype type, ctype;
  int lda, ldb, ldc;
  int64_t m, n, k;                   /* -1: the group's rows */
  int64_t a_row, b_row, c_row;       /* elements by which a row of the group moves a matrix */
  int64_t a_group, b_group, c_group; /* elements from group to group */
  int add;
};

static cudaDataType_t type_of(enum mt_dtype type)
{
  return type == MT_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static int in_int(int64_t value)
{
  if (value > INT_MAX)
    mt_cuda_host->die(__FILE__, __LINE__, "a matrix product of size %lld on one GPU", (long long)value);
  return (int)value;
}

static void multiply(struct mt_device *device, const struct mt_linear *l, const struct product *p)
{
  struct mt_cuda *cuda = mt_cuda_of(device);
  const float one = 1, zero = 0;
  const float *beta = p->add ? &one : &zero;
  const int64_t size = mt_dtype_size(p->type), csize = mt_dtype_size(p->ctype);
  struct places places;
  int m[MT_CUDA_GROUPS], n[MT_CUDA_GROUPS], k[MT_CUDA_GROUPS], lda[MT_CUDA_GROUPS], ldb[MT_CUDA_GROUPS],
      ldc[MT_CUDA_GROUPS], each[MT_CUDA_GROUPS];
  float alphas[MT_CUDA_GROUPS], betas[MT_CUDA_GROUPS];
  cublasOperation_t ta[MT_CUDA_GROUPS], tb[MT_CUDA_GROUPS];
  places.a = (const char *)p->a;
  places.b = (const char *)p->b;
  places.c = (const char *)p->c;
  for (int g = 0; g < l->ngroup;) {
    int count = 0, equal = 1;
    uintptr_t bits = (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->c;
    int64_t step[3] = {0, 0, 0};
    for (; g < l->ngroup && count < MT_CUDA_GROUPS; g++) {
      int64_t first = l->first[g], rows = l->first[g + 1] - first;
      if (rows == 0)
        continue;
      m[count] = in_int(p->m < 0 ? rows : p->m);
      n[count] = in_int(p->n < 0 ? rows : p->n);
      k[count] = in_int(p->k < 0 ? rows : p->k);
      places.offset[0][count] = (first * p->a_row + g * p->a_group) * size;
      places.offset[1][count] = (first * p->b_row + g * p->b_group) * size;
      places.offset[2][count] = (first * p->c_row + g * p->c_group) * csize;
      lda[count] = p->lda;
      ldb[count] = p->ldb;
      ldc[count] = p->ldc;
      alphas[count] = one;
      betas[count] = *beta;
      ta[count] = p->ta;
      tb[count] = p->tb;
      each[count] = 1;
      for (int i = 0; i < 3; i++) {
        bits |= (uintptr_t)places.offset[i][count];
        if (count == 1)
          step[i] = places.offset[i][1] - places.offset[i][0];
        equal &= count == 0 || places.offset[i][count] == places.offset[i][0] + count * step[i];
      }
      equal &= m[count] == m[0] && n[count] == n[0] && k[count] == k[0];
      count++;
    }
    cudaDataType_t type = type_of(p->type), ctype = type_of(p->ctype);
    if (count > 1 && equal) {
      MT_CUBLAS(cublasGemmStridedBatchedEx(cuda->blas, p->ta, p->tb, m[0], n[0], k[0], &one,
                                           places.a + places.offset[0][0], type, p->lda, step[0] / size,
                                           places.b + places.offset[1][0], type, p->ldb, step[1] / size, beta,
                                           (char *)p->c + places.offset[2][0], ctype, p->ldc, step[2] / csize, count,
                                           cuda->compute, CUBLAS_GEMM_DEFAULT));
    } else if (count > 1 && type == ctype && bits % 16 == 0) {
      MT_LAUNCH(pointers_kernel, 1, MT_CUDA_GROUPS, 0, mt_math(device), cuda->pointers, places, count);
      MT_CUBLAS(cublasGemmGroupedBatchedEx(
          cuda->blas, ta, tb, m, n, k, alphas, cuda->pointers, type, lda, cuda->pointers + MT_CUDA_GROUPS, type, ldb,
          betas, cuda->pointers + 2 * MT_CUDA_GROUPS, ctype, ldc, count, each, cuda->compute));
    } else {
      for (int i = 0; i < count; i++)
        MT_CUBLAS(cublasGemmEx(cuda->blas, p->ta, p->tb, m[i], n[i], k[i], &one, places.a + places.offset[0][i], type,
                               p->lda, places.b + places.offset[1][i], type, p->ldb, beta,
                               (char *)p->c + places.offset[2][i], ctype, p->ldc, cuda->compute, CUBLAS_GEMM_DEFAULT));
    }
  }
}

/* ---- layers ---- */

template <typename T>
static void put_bias(struct mt_device *device, const struct mt_linear *l, void *y, const void *b, int add)
{
  for (int g = 0; g < l->ngroup; g++) {
    int64_t rows = l->first[g + 1] - l->first[g];
    if (rows > 0)
      MT_LAUNCH(bias_kernel<T>, mt_grid(rows * l->out), MT_BLOCK, 0, mt_math(device), (T *)y + l->first[g] * l->out,
                (const T *)b + g * l->bstride, rows, l->out, add);
  }
}

/* to[rows, m] is, or gets added, from[rows, k] op(w), w[out, in] being the group's. */
static void multiply_rows(struct mt_device *device, const struct mt_linear *l, void *to, int64_t m, const void *from,
                          int64_t k, const void *w, cublasOperation_t op, int add)
{
  if (k == 0) {
    if (!add)
      mt_cuda_zero(mt_math(device), to, l->first[l->ngroup] * m * mt_dtype_size(device->ctype));
    return;
  }
  struct product p = {};
  p.ta = op;
  p.tb = CUBLAS_OP_N;
  p.a = w;
  p.b = from;
  p.c = to;
  p.type = p.ctype = device->ctype;
  p.lda = in_int(l->in);
  p.ldb = in_int(k);
  p.ldc = in_int(m);
  p.m = m;
  p.n = -1;
  p.k = k;
  p.a_group = l->wstride;
  p.b_row = k;
  p.c_row = m;
  p.add = add;
  multiply(device, l, &p);
}

static void linear(struct mt_device *device, const struct mt_linear *l, void *y, const void *x, const void *w,
                   const void *b, int add)
{
  if (l->first[l->ngroup] == 0 || l->out == 0)
    return;
  if (b)
    MT_BY_TYPE(device->ctype, put_bias, device, l, y, b, add);
  multiply_rows(device, l, y, l->out, x, l->in, w, CUBLAS_OP_T, add || b);
}

static void linear_dx(struct mt_device *device, const struct mt_linear *l, void *dx, const void *dy, const void *w,
                      int add)
{
  if (l->first[l->ngroup] == 0 || l->in == 0)
    return;
  multiply_rows(device, l, dx, l->in, dy, l->out, w, CUBLAS_OP_N, add);
}

template <typename T> static void put_db(struct mt_device *device, const struct mt_linear *l, float *db, const void *dy)
{
  for (int g = 0; g < l->ngroup; g++) {
    int64_t rows = l->first[g + 1] - l->first[g];
    if (rows > 0)
      MT_LAUNCH(column_kernel<T>, (unsigned)mt_divide_up(l->out, MT_COLUMNS), MT_COLUMNS * MT_LINES, 0, mt_math(device),
                db + g * l->bstride, (const T *)dy + l->first[g] * l->out, rows, l->out);
  }
}

static void linear_dw(struct mt_device *device, const struct mt_linear *l, float *dw, float *db, const void *dy,
                      const void *x)
{
  if (l->first[l->ngroup] == 0 || l->out == 0)
    return;
  if (db)
    MT_BY_TYPE(device->ctype, put_db, device, l, db, dy);
  if (l->in == 0)
    return;
  struct product p = {};
  p.ta = CUBLAS_OP_N;
  p.tb = CUBLAS_OP_T;
  p.a = x;
  p.b = dy;
  p.c = dw;
  p.type = device->ctype;
  p.ctype = MT_F32;
  p.lda = p.ldc = in_int(l->in);
  p.ldb = in_int(l->out);
  p.m = l->in;
  p.n = l->out;
  p.k = -1;
  p.a_row = l->in;
  p.b_row = l->out;
  p.c_group = l->wstride;
  p.add = 1;
  multiply(device, l, &p);
}

void mt_cuda_linear(struct mt_kernels *kernels)
{
  kernels->linear = linear;
  kernels->linear_dx = linear_dx;
  kernels->linear_dw = linear_dw;
}
