/* Timing in turns; see turns.h. */
#include "train/turns.h"
#include <math.h>
#include <time.h>
#include "base/memory.h"
#include "base/random.h"
#include "comm/measure.h"

enum { MOST_TIMES = 101, LEAST_TIMES = 5, MOST_IN_A_ROW = 1 << 14 };
static const double LONG_ENOUGH = 3e-3; /* seconds of what is timed at once */

struct mt_spread mt_spread_of(double *x, int n)
{
  double median = mt_median(x, n);
  return (struct mt_spread){x[0], x[n / 4], median, x[3 * n / 4], x[n - 1]};
}

/* Seconds of a call, of this rank, timed `in_a_row` at once. */
static double time_once(struct mt_comm *comm, void (*run)(void *, int), void *self, int which, int in_a_row)
{
  mt_barrier(comm);
  double start = mt_time();
  for (int i = 0; i < in_a_row; i++)
    run(self, which);
  return (mt_time() - start) / in_a_row;
}

/* How many calls in a row take long enough, and the seconds that they take. The first call, with cold caches, tells too
 * little: a row grows until it is measured to be long enough. */
static double find_row(struct mt_comm *comm, void (*run)(void *, int), void *self, int which, int *in_a_row)
{
  for (int n = 1;;) {
    double took = n * time_once(comm, run, self, which, n);
    mt_max(comm, &took, 1);
    *in_a_row = n;
    if (took >= LONG_ENOUGH || n == MOST_IN_A_ROW)
      return took;
    n = (int)fmin(MOST_IN_A_ROW, fmax(2 * n, ceil(n * LONG_ENOUGH / fmax(took, 1e-9))));
  }
}

int mt_digits(double x)
{
  int digits = 1;
  for (double shown = 10 * x; digits < 9 && shown > 0 && shown < 999.5; shown *= 10)
    digits++;
  return digits;
}

int mt_turns(struct mt_comm *comm, double seconds, int n, void (*run)(void *self, int which), void *self,
             struct mt_spread *spread)
{
  double all = 0;
  int in_a_row[n];
  for (int i = 0; i < n; i++)
    all += find_row(comm, run, self, i, &in_a_row[i]);
  int times = (int)fmax(LEAST_TIMES, fmin(MOST_TIMES, seconds / all));
  double *took = MT_NEW(MT_TAG_PLAN, double, n *MOST_TIMES);
  for (int t = 0; t < times; t++)
    for (int i = 0; i < n; i++) {
      int which = (t + i) % n;
      took[which * MOST_TIMES + t] = time_once(comm, run, self, which, in_a_row[which]);
    }
  for (int i = 0; i < n; i++) {
    mt_max(comm, took + i * MOST_TIMES, times);
    spread[i] = mt_spread_of(took + i * MOST_TIMES, times);
  }
  mt_free(took);
  return times;
}

double mt_processor_ms(void)
{
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

float *mt_turns_data(int64_t n)
{
  float *x = MT_NEW(MT_TAG_MISC, float, n);
  mt_random_fill_normal(x, n, 1, MT_STREAM_TEST, 0, 1);
  return x;
}

void *mt_turns_operand(struct mt_device *device, enum mt_dtype type, int64_t n)
{
  enum { BLOCK = 1 << 20 }; /* numbers, again and again: a GPU's products are large, and making numbers is slow */
  if (device->host == device && type == MT_F32)
    return mt_turns_data(n);
  const int64_t first = n < BLOCK ? n : BLOCK, size = mt_dtype_size(type);
  float *host = mt_turns_data(first);
  void *wide = device->ops->alloc(device, MT_TAG_MISC, MT_DEVICE, first * 4);
  char *data = device->ops->alloc(device, MT_TAG_MISC, MT_DEVICE, n * size);
  device->ops->copy(device, MT_DEV_MATH, wide, host, first * 4);
  device->kernels->convert(device, data, type, wide, MT_F32, first);
  for (int64_t at = first; at < n; at *= 2)
    device->ops->copy(device, MT_DEV_MATH, data + at * size, data, (at < n - at ? at : n - at) * size);
  device->ops->sync(device, MT_DEV_MATH);
  device->ops->free(device, MT_DEVICE, wide);
  mt_free(host);
  return data;
}

static enum mt_status random_tokens(void *self, int64_t position, int32_t *token)
{
  const struct mt_config *config = self;
  for (int64_t t = 0; t <= config->data.seq_length; t++)
    token[t] = (int32_t)(mt_random_bits(1, MT_STREAM_TEST, (uint64_t)(position * (config->data.seq_length + 1) + t)) %
                         (uint64_t)config->model.vocab_size);
  return MT_OK;
}

struct mt_source mt_turns_tokens(const struct mt_config *config)
{
  return (struct mt_source){random_tokens, (void *)(uintptr_t)config};
}
