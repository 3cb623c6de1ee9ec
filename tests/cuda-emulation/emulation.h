/* What the emulation's files share; see cuda_runtime.h. */
#ifndef EMULATION_H
#define EMULATION_H
#include <stdint.h>

/* Bytes of shared memory a block may have without asking, and with: what all GPUs from compute capability 8.0 on have (8.6,
 * 8.9 and 12.0 no more than that; 8.0: 163 KiB, 9.0: 227 KiB). */
enum { EMULATED_SHARED_DEFAULT = 48 << 10, EMULATED_SHARED_MOST = 99 << 10 };

/* A NaN in every floating-point type, and far outside any array as an index. */
void emulated_poison(void *at, int64_t bytes);
int emulated_is_poison(const void *at, int64_t bytes);
/* Memory between two pages that nobody may touch. */
void *emulated_pages(int64_t bytes);
/* The order of threads and blocks: 0 forward, 1 reverse, 2 shuffled. */
int emulated_order();
/* The work of a stream that runs, or NULL; and which thread of it. */
const char *emulated_running();
const char *emulated_where();

#endif
