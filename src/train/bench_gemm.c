/* `motley bench gemm`: the kernels' matrix products beside bare calls of the GEMM library.
 *
 * The idea: each product of a micro-batch is computed both ways in turns. The experts' rows are ragged on purpose (from
 * few to twice the mean), as routing makes them; the library gets one call for each expert. On a GPU the linear layers are
 * the library's anyway, which is cuBLAS: there it is one product of all experts against one call for each. */
#include "train/bench_gemm.h"
#include <stddef.h>
#include "base/log.h"
#include "base/memory.h"
#include "comm/part.h"
#include "kernels/cpu/limit.h"
#include "train/product.h"
#include "train/session.h"
#include "train/step.h"
#include "train/turns.h"

enum { FORWARD, DX, DW, NPART };
/* The router's backward pass is one kernel: what stands at DX is both then. */
static const char *const part_name[NPART] = {"forward", "dx", "dw"};

struct bench {
  struct mt_device *device;
  struct mt_linear linear;
  int router;
  void *x, *w, *y, *dx; /* [rows,in], [groups,out,in], [rows,out], as x; in ctype; owned */
  float *gate, *logits; /* a router's w and y: f32 on every device; owned */
  float *dw;            /* as w; owned */
};

static void ours(struct bench *b, int part)
{
  const struct mt_kernels *kernels = b->device->kernels;
  const struct mt_linear *l = &b->linear;
  const int64_t rows = l->first[l->ngroup];
  if (b->router && part == FORWARD)
    kernels->gate_logits(b->device, b->logits, b->x, b->gate, rows, l->in, l->out);
  else if (b->router)
    kernels->gate_logits_back(b->device, b->dx, b->dw, b->logits, b->x, b->gate, rows, l->in, l->out);
  else if (part == FORWARD)
    kernels->linear(b->device, l, b->y, b->x, b->w, NULL, 0);
  else if (part == DX)
    kernels->linear_dx(b->device, l, b->dx, b->y, b->w, 0);
  else
    kernels->linear_dw(b->device, l, b->dw, NULL, b->y, b->x);
}

/* One product of group g: n rows. */
static void library_call(struct bench *b, int part, int64_t n, void *x, void *w, void *y, void *dx, float *dw)
{
  struct mt_device *device = b->device;
  const struct mt_linear *l = &b->linear;
  const int64_t first[2] = {0, n};
  const struct mt_linear one = {1, first, l->in, l->out, 0, 0};
  const int both = part == DX && b->router;
  if (device->host == device) {
    if (part == FORWARD)
      mt_limit_gemm(device->threads, 0, 1, n, l->out, l->in, x, w, y, 0);
    if (part == DX)
      mt_limit_gemm(device->threads, 0, 0, n, l->in, l->out, y, w, dx, b->router);
    if (part == DW || both)
      mt_limit_gemm(device->threads, 1, 0, l->out, l->in, n, y, x, dw, 1);
  } else {
    if (part == FORWARD)
      device->kernels->linear(device, &one, y, x, w, NULL, 0);
    if (part == DX)
      device->kernels->linear_dx(device, &one, dx, y, w, b->router);
    if (part == DW || both)
      device->kernels->linear_dw(device, &one, dw, NULL, y, x);
  }
}

static void library(struct bench *b, int part)
{
  const struct mt_linear *l = &b->linear;
  for (int g = 0; g < l->ngroup; g++) {
    const int64_t from = l->first[g], n = l->first[g + 1] - from;
    if (n)
      library_call(b, part, n, mt_at(b->device, b->x, from * l->in), mt_at(b->device, b->w, g * l->wstride),
                   mt_at(b->device, b->y, from * l->out), mt_at(b->device, b->dx, from * l->in), b->dw + g * l->wstride);
  }
}

/* 2 part: our kernel, 2 part + 1: the library. */
static void run(void *self, int which)
{
  if (which % 2)
    library(self, which / 2);
  else
    ours(self, which / 2);
  struct bench *b = self;
  b->device->ops->sync(b->device, MT_DEV_MATH);
}

/* One product; what a step spends on it is added to seconds[2] (ours, the library's), its FLOP to *flops. */
static void run_product(struct mt_comm *comm, struct bench *b, const struct mt_product *p, double duration,
                        double *seconds, double *flops)
{
  int64_t weight[p->ngroup], rows = p->ngroup * p->n;
  for (int g = 0; g < p->ngroup; g++)
    weight[g] = 2 * g + 1;
  struct mt_part groups = mt_part_weighted(rows, (int)p->ngroup, weight);
  b->linear = (struct mt_linear){(int)p->ngroup, groups.first, p->in, p->out, p->in * p->out, p->out};
  b->router = p->kind == MT_PRODUCT_ROUTER;
  struct mt_device *device = b->device;
  const int64_t weights = p->ngroup * p->in * p->out;
  b->x = mt_turns_operand(device, device->ctype, rows * p->in);
  b->w = mt_turns_operand(device, device->ctype, weights);
  b->y = mt_turns_operand(device, device->ctype, rows * p->out);
  b->dx = mt_turns_operand(device, device->ctype, rows * p->in);
  b->dw = mt_turns_operand(device, MT_F32, weights);
  b->gate = b->router ? mt_turns_operand(device, MT_F32, weights) : NULL;
  b->logits = b->router ? mt_turns_operand(device, MT_F32, rows * p->out) : NULL;
  const int parts = b->router ? DW : NPART;
  struct mt_spread spread[2 * NPART];
  int times = mt_turns(comm, duration, 2 * parts, run, b, spread);
  for (int part = 0; part < parts; part++) {
    double flop = mt_product_flops(p) * (b->router && part == DX ? 2 : 1);
    double mine = spread[2 * part].median, theirs = spread[2 * part + 1].median;
    mt_info("%-18s %-8s %6lld %8lld %8lld %8lld %10.*f %6d %11.*f %11.*f %7.3f", p->name,
            b->router && part == DX ? "dx, dw" : part_name[part], (long long)p->ngroup, (long long)rows,
            (long long)p->in, (long long)p->out, MT_SHOWN(flop * 1e-6), times, MT_SHOWN(flop * 1e-9 / mine),
            MT_SHOWN(flop * 1e-9 / theirs), theirs / mine);
    seconds[0] += mine * p->times;
    seconds[1] += theirs * p->times;
    *flops += flop * p->times;
  }
  void *all[] = {b->x, b->w, b->y, b->dx, b->dw, b->gate, b->logits};
  for (int i = 0; i < 7; i++)
    device->ops->free(device, MT_DEVICE, all[i]);
  mt_part_free(&groups);
}

enum mt_status mt_bench_gemm(struct mt_comm *comm, const struct mt_config *config)
{
  struct bench b = {0};
  const int threads = comm->cluster->place[comm->rank].threads;
  MT_TRY(mt_session_device(comm, config, 1, &b.device));
  const char *name = b.device->host == b.device ? "sgemm" : "cuBLAS";
  struct mt_arch arch = {0};
  struct mt_params params = {0};
  mt_family_build(config, &arch, &params);
  struct mt_product p[MT_MOST_PRODUCTS];
  const int64_t T = config->data.seq_length, N = config->train.micro_batch * T;
  int n = mt_products(&arch, params.nmoe, N, T, 1, p);
  mt_info("products of a micro-batch of %lld tokens, %s, %d threads a rank, FLOP = 2 rows in out; experts have from "
          "few rows to twice the mean",
          (long long)N, b.device->name, threads);
  mt_info("%-18s %-8s %6s %8s %8s %8s %10s %6s %11s %11s %7s", "product", "", "groups", "rows", "in", "out", "MFLOP",
          "times", "GFLOP/s", name, "ratio");
  double seconds[2] = {0}, flops = 0;
  for (int i = 0; i < n; i++) {
    if (p[i].kind == MT_PRODUCT_ATTENTION)
      continue;       /* has a benchmark of its own */
    if (i == n - 1) { /* the head's logits exist for some rows at a time */
      p[i].n = mt_model_head_rows(arch.V, N);
      p[i].times *= (double)N / (double)p[i].n;
    }
    run_product(comm, &b, &p[i], config->bench.seconds, seconds, &flops);
  }
  mt_info("micro-batch: %.*f s  %.*f GFLOP/s; %s %.*f s  %.*f GFLOP/s; ratio %.3f", MT_SHOWN(seconds[0]),
          MT_SHOWN(flops * 1e-9 / seconds[0]), name, MT_SHOWN(seconds[1]), MT_SHOWN(flops * 1e-9 / seconds[1]),
          seconds[1] / seconds[0]);
  mt_params_free(&params);
  mt_free(arch.block);
  b.device->ops->close(b.device);
  return MT_OK;
}
