/* Counted memory; see memory.h.
 *
 * A header of 64 bytes before each block remembers its size and tag. Counters are atomic: a planner's or a writer's
 * thread may allocate too. */
#include "memory.h"
#include "log.h"
#include "status.h"
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct header {
  int64_t bytes;
  int64_t tag;
  int64_t magic;
  char pad[40];
};
_Static_assert(sizeof(struct header) == 64, "the header keeps the alignment");
/* Large blocks lie on huge pages where the system gives them on request: a step walks through gigabytes, and neighbouring
 * rows of a matrix lie on different small pages. A block's end stays on small ones, so that nothing is taken that is not
 * asked for. */
enum { LARGE = 4 << 20, HUGE_PAGE = 2 << 20 };
static const int64_t LIVE = 0x6d6f746c65790001, FREED = 0x6d6f746c6579dead;

static _Atomic int64_t in_use, peak, per_tag[MT_NTAG], live[MT_NTAG], allocations, growths;

static const char *const tag_name[MT_NTAG] = {
    [MT_TAG_PARAM] = "parameters", [MT_TAG_OPTIMIZER] = "optimizer", [MT_TAG_SLOT] = "slots",
    [MT_TAG_ACTIVATION] = "activations", [MT_TAG_ROW] = "rows", [MT_TAG_COMM] = "communication",
    [MT_TAG_PLAN] = "plans", [MT_TAG_IO] = "input/output", [MT_TAG_MISC] = "other"};

/* What to change where memory runs out. */
static const char *remedy(enum mt_tag tag)
{
  switch (tag) {
  case MT_TAG_ACTIVATION:
  case MT_TAG_ROW:
    return "a smaller train.micro_batch or data.seq_length, or train.recompute = true";
  case MT_TAG_SLOT:
    return "fewer parallel.slots, or more ranks";
  case MT_TAG_PARAM:
  case MT_TAG_OPTIMIZER:
    return "more ranks on more nodes";
  default:
    return "a smaller train.micro_batch";
  }
}

const char *mt_memory_tag_name(enum mt_tag tag)
{
  return tag_name[tag];
}

static void count(enum mt_tag tag, int64_t bytes, int blocks)
{
  atomic_fetch_add(&per_tag[tag], bytes);
  atomic_fetch_add(&live[tag], blocks);
  int64_t now = atomic_fetch_add(&in_use, bytes) + bytes;
  int64_t top = atomic_load(&peak);
  while (now > top && !atomic_compare_exchange_weak(&peak, &top, now))
    ;
  if (blocks > 0)
    atomic_fetch_add(&allocations, 1);
}

void mt_memory_account(enum mt_tag tag, enum mt_space space, int64_t bytes, int blocks)
{
  (void)space;
  count(tag, bytes, blocks);
}

int64_t mt_array_bytes(int64_t n, int64_t size)
{
  int64_t bytes;
  MT_CHECK(!__builtin_mul_overflow(n, size, &bytes), "a request for %lld times %lld bytes of memory", (long long)n,
           (long long)size);
  return bytes;
}

void *mt_alloc(enum mt_tag tag, int64_t bytes)
{
  MT_CHECK(bytes >= 0 && bytes < INT64_MAX / 2, "a request for %lld bytes of memory", (long long)bytes);
  size_t size = sizeof(struct header) + (((size_t)bytes + 63) & ~(size_t)63);
  size_t align = size < LARGE ? 64 : HUGE_PAGE;
  struct header *header = aligned_alloc(align, (size + align - 1) / align * align);
  MT_CHECK(header, "out of memory: found no %lld bytes for %s beside the %lld in use; %s would need less (motley train CONFIG "
           "--dry-run tells how much)", (long long)bytes, tag_name[tag], (long long)atomic_load(&in_use), remedy(tag));
#ifdef MADV_HUGEPAGE
  if (align == HUGE_PAGE)
    madvise(header, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); /* a wish: refused, pages are small */
#endif
  header->bytes = bytes;
  header->tag = tag;
  header->magic = LIVE;
#ifdef MT_DEBUG
  memset(header + 1, 0xff, size - sizeof *header);
#endif
  count(tag, bytes, 1);
  return header + 1;
}

void *mt_zalloc(enum mt_tag tag, int64_t bytes)
{
  void *memory = mt_alloc(tag, bytes);
  memset(memory, 0, (size_t)bytes);
  return memory;
}

void mt_free(void *memory)
{
  if (!memory)
    return;
  struct header *header = (struct header *)memory - 1;
  MT_CHECK(header->magic == LIVE, "freeing memory that is not allocated%s", header->magic == FREED ? " any more" : "");
  enum mt_tag tag = (enum mt_tag)header->tag;
  header->magic = FREED;
  count(tag, -header->bytes, -1);
  free(header);
}

char *mt_strdup(const char *text)
{
  if (!text)
    return NULL;
  size_t size = strlen(text) + 1;
  return memcpy(mt_alloc(MT_TAG_MISC, (int64_t)size), text, size);
}

char *mt_format(const char *format, ...)
{
  va_list args;
  va_start(args, format);
  int length = vsnprintf(NULL, 0, format, args);
  va_end(args);
  char *text = mt_alloc(MT_TAG_MISC, length + 1);
  va_start(args, format);
  vsnprintf(text, (size_t)length + 1, format, args);
  va_end(args);
  return text;
}

void mt_memory_count_growth(void)
{
  atomic_fetch_add(&growths, 1);
}

static int enlarge(enum mt_tag tag, void **buffer, int64_t *capacity, int64_t need, int64_t size, int keep)
{
  if (*buffer && need <= *capacity)
    return 0;
  int first = !*buffer;
  int64_t held = *capacity * size, more = *capacity + *capacity / 2;
  *capacity = need > more ? need : more;
  void *old = *buffer;
  if (!keep) {
    mt_free(old);
    old = NULL;
  }
  *buffer = mt_alloc(tag, mt_array_bytes(*capacity, size));
  if (old)
    memcpy(*buffer, old, (size_t)held);
  mt_free(old);
  if (!first)
    mt_memory_count_growth();
  return !first;
}

int mt_grow(enum mt_tag tag, void **buffer, int64_t *capacity, int64_t need, int64_t size)
{
  return enlarge(tag, buffer, capacity, need, size, 0);
}

int mt_extend(enum mt_tag tag, void **buffer, int64_t *capacity, int64_t need, int64_t size)
{
  return enlarge(tag, buffer, capacity, need, size, 1);
}

int64_t mt_memory_bytes(void)
{
  return atomic_load(&in_use);
}

int64_t mt_memory_peak(void)
{
  return atomic_load(&peak);
}

int64_t mt_memory_tag(enum mt_tag tag)
{
  return atomic_load(&per_tag[tag]);
}

int64_t mt_memory_allocations(void)
{
  return atomic_load(&allocations);
}

int64_t mt_memory_growths(void)
{
  return atomic_load(&growths);
}

int64_t mt_memory_report_leaks(void)
{
  int64_t total = 0;
  for (int tag = 0; tag < MT_NTAG; tag++) {
    int64_t n = atomic_load(&live[tag]);
    if (n || atomic_load(&per_tag[tag]))
      mt_error("not freed: %lld allocations, %lld bytes of %s", (long long)n, (long long)atomic_load(&per_tag[tag]),
               tag_name[tag]);
    total += n;
  }
  return total;
}
