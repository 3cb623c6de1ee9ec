/* The matrix products of a training step, as data: what benchmarks count and repeat. */
#ifndef MT_PRODUCT_H
#define MT_PRODUCT_H
#include "model/model.h"

enum mt_product_kind { MT_PRODUCT_LINEAR, MT_PRODUCT_EXPERTS, MT_PRODUCT_ROUTER, MT_PRODUCT_ATTENTION };
enum { MT_MOST_PRODUCTS = 16 };

/* y[n,out] = x[n,in] w^T in each of `ngroup` groups, each with weights of its own (groups of experts share ngroup n
 * rows, evenly or not), `times` a step; two more of the same size come with its backward pass, except for attention's,
 * which are counted with it. */
struct mt_product {
  const char *name;
  enum mt_product_kind kind;
  int64_t ngroup, n, in, out;
  double times;
};

/* Products of a step whose micro-steps have N = B T tokens here; returns how many. Pure. */
int mt_products(const struct mt_arch *arch, int nmoe, int64_t N, int64_t T, double micro_steps,
                struct mt_product product[MT_MOST_PRODUCTS]);
/* Of one size that go with each: itself and its backward ones. Pure, like the next. */
static inline int mt_product_parts(const struct mt_product *p)
{
  return p->kind == MT_PRODUCT_ATTENTION ? 1 : 3;
}
/* FLOP of one of its parts, all groups. */
static inline double mt_product_flops(const struct mt_product *p)
{
  return 2.0 * (double)(p->ngroup * p->n) * (double)p->in * (double)p->out;
}

#endif
