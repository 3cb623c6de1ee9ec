/* Plans of an exchange: all ways, both directions; see exchange.h, exchange_plan.h and way.h.
 *
 * There is one algorithm, written over rows(s, d), the rows from s to d in the direction under way; going back
 * is the same walk over the transposed pattern. The rows from node p to node q are thought of as one list in the
 * order [rank d of q][rank s of p], which is cut evenly into pieces, wherever the cuts fall. Each piece has a
 * bridge B in p and one, B', in q (see bridge_of):
 *   1. each rank of p sends B its rows of the piece, which lie together in its send buffer;
 *   2. B arranges them in the list's order and sends B' one message;
 *   3. the part of each rank of q is what its receive buffer wants, in its order: B' sends it on.
 * A bridge that has all of a piece needs no staging and no step. No pieces: directly; rows within a node always go so.
 * The trap: a bridge serves several pieces, so messages with one partner may overtake each other in this
 * program's order of handling; node and piece in the tag keep them apart. */
#include "comm/exchange_plan.h"
#include <string.h>
#include "base/config.h"
#include "base/memory.h"
#include "comm/comm_mpi.h"
#include "comm/part.h"
#include "comm/way.h"

/* Below the 64 KiB, headers included, that Open MPI sends over TCP without asking. Networks faster than this (2.5 GB/s)
 * ask in no time, and move long messages themselves. The trap that segments avoid: MPI asks the receiver before it sends
 * a longer message, and where both nodes send at once the answer waits in line behind what its node is sending, so that a
 * link stands idle for as long as its queue takes to empty. */
int64_t mt_exchange_segment = 63 << 10;
enum { FAST_PS = 400 };

/* The rows from one node to another. */
struct pair {
  int from, to; /* nodes */
  int64_t rows; /* in all */
  int npiece;   /* 0 = directly */
  int spread;   /* over several bridges */
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

/* Rows from rank s to rank d in the direction under way; one of them must be of my node. */
static int64_t rows(const struct mt_planner *x, int s, int d)
{
  const struct mt_comm *comm = x->comm;
  if (x->direction == MT_BACK) {
    int other = s;
    s = d;
    d = other;
  }
  int first = comm->node_first[comm->node];
  if (s >= first && s < first + comm->node_size)
    return x->pattern->out[(int64_t)(s - first) * comm->size + d];
  return x->pattern->in[(int64_t)s * comm->node_size + (d - first)];
}

/* ---- making ---- */

struct mt_planner mt_planner_new(const struct mt_comm *comm, int kind)
{
  struct mt_planner x = {.comm = comm, .kind = comm->nnode > 1 ? kind : MT_EXCHANGE_PAIRWISE, .chunk = INT64_MAX};
  x.send_at = MT_NEW(MT_TAG_COMM, int64_t, comm->size + 1);
  x.recv_at = MT_NEW(MT_TAG_COMM, int64_t, comm->size + 1);
  /* MPI's tags reach at least to 32767, mostly to INT_MAX: see tag_of. */
  x.most_pieces = comm->mpi ? (comm->mpi->tag_limit / 16 - 1) / comm->nnode : MT_MOST_PIECES; /* NULL: made up */
  if (x.most_pieces > MT_MOST_PIECES)
    x.most_pieces = MT_MOST_PIECES;
  MT_CHECK(x.most_pieces > 0, "%d nodes are too many for this MPI's tags", comm->nnode);
  int largest = 0;
  for (int i = 0; i < comm->nnode; i++) {
    int size = comm->node_first[i + 1] - comm->node_first[i];
    largest = size > largest ? size : largest;
  }
  x.by_source = MT_NEW(MT_TAG_COMM, int64_t, (int64_t)x.most_pieces * largest);
  x.by_target = MT_NEW(MT_TAG_COMM, int64_t, (int64_t)x.most_pieces * largest);
  x.cursor = MT_NEW(MT_TAG_COMM, int64_t, comm->node_size);
  return x;
}

void mt_planner_free(struct mt_planner *x)
{
  mt_free(x->send_at);
  mt_free(x->recv_at);
  mt_free(x->by_source);
  mt_free(x->by_target);
  mt_free(x->cursor);
}

/* A first pattern may be empty here: what comes later is then a growth, not a first allocation. */
struct mt_exchange_plan *mt_exchange_plan_new(void)
{
  struct mt_exchange_plan *plan = MT_ZNEW(MT_TAG_PLAN, struct mt_exchange_plan, 1);
  for (int i = 0; i < 2; i++) {
    struct mt_script *script = &plan->script[i];
    struct mt_messages *list[] = {&script->await, &script->send, &script->onward};
    for (int k = 0; k < 3; k++)
      mt_extend(MT_TAG_PLAN, (void **)&list[k]->message, &list[k]->capacity, 1, sizeof *list[k]->message);
    mt_extend(MT_TAG_PLAN, (void **)&script->copy, &script->copy_capacity, 1, sizeof *script->copy);
    mt_extend(MT_TAG_PLAN, (void **)&script->step, &script->step_capacity, 1, sizeof *script->step);
  }
  return plan;
}

void mt_exchange_plan_free(struct mt_exchange_plan *plan)
{
  for (int i = 0; plan && i < 2; i++) {
    struct mt_script *script = &plan->script[i];
    mt_free(script->await.message);
    mt_free(script->send.message);
    mt_free(script->onward.message);
    mt_free(script->copy);
    mt_free(script->step);
  }
  mt_free(plan);
}

/* ---- writing a script ---- */

/* Tags of one purpose, apart by node and piece. */
static int tag_of(const struct mt_planner *x, enum mt_message_tag purpose, int node, int piece)
{
  return (int)purpose + 16 * (node * x->most_pieces + piece);
}

static void add_message(struct mt_planner *x, struct mt_messages *list, struct mt_row_message message)
{
  if (!message.rows)
    return;
  int64_t bytes = message.rows * x->width;
  message.longest = mt_comm_piece < x->chunk ? mt_comm_piece : x->chunk;
  if (x->segment < message.longest && x->comm->cluster->node_of[message.partner] != x->comm->node)
    message.longest = x->segment;
  x->script->nrequest += (bytes + message.longest - 1) / message.longest;
  mt_extend(MT_TAG_PLAN, (void **)&list->message, &list->capacity, list->n + 1, sizeof *list->message);
  list->message[list->n++] = message;
}

static void add_await(struct mt_planner *x, enum mt_buffer buffer, int64_t at, int64_t rows, int from, int tag, int step)
{
  add_message(x, &x->script->await, (struct mt_row_message){buffer, from, tag, step, at, rows, 0});
}

static void add_send(struct mt_planner *x, int64_t at, int64_t rows, int to, int tag)
{
  add_message(x, &x->script->send, (struct mt_row_message){MT_BUFFER_SEND, to, tag, -1, at, rows, 0});
}

/* A step, with nothing to do as yet; the two functions below say what the latest step does. */
static int add_step(struct mt_script *script)
{
  mt_extend(MT_TAG_PLAN, (void **)&script->step, &script->step_capacity, script->nstep + 2, sizeof *script->step);
  script->step[script->nstep++] = (struct mt_row_step){script->ncopy, script->onward.n};
  return (int)script->nstep - 1;
}

static void add_copy(struct mt_script *script, struct mt_row_copy copy)
{
  if (!copy.rows)
    return;
  mt_extend(MT_TAG_PLAN, (void **)&script->copy, &script->copy_capacity, script->ncopy + 1, sizeof *script->copy);
  copy.step = (int)script->nstep - 1;
  script->copy[script->ncopy++] = copy;
}

static void add_onward(struct mt_planner *x, int64_t at, int64_t rows, int to, int tag)
{
  add_message(x, &x->script->onward, (struct mt_row_message){MT_BUFFER_STAGE, to, tag, -1, at, rows, 0});
}

/* Staging for the latest step; returns where it begins. */
static int64_t take_stage(struct mt_script *script, int64_t rows)
{
  script->stage_rows += rows;
  return script->stage_rows - rows;
}

/* ---- node pairs and their pieces ---- */

static int64_t rows_of(const void *planner, int s, int d)
{
  return rows(planner, s, d);
}

/* Decides the way from one node to another: the same on all ranks of both. */
static struct pair decide(const struct mt_planner *x, int from, int to)
{
  struct mt_way_problem problem = mt_way_problem(x->comm->cluster, from, to, rows_of, x, x->width);
  struct pair pair = {.from = from, .to = to, .rows = problem.bytes / x->width};
  if (!pair.rows || x->kind == MT_EXCHANGE_PAIRWISE)
    return pair;
  struct mt_way way = mt_way_choose(x->comm->cluster, &problem, x->kind, x->most_pieces);
  pair.npiece = way.npiece;
  pair.spread = way.spread;
  if (pair.npiece && x->forced_pieces) {
    pair.npiece = x->forced_pieces;
    pair.spread = x->forced_spread;
  }
  return pair;
}

/* Fills by_source[c][s] and by_target[c][d] for all pieces c of the pair. */
static void tally(struct mt_planner *x, const struct pair *pair)
{
  const int *first = x->comm->node_first;
  int from = first[pair->from], nfrom = first[pair->from + 1] - from;
  int to = first[pair->to], nto = first[pair->to + 1] - to;
  memset(x->by_source, 0, sizeof(int64_t) * (size_t)(pair->npiece * nfrom));
  memset(x->by_target, 0, sizeof(int64_t) * (size_t)(pair->npiece * nto));
  int c = 0;
  int64_t begin, left = mt_part_range(pair->rows, pair->npiece, 0, &begin); /* room in piece c */
  for (int d = 0; d < nto; d++)
    for (int s = 0; s < nfrom; s++)
      for (int64_t n = rows(x, from + s, to + d); n > 0;) {
        while (!left)
          left = mt_part_range(pair->rows, pair->npiece, ++c, &begin);
        int64_t part = n < left ? n : left;
        x->by_source[c * nfrom + s] += part;
        x->by_target[c * nto + d] += part;
        n -= part;
        left -= part;
      }
}

/* The bridge of piece c of a pair in one of its nodes (from or to), whose ranks have count[c][] of the pieces'
 * rows. Where pieces are spread: the rank that has more than half of the piece, or whose turn it is. Else one
 * for all pieces: whose turn it is; of one piece, too, the rank that has more than half. */
static int bridge_of(const struct mt_planner *x, const struct pair *pair, int node, int c,
                     const int64_t *count)
{
  int first = x->comm->node_first[node], n = x->comm->node_first[node + 1] - first;
  if (pair->spread || pair->npiece == 1) {
    int64_t unused, all = mt_part_range(pair->rows, pair->npiece, c, &unused);
    for (int i = 0; i < n; i++)
      if (2 * count[c * n + i] > all)
        return first + i;
  }
  int other = pair->from + pair->to - node;
  return first + (mt_cluster_bridge(x->comm->cluster, node, other) - first + (pair->spread ? c : 0)) % n;
}

/* Direct messages with the ranks [first, first + n); partners are taken in rotation from number `me` on, so
 * that not all ranks begin with the same one. */
static void receive_direct(struct mt_planner *x, int first, int n, int me)
{
  for (int i = 0; i < n; i++) {
    int from = first + (me + n - i) % n;
    if (from != x->comm->rank)
      add_await(x, MT_BUFFER_RECV, x->recv_at[from], rows(x, from, x->comm->rank), from, MT_MSG_ROWS, -1);
  }
}

static void send_direct(struct mt_planner *x, int first, int n, int me)
{
  for (int i = 0; i < n; i++) {
    int to = first + (me + i) % n;
    if (to != x->comm->rank)
      add_send(x, x->send_at[to], rows(x, x->comm->rank, to), to, MT_MSG_ROWS);
  }
}

/* Receives the rows of node `from`. */
static void receive_node(struct mt_planner *x, int from)
{
  const struct mt_comm *comm = x->comm;
  const int *first = comm->node_first;
  struct mt_script *script = x->script;
  struct pair pair = decide(x, from, comm->node);
  int nfrom = first[from + 1] - first[from], n = comm->node_size, me = comm->node_rank;
  if (!pair.npiece) {
    receive_direct(x, first[from], nfrom, me % nfrom);
    return;
  }
  tally(x, &pair);
  int64_t at = x->recv_at[first[from]], unused;
  for (int c = 0; c < pair.npiece; c++) {
    const int64_t *part = x->by_target + c * n, own = part[me];
    int64_t count = mt_part_range(pair.rows, pair.npiece, c, &unused);
    int bridge = bridge_of(x, &pair, comm->node, c, x->by_target);
    int peer = bridge_of(x, &pair, from, c, x->by_source);
    if (bridge != comm->rank) {
      add_await(x, MT_BUFFER_RECV, at, own, bridge, tag_of(x, MT_MSG_DEAL, from, c), -1);
    } else if (own == count) {
      add_await(x, MT_BUFFER_RECV, at, own, peer, tag_of(x, MT_MSG_BRIDGE, 0, c), -1);
    } else {
      int step = add_step(script);
      int64_t stage = take_stage(script, count);
      add_await(x, MT_BUFFER_STAGE, stage, count, peer, tag_of(x, MT_MSG_BRIDGE, 0, c), step);
      for (int d = 0; d < n; stage += part[d++]) {
        if (d == me)
          add_copy(script, (struct mt_row_copy){MT_BUFFER_STAGE, MT_BUFFER_RECV, stage, at, own, -1});
        else
          add_onward(x, stage, part[d], comm->rank - me + d, tag_of(x, MT_MSG_DEAL, from, c));
      }
    }
    at += own;
  }
}

/* Where a walk over the list of a node pair is: in the block of rows (s, d), of which `used` are behind it. */
struct walk {
  int s, d;
  int64_t used;
};

/* The rows of the next block, at most so many; *from is its source. */
static int64_t next_block(const struct mt_planner *x, struct walk *walk, int64_t most, int *from)
{
  const int n = x->comm->node_size, first = x->comm->rank - x->comm->node_rank;
  int64_t left;
  while (!(left = rows(x, first + walk->s, walk->d) - walk->used)) {
    walk->used = 0;
    if (++walk->s == n) {
      walk->s = 0;
      walk->d++;
    }
  }
  *from = walk->s;
  left = left < most ? left : most;
  walk->used += left;
  return left;
}

/* Sends my rows to node `to`, and receives and passes on those that I am the bridge of. */
static void send_node(struct mt_planner *x, int to)
{
  const struct mt_comm *comm = x->comm;
  const int *first = comm->node_first;
  struct mt_script *script = x->script;
  struct pair pair = decide(x, comm->node, to);
  int nto = first[to + 1] - first[to], n = comm->node_size, me = comm->node_rank;
  if (!pair.npiece) {
    send_direct(x, first[to], nto, me % nto);
    return;
  }
  tally(x, &pair);
  struct walk walk = {.d = first[to]};
  int64_t at = x->send_at[first[to]], unused;
  for (int c = 0; c < pair.npiece; c++) {
    const int64_t *part = x->by_source + c * n, own = part[me];
    int64_t count = mt_part_range(pair.rows, pair.npiece, c, &unused), stage = 0;
    int bridge = bridge_of(x, &pair, comm->node, c, x->by_source);
    int peer = bridge_of(x, &pair, to, c, x->by_target), step = -1;
    if (bridge != comm->rank) {
      add_send(x, at, own, bridge, tag_of(x, MT_MSG_BRIDGE, to, c));
    } else if (own == count) {
      add_send(x, at, own, peer, tag_of(x, MT_MSG_BRIDGE, 0, c));
    } else { /* what comes lies behind what will go */
      step = add_step(script);
      stage = take_stage(script, count + count - own);
      int64_t raw = stage + count;
      for (int s = 0; s < n; s++) {
        x->cursor[s] = s == me ? at : raw;
        if (s == me)
          continue;
        add_await(x, MT_BUFFER_STAGE, raw, part[s], comm->rank - me + s, tag_of(x, MT_MSG_BRIDGE, to, c), step);
        raw += part[s];
      }
      add_onward(x, stage, count, peer, tag_of(x, MT_MSG_BRIDGE, 0, c));
    }
    int s;
    for (int64_t left = count, block; left; left -= block) {
      block = next_block(x, &walk, left, &s);
      if (step < 0)
        continue;
      add_copy(script, (struct mt_row_copy){s == me ? MT_BUFFER_SEND : MT_BUFFER_STAGE, MT_BUFFER_STAGE, x->cursor[s], stage,
                                            block, -1});
      x->cursor[s] += block;
      stage += block;
    }
    at += own;
  }
}

/* ---- the whole ---- */

/* Of nodes each begins with the one behind it. */
static void write_script(struct mt_planner *x)
{
  const struct mt_comm *comm = x->comm;
  struct mt_script *script = x->script;
  script->await.n = script->send.n = script->onward.n = 0;
  script->ncopy = script->nstep = script->stage_rows = script->nrequest = 0;
  x->send_at[0] = x->recv_at[0] = 0;
  for (int r = 0; r < comm->size; r++) {
    x->send_at[r + 1] = x->send_at[r] + rows(x, comm->rank, r);
    x->recv_at[r + 1] = x->recv_at[r] + rows(x, r, comm->rank);
  }
  script->self = (struct mt_row_copy){MT_BUFFER_SEND, MT_BUFFER_RECV, x->send_at[comm->rank], x->recv_at[comm->rank],
                                      rows(x, comm->rank, comm->rank), -1};
  script->send_rows = x->send_at[comm->size];
  script->recv_rows = x->recv_at[comm->size];
  int first = comm->rank - comm->node_rank;
  for (int i = 1; i < comm->nnode; i++)
    receive_node(x, (comm->node + comm->nnode - i) % comm->nnode);
  receive_direct(x, first, comm->node_size, comm->node_rank);
  for (int i = 1; i < comm->nnode; i++)
    send_node(x, (comm->node + i) % comm->nnode);
  send_direct(x, first, comm->node_size, comm->node_rank);
  script->step[script->nstep] = (struct mt_row_step){script->ncopy, script->onward.n};
  MT_CHECK(script->nrequest < 1 << 30, "an exchange of %lld messages", (long long)script->nrequest);
}

void mt_planner_write(struct mt_planner *x, struct mt_exchange_plan *plan, const struct mt_pattern *pattern, int64_t width)
{
  x->pattern = pattern;
  x->width = plan->width = width;
  x->segment = mt_link_usual(x->comm->cluster, MT_LEVEL_NET).beta_ps < FAST_PS ? INT64_MAX : mt_exchange_segment;
  for (enum mt_direction direction = MT_FORWARD; direction <= MT_BACK; direction++) {
    x->direction = direction;
    x->script = &plan->script[direction];
    write_script(x);
  }
}
