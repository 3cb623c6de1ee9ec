/* What the emulation's files share; see cuda_runtime.h. */
#ifndef EMULATION_H
#define EMULATION_H
#include <stdint.h>

/* Bytes of shared memory a block may have without asking, and with: compute capability 8.0. */
enum { EMULATED_SHARED_DEFAULT = 48 << 10, EMULATED_SHARED_MOST = 163 << 10 };

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
