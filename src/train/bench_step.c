/* `motley bench step`: a training step beside what its matrix products cost alone, and its time by kernel.
 *
 * The idea: the same run alternates steps and bare calls of the GEMM library at the step's shapes (one call per product,
 * forward and both backward ones), so that both see the same machine; the ratio of the two is what the step makes of the
 * machine. Beside a GPU the calls are its linear layers', which are cuBLAS's. The traps: a step's time without its head is
 * a difference of times, so both are taken per kind of task; and a GPU's work is over only when somebody waits for it, so
 * there the kinds of task say where the host waited, and what kernels take is told by further steps that wait for each. */
#include "train/bench_step.h"
#include <math.h>
#include <string.h>
#include "base/log.h"
#include "base/random.h"
#include "kernels/cpu/limit.h"
#include "kernels/timed.h"
#include "train/product.h"
#include "train/session.h"
#include "train/step.h"
#include "train/turns.h"

enum { REPEAT = 7, TIMED = 2 };

/* FLOP of a product in a step, with its backward ones. */
static double flops(const struct mt_product *p)
{
  return mt_product_flops(p) * mt_product_parts(p) * p->times;
}

/* Operands for the largest product: on the device, in its ctype, but dw. */
struct operands {
  void *x, *w, *y, *dx;
  float *dw;
};

static struct operands operands_new(struct mt_device *device, const struct mt_product *p, int n)
{
  int64_t x = 1, w = 1, y = 1;
  for (int i = 0; i < n; i++) {
    x = p[i].n * p[i].in > x ? p[i].n * p[i].in : x;
    w = p[i].in * p[i].out > w ? p[i].in * p[i].out : w;
    y = p[i].n * p[i].out > y ? p[i].n * p[i].out : y;
  }
  struct operands o = {mt_turns_operand(device, device->ctype, x), mt_turns_operand(device, device->ctype, w), mt_turns_operand(device, device->ctype, y),
                       mt_turns_operand(device, device->ctype, x), NULL};
  o.dw = device->ops->alloc(device, MT_TAG_MISC, MT_DEVICE, w * 4);
  device->ops->zero(device, MT_DEV_MATH, o.dw, w * 4);
  return o;
}

static void operands_free(struct mt_device *device, struct operands *o)
{
  void *all[] = {o->x, o->w, o->y, o->dx, o->dw};
  for (int i = 0; i < 5; i++)
    device->ops->free(device, MT_DEVICE, all[i]);
}

/* Seconds of one call of each of the product's GEMMs, times their number in a step. */
static double gemm_seconds(struct mt_device *device, const struct mt_product *p, const struct operands *o)
{
  const int backward = mt_product_parts(p) == 3, threads = device->threads;
  const int64_t rows[2] = {0, p->n};
  const struct mt_linear l = {1, rows, p->in, p->out, 0, 0};
  device->ops->sync(device, MT_DEV_MATH);
  double start = mt_time();
  if (device->host == device) {
    mt_limit_gemm(threads, 0, 1, p->n, p->out, p->in, o->x, o->w, o->y, 0);
    if (backward) {
      mt_limit_gemm(threads, 0, 0, p->n, p->in, p->out, o->y, o->w, o->dx, 0);
      mt_limit_gemm(threads, 1, 0, p->out, p->in, p->n, o->y, o->x, o->dw, 0);
    }
  } else {
    device->kernels->linear(device, &l, o->y, o->x, o->w, NULL, 0);
    if (backward) {
      device->kernels->linear_dx(device, &l, o->dx, o->y, o->w, 0);
      device->kernels->linear_dw(device, &l, o->dw, NULL, o->y, o->x);
    }
    device->ops->sync(device, MT_DEV_MATH);
  }
  return (mt_time() - start) * p->times * (double)p->ngroup;
}

static void report(struct mt_step *step, const struct mt_product *p, int n, double (*gemm)[REPEAT], double *step_s, double *head_s,
                   double (*kind)[MT_NTASK_KIND])
{
  const struct mt_config *config = step->config;
  const struct mt_device *device = step->model->device;
  double total = 0, total_flops = 0, head = 0, head_flops = 0;
  mt_info("FLOP of a step = 2 n in out per product, forward 1, backward 2 products; attention 7/2 T T D a head (causal)");
  mt_info("%-18s %8s %8s %8s %8s %10s %10s %10s", "product", "n", "in", "out", "a step", "GFLOP", "alone s", "GFLOP/s");
  for (int i = 0; i < n; i++) {
    double seconds = mt_spread_of(gemm[i], REPEAT).median;
    mt_info("%-18s %8lld %8lld %8lld %8.0f %10.*f %10.*f %10.*f", p[i].name, (long long)p[i].n, (long long)p[i].in,
            (long long)p[i].out, p[i].times * (double)p[i].ngroup * mt_product_parts(&p[i]), MT_SHOWN(flops(&p[i]) * 1e-9),
            MT_SHOWN(seconds), MT_SHOWN(flops(&p[i]) * 1e-9 / seconds));
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
  double without[REPEAT];
  for (int r = 0; r < REPEAT; r++)
    without[r] = step_s[r] - head_s[r];
  const struct mt_spread spread = mt_spread_of(step_s, REPEAT);
  double seconds = spread.median, rest = mt_spread_of(without, REPEAT).median;
  double tokens = (double)config->train.global_batch * (double)config->data.seq_length;
  mt_info("step %.*f s (%.*f to %.*f, median of %d)  %.0f tokens/s  %.*f GFLOP/s", MT_SHOWN(seconds), MT_SHOWN(spread.least),
          MT_SHOWN(spread.most), REPEAT, tokens / seconds,
          MT_SHOWN(total_flops * 1e-9 / seconds));
  mt_info("%s at the same shapes %.*f s  %.*f GFLOP/s", device->host == device ? "sgemm" : "cuBLAS", MT_SHOWN(total),
          MT_SHOWN(total_flops * 1e-9 / total));
  mt_info("ratio %.3f  without the head %.3f (%.*f of %.*f GFLOP/s)", total / seconds, (total - head) / rest,
          MT_SHOWN((total_flops - head_flops) * 1e-9 / rest), MT_SHOWN((total_flops - head_flops) * 1e-9 / (total - head)));
}

/* Steps that wait for each kernel, on this rank. */
static void report_kernels(struct mt_step *step, int64_t number)
{
  struct mt_device *device = step->model->device;
  double whole = 0, sum = 0;
  mt_timed_begin(device);
  for (int i = 0; i < TIMED; i++)
    whole += mt_step_run(step, number + i, (number + i) * step->config->train.global_batch)->step_s / TIMED;
  struct mt_timed timed = mt_timed_end(device);
  mt_info("a step by kernel, each waited for (%s, rank 0): %.*f s", device->name, MT_SHOWN(whole));
  for (int k = 0; k < timed.n; k++) {
    double seconds = timed.kernel[k].seconds / TIMED;
    sum += seconds;
    mt_info("  %-16s %6lld calls %10.6f s %5.1f %%", timed.kernel[k].name, (long long)timed.kernel[k].calls / TIMED, seconds,
            100 * seconds / whole);
  }
  mt_info("  %-29s %10.6f s %5.1f %%", "all else", whole - sum, 100 * (whole - sum) / whole);
}

enum mt_status mt_bench_step(struct mt_comm *comm, const struct mt_config *config)
{
  struct mt_session session;
  MT_TRY(mt_session_open(comm, config, 0, config->data.seq_length, 1, &session));
  struct mt_step *step = mt_step_new(comm, session.model, config, mt_turns_tokens(config));
  struct mt_product p[MT_MOST_PRODUCTS];
  int64_t N = mt_batch_most(&step->batch, comm->rank) * config->data.seq_length;
  int n = mt_products(&session.model->arch, session.model->params.nmoe, N, session.model->T, (double)step->batch.nmicro, p);
  struct operands o = operands_new(session.device, p, n);
  double gemm[MT_MOST_PRODUCTS][REPEAT], step_s[REPEAT], head_s[REPEAT], kind[REPEAT][MT_NTASK_KIND];
  const double tokens = (double)config->train.global_batch * (double)config->data.seq_length;
  for (int warm = 0; warm < 2; warm++)
    mt_step_run(step, warm + 1, 0);
  for (int r = 0; r < REPEAT; r++) {
    const struct mt_step_result *result = mt_step_run(step, r + 3, (int64_t)(r + 1) * config->train.global_batch);
    step_s[r] = result->step_s;
    head_s[r] = step->times.kind_s[MT_TASK_HEAD];
    memcpy(kind[r], step->times.kind_s, sizeof kind[r]);
    for (int i = 0; i < n; i++)
      gemm[i][r] = gemm_seconds(session.device, &p[i], &o);
    mt_info("  %d of %d: step %.*f s, %.0f tokens/s", r + 1, REPEAT, MT_SHOWN(step_s[r]), tokens / step_s[r]);
  }
  report(step, p, n, gemm, step_s, head_s, kind);
  report_kernels(step, REPEAT + 3);
  operands_free(session.device, &o);
  mt_step_free(step);
  mt_session_close(&session);
  return MT_OK;
}
