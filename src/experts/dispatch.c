/* From a routing to slots; see dispatch.h. */
#include "experts/dispatch.h"
#include "base/memory.h"
#include <string.h>

struct mt_dispatch mt_dispatch_new(int nslot)
{
  return (struct mt_dispatch){.slot_row = MT_ZNEW(MT_TAG_PLAN, int64_t, nslot + 1)};
}

void mt_dispatch_free(struct mt_dispatch *dispatch)
{
  mt_free(dispatch->send_token);
  mt_free(dispatch->place);
  mt_free(dispatch->gather);
  mt_free(dispatch->scatter);
  mt_free(dispatch->slot_row);
  memset(dispatch, 0, sizeof *dispatch);
}

struct mt_dispatcher mt_dispatcher_new(const struct mt_comm *comm, const struct mt_layout *layout)
{
  const int mine = layout->slot_first[comm->rank + 1] - layout->slot_first[comm->rank];
  return (struct mt_dispatcher){.comm = comm, .pattern = mt_pattern_new(comm),
                                .next = MT_NEW(MT_TAG_PLAN, int64_t, layout->slot_first[comm->size] + 1),
                                .arrive = MT_NEW(MT_TAG_PLAN, int64_t, (int64_t)comm->size * mine),
                                .slot_next = MT_NEW(MT_TAG_PLAN, int64_t, mine),
                                .left = MT_NEW(MT_TAG_PLAN, int64_t, layout->nexpert),
                                .at = MT_NEW(MT_TAG_PLAN, int32_t, layout->nexpert)};
}

void mt_dispatcher_free(struct mt_dispatcher *dispatcher)
{
  mt_pattern_free(&dispatcher->pattern);
  mt_free(dispatcher->next);
  mt_free(dispatcher->arrive);
  mt_free(dispatcher->slot_next);
  mt_free(dispatcher->left);
  mt_free(dispatcher->at);
  memset(dispatcher, 0, sizeof *dispatcher);
}

void mt_dispatch_count(const struct mt_routing *routing, int nexpert, int64_t *counts)
{
  memset(counts, 0, sizeof *counts * (size_t)nexpert);
  for (int64_t i = 0; i < routing->nrow; i++)
    counts[routing->expert[i]]++;
}

/* Adds up the runs [from, to), of source s. */
static void add_runs(struct mt_dispatcher *dispatcher, const struct mt_layout *layout, const struct mt_shares *shares, int s,
                     int32_t from, int32_t to)
{
  const struct mt_comm *comm = dispatcher->comm;
  const int me = comm->rank, P = comm->size, n = comm->node_size, node0 = me - comm->node_rank;
  const int my_first = layout->slot_first[me], mine = layout->slot_first[me + 1] - my_first;
  for (int32_t i = from; i < to; i++) {
    const int slot = shares->slot[i], d = layout->slot_rank[slot];
    const int64_t rows = shares->rows[i];
    if (s >= node0 && s < node0 + n)
      dispatcher->pattern.out[(int64_t)(s - node0) * P + d] += rows;
    if (d >= node0 && d < node0 + n)
      dispatcher->pattern.in[(int64_t)s * n + (d - node0)] += rows;
    if (s == me)
      dispatcher->next[slot + 1] += rows;
    if (d == me)
      dispatcher->arrive[(int64_t)s * mine + (slot - my_first)] += rows;
  }
}

void mt_dispatch_plan(struct mt_dispatcher *dispatcher, struct mt_dispatch *dispatch, const struct mt_layout *layout,
                      const struct mt_shares *shares, const struct mt_routing *routing)
{
  const struct mt_comm *comm = dispatcher->comm;
  const int me = comm->rank, P = comm->size, E = layout->nexpert, n = comm->node_size;
  const int mine = layout->slot_first[me + 1] - layout->slot_first[me], S = layout->slot_first[P];
  struct mt_pattern *pattern = &dispatcher->pattern;
  int64_t *next = dispatcher->next;     /* first rows from me to each slot, then the next row of it */
  int64_t *arrive = dispatcher->arrive; /* rows from each rank to each of my slots */
  memset(pattern->out, 0, sizeof *pattern->out * (size_t)n * (size_t)P);
  memset(pattern->in, 0, sizeof *pattern->in * (size_t)n * (size_t)P);
  memset(next, 0, sizeof *next * ((size_t)S + 1));
  memset(arrive, 0, sizeof *arrive * (size_t)P * (size_t)mine);

  /* Of what other nodes send, only experts with a slot in my node matter. */
  int32_t *held = dispatcher->at, nheld = 0;
  for (int e = 0; e < E; e++)
    if (layout->expert_first[e * layout->nnode + comm->node] < layout->expert_first[e * layout->nnode + comm->node + 1])
      held[nheld++] = e;
  for (int s = 0; s < P; s++) {
    const int32_t *first = shares->first + (int64_t)s * E;
    if (comm->cluster->node_of[s] == comm->node)
      add_runs(dispatcher, layout, shares, s, first[0], first[E]);
    else
      for (int i = 0; i < nheld; i++)
        add_runs(dispatcher, layout, shares, s, first[held[i]], first[held[i] + 1]);
  }

  /* Sending order: by slot, then by position. */
  mt_grow(MT_TAG_PLAN, (void **)&dispatch->place, &(int64_t){dispatch->sent_capacity}, routing->nrow, sizeof(int32_t));
  mt_grow(MT_TAG_PLAN, (void **)&dispatch->send_token, &dispatch->sent_capacity, routing->nrow, sizeof(int32_t));
  dispatch->sent = routing->nrow;
  for (int slot = 0; slot < S; slot++)
    next[slot + 1] += next[slot];
  /* at[e] is the run of (me, e) that takes rows now, left[e] how many more. */
  int32_t *at = dispatcher->at;
  int64_t *left = dispatcher->left;
  for (int e = 0; e < E; e++) {
    at[e] = shares->first[(int64_t)me * E + e];
    left[e] = at[e] < shares->first[(int64_t)me * E + e + 1] ? shares->rows[at[e]] : 0;
  }
  for (int64_t t = 0; t < routing->ntoken; t++)
    for (int64_t i = routing->first[t] - routing->first[0]; i < routing->first[t + 1] - routing->first[0]; i++) {
      int e = routing->expert[i];
      if (!left[e])
        left[e] = shares->rows[++at[e]];
      left[e]--;
      int64_t row = next[shares->slot[at[e]]]++;
      dispatch->place[i] = (int32_t)row;
      dispatch->send_token[row] = (int32_t)t;
    }

  int64_t received = 0, *slot_next = dispatcher->slot_next;
  for (int j = 0; j < mine; j++) {
    dispatch->slot_row[j] = slot_next[j] = received;
    for (int s = 0; s < P; s++)
      received += arrive[(int64_t)s * mine + j];
  }
  dispatch->slot_row[mine] = received;
  dispatch->received = received;
  mt_grow(MT_TAG_PLAN, (void **)&dispatch->gather, &(int64_t){dispatch->received_capacity}, received, sizeof(int32_t));
  mt_grow(MT_TAG_PLAN, (void **)&dispatch->scatter, &dispatch->received_capacity, received, sizeof(int32_t));
  int64_t row = 0; /* in arrival order */
  for (int s = 0; s < P; s++)
    for (int j = 0; j < mine; j++)
      for (int64_t i = arrive[(int64_t)s * mine + j]; i > 0; i--, row++) {
        int64_t place = slot_next[j]++;
        dispatch->gather[place] = (int32_t)row;
        dispatch->scatter[row] = (int32_t)place;
      }
}
