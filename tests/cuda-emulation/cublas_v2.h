/* The part of cuBLAS that kernels/cuda/ uses, in plain loops, with cuBLAS's rules checked; see cuda_runtime.h. */
#ifndef EMULATED_CUBLAS_H
#define EMULATED_CUBLAS_H
#include <cuda_runtime.h>

typedef struct emulated_cublas *cublasHandle_t;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F, CUDA_R_16BF };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT };
enum cublasMath_t { CUBLAS_DEFAULT_MATH = 0, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16 };

const char *cublasGetStatusString(cublasStatus_t);
cublasStatus_t cublasCreate(cublasHandle_t *);
cublasStatus_t cublasDestroy(cublasHandle_t);
cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t);
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *, size_t);
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t);
cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                            const void *alpha, const void *A, cudaDataType_t, int lda, const void *B, cudaDataType_t,
                            int ldb, const void *beta, void *C, cudaDataType_t, int ldc, cublasComputeType_t,
                            cublasGemmAlgo_t);
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                          const void *alpha, const void *A, cudaDataType_t, int lda, long long strideA,
                                          const void *B, cudaDataType_t, int ldb, long long strideB, const void *beta,
                                          void *C, cudaDataType_t, int ldc, long long strideC, int batch,
                                          cublasComputeType_t, cublasGemmAlgo_t);
cublasStatus_t cublasGemmGroupedBatchedEx(cublasHandle_t, const cublasOperation_t[], const cublasOperation_t[],
                                          const int m[], const int n[], const int k[], const void *alpha,
                                          const void *const A[], cudaDataType_t, const int lda[], const void *const B[],
                                          cudaDataType_t, const int ldb[], const void *beta, void *const C[],
                                          cudaDataType_t, const int ldc[], int groups, const int group_size[],
                                          cublasComputeType_t);
#endif
