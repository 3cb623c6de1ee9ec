/* The machine's own limits, for benchmarks: the library's GEMM called plainly, and a streaming loop. */
#ifndef MT_CPU_LIMIT_H
#define MT_CPU_LIMIT_H
#include <stdint.h>

/* c[m,n] = op(a) op(b), row-major, one call of dnnl_sgemm on `threads` threads of its own: what a GEMM costs when nothing
 * of ours is around it. ta = 1: a is [k,m]; tb = 1: b is [n,k]. accumulate = 1: adds to c. Local. */
void mt_limit_gemm(int threads, int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, const float *b, float *c,
                   int accumulate);
/* a[i] = b[i] + 3 c[i] on `threads` threads: 12 n bytes to and from memory (16 with the line of a that is read). Local. */
void mt_limit_triad(int threads, float *a, const float *b, const float *c, int64_t n);

/* "oneDNN 2.6.0". The caller frees. Local. */
char *mt_limit_library(void);

#endif
