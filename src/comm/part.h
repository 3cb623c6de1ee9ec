/* A partition of n things over ranks: one non-decreasing array of nrank + 1 offsets. Empty ranges are allowed. Pure. */
#ifndef MT_PART_H
#define MT_PART_H
#include <stdint.h>
#include "base/status.h"

struct mt_part {
  int nrank;
  int64_t *first; /* [nrank + 1], owned; rank r owns [first[r], first[r + 1]) */
};

/* n things as evenly as possible: rank r gets [floor(r n / P), floor((r + 1) n / P)). The caller frees. */
struct mt_part mt_part_even(int64_t n, int nrank);
/* In proportion to weights (>= 0, not all zero), by largest remainder, ties to the lowest rank. The caller frees. */
struct mt_part mt_part_weighted(int64_t n, int nrank, const int64_t *weight);
/* 1 if an option of that kind has a list, and not the word auto or even. Pure. */
int mt_part_listed(const char *text);
/* Weights from a list of integers, one a rank, in the option `name` (for the message); weight NULL: only looked at. MT_USAGE,
 * said once, if there are not nrank of them, or all are zero. */
enum mt_status mt_part_weights(const char *name, const char *text, int nrank, int64_t *weight);
/* Range m of k of an even partition of [0, n): *first and the count as the result. No allocation. */
int64_t mt_part_range(int64_t n, int64_t k, int64_t m, int64_t *first);
/* The rank that owns thing i (0 <= i < n): binary search; never a rank with an empty range. */
int mt_part_owner(const struct mt_part *part, int64_t i);
static inline int64_t mt_part_count(const struct mt_part *part, int rank)
{
  return part->first[rank + 1] - part->first[rank];
}
void mt_part_free(struct mt_part *part);

#endif
