/* What kernels/cuda/mma.cuh does with PTX, from the definitions of the PTX manual (mma.m16n8k16, fragments of bf16):
 * the twin that the emulation runs. Lane l has g = l / 4, t = l % 4. */
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

/* One warp's product, from all lanes' fragments (A at byte 0, B at 16) to their four sums (at 32). */
static inline void emulated_product(char *lanes)
{
  float a[16][16], b[16][8], c[16][8] = {};
  for (int lane = 0; lane < 32; lane++) {
    int g = lane / 4, t = lane % 4;
    uint32_t f[6];
    memcpy(f, lanes + lane * EMULATED_LANE_BYTES, sizeof f);
    for (int i = 0; i < 4; i++)
      for (int half = 0; half < 2; half++)
        a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] = mt_bf16_to_f32((uint16_t)(f[i] >> 16 * half));
    for (int i = 0; i < 2; i++)
      for (int half = 0; half < 2; half++)
        b[2 * t + i * 8 + half][g] = mt_bf16_to_f32((uint16_t)(f[4 + i] >> 16 * half));
  }
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < 16; k++)
      for (int column = 0; column < 8; column++)
        c[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; lane++) {
    int g = lane / 4, t = lane % 4;
    float mine[4] = {c[g][2 * t], c[g][2 * t + 1], c[g + 8][2 * t], c[g + 8][2 * t + 1]};
    memcpy(lanes + lane * EMULATED_LANE_BYTES + 32, mine, sizeof mine);
  }
}

/* d[16,8] += A B: this lane's {(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)}. */
static inline void mt_mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
  uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const char *all = emulated_warp_exchange(0xffffffffu, mine, sizeof mine, emulated_product);
  float sum[4];
  memcpy(sum, all + emulated_lane() * EMULATED_LANE_BYTES + 32, sizeof sum);
  for (int i = 0; i < 4; i++)
    d[i] += sum[i];
}
#endif
