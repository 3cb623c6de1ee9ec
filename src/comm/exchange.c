/* Carrying out plans of exchanges; see exchange.h and exchange_plan.h.
 *
 * Everything that waits for nothing is posted at once, what is awaited first. Each step proceeds by itself: whatever
 * arrives first is handled first, so the steps of several pieces overlap.
 * Rows of a device that MPI does not reach have a mirror in pinned memory, on either side. What leaves is copied there message
 * by message (a long one in several, see mt_planner's chunk), some ahead of what is sent; what has arrived is copied on at once.
 * The two directions are lanes of the device. The trap: a step may need rows of this rank's own beside those that it awaits;
 * they must have come to the mirror too. */
#include <string.h>
#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/comm_mpi.h"
#include "comm/exchange_plan.h"

enum { AHEAD = 8 }; /* copies under way to the mirror; fewer than a device remembers marks */

/* What to do when a request is complete. */
struct label {
  int step;          /* that waits for it, -1 = none */
  int64_t at, bytes; /* rows that have come to recv's mirror; 0 bytes = none */
};

/* A part of what has to come from send to its mirror: messages, then what steps copy. */
struct fetch {
  int64_t item;      /* number among the script's send, then among its copies */
  int64_t at, bytes; /* within the item */
};

struct mt_exchange {
  struct mt_comm *comm; /* borrowed */
  struct mt_planner planner;
  struct mt_requests set; /* everything under way */
  struct label *label;    /* [set.capacity], owned */
  int64_t label_capacity;
  int *open; /* [nstep], owned: requests, and fetches, that a step still waits for */
  int64_t open_capacity;
  struct mt_device *device; /* borrowed; NULL = rows are the host's */
  enum mt_reach reach;
  char *own[MT_NBUFFER];    /* owned: mirrors of send and recv, where there are such, and staging */
  int64_t own_bytes[MT_NBUFFER];
  /* the exchange under way: */
  const struct mt_script *script; /* borrowed from begin to end; NULL = none */
  int64_t width;                  /* bytes a row */
  char *buffer[MT_NBUFFER];       /* where MPI reads and writes; that of send is only read */
  char *rows[MT_NBUFFER];         /* where the rows are; borrowed but for staging */
  struct fetch fetched, sent;     /* the latest */
  int64_t nfetch, nsent;
  int64_t mark[AHEAD];            /* of fetches, by number */
};

struct mt_exchange *mt_exchange_new(struct mt_comm *comm, int kind)
{
  struct mt_exchange *x = MT_ZNEW(MT_TAG_COMM, struct mt_exchange, 1);
  x->comm = comm;
  x->planner = mt_planner_new(comm, kind);
  /* A first pattern may be empty here: what comes later is then a growth, not a first allocation. */
  mt_requests_reserve(&x->set, 1);
  return x;
}

void mt_exchange_pieces(struct mt_exchange *x, int npiece, int spread)
{
  x->planner.forced_spread = spread;
  x->planner.forced_pieces = npiece < x->planner.most_pieces ? npiece : x->planner.most_pieces;
}

void mt_exchange_of(struct mt_exchange *x, struct mt_device *device, enum mt_reach reach, int64_t chunk)
{
  x->device = reach == MT_REACH_HOST ? NULL : device;
  x->reach = reach;
  x->planner.chunk = chunk;
}

/* Mirrors and staging are memory of the wire; what MPI takes directly is the device's. */
static enum mt_space space_of(const struct mt_exchange *x)
{
  return x->reach == MT_REACH_STAGED ? MT_WIRE : MT_DEVICE;
}

void mt_exchange_free(struct mt_exchange *x)
{
  if (!x)
    return;
  MT_CHECK(!x->script, "an exchange was begun and not ended");
  mt_planner_free(&x->planner);
  mt_requests_free(&x->set);
  mt_free(x->label);
  mt_free(x->open);
  for (int i = 0; i < MT_NBUFFER; i++)
    if (x->device && x->own[i])
      x->device->ops->free(x->device, space_of(x), x->own[i]);
    else
      mt_free(x->own[i]);
  mt_free(x);
}

const char *mt_exchange_name(const struct mt_exchange *x)
{
  static const char *const name[] = {[MT_EXCHANGE_AUTO] = "auto",
                                     [MT_EXCHANGE_PAIRWISE] = "pairwise",
                                     [MT_EXCHANGE_HIERARCHICAL] = "hierarchical"};
  return name[x->planner.kind];
}

void mt_exchange_plan(struct mt_exchange *x, struct mt_exchange_plan *plan, const struct mt_pattern *pattern, int64_t width)
{
  mt_planner_write(&x->planner, plan, pattern, width);
}

/* Makes one of the exchange's own buffers so large; its contents are lost. */
static void reserve(struct mt_exchange *x, enum mt_buffer buffer, int64_t bytes)
{
  if (!x->device)
    mt_grow(MT_TAG_COMM, (void **)&x->own[buffer], &x->own_bytes[buffer], bytes, 1);
  else
    mt_device_grow(x->device, MT_TAG_COMM, space_of(x), (void **)&x->own[buffer], &x->own_bytes[buffer], bytes);
}

void mt_exchange_reserve(struct mt_exchange *x, const struct mt_exchange_plan *plan)
{
  MT_CHECK(!x->script, "an exchange was reserved before the last one ended");
  for (int i = 0; i < 2; i++) {
    const struct mt_script *script = &plan->script[i];
    mt_requests_reserve(&x->set, (int)script->nrequest);
    mt_grow(MT_TAG_COMM, (void **)&x->label, &x->label_capacity, script->nrequest, sizeof *x->label);
    mt_grow(MT_TAG_COMM, (void **)&x->open, &x->open_capacity, script->nstep, sizeof *x->open);
    reserve(x, MT_BUFFER_STAGE, script->stage_rows * plan->width);
    if (x->reach != MT_REACH_STAGED)
      continue;
    reserve(x, MT_BUFFER_SEND, script->send_rows * plan->width);
    reserve(x, MT_BUFFER_RECV, script->recv_rows * plan->width);
  }
}

int64_t mt_exchange_staging(const struct mt_exchange *x)
{
  return x->own_bytes[MT_BUFFER_STAGE];
}

/* The next part of a message that begins at this byte of it. */
static int64_t next_part(const struct mt_exchange *x, const struct mt_row_message *m, int64_t at)
{
  int64_t left = m->rows * x->width - at;
  return left < m->longest ? left : m->longest;
}

static void post_recv(struct mt_exchange *x, const struct mt_row_message *m)
{
  for (int64_t at = 0, part; (part = next_part(x, m, at)) > 0; at += part) {
    const int64_t place = m->at * x->width + at;
    x->label[x->set.n] = (struct label){m->step, place, x->rows[m->buffer] != x->buffer[m->buffer] ? part : 0};
    if (m->step >= 0)
      x->open[m->step]++;
    mt_post_recv(x->comm, &x->set, x->buffer[m->buffer] + place, part, m->partner, m->tag);
  }
}

static void post_part(struct mt_exchange *x, const struct mt_row_message *m, int64_t at, int64_t bytes)
{
  x->label[x->set.n] = (struct label){-1, 0, 0};
  mt_post_send(x->comm, &x->set, x->buffer[m->buffer] + m->at * x->width + at, bytes, m->partner, m->tag);
}

static void post_send(struct mt_exchange *x, const struct mt_row_message *m)
{
  for (int64_t at = 0, part; (part = next_part(x, m, at)) > 0; at += part)
    post_part(x, m, at, part);
}

/* Where rows are both in the host's memory and copied by it, at once; else by the device, until its lane is waited for. */
static void copy_rows(const struct mt_exchange *x, const struct mt_row_copy *copy)
{
  const int64_t to = copy->to_at * x->width, from = copy->from_at * x->width, bytes = copy->rows * x->width;
  if (!bytes)
    return;
  if (x->reach == MT_REACH_DIRECT || (x->reach == MT_REACH_STAGED && copy->to == MT_BUFFER_RECV))
    x->device->ops->copy(x->device, MT_DEV_IN, x->rows[copy->to] + to, x->rows[copy->from] + from, bytes);
  else
    memcpy(x->buffer[copy->to] + to, x->buffer[copy->from] + from, (size_t)bytes);
}

static void run_step(struct mt_exchange *x, const struct mt_row_step *step)
{
  for (int64_t i = step[0].first_copy; i < step[1].first_copy; i++)
    copy_rows(x, &x->script->copy[i]);
  if (x->reach == MT_REACH_DIRECT)
    x->device->ops->sync(x->device, MT_DEV_IN);
  for (int64_t i = step[0].first_send; i < step[1].first_send; i++)
    post_send(x, &x->script->onward.message[i]);
}

/* One thing less that the step waits for. */
static void count_down(struct mt_exchange *x, int step)
{
  if (step >= 0 && !--x->open[step])
    run_step(x, &x->script->step[step]);
}

/* ---- rows that MPI does not reach ---- */

static int64_t item_bytes(const struct mt_exchange *x, int64_t item)
{
  const struct mt_script *script = x->script;
  if (item < script->send.n)
    return script->send.message[item].rows * x->width;
  const struct mt_row_copy *copy = &script->copy[item - script->send.n];
  return copy->from == MT_BUFFER_SEND ? copy->rows * x->width : 0;
}

/* Goes on to the next fetch; 0 behind the last one. */
static int next_fetch(const struct mt_exchange *x, struct fetch *fetch)
{
  const struct mt_script *script = x->script;
  fetch->at += fetch->bytes;
  for (; fetch->item < script->send.n + script->ncopy; fetch->item++, fetch->at = 0) {
    const int64_t left = item_bytes(x, fetch->item) - fetch->at;
    const int64_t most = fetch->item < script->send.n ? script->send.message[fetch->item].longest : x->planner.chunk;
    fetch->bytes = left < most ? left : most;
    if (left > 0)
      return 1;
  }
  fetch->bytes = 0;
  return 0;
}

static void fetch_next(struct mt_exchange *x)
{
  struct mt_device *device = x->device;
  const struct mt_script *script = x->script;
  if (!next_fetch(x, &x->fetched))
    return;
  const int64_t row = x->fetched.item < script->send.n ? script->send.message[x->fetched.item].at
                                                       : script->copy[x->fetched.item - script->send.n].from_at;
  const int64_t at = row * x->width + x->fetched.at;
  device->ops->copy(device, MT_DEV_OUT, x->buffer[MT_BUFFER_SEND] + at, x->rows[MT_BUFFER_SEND] + at, x->fetched.bytes);
  x->mark[x->nfetch++ % AHEAD] = device->ops->mark(device, MT_DEV_OUT);
}

/* Sends, or hands to its step, what was fetched first; 0 if all has been. */
static int send_next(struct mt_exchange *x)
{
  const struct mt_script *script = x->script;
  if (!next_fetch(x, &x->sent))
    return 0;
  x->device->ops->reach(x->device, x->mark[x->nsent++ % AHEAD]);
  fetch_next(x);
  if (x->sent.item < script->send.n)
    post_part(x, &script->send.message[x->sent.item], x->sent.at, x->sent.bytes);
  else
    count_down(x, script->copy[x->sent.item - script->send.n].step);
  return 1;
}

static void begin_fetching(struct mt_exchange *x)
{
  struct fetch all = {0};
  while (next_fetch(x, &all))
    if (all.item >= x->script->send.n)
      x->open[x->script->copy[all.item - x->script->send.n].step]++;
  x->fetched = x->sent = (struct fetch){0};
  x->nfetch = x->nsent = 0;
  for (int i = 0; i < AHEAD; i++)
    fetch_next(x);
}

/* ---- the whole ---- */

void mt_exchange_begin(struct mt_exchange *x, const struct mt_exchange_plan *plan, enum mt_direction direction,
                       const void *send, void *recv)
{
  MT_CHECK(!x->script, "an exchange was begun before the last one ended");
  const struct mt_script *script = x->script = &plan->script[direction];
  x->width = plan->width;
  x->rows[MT_BUFFER_SEND] = (char *)send;
  x->rows[MT_BUFFER_RECV] = recv;
  x->rows[MT_BUFFER_STAGE] = x->own[MT_BUFFER_STAGE];
  const int staged = x->reach == MT_REACH_STAGED;
  for (int i = 0; i < MT_NBUFFER; i++)
    x->buffer[i] = staged ? x->own[i] : x->rows[i];
  if (x->device)
    x->device->ops->sync(x->device, MT_DEV_MATH);
  memset(x->open, 0, sizeof *x->open * (size_t)script->nstep);
  for (int64_t i = 0; i < script->await.n; i++)
    post_recv(x, &script->await.message[i]);
  if (staged)
    begin_fetching(x);
  for (int64_t i = 0; i < script->send.n && !staged; i++)
    post_send(x, &script->send.message[i]);
  copy_rows(x, &script->self);
}

static void handle(struct mt_exchange *x, int n, const int *done)
{
  for (int i = 0; i < n; i++) {
    const struct label label = x->label[done[i]];
    if (label.bytes)
      x->device->ops->copy(x->device, MT_DEV_IN, x->rows[MT_BUFFER_RECV] + label.at, x->buffer[MT_BUFFER_RECV] + label.at,
                           label.bytes);
    count_down(x, label.step);
  }
}

void mt_exchange_end(struct mt_exchange *x)
{
  MT_CHECK(x->script, "an exchange was ended that was not begun");
  const int *done;
  while (x->reach == MT_REACH_STAGED && send_next(x)) {
    int n = mt_test_some(&x->set, &done);
    handle(x, n, done);
  }
  for (int n; (n = mt_wait_some(x->comm, &x->set, &done)) > 0;)
    handle(x, n, done);
  if (x->device)
    x->device->ops->sync(x->device, MT_DEV_IN);
  x->script = NULL;
}
