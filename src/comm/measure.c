/* Measuring the cluster; see measure.h. */
#include "comm/measure.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "comm/part.h"
#include "ops.h"

enum { MOST_TIMES = 24 };
/* The longest messages in bytes: what a node sends, and what a rank sends within one, where rows come in no
 * larger pieces. */
static const int64_t LONGEST = (int64_t)8 << 20, LONGEST_NEAR = (int64_t)2 << 20;
static const double LONG_ENOUGH = 50e-3; /* seconds that the longest message shall take */

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
  struct mt_link link = {mt_round_digits(alpha * 1e9, 2), mt_round_digits(beta * 1e12, 3), 0};
  if (link.beta_ps < 1)
    link.beta_ps = 1;
  return link;
}

static int by_value(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double mt_median(double *x, int n)
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
      struct mt_pace pace = mt_pace_begin();
      device->kernels->linear(device, &linear, y, x, w, NULL, 0);
      ops->sync(device, MT_DEV_MATH);
      mt_pace_end(pace);
    }
    speed[i] = (double)done * 2e-6 * ROWS * WIDTH * WIDTH / (now - start);
  }
  ops->free(device, MT_DEVICE, x);
  ops->free(device, MT_DEVICE, y);
  ops->free(device, MT_DEVICE, w);
  return mt_median(speed, WINDOWS);
}

/* Of a host or, if nodes are pretended (host#i), of the real one. */
static int compare_hosts(const struct mt_place *x, const struct mt_place *y)
{
  size_t m = strcspn(x->host, "#"), n = strcspn(y->host, "#");
  int order = strncmp(x->host, y->host, m < n ? m : n);
  return order ? order : (m > n) - (m < n);
}

/* Places that look alike follow each other, and among them those of a host. */
static int by_looks(const void *a, const void *b)
{
  const struct mt_place *x = *(struct mt_place *const *)a, *y = *(struct mt_place *const *)b;
  if (x->kind != y->kind)
    return x->kind < y->kind ? -1 : 1;
  if (x->cores != y->cores)
    return x->cores < y->cores ? -1 : 1;
  if (x->threads != y->threads)
    return x->threads < y->threads ? -1 : 1;
  int order = strncmp(x->model, y->model, sizeof x->model);
  return order ? order : compare_hosts(x, y);
}

int mt_speeds_settle(struct mt_cluster *cluster, const double *speed)
{
  const int P = cluster->nplace;
  int odd = 0;
  struct mt_place **place = MT_NEW(MT_TAG_COMM, struct mt_place *, P);
  double *some = MT_NEW(MT_TAG_COMM, double, P);
  for (int p = 0; p < P; p++)
    place[p] = &cluster->place[p];
  qsort(place, (size_t)P, sizeof *place, by_looks);
  for (int first = 0, end; first < P; first = end) {
    for (end = first; end < P && mt_place_alike(place[first], place[end]); end++)
      some[end - first] = speed[place[end] - cluster->place];
    double all = mt_median(some, end - first);
    for (int from = first, to; from < end; from = to) {
      for (to = from; to < end && !compare_hosts(place[from], place[to]); to++)
        some[to - from] = speed[place[to] - cluster->place];
      double here = mt_median(some, to - from);
      int off = here > 1.5 * all || all > 1.5 * here;
      int64_t rounded = mt_round_digits(off ? here : all, 2);
      for (int i = from; i < to; i++)
        place[i]->speed = rounded > 0 ? rounded : 1;
      odd |= off;
    }
  }
  mt_free(some);
  mt_free(place);
  return odd;
}

static void measure_speed(struct mt_comm *comm, struct mt_device *device)
{
  enum { TRIES = 3 };
  double *speed = MT_NEW(MT_TAG_COMM, double, comm->size), mine = 0;
  for (int try = 0, odd = 1; try < TRIES && odd; try++) {
    mine = fmax(mine, gemm_speed(comm, device)); /* what disturbs makes slower */
    mt_allgather(comm, &mine, speed, sizeof mine);
    odd = mt_speeds_settle(comm->cluster, speed);
    mt_bcast(comm, &odd, sizeof odd, 0); /* whether all measure again must not hang on a rounding */
  }
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

/* A message from each rank to each other of its node. */
static void node_all_round(struct buffers *b, int64_t bytes)
{
  struct mt_comm *comm = b->comm;
  int n = comm->node_size, first = comm->rank - comm->node_rank;
  for (int i = 1; i < n; i++)
    mt_post_recv(comm, &b->set, b->recv + i * bytes, bytes, first + (comm->node_rank + n - i) % n,
                 MT_MSG_MEASURE);
  for (int i = 1; i < n; i++)
    mt_post_send(comm, &b->set, b->send, bytes, first + (comm->node_rank + i) % n, MT_MSG_MEASURE);
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

static void net_one_round(struct buffers *b, int64_t bytes)
{
  net_round(b, bytes, 0);
}

static void net_long_round(struct buffers *b, int64_t bytes)
{
  net_round(b, bytes, 1);
}

/* A message from each rank to each rank of the next node. */
static void net_all_round(struct buffers *b, int64_t bytes)
{
  struct mt_comm *comm = b->comm;
  const int *first = comm->node_first;
  int next = (comm->node + 1) % comm->nnode, before = (comm->node + comm->nnode - 1) % comm->nnode;
  for (int r = first[before]; r < first[before + 1]; r++)
    mt_post_recv(comm, &b->set, b->recv + (r - first[before]) * bytes, bytes, r, MT_MSG_MEASURE);
  for (int r = first[next]; r < first[next + 1]; r++)
    mt_post_send(comm, &b->set, b->send, bytes, r, MT_MSG_MEASURE);
  mt_wait(comm, &b->set);
}

/* Times `times` times a batch of rounds on all ranks, ascending; the slowest rank counts. A batch is more than one round
 * where messages are short: a rank may find what it waits for already there, and pay in the next round. */
static void time_rounds(struct buffers *b, round_function *round, int64_t bytes, int times, int batch,
                        double took[MOST_TIMES])
{
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
  qsort(took, (size_t)times, sizeof *took, by_value);
}

enum { SHORTEST = 64 };

/* Seconds of a short message: the least of several times, since what delays it is not the link's. */
static double latency_of(struct buffers *b, round_function *round)
{
  double took[MOST_TIMES];
  time_rounds(b, round, SHORTEST, MOST_TIMES, 8, took);
  return took[0];
}

/* Seconds a byte of long messages: three sizes up to one that takes long enough. Of several times the middle one, since a
 * token bucket may let a message pass for nothing. */
static struct mt_link bandwidth_of(struct buffers *b, round_function *round, int64_t most)
{
  enum { LONG = 3 };
  double bytes[LONG], seconds[LONG], took[MOST_TIMES];
  int64_t largest = 128 << 10;
  for (; largest < most; largest *= 2) {
    time_rounds(b, round, largest, 2, 1, took);
    if (took[0] > LONG_ENOUGH)
      break;
  }
  for (int i = 0; i < LONG; i++) {
    bytes[i] = (double)(largest >> i);
    time_rounds(b, round, largest >> i, 3, 1, took);
    seconds[i] = fmax(took[1], 1e-9);
  }
  return mt_link_fit(bytes, seconds, LONG);
}

/* `one`: rounds of a message a rank; `several`: of up to n; `many`: of long ones, as long as `longest`. */
static struct mt_link measure_link(struct buffers *b, round_function *one, round_function *several, int n,
                                   round_function *many, int64_t longest)
{
  double latency = latency_of(b, one), all = n > 1 ? latency_of(b, several) : latency;
  struct mt_link link = bandwidth_of(b, many, longest);
  link.alpha_ns = mt_round_digits(1e9 * latency - 1e-3 * SHORTEST * (double)link.beta_ps, 2);
  link.gap_ns = n > 1 ? mt_round_digits(1e9 * (all - latency) / (n - 1), 2) : link.alpha_ns;
  if (link.gap_ns > link.alpha_ns)
    link.gap_ns = link.alpha_ns;
  return link;
}

static void measure_links(struct mt_comm *comm)
{
  struct mt_link *link = comm->cluster->link;
  struct buffers b = {
      .comm = comm, .send = mt_alloc(MT_TAG_COMM, LONGEST), .recv = mt_alloc(MT_TAG_COMM, LONGEST)};
  memset(b.send, 1, (size_t)LONGEST);
  memset(b.recv, 2, (size_t)LONGEST);
  int largest = 1; /* node */
  for (int i = 0; i < comm->nnode; i++)
    if (comm->node_first[i + 1] - comm->node_first[i] > largest)
      largest = comm->node_first[i + 1] - comm->node_first[i];
  link[MT_LEVEL_SELF] = bandwidth_of(&b, copy_round, LONGEST_NEAR);
  link[MT_LEVEL_SELF].alpha_ns = 0;
  if (comm->size > comm->nnode)
    link[MT_LEVEL_NODE] = measure_link(&b, node_round, node_all_round, largest - 1, node_round, LONGEST_NEAR);
  if (comm->nnode > 1)
    link[MT_LEVEL_NET] = measure_link(&b, net_one_round, net_all_round, largest, net_long_round, LONGEST);
  mt_free(b.send);
  mt_free(b.recv);
  mt_requests_free(&b.set);
}

void mt_measured_copy(struct mt_cluster *to, const struct mt_cluster *from)
{
  MT_CHECK(to->nplace == from->nplace, "%d places, measured were %d", to->nplace, from->nplace);
  for (int p = 0; p < to->nplace; p++) {
    to->place[p].speed = from->place[p].speed;
    to->place[p].mem_bytes = from->place[p].mem_bytes;
  }
  memcpy(to->link, from->link, sizeof to->link);
  to->learnt = from->learnt;
}

int mt_measured_same(const struct mt_cluster *a, const struct mt_cluster *b)
{
  for (int p = 0; p < a->nplace; p++)
    if (a->place[p].speed != b->place[p].speed || a->place[p].mem_bytes != b->place[p].mem_bytes)
      return 0;
  return !memcmp(a->link, b->link, sizeof a->link);
}

void mt_measured_share(struct mt_comm *comm)
{
  struct mt_cluster *cluster = comm->cluster;
  mt_bcast(comm, cluster->place, cluster->nplace * (int64_t)sizeof *cluster->place, 0);
  mt_bcast(comm, cluster->link, sizeof cluster->link, 0);
  mt_bcast(comm, &cluster->learnt, sizeof cluster->learnt, 0);
}

void mt_measure(struct mt_comm *comm, struct mt_device *device)
{
  int64_t counted[2][MT_NLEVEL];
  double waited = comm->wait_s;
  memcpy(counted[0], comm->sent_bytes, sizeof counted[0]);
  memcpy(counted[1], comm->sent_messages, sizeof counted[1]);

  if (device)
    measure_speed(comm, device);
  measure_links(comm);
  /* One rank's word: unlike machines may round differently. */
  mt_measured_share(comm);
  memcpy(comm->sent_bytes, counted[0], sizeof counted[0]);
  memcpy(comm->sent_messages, counted[1], sizeof counted[1]);
  comm->wait_s = waited;
}
