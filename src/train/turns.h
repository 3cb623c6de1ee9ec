/* Timing things against each other: they take turns in one run, so that all see the same machine and load, each round
 * beginning with another; of many times the median counts. The trap: something short is over before a rank that left
 * the barrier late has begun, so what is short is timed several in a row. */
#ifndef MT_TURNS_H
#define MT_TURNS_H
#include "comm/comm.h"
#include "train/step.h"

/* Some times, in seconds. */
struct mt_spread {
  double least, quarter, median, three_quarters, most;
};

/* Of x[n], n >= 1; sorts x. Pure. */
struct mt_spread mt_spread_of(double *x, int n);

/* Calls run(self, 0 .. n - 1) in turns for about `seconds`, after once each that does not count; spread[n] gets the
 * seconds of a call on the slowest rank. Returns how often each was timed (5 times at least). Collective. */
int mt_turns(struct mt_comm *comm, double seconds, int n, void (*run)(void *self, int which), void *self,
             struct mt_spread *spread);

/* Digits behind the point that show three of a number >= 0, from 1 to 9; and what "%.*f" takes, so that tiny cases do not show
 * as zeros. x is looked at twice. Pure. */
int mt_digits(double x);
#define MT_SHOWN(x) mt_digits(x), (x)

/* Milliseconds of processor that the calling thread has used. Local. */
double mt_processor_ms(void);
/* n numbers to compute with, normally distributed. The caller frees with mt_free. Local. */
float *mt_turns_data(int64_t n);
/* The same on the device, as `type`. The caller frees with device->ops->free, of MT_DEVICE. Local. */
void *mt_turns_operand(struct mt_device *device, enum mt_dtype type, int64_t n);
/* Random tokens to train on, of a configuration. Pure. */
struct mt_source mt_turns_tokens(const struct mt_config *config);

#endif
