/* Private to the reference: values of any type as doubles, and what ref.c takes from ref_attention.c. */
#ifndef MT_REF_H
#define MT_REF_H
#include "bf16.h"
#include "ops.h"

static inline double get(enum mt_dtype type, const void *base, int64_t index)
{
  return type == MT_F32 ? ((const float *)base)[index] : mt_bf16_to_f32(((const uint16_t *)base)[index]);
}

static inline void put(enum mt_dtype type, void *base, int64_t index, double value)
{
  if (type == MT_F32)
    ((float *)base)[index] = (float)value;
  else
    ((uint16_t *)base)[index] = mt_bf16_from_f32((float)value);
}

/* put that adds what is there when `add` is 1; with add = 0 the old value is never read, it may be a NaN. */
static inline void put_add(enum mt_dtype type, void *base, int64_t index, double value, int add)
{
  put(type, base, index, add ? get(type, base, index) + value : value);
}

/* See ops.h. The workspace is one row of the attention matrix and the sums of one key/value head, in double.
 */
int64_t mt_ref_attention_work(const struct mt_device *device, const struct mt_attention *a);
void mt_ref_attention(struct mt_device *device, const struct mt_attention *a, void *out, float *lse,
                      const void *qkv);
void mt_ref_attention_back(struct mt_device *device, const struct mt_attention *a, void *dqkv,
                           const void *dout, const void *qkv, const void *out, const float *lse);

#endif
