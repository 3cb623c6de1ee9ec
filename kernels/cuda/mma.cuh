/* Products of small tiles by one warp: C[16,N] += A[16,K] B, where A and B lie in shared memory and C in registers.
 *
 * The idea: one layout of C for both element types, that of the tensor cores' m16n8: lane l holds, for each eight
 * columns, rows l / 4 and l / 4 + 8 and columns 2 (l % 4) and the next. So a kernel is written once, with T = float for
 * plain multiplications or bf16 for tensor cores. PTX is in this file only; the emulation has a twin of it
 * (mma_emulated.h), and what goes through it counts as untested until a GPU has run it: ldmatrix, ldmatrix.trans,
 * mma.m16n8k16 of bf16.
 * The trap: ldmatrix reads rows of 16 bytes, so tiles begin and step by multiples of 8 bf16. All lanes must take
 * part. */
#ifndef MT_MMA_CUH
#define MT_MMA_CUH
#include "cuda.cuh"

#ifdef MT_CUDA_EMULATED
#include <mma_emulated.h>
#else
/* A[16,16], row-major. */
__device__ __forceinline__ void mt_load_a(uint32_t (&f)[4], const mt_bf16 *a, int ld)
{
  int lane = threadIdx.x % MT_WARP;
  uint32_t at = (uint32_t)__cvta_generic_to_shared(a + (lane % 16) * ld + lane / 16 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
               : "r"(at)
               : "memory");
}
/* B[16,8] from b[n,k]. */
__device__ __forceinline__ void mt_load_b(uint32_t (&f)[2], const mt_bf16 *b, int ld)
{
  int lane = threadIdx.x % MT_WARP;
  uint32_t at = (uint32_t)__cvta_generic_to_shared(b + (lane % 8) * ld + lane / 8 % 2 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(f[0]), "=r"(f[1])
               : "r"(at)
               : "memory");
}
/* B[16,8] from b[k,n]. */
__device__ __forceinline__ void mt_load_bt(uint32_t (&f)[2], const mt_bf16 *b, int ld)
{
  int lane = threadIdx.x % MT_WARP;
  uint32_t at = (uint32_t)__cvta_generic_to_shared(b + (lane % 16) * ld);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(f[0]), "=r"(f[1])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void mt_mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

/* How B lies: b[N,K], which is read across, or b[K,N]. */
enum mt_operand { MT_NK, MT_KN };

/* c += a[16,K] B */
template <int N, int K, mt_operand LIES>
__device__ __forceinline__ void mt_tile(float (&c)[N / 8][4], const mt_bf16 *a, int lda, const mt_bf16 *b, int ldb)
{
  MT_UNROLL_SOME
  for (int k = 0; k < K; k += 16) {
    uint32_t fa[4], fb[2];
    mt_load_a(fa, a + k, lda);
    MT_UNROLL
    for (int n = 0; n < N / 8; n++) {
      if (LIES == MT_NK)
        mt_load_b(fb, b + n * 8 * ldb + k, ldb);
      else
        mt_load_bt(fb, b + k * ldb + n * 8, ldb);
      mt_mma(c[n], fa, fb);
    }
  }
}
template <int N, int K, mt_operand LIES>
__device__ __forceinline__ void mt_tile(float (&c)[N / 8][4], const float *a, int lda, const float *b, int ldb)
{
  int g = threadIdx.x % MT_WARP / 4, t = threadIdx.x % 4;
  MT_UNROLL_SOME
  for (int k = 0; k < K; k++) {
    float low = a[g * lda + k], high = a[(g + 8) * lda + k];
    MT_UNROLL
    for (int n = 0; n < N / 8; n++)
      MT_UNROLL
      for (int e = 0; e < 2; e++) {
        int column = n * 8 + 2 * t + e;
        float value = LIES == MT_NK ? b[column * ldb + k] : b[k * ldb + column];
        c[n][e] += low * value;
        c[n][2 + e] += high * value;
      }
  }
}

#endif
