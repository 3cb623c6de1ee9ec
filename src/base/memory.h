/* Counted memory.
 *
 * Every allocation has a tag (what it is for) and a space (where it lives). Counts must be zero at exit, so every test
 * is a leak test; the peak per tag feeds the log and the forecast of --dry-run. Nothing allocates in a step after
 * warm-up but buffers that follow the routing, which grow by half (mt_grow) and are counted apart.
 * Only src/base and kernels/ may call malloc; a test greps for it. */
#ifndef MT_MEMORY_H
#define MT_MEMORY_H
#include <stdint.h>

enum mt_space {
  MT_HOST,   /* ordinary memory */
  MT_WIRE,   /* memory that both the device and MPI may touch: pinned */
  MT_DEVICE, /* the device's own; on a CPU all three are the same memory */
  MT_NSPACE
};

enum mt_tag {
  MT_TAG_PARAM,      /* compute weights of shared parameters, master shards */
  MT_TAG_OPTIMIZER,  /* moments, shard gradients */
  MT_TAG_SLOT,       /* expert slots: weights and gradients */
  MT_TAG_ACTIVATION, /* activations and their gradients */
  MT_TAG_ROW,        /* row buffers that follow the routing */
  MT_TAG_COMM,       /* staging and requests */
  MT_TAG_PLAN,       /* layouts, counts, schedules */
  MT_TAG_IO,         /* data, checkpoint, log */
  MT_TAG_MISC,       /* configuration, text */
  MT_NTAG
};

/* Allocates bytes (zero is allowed) aligned to 64 bytes, uninitialised (0xff-filled in debug builds: floats are NaN).
 * Local. The caller frees with mt_free. Never returns NULL: exhausted memory ends the job. */
void *mt_alloc(enum mt_tag tag, int64_t bytes);
/* The same, zero-filled. */
void *mt_zalloc(enum mt_tag tag, int64_t bytes);
/* Frees what mt_alloc, mt_zalloc or mt_grow made; NULL is allowed. Local. */
void mt_free(void *memory);
/* A copy of a string, tagged MT_TAG_MISC; NULL gives NULL. The caller frees. */
char *mt_strdup(const char *text);
/* A formatted string, tagged MT_TAG_MISC. The caller frees. */
char *mt_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* n elements of a type. */
#define MT_NEW(tag, type, n) ((type *)mt_alloc((tag), mt_array_bytes((n), (int64_t)sizeof(type))))
#define MT_ZNEW(tag, type, n) ((type *)mt_zalloc((tag), mt_array_bytes((n), (int64_t)sizeof(type))))
/* n * size; a product that 64 bits do not hold ends the job. Pure. */
int64_t mt_array_bytes(int64_t n, int64_t size);

/* Makes room for `need` elements of `size` bytes in a buffer that holds *capacity of them: if it is too small, frees it
 * and allocates max(need, 1.5 * *capacity); the contents are lost. *buffer may be NULL (with *capacity 0). Counted as a
 * growth except when *buffer was NULL. Local. Returns 1 if it grew, 0 if not. */
int mt_grow(enum mt_tag tag, void **buffer, int64_t *capacity, int64_t need, int64_t size);

/* The same for a list that grows at its end: the contents are kept. */
int mt_extend(enum mt_tag tag, void **buffer, int64_t *capacity, int64_t need, int64_t size);

/* Counts a growth of a buffer that is not mt_grow's (one of a device). Local. */
void mt_memory_count_growth(void);

/* Accounts memory that somebody else allocates (kernels/cuda): bytes and blocks, negative when it is freed. Local. */
void mt_memory_account(enum mt_tag tag, enum mt_space space, int64_t bytes, int blocks);

int64_t mt_memory_bytes(void);                  /* bytes in use now, all tags and spaces */
int64_t mt_memory_peak(void);                   /* largest value of the above so far */
int64_t mt_memory_tag(enum mt_tag tag);         /* bytes in use under a tag */
int64_t mt_memory_allocations(void);            /* calls that allocated, since the start */
int64_t mt_memory_growths(void);                /* how many of those were growths of an existing buffer */
const char *mt_memory_tag_name(enum mt_tag tag);
/* Prints what is still allocated, per tag, and returns the number of live allocations. */
int64_t mt_memory_report_leaks(void);

#endif
