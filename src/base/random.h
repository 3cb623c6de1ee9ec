/* Counter-based random numbers.
 *
 * A random value is a function of (seed, stream, index), never a state: any rank can make any value, whatever was made
 * before, so initial weights do not depend on the number of ranks and a checkpoint needs no generator state.
 * Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#ifndef MT_RANDOM_H
#define MT_RANDOM_H
#include <stdint.h>

/* Streams of one seed; a stream's index space is 64 bit. */
enum mt_stream {
  MT_STREAM_INIT = 1,   /* + parameter number * 256: initial weights, index = element in the whole parameter */
  MT_STREAM_ORDER = 2,  /* sample order */
  MT_STREAM_SAMPLE = 3, /* generation: index = position of the token */
  MT_STREAM_TEST = 4,
  MT_STREAM_ROUTE = 5,  /* + layer * 256: routing that is made up, index = pick */
};

/* Ten rounds of Philox4x32 on counter c[4] with key k[2], into out[4]. Local. */
void mt_philox(const uint32_t c[4], const uint32_t k[2], uint32_t out[4]);
/* 64 random bits. */
uint64_t mt_random_bits(uint64_t seed, uint64_t stream, uint64_t index);
/* Uniform in [0, 1), 53 bits. */
double mt_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Standard normal (Box-Muller on the two halves of one block). */
double mt_random_normal(uint64_t seed, uint64_t stream, uint64_t index);
/* Fills x[n] with deviation * normal for indices first .. first+n-1. Local. */
void mt_random_fill_normal(float *x, int64_t n, uint64_t seed, uint64_t stream, uint64_t first, float deviation);

/* The i-th element (0 <= i < n) of a keyed permutation of [0, n), keyed by (seed, epoch): a Feistel network on the next
 * even power of two with cycle walking. Local, no memory. Black and Rogaway, "Ciphers with arbitrary finite domains",
 * CT-RSA 2002. */
uint64_t mt_random_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i);

#endif
