/* oneDNN's sgemm, on the calling thread alone.
 *
 * The idea: we cut the work ourselves, by shapes, and each piece is one call on one thread. oneDNN's own
 * threading would cut by the number of threads and change bits with it. The trap: oneDNN runs on one thread
 * inside an active parallel region, but a team of one is not active; so every region that calls mt_gemm calls
 * mt_gemm_region first, which holds until the region's end. */
#ifndef MT_CPU_GEMM_H
#define MT_CPU_GEMM_H
#include <oneapi/dnnl/dnnl.h>
#include <omp.h>
#include <string.h>

static inline void mt_gemm_region(void)
{
  omp_set_num_threads(1);
}

/* c[m,n] = alpha op(a)[m,k] op(b)[k,n] + beta c, all row-major; op transposes where ta (tb) is 'T'. beta = 0
 * ignores c. */
static inline void mt_gemm(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                           int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
  if (m == 0 || n == 0)
    return;
  if (k == 0) {
    for (int64_t i = 0; i < m && beta == 0.0f; i++)
      memset(c + i * ldc, 0, (size_t)n * sizeof *c);
    return; /* beta is 0 or 1 */
  }
  dnnl_status_t status = dnnl_sgemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  MT_CHECK(status == dnnl_success, "dnnl_sgemm of %lld x %lld x %lld: status %d", (long long)m, (long long)n,
           (long long)k, (int)status);
}

#endif
