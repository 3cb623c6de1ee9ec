/* bfloat16: the upper half of an f32. */
#ifndef MT_BF16_H
#define MT_BF16_H
#include <stdint.h>
#include <string.h>

static inline float mt_bf16_to_f32(uint16_t value)
{
  uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

/* Rounds to nearest, ties to even; overflows to infinity. A NaN stays one: rounding could carry its bits into
 * infinity's. */
static inline uint16_t mt_bf16_from_f32(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return (uint16_t)((bits >> 16) | 0x40);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#endif
