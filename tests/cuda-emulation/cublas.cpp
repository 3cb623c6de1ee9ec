/* cuBLAS's matrix products as plain loops; see cublas_v2.h. Column-major: C[m,n] = alpha op(A)[m,k] op(B)[k,n] + beta
 * C, accumulated in float, and C is not read where beta is 0. */
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include "emulation.h"
#include <vector>

struct emulated_cublas {
  cudaStream_t stream;
};

struct product {
  cublasOperation_t ta, tb;
  int m, n, k;
  float alpha, beta;
  const void *a, *b;
  void *c;
  cudaDataType_t type, ctype;
  int lda, ldb, ldc;
};

static float get(const void *base, cudaDataType_t type, int64_t i)
{
  return type == CUDA_R_32F ? ((const float *)base)[i] : __bfloat162float(((const __nv_bfloat16 *)base)[i]);
}

static void multiply(const product &p)
{
  std::vector<float> a((size_t)p.m * (size_t)p.k), column((size_t)p.m);
  for (int64_t l = 0; l < p.k; l++)
    for (int64_t i = 0; i < p.m; i++)
      a[(size_t)(l * p.m + i)] = get(p.a, p.type, p.ta == CUBLAS_OP_N ? i + l * p.lda : l + i * p.lda);
  for (int64_t j = 0; j < p.n; j++) {
    for (float &value : column)
      value = 0;
    for (int64_t l = 0; l < p.k; l++) {
      float b = get(p.b, p.type, p.tb == CUBLAS_OP_N ? l + j * p.ldb : j + l * p.ldb);
      const float *from = &a[(size_t)(l * p.m)];
      for (int64_t i = 0; i < p.m; i++)
        column[(size_t)i] += from[i] * b;
    }
    for (int64_t i = 0; i < p.m; i++) {
      int64_t at = i + j * p.ldc;
      float value = p.alpha * column[(size_t)i] + (p.beta != 0 ? p.beta * get(p.c, p.ctype, at) : 0);
      if (p.ctype == CUDA_R_32F)
        ((float *)p.c)[at] = value;
      else
        ((__nv_bfloat16 *)p.c)[at] = __float2bfloat16_rn(value);
    }
  }
}

static void check(const product &p, const char *name)
{
  int rows_a = p.ta == CUBLAS_OP_N ? p.m : p.k, rows_b = p.tb == CUBLAS_OP_N ? p.k : p.n;
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.lda < rows_a || p.ldb < rows_b || p.ldc < p.m || p.lda < 1 || p.ldb < 1 ||
      p.ldc < 1)
    emulated_fault("%s: m %d n %d k %d lda %d ldb %d ldc %d", name, p.m, p.n, p.k, p.lda, p.ldb, p.ldc);
}

static void enqueue(cublasHandle_t handle, const char *name, const std::vector<product> &all)
{
  emulated_enqueue(handle->stream, name, [all]() {
    for (const product &p : all)
      multiply(p);
  });
}

const char *cublasGetStatusString(cublasStatus_t status)
{
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "invalid value";
}
cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
  *handle = new emulated_cublas();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *workspace, size_t)
{
  emulated_check_pointer("cublasSetWorkspace", workspace);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t)
{
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType_t type, int lda, const void *b,
                            cudaDataType_t btype, int ldb, const void *beta, void *c, cudaDataType_t ctype, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algo)
{
  return cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, a, type, lda, 0, b, btype, ldb, 0, beta, c, ctype,
                                    ldc, 0, 1, compute, algo);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m,
                                          int n, int k, const void *alpha, const void *a, cudaDataType_t type, int lda,
                                          long long sa, const void *b, cudaDataType_t btype, int ldb, long long sb,
                                          const void *beta, void *c, cudaDataType_t ctype, int ldc, long long sc,
                                          int batch, cublasComputeType_t, cublasGemmAlgo_t)
{
  static const char name[] = "cublasGemmStridedBatchedEx";
  if (type != btype || (type == CUDA_R_32F && ctype != CUDA_R_32F))
    return CUBLAS_STATUS_INVALID_VALUE;
  emulated_check_pointer(name, a);
  emulated_check_pointer(name, b);
  emulated_check_pointer(name, c);
  std::vector<product> all;
  int64_t size = type == CUDA_R_32F ? 4 : 2, csize = ctype == CUDA_R_32F ? 4 : 2;
  for (int64_t i = 0; i < batch; i++) {
    product p = {ta,
                 tb,
                 m,
                 n,
                 k,
                 *(const float *)alpha,
                 *(const float *)beta,
                 (const char *)a + i * sa * size,
                 (const char *)b + i * sb * size,
                 (char *)c + i * sc * csize,
                 type,
                 ctype,
                 lda,
                 ldb,
                 ldc};
    check(p, name);
    all.push_back(p);
  }
  enqueue(handle, name, all);
  return CUBLAS_STATUS_SUCCESS;
}

/* Arrays of pointers are device memory, read when the work runs; counts are the host's, read now. A library that takes
 * k % 8 = 0 (bf16; f32: 4) for leave to load 16 bytes at a time wants pointers so aligned. */
cublasStatus_t cublasGemmGroupedBatchedEx(cublasHandle_t handle, const cublasOperation_t ta[],
                                          const cublasOperation_t tb[], const int m[], const int n[], const int k[],
                                          const void *alpha, const void *const a[], cudaDataType_t type,
                                          const int lda[], const void *const b[], cudaDataType_t btype, const int ldb[],
                                          const void *beta, void *const c[], cudaDataType_t ctype, const int ldc[],
                                          int groups, const int group_size[], cublasComputeType_t)
{
  static const char name[] = "cublasGemmGroupedBatchedEx";
  if (type != btype || type != ctype)
    return CUBLAS_STATUS_INVALID_VALUE;
  emulated_check_pointer(name, a);
  emulated_check_pointer(name, b);
  emulated_check_pointer(name, c);
  std::vector<product> all;
  for (int g = 0; g < groups; g++) {
    if (group_size[g] != 1)
      return CUBLAS_STATUS_INVALID_VALUE;
    product p = {ta[g],
                 tb[g],
                 m[g],
                 n[g],
                 k[g],
                 ((const float *)alpha)[g],
                 ((const float *)beta)[g],
                 nullptr,
                 nullptr,
                 nullptr,
                 type,
                 ctype,
                 lda[g],
                 ldb[g],
                 ldc[g]};
    check(p, name);
    all.push_back(p);
  }
  emulated_enqueue(handle->stream, name, [all, a, b, c]() {
    for (size_t g = 0; g < all.size(); g++) {
      product p = all[g];
      p.a = a[g];
      p.b = b[g];
      p.c = c[g];
      if (((uintptr_t)p.a | (uintptr_t)p.b | (uintptr_t)p.c) % 16)
        emulated_fault("%s: group %zu is not aligned to 16 bytes", name, g);
      multiply(p);
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}
