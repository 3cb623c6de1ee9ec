/* Carrying out plans of exchanges; see exchange.h and exchange_plan.h.
 *
 * Everything that waits for nothing is posted at once, what is awaited first. Each step proceeds by itself: whatever
 * arrives first is handled first, so the steps of several pieces overlap. */
#include <string.h>
#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/comm_mpi.h"
#include "comm/exchange_plan.h"

struct mt_exchange {
  struct mt_comm *comm; /* borrowed */
  struct mt_planner planner;
  struct mt_requests set; /* everything under way */
  int *label;             /* [set.capacity], owned: the step that waits for a request, -1 = none */
  int64_t label_capacity;
  int *open; /* [nstep], owned: requests that a step still waits for */
  int64_t open_capacity;
  void *stage; /* owned */
  int64_t stage_capacity;
  /* the exchange under way: */
  const struct mt_script *script; /* borrowed from begin to end; NULL = none */
  int64_t width;                  /* bytes a row */
  char *buffer[MT_NBUFFER];       /* borrowed; that of send is only read */
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

void mt_exchange_free(struct mt_exchange *x)
{
  if (!x)
    return;
  MT_CHECK(!x->script, "an exchange was begun and not ended");
  mt_planner_free(&x->planner);
  mt_requests_free(&x->set);
  mt_free(x->label);
  mt_free(x->open);
  mt_free(x->stage);
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

void mt_exchange_reserve(struct mt_exchange *x, const struct mt_exchange_plan *plan)
{
  MT_CHECK(!x->script, "an exchange was reserved before the last one ended");
  for (int i = 0; i < 2; i++) {
    const struct mt_script *script = &plan->script[i];
    mt_requests_reserve(&x->set, (int)script->nrequest);
    mt_grow(MT_TAG_COMM, (void **)&x->label, &x->label_capacity, script->nrequest, sizeof *x->label);
    mt_grow(MT_TAG_COMM, (void **)&x->open, &x->open_capacity, script->nstep, sizeof *x->open);
    mt_grow(MT_TAG_COMM, &x->stage, &x->stage_capacity, script->stage_rows * plan->width, 1);
  }
}

int64_t mt_exchange_staging(const struct mt_exchange *x)
{
  return x->stage_capacity;
}

/* The next part of a message that begins at this byte of it. */
static int64_t next_part(const struct mt_exchange *x, const struct mt_row_message *m, int64_t at)
{
  int64_t left = m->rows * x->width - at;
  return left < m->longest ? left : m->longest;
}

static char *place_of(const struct mt_exchange *x, enum mt_buffer buffer, int64_t row)
{
  return x->buffer[buffer] + row * x->width;
}

static void post_recv(struct mt_exchange *x, const struct mt_row_message *m)
{
  for (int64_t at = 0, part; (part = next_part(x, m, at)) > 0; at += part) {
    x->label[x->set.n] = m->step;
    if (m->step >= 0)
      x->open[m->step]++;
    mt_post_recv(x->comm, &x->set, place_of(x, m->buffer, m->at) + at, part, m->partner, m->tag);
  }
}

static void post_send(struct mt_exchange *x, const struct mt_row_message *m)
{
  for (int64_t at = 0, part; (part = next_part(x, m, at)) > 0; at += part) {
    x->label[x->set.n] = -1;
    mt_post_send(x->comm, &x->set, place_of(x, m->buffer, m->at) + at, part, m->partner, m->tag);
  }
}

static void copy_rows(const struct mt_exchange *x, const struct mt_row_copy *copy)
{
  if (copy->rows)
    memcpy(place_of(x, copy->to, copy->to_at), place_of(x, copy->from, copy->from_at), (size_t)(copy->rows * x->width));
}

void mt_exchange_begin(struct mt_exchange *x, const struct mt_exchange_plan *plan, enum mt_direction direction,
                       const void *send, void *recv)
{
  MT_CHECK(!x->script, "an exchange was begun before the last one ended");
  const struct mt_script *script = x->script = &plan->script[direction];
  x->width = plan->width;
  x->buffer[MT_BUFFER_SEND] = (char *)send;
  x->buffer[MT_BUFFER_RECV] = recv;
  x->buffer[MT_BUFFER_STAGE] = x->stage;
  memset(x->open, 0, sizeof *x->open * (size_t)script->nstep);
  for (int64_t i = 0; i < script->await.n; i++)
    post_recv(x, &script->await.message[i]);
  for (int64_t i = 0; i < script->send.n; i++)
    post_send(x, &script->send.message[i]);
  copy_rows(x, &script->self);
}

static void run_step(struct mt_exchange *x, const struct mt_row_step *step)
{
  for (int64_t i = step[0].first_copy; i < step[1].first_copy; i++)
    copy_rows(x, &x->script->copy[i]);
  for (int64_t i = step[0].first_send; i < step[1].first_send; i++)
    post_send(x, &x->script->onward.message[i]);
}

void mt_exchange_end(struct mt_exchange *x)
{
  MT_CHECK(x->script, "an exchange was ended that was not begun");
  const int *done;
  for (int n; (n = mt_wait_some(x->comm, &x->set, &done)) > 0;)
    for (int i = 0; i < n; i++) {
      int step = x->label[done[i]];
      if (step >= 0 && !--x->open[step])
        run_step(x, &x->script->step[step]);
    }
  x->script = NULL;
}
