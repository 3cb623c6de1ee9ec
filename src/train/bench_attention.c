/* `motley bench attention`: attention beside what the machine allows.
 *
 * The bound of a pass is the longer of its FLOP at the GEMM library's best rate and of its arrays' bytes, each moved
 * once, at the rate of a streaming loop. FLOP are counted for the pairs of positions that see each other, so what is
 * computed of masked ones counts as loss. */
#include "train/bench_attention.h"
#include <math.h>
#include "base/log.h"
#include "base/memory.h"
#include "kernels/cpu/limit.h"
#include "model/model.h"
#include "train/turns.h"

enum { FORWARD, BACKWARD, GEMM, TRIAD, NRUN };
enum { SIDE = 1024, STREAM = 8 << 20 }; /* of the library's product; elements of the loop's arrays */

struct bench {
  struct mt_device *device;
  struct mt_attention attention;
  float *qkv, *out, *lse, *dout, *dqkv; /* as in ops.h, owned */
  float *a, *b, *c;                     /* [STREAM], owned */
};

static void run(void *self, int which)
{
  struct bench *b = self;
  const struct mt_kernels *kernels = b->device->kernels;
  switch (which) {
  case FORWARD:
    kernels->attention(b->device, &b->attention, b->out, b->lse, b->qkv);
    break;
  case BACKWARD:
    kernels->attention_back(b->device, &b->attention, b->dqkv, b->dout, b->qkv, b->out, b->lse);
    break;
  case GEMM:
    mt_limit_gemm(b->device->threads, 0, 0, SIDE, SIDE, SIDE, b->b, b->c, b->a, 0);
    break;
  default:
    mt_limit_triad(b->device->threads, b->a, b->b, b->c, STREAM);
  }
}

static void report(const struct bench *b, const struct mt_spread *spread, int times)
{
  const struct mt_attention *a = &b->attention;
  const double flops = 2.0 * SIDE * SIDE * SIDE / spread[GEMM].median, rate = 16.0 * STREAM / spread[TRIAD].median;
  const double rows = (double)(a->B * a->T), q = rows * (double)(a->H * a->D), kv = rows * (double)(2 * a->KV * a->D);
  double pairs = 0;
  for (int64_t t = 0; t < a->T; t++)
    pairs += (double)(a->window && a->window <= t ? a->window : t + 1);
  pairs *= (double)(a->B * a->H);
  const double lse = rows * (double)a->H;
  /* 2 products of 2 D FLOP a pair forward, 5 backward: scores again, dv, dp, dq, dk */
  const double flop[] = {4 * pairs * (double)a->D, 10 * pairs * (double)a->D};
  const double bytes[] = {4 * (2 * q + kv + lse), 4 * (4 * q + 2 * kv + lse)};
  static const char *const name[] = {"forward", "backward"};
  mt_info("sgemm of %d x %d x %d %.1f GFLOP/s, triad %.2f GB/s; %d times each", SIDE, SIDE, SIDE, flops * 1e-9,
          rate * 1e-9, times);
  mt_info("%-10s %10s %10s %10s %21s %10s %10s %8s %7s", "", "GFLOP", "MiB", "median us", "quartiles", "GFLOP/s",
          "bound us", "by", "ratio");
  for (int pass = FORWARD; pass <= BACKWARD; pass++) {
    const struct mt_spread *s = &spread[pass];
    double compute = flop[pass] / flops, memory = bytes[pass] / rate, bound = fmax(compute, memory);
    mt_info("%-10s %10.*f %10.*f %10.*f %10.*f %10.*f %10.*f %10.*f %8s %7.3f", name[pass], MT_SHOWN(flop[pass] * 1e-9),
            MT_SHOWN(bytes[pass] / 1048576), MT_SHOWN(1e6 * s->median), MT_SHOWN(1e6 * s->quarter),
            MT_SHOWN(1e6 * s->three_quarters), MT_SHOWN(flop[pass] * 1e-9 / s->median), MT_SHOWN(1e6 * bound), compute < memory ? "memory" : "FLOP", bound / s->median);
  }
}

enum mt_status mt_bench_attention(struct mt_comm *comm, const struct mt_config *config)
{
  struct bench b = {0};
  const int threads = comm->cluster->place[comm->rank].threads;
  MT_TRY(mt_agree(comm, mt_device_open("cpu", threads, &b.device)));
  const int64_t B = config->train.micro_batch, T = config->data.seq_length, D = config->model.head_dim;
  const int64_t H = config->model.num_attention_heads, KV = config->model.num_key_value_heads;
  b.attention = (struct mt_attention){.B = B,
                                      .T = T,
                                      .H = H,
                                      .KV = KV,
                                      .D = D,
                                      .causal = 1,
                                      .window = config->model.sliding_window,
                                      .scale = 1 / sqrtf((float)D)};
  mt_device_reserve(b.device, b.device->kernels->attention_work(b.device, &b.attention));
  b.qkv = mt_turns_data(B * T * (H + 2 * KV) * D);
  b.out = mt_turns_data(B * T * H * D);
  b.lse = mt_turns_data(B * H * T);
  b.dout = mt_turns_data(B * T * H * D);
  b.dqkv = mt_turns_data(B * T * (H + 2 * KV) * D);
  b.a = mt_turns_data(STREAM);
  b.b = mt_turns_data(STREAM);
  b.c = mt_turns_data(STREAM);
  mt_info("attention of %lld sequences of %lld positions, %lld heads, %lld of keys and values, width %lld, "
          "window %lld; %s, %d threads a rank",
          (long long)B, (long long)T, (long long)H, (long long)KV, (long long)D, (long long)b.attention.window,
          b.device->name, threads);
  struct mt_spread spread[NRUN];
  int times = mt_turns(comm, config->bench.seconds, NRUN, run, &b, spread);
  report(&b, spread, times);
  mt_free(b.qkv);
  mt_free(b.out);
  mt_free(b.lse);
  mt_free(b.dout);
  mt_free(b.dqkv);
  mt_free(b.a);
  mt_free(b.b);
  mt_free(b.c);
  b.device->ops->close(b.device);
  return MT_OK;
}
