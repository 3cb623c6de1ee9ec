/* The reference for attention: one row of the attention matrix at a time, from explicit scores.
 *
 * The trap: a position may see nothing (padding); its row is then zero, not a softmax of nothing. */
#include "ref.h"
#include <math.h>
#include <string.h>

static int sees(const struct mt_attention *a, int64_t b, int64_t i, int64_t j)
{
  if (a->causal && j > i)
    return 0;
  if (a->window > 0 && j <= i - a->window)
    return 0;
  if (a->segment) {
    int32_t mine = a->segment[b * a->T + i];
    return mine >= 0 && mine == a->segment[b * a->T + j];
  }
  return 1;
}

/* Where query head h, key head k and value head k of position t of sequence b begin in qkv. */
static int64_t q_at(const struct mt_attention *a, int64_t b, int64_t t, int64_t h)
{
  return ((b * a->T + t) * (a->H + 2 * a->KV) + h) * a->D;
}

static int64_t k_at(const struct mt_attention *a, int64_t b, int64_t t, int64_t k)
{
  return q_at(a, b, t, a->H + k);
}

static int64_t v_at(const struct mt_attention *a, int64_t b, int64_t t, int64_t k)
{
  return q_at(a, b, t, a->H + a->KV + k);
}

/* p[T] and two sums [T, D] */
int64_t mt_ref_attention_work(const struct mt_device *device, const struct mt_attention *a)
{
  (void)device;
  return a->T * (1 + 2 * a->D) * (int64_t)sizeof(double);
}

/* Row i of the attention matrix of (b, h) into p[T], zero where nothing is seen; returns the row's lse, 0 if
 * it is empty. */
static double attention_row(const struct mt_device *device, const struct mt_attention *a, const void *qkv,
                            int64_t b, int64_t h, int64_t i, double *p)
{
  int64_t q = q_at(a, b, i, h), kv = h / (a->H / a->KV);
  double largest = -INFINITY, sum = 0;
  for (int64_t j = 0; j < a->T; j++) {
    p[j] = -INFINITY;
    if (!sees(a, b, i, j))
      continue;
    double score = 0;
    for (int64_t d = 0; d < a->D; d++)
      score += get(device->ctype, qkv, q + d) * get(device->ctype, qkv, k_at(a, b, j, kv) + d);
    p[j] = score * a->scale;
    largest = fmax(largest, p[j]);
  }
  if (largest == -INFINITY) {
    memset(p, 0, (size_t)a->T * sizeof *p);
    return 0;
  }
  for (int64_t j = 0; j < a->T; j++)
    sum += exp(p[j] - largest);
  for (int64_t j = 0; j < a->T; j++)
    p[j] = exp(p[j] - largest) / sum;
  return largest + log(sum);
}

void mt_ref_attention(struct mt_device *device, const struct mt_attention *a, void *out, float *lse,
                      const void *qkv)
{
  enum mt_dtype type = device->ctype;
  double *p = device->work;
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t h = 0; h < a->H; h++)
      for (int64_t i = 0; i < a->T; i++) {
        lse[(b * a->H + h) * a->T + i] = (float)attention_row(device, a, qkv, b, h, i, p);
        for (int64_t d = 0; d < a->D; d++) {
          double sum = 0;
          for (int64_t j = 0; j < a->T; j++)
            if (sees(a, b, i, j))
              sum += p[j] * get(type, qkv, v_at(a, b, j, h / (a->H / a->KV)) + d);
          put(type, out, ((b * a->T + i) * a->H + h) * a->D + d, sum);
        }
      }
}

/* The attention matrix is computed again from qkv, so out and lse are not needed here; other backends use
 * them. */
void mt_ref_attention_back(struct mt_device *device, const struct mt_attention *a, void *dqkv,
                           const void *dout, const void *qkv, const void *out, const float *lse)
{
  (void)out, (void)lse;
  enum mt_dtype type = device->ctype;
  int64_t T = a->T, D = a->D, group = a->KV ? a->H / a->KV : 0;
  double *p = device->work, *dk = p + T, *dv = dk + T * D;
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t kv = 0; kv < a->KV; kv++) {
      memset(dk, 0, (size_t)(2 * T * D) * sizeof *dk);
      for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t i = 0; i < T; i++) {
          int64_t q = q_at(a, b, i, h), o = ((b * T + i) * a->H + h) * D;
          attention_row(device, a, qkv, b, h, i, p);
          double delta = 0; /* sum over j of p dp */
          for (int64_t j = 0; j < T; j++)
            if (sees(a, b, i, j))
              for (int64_t d = 0; d < D; d++)
                delta += p[j] * get(type, dout, o + d) * get(type, qkv, v_at(a, b, j, kv) + d);
          for (int64_t j = 0; j < T; j++) { /* p becomes the gradient of the unscaled score */
            if (!sees(a, b, i, j))
              continue;
            double dp = 0;
            for (int64_t d = 0; d < D; d++) {
              double g = get(type, dout, o + d);
              dp += g * get(type, qkv, v_at(a, b, j, kv) + d);
              dv[j * D + d] += p[j] * g;
            }
            p[j] *= (dp - delta) * a->scale;
            for (int64_t d = 0; d < D; d++)
              dk[j * D + d] += p[j] * get(type, qkv, q + d);
          }
          for (int64_t d = 0; d < D; d++) {
            double dq = 0;
            for (int64_t j = 0; j < T; j++)
              if (sees(a, b, i, j))
                dq += p[j] * get(type, qkv, k_at(a, b, j, kv) + d);
            put(type, dqkv, q + d, dq);
          }
        }
      for (int64_t j = 0; j < T; j++)
        for (int64_t d = 0; d < D; d++) {
          put(type, dqkv, k_at(a, b, j, kv) + d, dk[j * D + d]);
          put(type, dqkv, v_at(a, b, j, kv) + d, dv[j * D + d]);
        }
    }
}
