/* The machine's own limits; see limit.h. */
#include "kernels/cpu/limit.h"
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include "base/memory.h"
#include "base/status.h"

void mt_limit_gemm(int threads, int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, const float *b, float *c,
                   int accumulate)
{
  int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  dnnl_status_t status = dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1, a, ta ? m : k, b, tb ? k : n,
                                    accumulate ? 1 : 0, c, n);
  MT_CHECK(status == dnnl_success, "dnnl_sgemm of %lld x %lld x %lld: status %d", (long long)m, (long long)n, (long long)k,
           (int)status);
  omp_set_num_threads(before);
}

void mt_limit_triad(int threads, float *a, const float *b, const float *c, int64_t n)
{
#pragma omp parallel for simd num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; i++)
    a[i] = b[i] + 3 * c[i];
}

char *mt_limit_library(void)
{
  const dnnl_version_t *version = dnnl_version();
  return mt_format("oneDNN %d.%d.%d", version->major, version->minor, version->patch);
}
