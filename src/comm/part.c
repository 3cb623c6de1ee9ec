/* Partitions; see part.h. Products such as rank x n may exceed 64 bit, so quotient and remainder travel
 * apart. */
#include "comm/part.h"
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

/* floor(m n / k) for 0 <= m <= k. */
static int64_t cut(int64_t n, int64_t k, int64_t m)
{
  return n / k * m + (int64_t)((__int128)(n % k) * m / k);
}

static struct mt_part part_new(int nrank)
{
  MT_CHECK(nrank > 0, "a partition over %d ranks", nrank);
  return (struct mt_part){.nrank = nrank, .first = MT_NEW(MT_TAG_PLAN, int64_t, nrank + 1)};
}

struct mt_part mt_part_even(int64_t n, int nrank)
{
  struct mt_part part = part_new(nrank);
  for (int r = 0; r <= nrank; r++)
    part.first[r] = cut(n, nrank, r);
  return part;
}

struct remainder {
  int64_t value;
  int rank;
};

/* Largest first, ties to the lowest rank. */
static int compare_remainders(const void *a, const void *b)
{
  const struct remainder *x = a, *y = b;
  if (x->value != y->value)
    return x->value > y->value ? -1 : 1;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

struct mt_part mt_part_weighted(int64_t n, int nrank, const int64_t *weight)
{
  struct mt_part part = part_new(nrank);
  int64_t total = 0;
  for (int r = 0; r < nrank; r++) {
    MT_CHECK(weight[r] >= 0, "rank %d has the weight %lld", r, (long long)weight[r]);
    MT_CHECK(!__builtin_add_overflow(total, weight[r], &total), "weights whose sum exceeds 64 bit");
  }
  MT_CHECK(total > 0, "a partition whose weights are all zero");

  struct remainder *rest = MT_NEW(MT_TAG_PLAN, struct remainder, nrank);
  int64_t given = 0;
  for (int r = 0; r < nrank; r++) {
    __int128 product = (__int128)n * weight[r];
    part.first[r] = (int64_t)(product / total); /* a count until the prefix sum below */
    rest[r] = (struct remainder){.value = (int64_t)(product % total), .rank = r};
    given += part.first[r];
  }
  /* Fewer are left than ranks have a remainder above zero, so a rank without weight gets nothing. */
  qsort(rest, (size_t)nrank, sizeof *rest, compare_remainders);
  for (int64_t i = 0; i < n - given; i++)
    part.first[rest[i].rank]++;
  mt_free(rest);

  int64_t sum = 0;
  for (int r = 0; r < nrank; r++) {
    int64_t count = part.first[r];
    part.first[r] = sum;
    sum += count;
  }
  part.first[nrank] = sum;
  return part;
}

int mt_part_listed(const char *text)
{
  return strcmp(text, "auto") && strcmp(text, "even");
}

enum mt_status mt_part_weights(const char *name, const char *text, int nrank, int64_t *weight)
{
  int64_t *found = MT_NEW(MT_TAG_PLAN, int64_t, nrank), any = 0;
  int n = mt_text_integers(text, found, nrank);
  for (int r = 0; r < nrank && r < n; r++)
    any |= found[r];
  enum mt_status status = n == nrank && any ? MT_OK : MT_USAGE;
  if (status != MT_OK)
    mt_error("%s: found '%s', expected %d numbers (one per rank)%s", name, text, nrank, n == nrank ? ", not all zero" : "");
  else if (weight)
    memcpy(weight, found, sizeof *weight * (size_t)nrank);
  mt_free(found);
  return status;
}

int64_t mt_part_range(int64_t n, int64_t k, int64_t m, int64_t *first)
{
  *first = cut(n, k, m);
  return cut(n, k, m + 1) - *first;
}

int mt_part_owner(const struct mt_part *part, int64_t i)
{
  /* The last rank that begins at or before i: those before it that begin there too are empty. */
  int low = 0, high = part->nrank;
  while (high - low > 1) {
    int middle = low + (high - low) / 2;
    if (part->first[middle] <= i)
      low = middle;
    else
      high = middle;
  }
  return low;
}

void mt_part_free(struct mt_part *part)
{
  mt_free(part->first);
  *part = (struct mt_part){0};
}
