/* __nv_bfloat16: the upper half of a float; rounding to nearest, ties to even. */
#ifndef EMULATED_CUDA_BF16_H
#define EMULATED_CUDA_BF16_H
#include "bf16.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
static inline float __bfloat162float(__nv_bfloat16 value)
{
  return mt_bf16_to_f32(value.bits);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float value)
{
  return __nv_bfloat16{mt_bf16_from_f32(value)};
}
#endif
