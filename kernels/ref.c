/* The reference: every operation by its definition, in plain loops, accumulated in double; the oracle of
 * other backends.
 *
 * The idea: be evidently right, not fast. A value is read with get, whatever its type, computed in double and
 * rounded once with put. The trap: a backend starts from a copy of this table, so nothing here may depend on
 * ctype being f32 or on the workspace holding anything. */
#include "ref.h"
#include <math.h>

/* ---- linear layers ---- */

static void linear(struct mt_device *device, const struct mt_linear *l, void *y, const void *x, const void *w,
                   const void *b, int add)
{
  enum mt_dtype type = device->ctype;
  for (int g = 0; g < l->ngroup; g++) {
    const void *wg = mt_at(device, w, g * l->wstride), *bg = b ? mt_at(device, b, g * l->bstride) : NULL;
    for (int64_t r = l->first[g]; r < l->first[g + 1]; r++)
      for (int64_t o = 0; o < l->out; o++) {
        double sum = bg ? get(type, bg, o) : 0;
        for (int64_t i = 0; i < l->in; i++)
          sum += get(type, x, r * l->in + i) * get(type, wg, o * l->in + i);
        put_add(type, y, r * l->out + o, sum, add);
      }
  }
}

static void linear_dx(struct mt_device *device, const struct mt_linear *l, void *dx, const void *dy,
                      const void *w, int add)
{
  enum mt_dtype type = device->ctype;
  for (int g = 0; g < l->ngroup; g++) {
    const void *wg = mt_at(device, w, g * l->wstride);
    for (int64_t r = l->first[g]; r < l->first[g + 1]; r++)
      for (int64_t i = 0; i < l->in; i++) {
        double sum = 0;
        for (int64_t o = 0; o < l->out; o++)
          sum += get(type, dy, r * l->out + o) * get(type, wg, o * l->in + i);
        put_add(type, dx, r * l->in + i, sum, add);
      }
  }
}

static void linear_dw(struct mt_device *device, const struct mt_linear *l, float *dw, float *db,
                      const void *dy, const void *x)
{
  enum mt_dtype type = device->ctype;
  for (int g = 0; g < l->ngroup; g++)
    for (int64_t o = 0; o < l->out; o++) {
      float *row = dw + g * l->wstride + o * l->in;
      for (int64_t i = 0; i < l->in; i++) {
        double sum = 0;
        for (int64_t r = l->first[g]; r < l->first[g + 1]; r++)
          sum += get(type, dy, r * l->out + o) * get(type, x, r * l->in + i);
        row[i] = (float)(row[i] + sum);
      }
      if (db) {
        double sum = 0;
        for (int64_t r = l->first[g]; r < l->first[g + 1]; r++)
          sum += get(type, dy, r * l->out + o);
        db[g * l->bstride + o] = (float)(db[g * l->bstride + o] + sum);
      }
    }
}

/* ---- norms ---- */

static void norm(struct mt_device *device, enum mt_norm_kind kind, void *y, float *mean, float *rstd,
                 const void *x, const float *w, const float *b, int64_t n, int64_t c, float eps)
{
  enum mt_dtype type = device->ctype;
  for (int64_t r = 0; r < n; r++) {
    double mu = 0, square = 0;
    if (kind == MT_NORM_LAYER) {
      for (int64_t i = 0; i < c; i++)
        mu += get(type, x, r * c + i);
      mu /= (double)c;
      mean[r] = (float)mu;
    }
    for (int64_t i = 0; i < c; i++) {
      double d = get(type, x, r * c + i) - mu;
      square += d * d;
    }
    double s = 1 / sqrt(square / (double)c + eps);
    rstd[r] = (float)s;
    for (int64_t i = 0; i < c; i++)
      put(type, y, r * c + i, (get(type, x, r * c + i) - mu) * s * w[i] + (kind == MT_NORM_LAYER ? b[i] : 0));
  }
}

/* With g = dy w and u = (x - mean) rstd, dx = rstd (g - mean(g) - u mean(g u)); RMS has no mean(g). */
static void norm_back(struct mt_device *device, enum mt_norm_kind kind, void *dx, int add, float *dw,
                      float *db, const void *dy, const void *x, const float *mean, const float *rstd,
                      const float *w, int64_t n, int64_t c)
{
  enum mt_dtype type = device->ctype;
  for (int64_t i = 0; i < c; i++) { /* first, since dx may be dy */
    double sum = 0, sum_u = 0;
    for (int64_t r = 0; r < n; r++) {
      double g = get(type, dy, r * c + i);
      sum += g;
      sum_u += g * (get(type, x, r * c + i) - (kind == MT_NORM_LAYER ? mean[r] : 0)) * rstd[r];
    }
    dw[i] = (float)(dw[i] + sum_u);
    if (kind == MT_NORM_LAYER)
      db[i] = (float)(db[i] + sum);
  }
  for (int64_t r = 0; r < n; r++) {
    double mu = kind == MT_NORM_LAYER ? mean[r] : 0, g_mean = 0, gu_mean = 0;
    for (int64_t i = 0; i < c; i++) {
      double g = get(type, dy, r * c + i) * w[i];
      g_mean += g;
      gu_mean += g * (get(type, x, r * c + i) - mu) * rstd[r];
    }
    g_mean = kind == MT_NORM_LAYER ? g_mean / (double)c : 0;
    gu_mean /= (double)c;
    for (int64_t i = 0; i < c; i++) {
      double u = (get(type, x, r * c + i) - mu) * rstd[r];
      put_add(type, dx, r * c + i, rstd[r] * (get(type, dy, r * c + i) * w[i] - g_mean - u * gu_mean), add);
    }
  }
}

/* ---- embedding ---- */

static void embed(struct mt_device *device, void *x, const int32_t *token, const int32_t *position,
                  const void *wte, const void *wpe, int64_t n, int64_t c)
{
  enum mt_dtype type = device->ctype;
  for (int64_t r = 0; r < n; r++)
    for (int64_t i = 0; i < c; i++)
      put(type, x, r * c + i,
          get(type, wte, token[r] * c + i) + (wpe ? get(type, wpe, position[r] * c + i) : 0));
}

static void embed_back(struct mt_device *device, float *dwte, float *dwpe, const void *dx,
                       const int32_t *token, const int32_t *position, int64_t n, int64_t c)
{
  enum mt_dtype type = device->ctype;
  for (int64_t r = 0; r < n; r++)
    for (int64_t i = 0; i < c; i++) {
      float g = (float)get(type, dx, r * c + i);
      dwte[token[r] * c + i] += g;
      if (dwpe)
        dwpe[position[r] * c + i] += g;
    }
}

/* ---- rotary embedding ---- */

static void rope(struct mt_device *device, void *x, int64_t n, int64_t stride, int64_t heads, int64_t D,
                 const int32_t *position, const float *table, int inverse)
{
  enum mt_dtype type = device->ctype;
  for (int64_t r = 0; r < n; r++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t i = 0; i < D / 2; i++) {
        const float *turn = table + (position[r] * (D / 2) + i) * 2;
        double c = turn[0], s = inverse ? -turn[1] : turn[1];
        int64_t low = r * stride + h * D + i, high = low + D / 2;
        double a = get(type, x, low), b = get(type, x, high);
        put(type, x, low, a * c - b * s);
        put(type, x, high, b * c + a * s);
      }
}

/* ---- activations ---- */

static double sigmoid(double x)
{
  return 1 / (1 + exp(-x));
}

static void swiglu(struct mt_device *device, void *h, const void *gu, int64_t n, int64_t f)
{
  enum mt_dtype type = device->ctype;
  for (int64_t r = 0; r < n; r++)
    for (int64_t i = 0; i < f; i++) {
      double g = get(type, gu, r * 2 * f + i), u = get(type, gu, r * 2 * f + f + i);
      put(type, h, r * f + i, g * sigmoid(g) * u);
    }
}

static void swiglu_back(struct mt_device *device, void *dgu, const void *dh, const void *gu, int64_t n,
                        int64_t f)
{
  enum mt_dtype type = device->ctype;
  for (int64_t r = 0; r < n; r++)
    for (int64_t i = 0; i < f; i++) {
      double g = get(type, gu, r * 2 * f + i), u = get(type, gu, r * 2 * f + f + i),
             d = get(type, dh, r * f + i);
      double s = sigmoid(g);
      put(type, dgu, r * 2 * f + i, d * u * s * (1 + g * (1 - s)));
      put(type, dgu, r * 2 * f + f + i, d * g * s);
    }
}

/* gelu(x) = x (1 + tanh(r (x + 0.044715 x^3))) / 2, r = sqrt(2 / pi). Hendrycks and Gimpel, 2016. */
static const double GELU_ROOT = 0.79788456080286535588, GELU_CUBE = 0.044715;

static void gelu(struct mt_device *device, void *y, const void *x, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    double v = get(device->ctype, x, i);
    put(device->ctype, y, i, v * (1 + tanh(GELU_ROOT * (v + GELU_CUBE * v * v * v))) / 2);
  }
}

static void gelu_back(struct mt_device *device, void *dx, const void *dy, const void *x, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    double v = get(device->ctype, x, i), t = tanh(GELU_ROOT * (v + GELU_CUBE * v * v * v));
    double slope = (1 + t) / 2 + v * (1 - t * t) * GELU_ROOT * (1 + 3 * GELU_CUBE * v * v) / 2;
    put(device->ctype, dx, i, get(device->ctype, dy, i) * slope);
  }
}

/* ---- router ---- */

static void gate_logits(struct mt_device *device, float *logits, const void *x, const float *w, int64_t n,
                        int64_t c, int64_t E)
{
  for (int64_t t = 0; t < n; t++)
    for (int64_t e = 0; e < E; e++) {
      double sum = 0;
      for (int64_t i = 0; i < c; i++)
        sum += get(device->ctype, x, t * c + i) * w[e * c + i];
      logits[t * E + e] = (float)sum;
    }
}

static void gate_logits_back(struct mt_device *device, void *dx, float *dw, const float *dlogits,
                             const void *x, const float *w, int64_t n, int64_t c, int64_t E)
{
  for (int64_t t = 0; t < n; t++)
    for (int64_t i = 0; i < c; i++) {
      double sum = 0;
      for (int64_t e = 0; e < E; e++)
        sum += (double)dlogits[t * E + e] * w[e * c + i];
      put_add(device->ctype, dx, t * c + i, sum, 1);
    }
  for (int64_t e = 0; e < E; e++)
    for (int64_t i = 0; i < c; i++) {
      double sum = 0;
      for (int64_t t = 0; t < n; t++)
        sum += dlogits[t * E + e] * get(device->ctype, x, t * c + i);
      dw[e * c + i] = (float)(dw[e * c + i] + sum);
    }
}

static int contains(const int32_t *list, int64_t n, int64_t value)
{
  for (int64_t i = 0; i < n; i++)
    if (list[i] == value)
      return 1;
  return 0;
}

static double log_sum_exp(enum mt_dtype type, const void *x, int64_t first, int64_t n)
{
  double largest = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++)
    largest = fmax(largest, get(type, x, first + i));
  for (int64_t i = 0; i < n; i++)
    sum += exp(get(type, x, first + i) - largest);
  return largest + log(sum);
}

static void gate_topk(struct mt_device *device, float *p, float *lse, int32_t *expert, float *weight,
                      const float *logits, int64_t n, int64_t E, int64_t K, int balanced)
{
  (void)device;
  for (int64_t t = 0; t < n; t++) {
    const float *l = logits + t * E;
    int32_t *chosen = expert + t * K;
    double total = log_sum_exp(MT_F32, l, 0, E);
    lse[t] = (float)total;
    for (int64_t e = 0; e < E; e++)
      p[t * E + e] = (float)exp(l[e] - total);
    for (int64_t k = 0; k < K; k++) {
      int64_t best = -1;
      for (int64_t e = 0; e < E && !balanced; e++)
        if (!contains(chosen, k, e) && (best < 0 || l[e] > l[best]))
          best = e;
      chosen[k] = (int32_t)(balanced ? ((t + balanced - 1) * K + k) % E : best);
    }
    double largest = -INFINITY,
           sum = 0; /* softmax over the chosen: balanced ones may all have p = 0 in f32 */
    for (int64_t k = 0; k < K; k++)
      largest = fmax(largest, l[chosen[k]]);
    for (int64_t k = 0; k < K; k++)
      sum += exp(l[chosen[k]] - largest);
    for (int64_t k = 0; k < K; k++)
      weight[t * K + k] = (float)(exp(l[chosen[k]] - largest) / sum);
  }
}

static void gate_topk_back(struct mt_device *device, float *dlogits, const float *dweight, const float *p,
                           const float *lse, const int32_t *expert, const float *weight, const float *aux,
                           float z, int64_t n, int64_t T, int64_t E, int64_t K)
{
  (void)device;
  for (int64_t t = 0; t < n; t++) {
    const float *a = aux + t / T * E;
    double mean_w = 0, mean_a = 0;
    for (int64_t k = 0; k < K; k++)
      mean_w += (double)weight[t * K + k] * dweight[t * K + k];
    for (int64_t e = 0; e < E; e++)
      mean_a += (double)p[t * E + e] * a[e];
    for (int64_t e = 0; e < E; e++) {
      double d = p[t * E + e] * (a[e] - mean_a + 2.0 * z * lse[t]);
      for (int64_t k = 0; k < K; k++)
        if (expert[t * K + k] == e)
          d += weight[t * K + k] * (dweight[t * K + k] - mean_w);
      dlogits[t * E + e] = (float)d;
    }
  }
}

static void gate_sums(struct mt_device *device, double *psum, double *zsum, const float *p, const float *lse,
                      int64_t B, int64_t T, int64_t E)
{
  (void)device;
  for (int64_t b = 0; b < B; b++) {
    zsum[b] = 0;
    for (int64_t e = 0; e < E; e++)
      psum[b * E + e] = 0;
    for (int64_t t = b * T; t < (b + 1) * T; t++) {
      zsum[b] += (double)lse[t] * lse[t];
      for (int64_t e = 0; e < E; e++)
        psum[b * E + e] += p[t * E + e];
    }
  }
}

/* ---- rows to and from experts ---- */

static void gather(struct mt_device *device, void *to, enum mt_dtype to_type, const void *from,
                   enum mt_dtype from_type, const int32_t *index, int64_t rows, int64_t width)
{
  (void)device;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < width; i++)
      put(to_type, to, r * width + i, get(from_type, from, index[r] * width + i));
}

static void combine(struct mt_device *device, void *y, int add, const void *row, enum mt_dtype row_type,
                    const int32_t *first, const int32_t *place, const float *weight, int64_t n, int64_t width)
{
  for (int64_t t = 0; t < n; t++)
    for (int64_t j = 0; j < width; j++) {
      double sum = 0;
      for (int64_t i = first[t]; i < first[t + 1]; i++)
        sum += (weight ? weight[i] : 1) * get(row_type, row, place[i] * width + j);
      put_add(device->ctype, y, t * width + j, sum, add);
    }
}

static void combine_back(struct mt_device *device, void *drow, float *dweight, const void *dy,
                         const void *row, enum mt_dtype row_type, const int32_t *first, const int32_t *place,
                         const float *weight, int64_t n, int64_t width)
{
  for (int64_t t = 0; t < n; t++)
    for (int64_t i = first[t]; i < first[t + 1]; i++) {
      double dot = 0;
      for (int64_t j = 0; j < width; j++) {
        double d = get(device->ctype, dy, t * width + j);
        if (dweight)
          dot += d * get(row_type, row, place[i] * width + j);
        put(row_type, drow, place[i] * width + j, (weight ? weight[i] : 1) * d);
      }
      if (dweight)
        dweight[i] = (float)dot;
    }
}

/* ---- loss ---- */

static void cross_entropy(struct mt_device *device, float *loss, void *logits, const int32_t *target,
                          const float *scale, int64_t n, int64_t V, int back)
{
  enum mt_dtype type = device->ctype;
  for (int64_t r = 0; r < n; r++) {
    double total = scale[r] != 0 ? log_sum_exp(type, logits, r * V, V) : 0;
    loss[r] = scale[r] != 0 ? (float)(total - get(type, logits, r * V + target[r])) : 0;
    for (int64_t v = 0; v < V && back; v++) {
      double p = scale[r] != 0 ? exp(get(type, logits, r * V + v) - total) - (v == target[r]) : 0;
      put(type, logits, r * V + v, scale[r] * p);
    }
  }
}

/* ---- vectors ---- */

static void add(struct mt_device *device, float *y, const float *x, int64_t n)
{
  (void)device;
  for (int64_t i = 0; i < n; i++)
    y[i] += x[i];
}

static void add_act(struct mt_device *device, void *y, const void *x, int64_t n)
{
  for (int64_t i = 0; i < n; i++)
    put_add(device->ctype, y, i, get(device->ctype, x, i), 1);
}

static void convert(struct mt_device *device, void *to, enum mt_dtype to_type, const void *from,
                    enum mt_dtype from_type, int64_t n)
{
  (void)device;
  for (int64_t i = 0; i < n; i++)
    put(to_type, to, i, get(from_type, from, i));
}

static void sum_squares(struct mt_device *device, double *sum, const float *x, int64_t n)
{
  (void)device;
  *sum = 0;
  for (int64_t i = 0; i < n; i++)
    *sum += (double)x[i] * x[i];
}

static void adamw(struct mt_device *device, float *w, float *m, float *v, const float *grad, int64_t n,
                  const struct mt_adamw *a)
{
  (void)device;
  for (int64_t i = 0; i < n; i++) {
    double g = (double)grad[i] * a->grad_scale;
    double m_new = (double)a->beta1 * m[i] + (1.0 - a->beta1) * g,
           v_new = (double)a->beta2 * v[i] + (1.0 - a->beta2) * g * g;
    m[i] = (float)m_new;
    v[i] = (float)v_new;
    double step = m_new / a->correction1 / (sqrt(v_new / a->correction2) + a->eps);
    w[i] = (float)(w[i] - a->lr * (step + (double)a->weight_decay * w[i]));
  }
}

const struct mt_kernels mt_kernels_ref = {
    .linear = linear,
    .linear_dx = linear_dx,
    .linear_dw = linear_dw,
    .norm = norm,
    .norm_back = norm_back,
    .embed = embed,
    .embed_back = embed_back,
    .rope = rope,
    .attention_work = mt_ref_attention_work,
    .attention = mt_ref_attention,
    .attention_back = mt_ref_attention_back,
    .swiglu = swiglu,
    .swiglu_back = swiglu_back,
    .gelu = gelu,
    .gelu_back = gelu_back,
    .gate_logits = gate_logits,
    .gate_logits_back = gate_logits_back,
    .gate_topk = gate_topk,
    .gate_topk_back = gate_topk_back,
    .gate_sums = gate_sums,
    .gather = gather,
    .combine = combine,
    .combine_back = combine_back,
    .cross_entropy = cross_entropy,
    .add = add,
    .add_act = add_act,
    .convert = convert,
    .sum_squares = sum_squares,
    .adamw = adamw,
};
