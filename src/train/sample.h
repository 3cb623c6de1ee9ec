/* Choosing the next token from logits. */
#ifndef MT_SAMPLE_H
#define MT_SAMPLE_H
#include <stdint.h>

/* A token among others, for the caller's workspace. */
struct mt_candidate {
  float logit;
  int32_t id;
};

/* How to draw; {0, 0, 1} is the likeliest token. */
struct mt_sampling {
  double temperature; /* 0 = always the likeliest token, the lowest id of several */
  int64_t top_k;      /* only the k likeliest; 0 = all */
  double top_p;       /* and of these the fewest whose probabilities reach p; 1 = all */
};

/* A token of 0..V-1 from logits[V] for `uniform`, a number of [0, 1): in this order softmax(logits /
 * temperature), top_k, top_p (of the probabilities among the k), each with ties to the lowest id; what is
 * left is drawn from in the order of ids, so that a limit that excludes nothing changes nothing. At least one
 * token is left. work[V] is overwritten where there is a limit, else may be NULL. NaNs are never drawn unless
 * all are. Holtzman et al., 2020 (top-p); Fan et al., 2018 (top-k). Pure. */
int32_t mt_sample(const float *logits, int64_t V, const struct mt_sampling *sampling, double uniform,
                  struct mt_candidate *work);

#endif
