/* Picks that count; see capacity.h. */
#include "experts/capacity.h"
#include <math.h>
#include <string.h>

int64_t mt_capacity(double factor, int64_t T, int64_t K, int64_t E)
{
  /* 1.1 * 20 / 2 is a hair above 11: the hair is not a row */
  double rows = ceil(factor * (double)K * (double)T / (double)E * (1 - 1e-12));
  return rows < (double)T ? (int64_t)rows : T;
}

int64_t mt_capacity_keep(int64_t capacity, const int32_t *expert, int64_t B, int64_t T, int64_t K, int64_t E,
                         int64_t base, int32_t *first, int32_t *kept, int32_t *pick, int32_t *triple)
{
  int64_t n = 0, taken[E + 1];
  for (int64_t t = 0; t < B * T; t++) {
    if (t % T == 0)
      memset(taken, 0, sizeof taken);
    first[t] = (int32_t)(base + n);
    for (int64_t i = t * K; i < (t + 1) * K; i++) {
      triple[i] = -1;
      if (taken[expert[i]]++ >= capacity)
        continue;
      triple[i] = (int32_t)n;
      kept[n] = expert[i];
      pick[n++] = (int32_t)i;
    }
  }
  first[B * T] = (int32_t)(base + n);
  for (int64_t i = 0; i < B * T * K; i++)
    triple[i] = triple[i] < 0 ? (int32_t)n : triple[i];
  return n;
}
