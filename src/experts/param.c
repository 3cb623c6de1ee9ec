/* The table of parameters; see param.h. */
#include "experts/param.h"
#include "base/memory.h"
#include "base/status.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct mt_param *mt_params_add(struct mt_params *params, enum mt_scope scope, int layer, int moe, int packed, int decay,
                               float deviation, float fill, int ndim, const int64_t *dim, const char *name, ...)
{
  if (params->n == params->capacity) {
    int capacity = params->capacity ? 2 * params->capacity : 64;
    struct mt_param *more = MT_NEW(MT_TAG_PLAN, struct mt_param, capacity);
    if (params->n)
      memcpy(more, params->param, sizeof *more * (size_t)params->n);
    mt_free(params->param);
    params->param = more;
    params->capacity = capacity;
  }
  struct mt_param *row = &params->param[params->n++];
  memset(row, 0, sizeof *row);
  va_list args;
  va_start(args, name);
  int length = vsnprintf(row->name, sizeof row->name, name, args);
  va_end(args);
  MT_CHECK(length < (int)sizeof row->name, "the parameter name %s is too long", row->name);
  row->scope = scope;
  row->layer = layer;
  row->moe = moe;
  row->ndim = ndim;
  row->count = 1;
  for (int i = 0; i < ndim; i++) {
    row->dim[i] = dim[i];
    row->count *= dim[i];
  }
  row->decay = decay;
  row->deviation = deviation;
  row->fill = fill;
  if (scope == MT_SCOPE_EXPERT && moe > 0) {
    /* the same place as in MoE layer 0: the n-th expert row of this layer is the n-th of that one */
    int number = 0;
    for (int i = 0; i < params->n - 1; i++)
      number += params->param[i].scope == MT_SCOPE_EXPERT && params->param[i].moe == moe;
    for (int i = 0; i < params->n - 1; i++)
      if (params->param[i].scope == MT_SCOPE_EXPERT && params->param[i].moe == 0 && number-- == 0) {
        MT_CHECK(params->param[i].count == row->count, "%s differs from layer 0's", row->name);
        row->offset = params->param[i].offset;
      }
    return row;
  }
  int64_t *end = scope == MT_SCOPE_SHARED ? &params->shared_length : &params->expert_length;
  row->offset = packed ? *end : (*end + 15) & ~(int64_t)15;
  *end = row->offset + row->count;
  return row;
}

void mt_params_free(struct mt_params *params)
{
  mt_free(params->param);
  memset(params, 0, sizeof *params);
}

int64_t mt_params_total(const struct mt_params *params)
{
  int64_t total = 0;
  for (int i = 0; i < params->n; i++)
    total += params->param[i].count * (params->param[i].scope == MT_SCOPE_EXPERT ? params->nexpert : 1);
  return total;
}
