/* Choosing the next token; see sample.h. */
#include "train/sample.h"
#include <math.h>
#include <stdlib.h>

/* Before b in the order of likelihood? */
static int before(struct mt_candidate a, struct mt_candidate b)
{
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static int compare(const void *a, const void *b)
{
  const struct mt_candidate *x = a, *y = b;
  return before(*y, *x) - before(*x, *y);
}

/* The last candidate that both limits keep. */
static struct mt_candidate last_kept(const float *logits, int64_t V, const struct mt_sampling *sampling,
                                     struct mt_candidate *work)
{
  int64_t n = 0;
  for (int64_t v = 0; v < V; v++)
    if (!isnan(logits[v]))
      work[n++] = (struct mt_candidate){logits[v], (int32_t)v};
  qsort(work, (size_t)n, sizeof *work, compare);
  n = sampling->top_k > 0 && sampling->top_k < n ? sampling->top_k : n;
  double sum = 0, part = 0;
  for (int64_t i = 0; i < n; i++)
    sum += exp(((double)work[i].logit - (double)work[0].logit) / sampling->temperature);
  int64_t kept = 0;
  while (kept < n && (kept == 0 || sampling->top_p >= 1 || part < sampling->top_p * sum)) {
    part += exp(((double)work[kept].logit - (double)work[0].logit) / sampling->temperature);
    kept++;
  }
  return work[kept - 1];
}

int32_t mt_sample(const float *logits, int64_t V, const struct mt_sampling *sampling, double uniform,
                  struct mt_candidate *work)
{
  struct mt_candidate best = {NAN, 0};
  for (int64_t v = 0; v < V; v++)
    if (logits[v] > best.logit || (isnan(best.logit) && !isnan(logits[v])))
      best = (struct mt_candidate){logits[v], (int32_t)v};
  if (sampling->temperature <= 0 || isnan(best.logit) || isinf(best.logit))
    return best.id;
  int limited = sampling->top_k > 0 || sampling->top_p < 1;
  struct mt_candidate last = limited ? last_kept(logits, V, sampling, work) : best;
  /* the same terms in the same order twice, so that what is drawn is below their sum */
  double sum = 0;
  for (int turn = 0; turn < 2; turn++) {
    double draw = uniform * sum, part = 0;
    for (int64_t v = 0; v < V; v++) {
      struct mt_candidate candidate = {logits[v], (int32_t)v};
      if (isnan(logits[v]) || (limited && before(last, candidate)))
        continue;
      part += exp(((double)logits[v] - (double)best.logit) / sampling->temperature);
      if (turn == 1 && part > draw)
        return (int32_t)v;
    }
    sum = part;
  }
  return best.id;
}
