/* What kernels/cuda/mma.cuh does with PTX, from the definitions of the PTX manual (mma.m16n8k16, fragments of bf16): the
 * twin that the emulation runs. Lane l has g = l / 4, t = l % 4. */
#ifndef EMULATED_MMA_H
#define EMULATED_MMA_H
#include <cuda_bf16.h>
#include <cuda_runtime.h>

static inline uint32_t emulated_pair(const __nv_bfloat16 *low, const __nv_bfloat16 *high)
{
  return low->bits | (uint32_t)high->bits << 16;
}

/* A[16,16], row-major: {(g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)}, each with its right neighbour. */
static inline void mt_load_a(uint32_t (&f)[4], const __nv_bfloat16 *a, int ld)
{
  int g = emulated_lane() / 4, t = emulated_lane() % 4;
  for (int i = 0; i < 4; i++) {
    const __nv_bfloat16 *at = a + (g + i % 2 * 8) * ld + 2 * t + i / 2 * 8;
    f[i] = emulated_pair(at, at + 1);
  }
}

/* B[16,8] from b[n,k]: {(k = 2t, n = g), (k = 2t + 8, n = g)}, each with the next k. */
static inline void mt_load_b(uint32_t (&f)[2], const __nv_bfloat16 *b, int ld)
{
  int g = emulated_lane() / 4, t = emulated_lane() % 4;
  for (int i = 0; i < 2; i++) {
    const __nv_bfloat16 *at = b + g * ld + 2 * t + i * 8;
    f[i] = emulated_pair(at, at + 1);
  }
}

/* The same from b[k,n]. */
static inline void mt_load_bt(uint32_t (&f)[2], const __nv_bfloat16 *b, int ld)
{
  int g = emulated_lane() / 4, t = emulated_lane() % 4;
  for (int i = 0; i < 2; i++) {
    const __nv_bfloat16 *at = b + (2 * t + i * 8) * ld + g;
    f[i] = emulated_pair(at, at + ld);
  }
}

/* d[16,8] += A B: this lane's {(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)}. */
static inline void mt_mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
  struct {
    uint32_t a[4], b[2];
  } mine;
  memcpy(mine.a, a, sizeof mine.a);
  memcpy(mine.b, b, sizeof mine.b);
  const char *all = emulated_warp_exchange(0xffffffffu, &mine, sizeof mine);
  int g = emulated_lane() / 4, t = emulated_lane() % 4;
  for (int i = 0; i < 4; i++) {
    int row = i / 2, column = 2 * t + i % 2;
    float sum = 0;
    for (int k = 0; k < 16; k++) {
      uint32_t x, y;
      memcpy(&x, all + (g * 4 + k % 8 / 2) * EMULATED_LANE_BYTES + (row + k / 8 * 2) * 4, 4);
      memcpy(&y, all + (column * 4 + k % 8 / 2) * EMULATED_LANE_BYTES + 16 + k / 8 * 4, 4);
      sum += mt_bf16_to_f32((uint16_t)(x >> k % 2 * 16)) * mt_bf16_to_f32((uint16_t)(y >> k % 2 * 16));
    }
    d[i] += sum;
  }
}
#endif
