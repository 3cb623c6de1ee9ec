/* Counter-based random numbers; see random.h.
 *
 * The counter of a block is (index, stream), the key is the seed: four 32-bit words and two. The trap: a
 * value must not depend on which others were made before or by whom, so a normal uses one whole block
 * although Box-Muller could make two from it. */
#include "random.h"
#include <math.h>

void mt_philox(const uint32_t c[4], const uint32_t k[2], uint32_t out[4])
{
  uint32_t c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3], k0 = k[0], k1 = k[1];
  for (int round = 0; round < 10; round++) {
    uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)a;
    k0 += 0x9E3779B9u; /* the golden ratio and sqrt(3) - 1, as in the paper */
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/* The two 64-bit halves of one block. */
static void block(uint64_t seed, uint64_t stream, uint64_t index, uint64_t half[2])
{
  uint32_t c[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
  uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, out[4];
  mt_philox(c, k, out);
  half[0] = out[0] | (uint64_t)out[1] << 32;
  half[1] = out[2] | (uint64_t)out[3] << 32;
}

uint64_t mt_random_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
  uint64_t half[2];
  block(seed, stream, index, half);
  return half[0];
}

double mt_random_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
  return (double)(mt_random_bits(seed, stream, index) >> 11) * 0x1p-53;
}

double mt_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
  uint64_t half[2];
  block(seed, stream, index, half);
  double u = (double)((half[0] >> 11) + 1) * 0x1p-53; /* in (0, 1]: its logarithm is finite */
  double v = (double)(half[1] >> 11) * 0x1p-53;
  return sqrt(-2 * log(u)) * cos(6.283185307179586477 * v);
}

void mt_random_fill_normal(float *x, int64_t n, uint64_t seed, uint64_t stream, uint64_t first,
                           float deviation)
{
#pragma omp parallel for schedule(static) if (n >= 1 << 14)
  for (int64_t i = 0; i < n; i++)
    x[i] = (float)(deviation * mt_random_normal(seed, stream, first + (uint64_t)i));
}

/* The stream number keeps these blocks apart from those of `block` (no stream above is 2 modulo 256 but ORDER
 * itself). */
static uint32_t feistel_round(uint64_t seed, uint64_t epoch, uint32_t round, uint32_t right)
{
  uint32_t c[4] = {right, (uint32_t)epoch, MT_STREAM_ORDER | round << 16, (uint32_t)(epoch >> 32)};
  uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, out[4];
  mt_philox(c, k, out);
  return out[0];
}

uint64_t mt_random_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i)
{
  int bits = 2;
  while (bits < 64 && (n - 1) >> bits)
    bits += 2;
  int half = bits / 2;
  uint32_t mask = (uint32_t)((UINT64_C(1) << half) - 1);
  if (n <= 1)
    return 0;
  /* The network permutes [0, 2^bits) with 2^bits < 4 n (or bits = 2); following i's cycle until it is back
   * below n permutes [0, n), and takes fewer than four passes on average. */
  do {
    uint32_t left = (uint32_t)(i >> half), right = (uint32_t)i & mask;
    for (uint32_t round = 1; round <= 8; round++) {
      uint32_t next = left ^ (feistel_round(seed, epoch, round, right) & mask);
      left = right;
      right = next;
    }
    i = (uint64_t)left << half | right;
  } while (i >= n);
  return i;
}
