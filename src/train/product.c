/* The products of a step; see product.h. */
#include "train/product.h"

int mt_products(const struct mt_arch *a, int nmoe, int64_t N, int64_t T, double micro_steps,
                struct mt_product p[MT_MOST_PRODUCTS])
{
  const int64_t wide = a->gated ? 2 : 1;
  const double all = (double)a->L * micro_steps, moe = nmoe * micro_steps, dense = all - moe;
  int n = 0;
  p[n++] = (struct mt_product){"q, k, v", MT_PRODUCT_LINEAR, 1, N, a->C, (a->H + 2 * a->KV) * a->D, all};
  p[n++] = (struct mt_product){"attention output", MT_PRODUCT_LINEAR, 1, N, a->H * a->D, a->C, all};
  /* scores and values of a head: a causal mask leaves half of the products (2 forward, 5 backward: scores again, dv,
   * dp, dq, dk) */
  p[n++] = (struct mt_product){"attention", MT_PRODUCT_ATTENTION, 1, T, a->D, T, (double)(N / T * a->H) * all * 7 / 2};
  if (moe > 0) {
    int64_t rows = N * a->K / a->E;
    p[n++] = (struct mt_product){"router", MT_PRODUCT_ROUTER, 1, N, a->C, a->E, moe};
    p[n++] = (struct mt_product){"experts in", MT_PRODUCT_EXPERTS, a->E, rows, a->C, a->F * wide, moe};
    p[n++] = (struct mt_product){"experts out", MT_PRODUCT_EXPERTS, a->E, rows, a->F, a->C, moe};
  }
  if (dense > 0) {
    p[n++] = (struct mt_product){"mlp in", MT_PRODUCT_LINEAR, 1, N, a->C, a->F * wide, dense};
    p[n++] = (struct mt_product){"mlp out", MT_PRODUCT_LINEAR, 1, N, a->F, a->C, dense};
  }
  p[n++] = (struct mt_product){"head", MT_PRODUCT_LINEAR, 1, N, a->C, a->V, micro_steps};
  return n;
}
