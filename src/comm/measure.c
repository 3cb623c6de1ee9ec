/* Measuring the cluster; see measure.h. */
#include "comm/measure.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "comm/part.h"
#include "ops.h"

enum { MOST_TIMES = 8 };
/* The longest messages in bytes: what a node sends, and what a rank sends within one, where rows come in no
 * larger pieces. */
static const int64_t LONGEST = (int64_t)16 << 20, LONGEST_NEAR = (int64_t)2 << 20;
static const double LONG_ENOUGH = 20e-3; /* seconds that the longest message shall take */

/* ---- numbers ---- */

int64_t mt_round_digits(double x, int digits)
{
  if (!(x >= 0.5))
    return 0;
  double unit = 1;
  while (x / unit >= pow(10, digits))
    unit *= 10;
  return (int64_t)(round(x / unit) * unit);
}

struct mt_link mt_link_fit(const double *bytes, const double *seconds, int n)
{
  double w = 0, s = 0, t = 0, ss = 0, st = 0;
  for (int i = 0; i < n; i++) {
    double weight = 1 / (seconds[i] * seconds[i]);
    w += weight;
    s += weight * bytes[i];
    t += weight * seconds[i];
    ss += weight * bytes[i] * bytes[i];
    st += weight * bytes[i] * seconds[i];
  }
  double det = w * ss - s * s, alpha = -1, beta = 0; /* of one size all is taken for bandwidth */
  if (det > 1e-12 * w * ss) {
    beta = (w * st - s * t) / det;
    alpha = (t - beta * s) / w;
  }
  if (alpha < 0) {
    alpha = 0;
    beta = ss > 0 ? st / ss : 0;
  } else if (beta < 0) {
    beta = 0;
    alpha = t / w;
  }
  struct mt_link link = {mt_round_digits(alpha * 1e9, 2), mt_round_digits(beta * 1e12, 3)};
  if (link.beta_ps < 1)
    link.beta_ps = 1;
  return link;
}

static int by_value(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *x, int n)
{
  qsort(x, (size_t)n, sizeof *x, by_value);
  return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

int mt_measured(const struct mt_cluster *cluster)
{
  int shared = cluster->nplace > cluster->nnode;
  for (int p = 0; p < cluster->nplace; p++)
    if (!cluster->place[p].speed)
      return 0;
  return cluster->link[MT_LEVEL_SELF].beta_ps > 0 && (!shared || cluster->link[MT_LEVEL_NODE].beta_ps > 0) &&
         (cluster->nnode == 1 || cluster->link[MT_LEVEL_NET].beta_ps > 0);
}

/* ---- computing ---- */

/* MFLOP/s of this rank while all compute: a linear layer of a middling size. */
static double gemm_speed(struct mt_comm *comm, struct mt_device *device)
{
  enum { ROWS = 256, WIDTH = 512, WINDOWS = 3 };
  const double window_s = 40e-3;
  const int64_t first[2] = {0, ROWS};
  const struct mt_linear linear = {.ngroup = 1, .first = first, .in = WIDTH, .out = WIDTH};
  const struct mt_device_ops *ops = device->ops;
  int64_t xbytes = ROWS * WIDTH * mt_dtype_size(device->ctype),
          wbytes = WIDTH * WIDTH * mt_dtype_size(device->ctype);
  void *x = ops->alloc(device, MT_TAG_COMM, MT_DEVICE, xbytes),
       *y = ops->alloc(device, MT_TAG_COMM, MT_DEVICE, xbytes),
       *w = ops->alloc(device, MT_TAG_COMM, MT_DEVICE, wbytes);
  ops->zero(device, MT_DEV_MATH, x, xbytes);
  ops->zero(device, MT_DEV_MATH, w, wbytes);
  device->kernels->linear(device, &linear, y, x, w, NULL, 0);
  ops->sync(device, MT_DEV_MATH);
  double speed[WINDOWS];
  for (int i = 0; i < WINDOWS; i++) {
    mt_barrier(comm);
    double start = mt_time(), now = start;
    int64_t done = 0;
    for (; now < start + window_s; now = mt_time(), done++) {
      device->kernels->linear(device, &linear, y, x, w, NULL, 0);
      ops->sync(device, MT_DEV_MATH);
    }
    speed[i] = (double)done * 2e-6 * ROWS * WIDTH * WIDTH / (now - start);
  }
  ops->free(device, MT_DEVICE, x);
  ops->free(device, MT_DEVICE, y);
  ops->free(device, MT_DEVICE, w);
  return median(speed, WINDOWS);
}

static int alike(const struct mt_place *a, const struct mt_place *b)
{
  return a->kind == b->kind && a->cores == b->cores && a->threads == b->threads;
}

/* Speeds of all ranks; equal places of a node get their median, since what differs between them is chance. */
static void measure_speed(struct mt_comm *comm, struct mt_device *device)
{
  struct mt_cluster *cluster = comm->cluster;
  double mine = gemm_speed(comm, device);
  double *speed = MT_NEW(MT_TAG_COMM, double, comm->size), *same = MT_NEW(MT_TAG_COMM, double, comm->size);
  mt_allgather(comm, &mine, speed, sizeof mine);
  for (int p = 0; p < comm->size; p++) {
    int n = 0, node = cluster->node_of[p];
    for (int r = cluster->node_first[node]; r < cluster->node_first[node + 1]; r++)
      if (alike(&cluster->place[p], &cluster->place[r]))
        same[n++] = speed[r];
    int64_t rounded = mt_round_digits(median(same, n), 2);
    cluster->place[p].speed = rounded > 0 ? rounded : 1;
  }
  mt_free(same);
  mt_free(speed);
}

/* ---- messages ---- */

struct buffers {
  struct mt_comm *comm;
  char *send, *recv; /* [LONGEST] */
  struct mt_requests set;
};

/* One round of messages of a kind; `bytes` as the kind takes them. */
typedef void round_function(struct buffers *b, int64_t bytes);

static void copy_round(struct buffers *b, int64_t bytes)
{
  memcpy(b->recv, b->send, (size_t)bytes);
}

static void node_round(struct buffers *b, int64_t bytes)
{
  struct mt_comm *comm = b->comm;
  int n = comm->node_size, first = comm->rank - comm->node_rank;
  if (n == 1)
    return;
  mt_post_recv(comm, &b->set, b->recv, bytes, first + (comm->node_rank + n - 1) % n, MT_MSG_MEASURE);
  mt_post_send(comm, &b->set, b->send, bytes, first + (comm->node_rank + 1) % n, MT_MSG_MEASURE);
  mt_wait(comm, &b->set);
}

/* `bytes` from each node to the next, in equal parts from so many of its ranks. */
static void net_round(struct buffers *b, int64_t bytes, int all)
{
  struct mt_comm *comm = b->comm;
  const int *first = comm->node_first;
  int next = (comm->node + 1) % comm->nnode, before = (comm->node + comm->nnode - 1) % comm->nnode;
  int senders = all ? first[before + 1] - first[before] : 1, receivers = all ? comm->node_size : 1;
  int64_t at = 0, unused;
  for (int i = 0; i < senders; i++)
    if (i % receivers == comm->node_rank) {
      int64_t part = mt_part_range(bytes, senders, i, &unused);
      mt_post_recv(comm, &b->set, b->recv + at, part, first[before] + i, MT_MSG_MEASURE);
      at += part;
    }
  senders = all ? comm->node_size : 1;
  receivers = all ? first[next + 1] - first[next] : 1;
  if (comm->node_rank < senders)
    mt_post_send(comm, &b->set, b->send, mt_part_range(bytes, senders, comm->node_rank, &unused),
                 first[next] + comm->node_rank % receivers, MT_MSG_MEASURE);
  mt_wait(comm, &b->set);
}

static void net_short_round(struct buffers *b, int64_t bytes)
{
  net_round(b, bytes, 0);
}

static void net_long_round(struct buffers *b, int64_t bytes)
{
  net_round(b, bytes, 1);
}

/* Seconds of a round: `times` times `batch` rounds are timed on all ranks, the slowest of them counts; of the
 * times the median. A batch is more than one round where messages are short: a rank may find what it waits
 * for already there, and pay in the next round. */
static double time_rounds(struct buffers *b, round_function *round, int64_t bytes, int times, int batch)
{
  double took[MOST_TIMES];
  MT_CHECK(times <= MOST_TIMES, "%d times", times);
  round(b, bytes); /* opens connections, touches memory */
  for (int i = 0; i < times; i++) {
    mt_barrier(b->comm);
    double start = mt_time();
    for (int k = 0; k < batch; k++)
      round(b, bytes);
    took[i] = (mt_time() - start) / batch;
  }
  mt_max(b->comm, took, times);
  return fmax(median(took, times), 1e-9);
}

/* Fits a link. beta comes from long messages: three sizes up to one that takes long enough; alpha, unless
 * `few` is NULL, from the shortest ones, which may travel by another protocol, or on a token bucket's credit.
 * `most`: the longest size. */
static struct mt_link measure_link(struct buffers *b, round_function *few, round_function *many, int64_t most)
{
  enum { LONG = 3, SHORTEST = 64 };
  double bytes[LONG], seconds[LONG];
  double latency = few ? time_rounds(b, few, SHORTEST, 5, 10) : 0;
  int64_t largest = 128 << 10;
  while (largest < most && time_rounds(b, many, largest, 1, 1) < LONG_ENOUGH)
    largest *= 2;
  for (int i = 0; i < LONG; i++) {
    bytes[i] = (double)(largest >> i);
    seconds[i] = time_rounds(b, many, largest >> i, 3, 1);
  }
  struct mt_link link = mt_link_fit(bytes, seconds, LONG);
  link.alpha_ns = mt_round_digits(1e9 * latency - 1e-3 * SHORTEST * (double)link.beta_ps, 2);
  return link;
}

void mt_measured_share(struct mt_comm *comm)
{
  struct mt_cluster *cluster = comm->cluster;
  int64_t *speed = MT_NEW(MT_TAG_COMM, int64_t, comm->size);
  for (int p = 0; p < comm->size; p++)
    speed[p] = cluster->place[p].speed;
  mt_bcast(comm, speed, comm->size * (int64_t)sizeof *speed, 0);
  for (int p = 0; p < comm->size; p++)
    cluster->place[p].speed = speed[p];
  mt_free(speed);
  mt_bcast(comm, cluster->link, sizeof cluster->link, 0);
}

void mt_measure(struct mt_comm *comm, struct mt_device *device)
{
  struct mt_cluster *cluster = comm->cluster;
  int64_t counted[2][MT_NLEVEL];
  double waited = comm->wait_s;
  memcpy(counted[0], comm->sent_bytes, sizeof counted[0]);
  memcpy(counted[1], comm->sent_messages, sizeof counted[1]);

  if (device)
    measure_speed(comm, device);
  struct buffers b = {
      .comm = comm, .send = mt_alloc(MT_TAG_COMM, LONGEST), .recv = mt_alloc(MT_TAG_COMM, LONGEST)};
  memset(b.send, 1, (size_t)LONGEST);
  memset(b.recv, 2, (size_t)LONGEST);
  cluster->link[MT_LEVEL_SELF] = measure_link(&b, NULL, copy_round, LONGEST_NEAR);
  if (comm->size > comm->nnode)
    cluster->link[MT_LEVEL_NODE] = measure_link(&b, node_round, node_round, LONGEST_NEAR);
  if (comm->nnode > 1)
    cluster->link[MT_LEVEL_NET] = measure_link(&b, net_short_round, net_long_round, LONGEST);
  mt_free(b.send);
  mt_free(b.recv);
  mt_requests_free(&b.set);

  /* One rank's word: unlike machines may round differently. */
  mt_measured_share(comm);
  memcpy(comm->sent_bytes, counted[0], sizeof counted[0]);
  memcpy(comm->sent_messages, counted[1], sizeof counted[1]);
  comm->wait_s = waited;
}
