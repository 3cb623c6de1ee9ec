/* From a routing to slots; see dispatch.h. */
#include "experts/dispatch.h"
#include "base/memory.h"
#include <string.h>

struct mt_dispatch mt_dispatch_new(const struct mt_comm *comm, int nslot)
{
  return (struct mt_dispatch){.slot_row = MT_ZNEW(MT_TAG_PLAN, int64_t, nslot + 1), .pattern = mt_pattern_new(comm)};
}

void mt_dispatch_free(struct mt_dispatch *dispatch)
{
  mt_free(dispatch->send_token);
  mt_free(dispatch->place);
  mt_free(dispatch->gather);
  mt_free(dispatch->scatter);
  mt_free(dispatch->slot_row);
  mt_pattern_free(&dispatch->pattern);
  memset(dispatch, 0, sizeof *dispatch);
}

void mt_dispatch_count(const struct mt_routing *routing, int nexpert, int64_t *counts)
{
  memset(counts, 0, sizeof *counts * (size_t)nexpert);
  for (int64_t i = 0; i < routing->nrow; i++)
    counts[routing->expert[i]]++;
}

void mt_dispatch_plan(struct mt_dispatch *dispatch, const struct mt_comm *comm, const struct mt_layout *layout,
                      const struct mt_shares *shares, const struct mt_routing *routing)
{
  const int me = comm->rank, P = comm->size, E = layout->nexpert, n = comm->node_size;
  const int node0 = comm->node_first[comm->node], my_first = layout->slot_first[me];
  const int mine = layout->slot_first[me + 1] - my_first, S = layout->slot_first[P];
  struct mt_pattern *pattern = &dispatch->pattern;
  memset(pattern->out, 0, sizeof(int64_t) * (size_t)n * (size_t)P);
  memset(pattern->in, 0, sizeof(int64_t) * (size_t)n * (size_t)P);
  int64_t to_slot[S + 1];                        /* rows from me to each slot */
  int64_t arrive[(size_t)P * (size_t)mine + 1]; /* rows from each rank to each of my slots */
  memset(to_slot, 0, sizeof to_slot);
  memset(arrive, 0, sizeof arrive);

  for (int s = 0; s < P; s++) {
    const int same_node = comm->cluster->node_of[s] == comm->node;
    for (int32_t i = shares->first[(int64_t)s * E]; i < shares->first[(int64_t)(s + 1) * E]; i++) {
      const int slot = shares->slot[i], d = layout->slot_rank[slot];
      const int64_t rows = shares->rows[i];
      if (same_node)
        pattern->out[(int64_t)(s - node0) * P + d] += rows;
      if (d >= node0 && d < node0 + n)
        pattern->in[(int64_t)s * n + (d - node0)] += rows;
      if (s == me)
        to_slot[slot] += rows;
      if (d == me)
        arrive[(int64_t)s * mine + (slot - my_first)] += rows;
    }
  }

  /* Sending order: by slot, then by position. next[slot] runs through the slot's rows. */
  mt_grow(MT_TAG_PLAN, (void **)&dispatch->place, &(int64_t){dispatch->sent_capacity}, routing->nrow, sizeof(int32_t));
  mt_grow(MT_TAG_PLAN, (void **)&dispatch->send_token, &dispatch->sent_capacity, routing->nrow, sizeof(int32_t));
  dispatch->sent = routing->nrow;
  int64_t next[S + 1];
  next[0] = 0;
  for (int slot = 0; slot < S; slot++)
    next[slot + 1] = next[slot] + to_slot[slot];
  /* at[e] is the run of (me, e) that takes rows now, left[e] how many more. */
  int32_t at[E + 1];
  int64_t left[E + 1];
  for (int e = 0; e < E; e++) {
    at[e] = shares->first[(int64_t)me * E + e];
    left[e] = at[e] < shares->first[(int64_t)me * E + e + 1] ? shares->rows[at[e]] : 0;
  }
  for (int64_t t = 0; t < routing->ntoken; t++)
    for (int64_t i = routing->first[t]; i < routing->first[t + 1]; i++) {
      int e = routing->expert[i];
      if (!left[e])
        left[e] = shares->rows[++at[e]];
      left[e]--;
      int64_t row = next[shares->slot[at[e]]]++;
      dispatch->place[i] = (int32_t)row;
      dispatch->send_token[row] = (int32_t)t;
    }

  int64_t received = 0;
  for (int j = 0; j < mine; j++) {
    dispatch->slot_row[j] = received;
    for (int s = 0; s < P; s++)
      received += arrive[(int64_t)s * mine + j];
  }
  dispatch->slot_row[mine] = received;
  dispatch->received = received;
  mt_grow(MT_TAG_PLAN, (void **)&dispatch->gather, &(int64_t){dispatch->received_capacity}, received, sizeof(int32_t));
  mt_grow(MT_TAG_PLAN, (void **)&dispatch->scatter, &dispatch->received_capacity, received, sizeof(int32_t));
  int64_t row = 0; /* in arrival order */
  int64_t slot_next[mine + 1];
  memcpy(slot_next, dispatch->slot_row, sizeof slot_next);
  for (int s = 0; s < P; s++)
    for (int j = 0; j < mine; j++)
      for (int64_t i = arrive[(int64_t)s * mine + j]; i > 0; i--, row++) {
        int64_t place = slot_next[j]++;
        dispatch->gather[place] = (int32_t)row;
        dispatch->scatter[row] = (int32_t)place;
      }
}
