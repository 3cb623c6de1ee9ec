/* `motley bench step`: a training step beside what its matrix products cost alone.
 *
 * The idea: the same run alternates steps and bare calls of the GEMM library at the step's shapes (one call per product,
 * forward and both backward ones), so that both see the same machine; the ratio of the two is what the step makes of the
 * machine. The trap: a step's time without its head is a difference of times, so both are taken per kind of task. */
#include "train/bench_step.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/random.h"
#include "kernels/cpu/limit.h"
#include "train/session.h"
#include "train/step.h"

enum { REPEAT = 7, MOST = 16 };

/* One product y[n,out] = x[n,in] w^T of the forward pass, `times` of them a step; its backward pass has two more. */
struct product {
  const char *name;
  int64_t n, in, out;
  double times;
  int products; /* 3 with both backward ones */
};

static int products_of(const struct mt_model *model, int64_t N, double micro_steps, struct product *p)
{
  const struct mt_arch *a = &model->arch;
  const int64_t wide = a->gated ? 2 : 1;
  const double moe = model->params.nmoe * micro_steps, dense = (double)a->L * micro_steps - moe, all = (double)a->L * micro_steps;
  const double heads = (double)(N / model->T) * (double)a->H * all;
  int n = 0;
  p[n++] = (struct product){"q, k, v", N, a->C, (a->H + 2 * a->KV) * a->D, all, 3};
  p[n++] = (struct product){"attention output", N, a->H * a->D, a->C, all, 3};
  /* scores and values of a head: a causal mask leaves half of the products (2 forward, 5 backward: scores again, dv, dp, dq, dk) */
  p[n++] = (struct product){"attention", model->T, a->D, model->T, heads * 7 / 2, 1};
  if (moe > 0) {
    p[n++] = (struct product){"router", N, a->C, a->E, moe, 3};
    p[n++] = (struct product){"experts in", N * a->K / a->E, a->C, a->F * wide, moe * (double)a->E, 3};
    p[n++] = (struct product){"experts out", N * a->K / a->E, a->F, a->C, moe * (double)a->E, 3};
  }
  if (dense > 0) {
    p[n++] = (struct product){"mlp in", N, a->C, a->F * wide, dense, 3};
    p[n++] = (struct product){"mlp out", N, a->F, a->C, dense, 3};
  }
  p[n++] = (struct product){"head", N, a->C, a->V, micro_steps, 3};
  return n;
}

static double flops(const struct product *p)
{
  return 2.0 * (double)p->n * (double)p->in * (double)p->out * p->times * p->products;
}

/* Seconds of one call of each of the product's GEMMs, times their number in a step. */
static double gemm_seconds(const struct product *p, int threads, const float *x, const float *w, float *y, float *dw)
{
  double start = mt_time();
  mt_limit_gemm(threads, 0, 1, p->n, p->out, p->in, x, w, y, 0);
  if (p->products == 3) {
    mt_limit_gemm(threads, 0, 0, p->n, p->in, p->out, y, w, dw, 0); /* dx, as large as x at most */
    mt_limit_gemm(threads, 1, 0, p->out, p->in, p->n, y, x, dw, 0);
  }
  return (mt_time() - start) * p->times;
}

static int ascending(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *x, int n)
{
  qsort(x, (size_t)n, sizeof *x, ascending);
  return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static enum mt_status random_tokens(void *self, int64_t position, int32_t *token)
{
  const struct mt_config *config = self;
  for (int64_t t = 0; t <= config->data.seq_length; t++)
    token[t] = (int32_t)(mt_random_bits(1, MT_STREAM_TEST, (uint64_t)(position * (config->data.seq_length + 1) + t)) %
                         (uint64_t)config->model.vocab_size);
  return MT_OK;
}

static float *filled(int64_t n)
{
  float *x = MT_NEW(MT_TAG_MISC, float, n);
  mt_random_fill_normal(x, n, 1, MT_STREAM_TEST, 0, 1);
  return x;
}

static void report(struct mt_step *step, const struct product *p, int n, double (*gemm)[REPEAT], double *step_s, double *head_s,
                   double (*kind)[MT_NTASK_KIND])
{
  const struct mt_config *config = step->config;
  double total = 0, total_flops = 0, head = 0, head_flops = 0;
  mt_info("FLOP of a step = 2 n in out per product, forward 1, backward 2 products; attention 7/2 T T D a head (causal)");
  mt_info("%-18s %8s %8s %8s %8s %10s %10s %10s", "product", "n", "in", "out", "a step", "GFLOP", "sgemm s", "GFLOP/s");
  for (int i = 0; i < n; i++) {
    double seconds = median(gemm[i], REPEAT);
    mt_info("%-18s %8lld %8lld %8lld %8.0f %10.1f %10.4f %10.1f", p[i].name, (long long)p[i].n, (long long)p[i].in,
            (long long)p[i].out, p[i].times * p[i].products, flops(&p[i]) * 1e-9, seconds, flops(&p[i]) * 1e-9 / seconds);
    total += seconds;
    total_flops += flops(&p[i]);
    if (!strcmp(p[i].name, "head")) {
      head = seconds;
      head_flops = flops(&p[i]);
    }
  }
  double sum[MT_NTASK_KIND] = {0}, whole = 0;
  for (int r = 0; r < REPEAT; r++)
    for (int k = 0; k < MT_NTASK_KIND; k++) {
      sum[k] += kind[r][k];
      whole += kind[r][k];
    }
  mt_info("share of the step by kind of task:");
  for (int k = 0; k < MT_NTASK_KIND; k++)
    if (sum[k] > 0.002 * whole)
      mt_info("  %-16s %5.1f %%", mt_task_name((enum mt_task_kind)k), 100 * sum[k] / whole);
  double low = step_s[0], high = step_s[0];
  for (int r = 1; r < REPEAT; r++) {
    low = step_s[r] < low ? step_s[r] : low;
    high = step_s[r] > high ? step_s[r] : high;
  }
  double without[REPEAT];
  for (int r = 0; r < REPEAT; r++)
    without[r] = step_s[r] - head_s[r];
  double seconds = median(step_s, REPEAT), rest = median(without, REPEAT);
  double tokens = (double)config->train.global_batch * (double)config->data.seq_length;
  mt_info("step %.4f s (%.4f to %.4f, median of %d)  %.0f tokens/s  %.1f GFLOP/s", seconds, low, high, REPEAT, tokens / seconds,
          total_flops * 1e-9 / seconds);
  mt_info("sgemm at the same shapes %.4f s  %.1f GFLOP/s", total, total_flops * 1e-9 / total);
  mt_info("ratio %.3f  without the head %.3f (%.1f of %.1f GFLOP/s)", total / seconds, (total - head) / rest,
          (total_flops - head_flops) * 1e-9 / rest, (total_flops - head_flops) * 1e-9 / (total - head));
}

enum mt_status mt_bench_step(struct mt_comm *comm, const struct mt_config *config)
{
  struct mt_session session;
  MT_TRY(mt_session_open(comm, config, mt_step_max_B(config, comm), config->data.seq_length, 1, &session));
  struct mt_step *step = mt_step_new(comm, session.model, config, (struct mt_source){random_tokens, (void *)(uintptr_t)config});
  struct product p[MOST];
  int64_t N = mt_step_max_B(config, comm) * config->data.seq_length;
  int n = products_of(session.model, N, (double)step->nmicro, p);
  int64_t most_x = 1, most_w = 1, most_y = 1;
  for (int i = 0; i < n; i++) {
    most_x = p[i].n * p[i].in > most_x ? p[i].n * p[i].in : most_x;
    most_w = p[i].in * p[i].out > most_w ? p[i].in * p[i].out : most_w;
    most_y = p[i].n * p[i].out > most_y ? p[i].n * p[i].out : most_y;
  }
  int64_t most_d = most_w > most_x ? most_w : most_x;
  float *x = filled(most_x), *w = filled(most_w), *y = filled(most_y), *dw = filled(most_d);
  double gemm[MOST][REPEAT], step_s[REPEAT], head_s[REPEAT], kind[REPEAT][MT_NTASK_KIND];
  const double tokens = (double)config->train.global_batch * (double)config->data.seq_length;
  for (int warm = 0; warm < 2; warm++)
    mt_step_run(step, warm + 1, 0);
  for (int r = 0; r < REPEAT; r++) {
    const struct mt_step_result *result = mt_step_run(step, r + 3, (int64_t)(r + 1) * config->train.global_batch);
    step_s[r] = result->step_s;
    head_s[r] = step->times.kind_s[MT_TASK_HEAD];
    memcpy(kind[r], step->times.kind_s, sizeof kind[r]);
    for (int i = 0; i < n; i++)
      gemm[i][r] = gemm_seconds(&p[i], session.device->threads, x, w, y, dw);
    mt_info("  %d of %d: step %.4f s, %.0f tokens/s", r + 1, REPEAT, step_s[r], tokens / step_s[r]);
  }
  report(step, p, n, gemm, step_s, head_s, kind);
  mt_free(x);
  mt_free(w);
  mt_free(y);
  mt_free(dw);
  mt_step_free(step);
  mt_session_close(&session);
  return MT_OK;
}
