/* The exchange of rows: both algorithms, both directions; see exchange.h.
 *
 * There is one algorithm per kind, written over rows(s, d), the rows from s to d in the direction under way;
 * going back is the same walk over the transposed pattern.
 *
 * Hierarchical, for the rows from node p to node q, with B = bridge(p, q) and B' = bridge(q, p):
 *   1. each rank of p sends B its rows for q, which lie together in its send buffer (ranks of a node are
 * consecutive);
 *   2. B arranges them as [rank of q][rank of p] and sends B' one message;
 *   3. for each rank of q the part of that message is what its receive buffer wants, in its order: B' sends
 * it on. Every node pair proceeds by itself: whatever arrives first is handled first. Rows within a node go
 * directly. Staging of a bridge holds, for its nodes q: what 1 brings, what 2 sends, what 2 brings. A node of
 * one rank needs none: its send and receive buffers have those orders already. The trap: a bridge serves
 * several nodes, so two messages with one partner may overtake each other in this program's order of
 * handling; the node's number in the tag keeps them apart. */
#include "comm/exchange.h"
#include <string.h>
#include "base/config.h"
#include "base/memory.h"
#include "comm/comm_mpi.h"

/* A node that I am the bridge to. */
struct bridge {
  int node;                      /* the node */
  int peer;                      /* its bridge to us */
  int64_t out_rows, in_rows;     /* rows of my node for that node, and back */
  int64_t raw_at, out_at, in_at; /* rows before them in staging: gathered by source, to send, received */
};

struct mt_exchange {
  struct mt_comm *comm; /* borrowed */
  int hierarchical;
  int64_t *send_at, *recv_at; /* [P + 1], owned: rows before each partner's in send and recv */
  struct mt_requests common;  /* whatever needs no action when it completes */
  int nbridge;
  struct bridge *bridge;       /* [nbridge], owned; in the order of nodes after mine, cyclically */
  struct mt_requests *arrival; /* [2 nbridge], owned: 2 k = step 1 for bridge k, 2 k + 1 = step 2 */
  const char **cursor;         /* [node_size], owned; for the arranging in step 2 */
  void *stage;                 /* owned */
  int64_t stage_capacity;      /* bytes in it */

  /* The exchange under way: */
  const struct mt_pattern *pattern; /* borrowed from begin to end; NULL = none */
  enum mt_direction direction;
  int64_t width;    /* bytes a row */
  const char *send; /* borrowed */
  char *recv;       /* borrowed */
};

/* ---- patterns ---- */

struct mt_pattern mt_pattern_new(const struct mt_comm *comm)
{
  int64_t n = (int64_t)comm->node_size * comm->size;
  return (struct mt_pattern){.out = MT_ZNEW(MT_TAG_PLAN, int64_t, n), .in = MT_ZNEW(MT_TAG_PLAN, int64_t, n)};
}

void mt_pattern_free(struct mt_pattern *pattern)
{
  mt_free(pattern->out);
  mt_free(pattern->in);
  *pattern = (struct mt_pattern){0};
}

int64_t mt_pattern_sent(const struct mt_comm *comm, const struct mt_pattern *pattern)
{
  int64_t sum = 0;
  for (int r = 0; r < comm->size; r++)
    sum += pattern->out[(int64_t)comm->node_rank * comm->size + r];
  return sum;
}

int64_t mt_pattern_received(const struct mt_comm *comm, const struct mt_pattern *pattern)
{
  int64_t sum = 0;
  for (int r = 0; r < comm->size; r++)
    sum += pattern->in[(int64_t)r * comm->node_size + comm->node_rank];
  return sum;
}

/* Rows from rank s to rank d in a direction; one of them must be of my node. */
static int64_t rows_in(const struct mt_comm *comm, const struct mt_pattern *pattern,
                       enum mt_direction direction, int s, int d)
{
  if (direction == MT_BACK) {
    int other = s;
    s = d;
    d = other;
  }
  int first = comm->node_first[comm->node];
  if (s >= first && s < first + comm->node_size)
    return pattern->out[(int64_t)(s - first) * comm->size + d];
  return pattern->in[(int64_t)s * comm->node_size + (d - first)];
}

static int64_t rows(const struct mt_exchange *x, int s, int d)
{
  return rows_in(x->comm, x->pattern, x->direction, s, d);
}

/* Rows between my node and another, outwards or inwards. */
static int64_t node_rows(const struct mt_comm *comm, const struct mt_pattern *pattern,
                         enum mt_direction direction, int node, int inwards)
{
  const int *first = comm->node_first;
  int64_t sum = 0;
  for (int a = first[comm->node]; a < first[comm->node + 1]; a++)
    for (int b = first[node]; b < first[node + 1]; b++)
      sum += inwards ? rows_in(comm, pattern, direction, b, a) : rows_in(comm, pattern, direction, a, b);
  return sum;
}

/* ---- making ---- */

/* Tags of one purpose, apart by node. MPI's tags reach at least to 32767, mostly to INT_MAX. */
static int tag_of(enum mt_message_tag purpose, int node)
{
  return (int)purpose + 16 * node;
}

static void find_bridges(struct mt_exchange *x)
{
  struct mt_comm *comm = x->comm;
  x->bridge = MT_ZNEW(MT_TAG_COMM, struct bridge, comm->nnode);
  for (int i = 1; i < comm->nnode; i++) {
    int q = (comm->node + i) % comm->nnode;
    if (mt_cluster_bridge(comm->cluster, comm->node, q) == comm->rank)
      x->bridge[x->nbridge++] =
          (struct bridge){.node = q, .peer = mt_cluster_bridge(comm->cluster, q, comm->node)};
  }
  x->arrival = MT_ZNEW(MT_TAG_COMM, struct mt_requests, 2 * (int64_t)x->nbridge);
  x->cursor = MT_NEW(MT_TAG_COMM, const char *, comm->node_size);
}

struct mt_exchange *mt_exchange_new(struct mt_comm *comm, int kind)
{
  struct mt_exchange *x = MT_ZNEW(MT_TAG_COMM, struct mt_exchange, 1);
  x->comm = comm;
  x->hierarchical = kind == MT_EXCHANGE_HIERARCHICAL || (kind == MT_EXCHANGE_AUTO && comm->nnode > 1);
  x->send_at = MT_NEW(MT_TAG_COMM, int64_t, comm->size + 1);
  x->recv_at = MT_NEW(MT_TAG_COMM, int64_t, comm->size + 1);
  if (x->hierarchical) {
    MT_CHECK(tag_of(MT_MSG_TEST, comm->nnode) <= comm->mpi->tag_limit,
             "%d nodes are too many for this MPI's tags", comm->nnode);
    find_bridges(x);
  }
  return x;
}

void mt_exchange_free(struct mt_exchange *x)
{
  if (!x)
    return;
  MT_CHECK(!x->pattern, "an exchange was begun and not ended");
  for (int i = 0; i < 2 * x->nbridge; i++)
    mt_requests_free(&x->arrival[i]);
  mt_requests_free(&x->common);
  mt_free(x->arrival);
  mt_free(x->bridge);
  mt_free(x->cursor);
  mt_free(x->stage);
  mt_free(x->send_at);
  mt_free(x->recv_at);
  mt_free(x);
}

const char *mt_exchange_name(const struct mt_exchange *x)
{
  return x->hierarchical ? "hierarchical" : "pairwise";
}

/* Requests that `messages` messages of `bytes` bytes in all need at most. */
static int requests_for(int64_t messages, int64_t bytes)
{
  int64_t n = messages + bytes / mt_comm_piece;
  MT_CHECK(n < 1 << 30, "an exchange of %lld messages", (long long)n);
  return (int)n;
}

void mt_exchange_reserve(struct mt_exchange *x, const struct mt_pattern *pattern, int64_t width)
{
  struct mt_comm *comm = x->comm;
  int64_t mine = mt_pattern_sent(comm, pattern) + mt_pattern_received(comm, pattern);
  int64_t out = 0, in = 0; /* rows that cross over me */
  for (int k = 0; k < x->nbridge; k++) {
    int64_t there = node_rows(comm, pattern, MT_FORWARD, x->bridge[k].node, 0);
    int64_t here = node_rows(comm, pattern, MT_FORWARD, x->bridge[k].node, 1);
    int64_t most = there > here ? there : here;
    mt_requests_reserve(&x->arrival[2 * k], requests_for(comm->node_size, most * width));
    mt_requests_reserve(&x->arrival[2 * k + 1], requests_for(1, most * width));
    out += there;
    in += here;
  }
  int64_t messages = 2 * ((int64_t)comm->size + (int64_t)x->nbridge * comm->node_size);
  mt_requests_reserve(&x->common, requests_for(messages, (mine + 2 * (out + in)) * width));
  if (x->nbridge && comm->node_size > 1) {
    int64_t larger = out > in ? out : in;
    mt_grow(MT_TAG_COMM, &x->stage, &x->stage_capacity, (out + in + larger) * width, 1);
  }
}

/* ---- running ---- */

/* Direct messages with the n ranks from `first` on, of which I am number `me`; to myself a copy. Partners are
 * taken in rotation, so that not all ranks begin with the same one. */
static void post_direct(struct mt_exchange *x, int first, int n, int me)
{
  struct mt_comm *comm = x->comm;
  int64_t w = x->width;
  for (int i = 1; i < n; i++) {
    int from = first + (me + n - i) % n;
    mt_post_recv(comm, &x->common, x->recv + x->recv_at[from] * w, rows(x, from, comm->rank) * w, from,
                 MT_MSG_ROWS);
  }
  for (int i = 1; i < n; i++) {
    int to = first + (me + i) % n;
    mt_post_send(comm, &x->common, x->send + x->send_at[to] * w, rows(x, comm->rank, to) * w, to,
                 MT_MSG_ROWS);
  }
  int64_t mine = rows(x, comm->rank, comm->rank);
  if (mine)
    memcpy(x->recv + x->recv_at[comm->rank] * w, x->send + x->send_at[comm->rank] * w, (size_t)(mine * w));
}

/* Places in staging for each of my bridges. */
static void lay_out_stage(struct mt_exchange *x)
{
  struct mt_comm *comm = x->comm;
  int64_t out = 0, in = 0;
  for (int k = 0; k < x->nbridge; k++) {
    struct bridge *b = &x->bridge[k];
    b->out_rows = node_rows(comm, x->pattern, x->direction, b->node, 0);
    b->in_rows = node_rows(comm, x->pattern, x->direction, b->node, 1);
    b->raw_at = out;
    out += b->out_rows;
  }
  for (int k = 0; k < x->nbridge; k++) {
    struct bridge *b = &x->bridge[k];
    b->out_at = b->raw_at + out;
    b->in_at = 2 * out + in;
    in += b->in_rows;
  }
  MT_CHECK(comm->node_size == 1 || (2 * out + in) * x->width <= x->stage_capacity,
           "an exchange of %lld rows over a bridge was not reserved", (long long)(out + in));
}

static char *stage_row(const struct mt_exchange *x, int64_t row)
{
  return (char *)x->stage + row * x->width;
}

/* Where the message from that node arrives. */
static char *landing(const struct mt_exchange *x, const struct bridge *b)
{
  if (x->comm->node_size == 1)
    return x->recv + x->recv_at[x->comm->node_first[b->node]] * x->width;
  return stage_row(x, b->in_at);
}

/* Step 2: everything that my node has for that node is here. */
static void cross(struct mt_exchange *x, const struct bridge *b)
{
  struct mt_comm *comm = x->comm;
  const int *first = comm->node_first;
  const char *data = x->send + x->send_at[first[b->node]] * x->width;
  if (comm->node_size > 1) {
    const char *raw = stage_row(x, b->raw_at);
    for (int i = 0; i < comm->node_size; i++) {
      int s = first[comm->node] + i;
      x->cursor[i] = s == comm->rank ? data : raw;
      for (int d = first[b->node]; d < first[b->node + 1] && s != comm->rank; d++)
        raw += rows(x, s, d) * x->width;
    }
    char *at = stage_row(x, b->out_at);
    for (int d = first[b->node]; d < first[b->node + 1]; d++)
      for (int i = 0; i < comm->node_size; i++) {
        int64_t bytes = rows(x, first[comm->node] + i, d) * x->width;
        if (!bytes)
          continue;
        memcpy(at, x->cursor[i], (size_t)bytes);
        x->cursor[i] += bytes;
        at += bytes;
      }
    data = stage_row(x, b->out_at);
  }
  mt_post_send(comm, &x->common, data, b->out_rows * x->width, b->peer, MT_MSG_BRIDGE);
}

/* Step 3: that node's message is here. */
static void deal(struct mt_exchange *x, const struct bridge *b)
{
  struct mt_comm *comm = x->comm;
  const int *first = comm->node_first;
  if (comm->node_size == 1)
    return;
  const char *data = landing(x, b);
  for (int d = first[comm->node]; d < first[comm->node + 1]; d++) {
    int64_t bytes = 0;
    for (int s = first[b->node]; s < first[b->node + 1]; s++)
      bytes += rows(x, s, d) * x->width;
    if (d != comm->rank)
      mt_post_send(comm, &x->common, data, bytes, d, tag_of(MT_MSG_DEAL, b->node));
    else if (bytes)
      memcpy(x->recv + x->recv_at[first[b->node]] * x->width, data, (size_t)bytes);
    data += bytes;
  }
}

static void post_hierarchical(struct mt_exchange *x)
{
  struct mt_comm *comm = x->comm;
  const int *first = comm->node_first;
  lay_out_stage(x);
  for (int k = 0; k < x->nbridge; k++) {
    struct bridge *b = &x->bridge[k];
    mt_post_recv(comm, &x->arrival[2 * k + 1], landing(x, b), b->in_rows * x->width, b->peer, MT_MSG_BRIDGE);
    char *raw = comm->node_size > 1 ? stage_row(x, b->raw_at) : NULL;
    for (int s = first[comm->node]; s < first[comm->node + 1] && raw; s++) {
      int64_t bytes = 0;
      for (int d = first[b->node]; d < first[b->node + 1] && s != comm->rank; d++)
        bytes += rows(x, s, d) * x->width;
      if (bytes)
        mt_post_recv(comm, &x->arrival[2 * k], raw, bytes, s, tag_of(MT_MSG_BRIDGE, b->node));
      raw += bytes;
    }
  }
  for (int i = 1; i < comm->nnode; i++) {
    int q = (comm->node + i) % comm->nnode;
    int bridge = mt_cluster_bridge(comm->cluster, comm->node, q);
    if (bridge == comm->rank)
      continue;
    int64_t out = x->send_at[first[q]], in = x->recv_at[first[q]];
    mt_post_recv(comm, &x->common, x->recv + in * x->width, (x->recv_at[first[q + 1]] - in) * x->width,
                 bridge, tag_of(MT_MSG_DEAL, q));
    mt_post_send(comm, &x->common, x->send + out * x->width, (x->send_at[first[q + 1]] - out) * x->width,
                 bridge, tag_of(MT_MSG_BRIDGE, q));
  }
  post_direct(x, first[comm->node], comm->node_size, comm->node_rank);
  /* Bridges that wait for nobody may cross at once. */
  for (int k = 0; k < x->nbridge; k++)
    if (!x->arrival[2 * k].n)
      cross(x, &x->bridge[k]);
}

void mt_exchange_begin(struct mt_exchange *x, const struct mt_pattern *pattern, enum mt_direction direction,
                       int64_t width, const void *send, void *recv)
{
  struct mt_comm *comm = x->comm;
  MT_CHECK(!x->pattern, "an exchange was begun before the last one ended");
  x->pattern = pattern;
  x->direction = direction;
  x->width = width;
  x->send = send;
  x->recv = recv;
  x->send_at[0] = x->recv_at[0] = 0;
  for (int r = 0; r < comm->size; r++) {
    x->send_at[r + 1] = x->send_at[r] + rows(x, comm->rank, r);
    x->recv_at[r + 1] = x->recv_at[r] + rows(x, r, comm->rank);
  }
  if (x->hierarchical)
    post_hierarchical(x);
  else
    post_direct(x, 0, comm->size, comm->rank);
}

void mt_exchange_end(struct mt_exchange *x)
{
  MT_CHECK(x->pattern, "an exchange was ended that was not begun");
  for (int i; (i = mt_wait_any(x->comm, x->arrival, 2 * x->nbridge)) >= 0;) {
    if (i % 2 == 0)
      cross(x, &x->bridge[i / 2]);
    else
      deal(x, &x->bridge[i / 2]);
  }
  mt_wait(x->comm, &x->common);
  x->pattern = NULL;
}
