/* The exchange of rows: all ways, both directions; see exchange.h and way.h.
 *
 * There is one algorithm, written over rows(s, d), the rows from s to d in the direction under way; going back
 * is the same walk over the transposed pattern. The rows from node p to node q are thought of as one list in the
 * order [rank d of q][rank s of p], which is cut evenly into pieces, wherever the cuts fall. Each piece has a
 * bridge B in p and one, B', in q (see bridge_of):
 *   1. each rank of p sends B its rows of the piece, which lie together in its send buffer;
 *   2. B arranges them in the list's order and sends B' one message;
 *   3. the part of each rank of q is what its receive buffer wants, in its order: B' sends it on.
 * Every piece proceeds by itself: whatever arrives first is handled first, so the steps of several pieces
 * overlap. A bridge that has all of a piece needs no staging. No pieces: directly; rows within a node always go
 * so.
 * The traps: a bridge serves several pieces, so messages with one partner may overtake each other in this
 * program's order of handling; node and piece in the tag keep them apart. And what is posted and how much
 * staging it needs must be known before (mt_exchange_reserve), so the same walk (`prepare`) first counts, then
 * posts. */
#include "comm/exchange.h"
#include <string.h>
#include "base/config.h"
#include "base/memory.h"
#include "comm/comm_mpi.h"
#include "comm/part.h"
#include "comm/way.h"

/* Below the 64 KiB, headers included, that Open MPI sends over TCP without asking. Networks faster than this (2.5 GB/s)
 * ask in no time, and move long messages themselves. */
int64_t mt_exchange_segment = 63 << 10;
enum { FAST_PS = 400 };

/* A piece that I am the bridge of, on one side. */
struct piece {
  int other;     /* the node on the other side */
  int number;    /* of the piece */
  int outward;   /* 1: I send it there, 0: I receive it from there */
  int peer;      /* its bridge on the other side */
  int open;      /* messages that step 2 or 3 still waits for */
  int64_t first; /* of the list's rows, it holds */
  int64_t rows;
  int64_t own, own_at; /* how many are of my send or for my receive buffer, and from which row there */
  int64_t stage_at;    /* bytes before it in staging, -1 = needs none */
};

/* The rows from one node to another. */
struct pair {
  int from, to; /* nodes */
  int64_t rows; /* in all */
  int npiece;   /* 0 = directly */
  int spread;   /* over several bridges */
};

struct mt_exchange {
  struct mt_comm *comm;       /* borrowed */
  int kind;                   /* enum mt_exchange_kind */
  int most_pieces;            /* of a node pair */
  int forced_pieces;          /* 0 = by cost */
  int forced_spread;          /* over several bridges; where pieces are forced */
  int64_t *send_at, *recv_at; /* [P + 1], owned: rows before each partner's in send and recv */
  struct mt_requests set;     /* everything under way */
  int *label;                 /* [set.capacity], owned: the piece that waits for a request, -1 = none */
  int64_t label_capacity;
  int npiece;
  struct piece *piece; /* [npiece], owned: those under way */
  int64_t piece_capacity;
  int64_t *by_source,
      *by_target;         /* [most_pieces, largest node], owned: rows of a piece by rank of the nodes */
  const char **cursor;    /* [node_size], owned; for the arranging in step 2 */
  void *stage;            /* owned */
  int64_t stage_capacity; /* bytes in it */

  /* The exchange under way: */
  const struct mt_pattern *pattern; /* borrowed from begin to end; NULL = none */
  enum mt_direction direction;
  int counting;        /* 1: only count what would be posted */
  int64_t nrequest;    /* requests posted or counted */
  int64_t stage_bytes; /* likewise */
  int64_t segment;     /* longest message between nodes, bytes */
  int64_t width;       /* bytes a row */
  const char *send;    /* borrowed */
  char *recv;          /* borrowed */
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
static int64_t rows(const struct mt_exchange *x, int s, int d)
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

struct mt_exchange *mt_exchange_new(struct mt_comm *comm, int kind)
{
  struct mt_exchange *x = MT_ZNEW(MT_TAG_COMM, struct mt_exchange, 1);
  x->comm = comm;
  x->kind = comm->nnode > 1 ? kind : MT_EXCHANGE_PAIRWISE;
  x->send_at = MT_NEW(MT_TAG_COMM, int64_t, comm->size + 1);
  x->recv_at = MT_NEW(MT_TAG_COMM, int64_t, comm->size + 1);
  /* MPI's tags reach at least to 32767, mostly to INT_MAX: see tag_of. */
  x->most_pieces = comm->mpi ? (comm->mpi->tag_limit / 16 - 1) / comm->nnode : MT_MOST_PIECES; /* NULL: made up */
  if (x->most_pieces > MT_MOST_PIECES)
    x->most_pieces = MT_MOST_PIECES;
  MT_CHECK(x->most_pieces > 0, "%d nodes are too many for this MPI's tags", comm->nnode);
  int largest = 0;
  for (int i = 0; i < comm->nnode; i++) {
    int size = comm->node_first[i + 1] - comm->node_first[i];
    largest = size > largest ? size : largest;
  }
  x->by_source = MT_NEW(MT_TAG_COMM, int64_t, (int64_t)x->most_pieces * largest);
  x->by_target = MT_NEW(MT_TAG_COMM, int64_t, (int64_t)x->most_pieces * largest);
  x->cursor = MT_NEW(MT_TAG_COMM, const char *, comm->node_size);
  /* A first pattern may be empty here: what comes later is then a growth, not a first allocation. */
  mt_requests_reserve(&x->set, 1);
  mt_grow(MT_TAG_COMM, (void **)&x->piece, &x->piece_capacity, 1, sizeof *x->piece);
  return x;
}

void mt_exchange_pieces(struct mt_exchange *x, int npiece, int spread)
{
  x->forced_spread = spread;
  x->forced_pieces = npiece < x->most_pieces ? npiece : x->most_pieces;
}

void mt_exchange_free(struct mt_exchange *x)
{
  if (!x)
    return;
  MT_CHECK(!x->pattern, "an exchange was begun and not ended");
  mt_requests_free(&x->set);
  mt_free(x->label);
  mt_free(x->piece);
  mt_free(x->by_source);
  mt_free(x->by_target);
  mt_free(x->cursor);
  mt_free(x->stage);
  mt_free(x->send_at);
  mt_free(x->recv_at);
  mt_free(x);
}

const char *mt_exchange_name(const struct mt_exchange *x)
{
  static const char *const name[] = {[MT_EXCHANGE_AUTO] = "auto",
                                     [MT_EXCHANGE_PAIRWISE] = "pairwise",
                                     [MT_EXCHANGE_HIERARCHICAL] = "hierarchical"};
  return name[x->kind];
}

/* ---- posting, or counting ---- */

/* Tags of one purpose, apart by node and piece. */
static int tag_of(const struct mt_exchange *x, enum mt_message_tag purpose, int node, int piece)
{
  return (int)purpose + 16 * (node * x->most_pieces + piece);
}

/* The next part of a message that goes as one: between nodes on a slow network a segment. The trap it avoids: MPI asks
 * the receiver before it sends a longer message, and where both nodes send at once the answer waits in line behind
 * what its node is sending, so that a link stands idle for as long as its queue takes to empty. */
static int64_t next_part(const struct mt_exchange *x, int64_t bytes, int partner)
{
  if (bytes > x->segment && x->comm->cluster->node_of[partner] != x->comm->node)
    return x->segment;
  return bytes;
}

/* Counts the requests of a message that will be or was posted, and labels them. */
static int count_requests(struct mt_exchange *x, int64_t bytes, int label)
{
  int n = (int)((bytes + mt_comm_piece - 1) / mt_comm_piece);
  for (int i = 0; i < n && !x->counting; i++)
    x->label[x->nrequest + i] = label;
  x->nrequest += n;
  return n;
}

static void post_send(struct mt_exchange *x, const char *data, int64_t nrow, int to, int tag)
{
  int64_t part;
  for (int64_t bytes = nrow * x->width; bytes; bytes -= part) {
    part = next_part(x, bytes, to);
    count_requests(x, part, -1);
    if (x->counting)
      continue;
    mt_post_send(x->comm, &x->set, data, part, to, tag);
    data += part;
  }
}

/* Returns the number of requests. */
static int post_recv(struct mt_exchange *x, char *data, int64_t nrow, int from, int tag, int label)
{
  int64_t part;
  int n = 0;
  for (int64_t bytes = nrow * x->width; bytes; bytes -= part) {
    part = next_part(x, bytes, from);
    n += count_requests(x, part, label);
    if (x->counting)
      continue;
    mt_post_recv(x->comm, &x->set, data, part, from, tag);
    data += part;
  }
  return n;
}

/* Direct messages with the ranks [first, first + n); partners are taken in rotation from number `me` on, so
 * that not all ranks begin with the same one. */
static void receive_direct(struct mt_exchange *x, int first, int n, int me)
{
  for (int i = 0; i < n; i++) {
    int from = first + (me + n - i) % n;
    if (from != x->comm->rank)
      post_recv(x, x->recv + x->recv_at[from] * x->width, rows(x, from, x->comm->rank), from, MT_MSG_ROWS,
                -1);
  }
}

static void send_direct(struct mt_exchange *x, int first, int n, int me)
{
  for (int i = 0; i < n; i++) {
    int to = first + (me + i) % n;
    if (to != x->comm->rank)
      post_send(x, x->send + x->send_at[to] * x->width, rows(x, x->comm->rank, to), to, MT_MSG_ROWS);
  }
}

/* ---- node pairs and their pieces ---- */

/* Decides the way from one node to another: the same on all ranks of both. */
static struct pair decide(const struct mt_exchange *x, int from, int to)
{
  const int *first = x->comm->node_first;
  struct pair pair = {.from = from, .to = to};
  struct mt_way_problem problem = {.senders = first[from + 1] - first[from],
                                   .receivers = first[to + 1] - first[to]};
  for (int s = first[from]; s < first[from + 1]; s++) {
    int64_t n = 0;
    for (int d = first[to]; d < first[to + 1]; d++) {
      pair.rows += rows(x, s, d);
      n += rows(x, s, d) > 0;
    }
    problem.messages += n;
    problem.most_out = n > problem.most_out ? n : problem.most_out;
  }
  for (int d = first[to]; d < first[to + 1]; d++) {
    int64_t n = 0;
    for (int s = first[from]; s < first[from + 1]; s++)
      n += rows(x, s, d) > 0;
    problem.most_in = n > problem.most_in ? n : problem.most_in;
  }
  problem.bytes = pair.rows * x->width;
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
static void tally(struct mt_exchange *x, const struct pair *pair)
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
static int bridge_of(const struct mt_exchange *x, const struct pair *pair, int node, int c,
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

static struct piece *add_piece(struct mt_exchange *x)
{
  if (x->counting)
    mt_grow(MT_TAG_COMM, (void **)&x->piece, &x->piece_capacity, x->npiece + 1, sizeof *x->piece);
  MT_CHECK(x->npiece < x->piece_capacity, "an exchange of more than %lld pieces was not reserved",
           (long long)x->piece_capacity);
  return &x->piece[x->npiece++];
}

static char *stage_of(const struct mt_exchange *x, const struct piece *piece)
{
  return (char *)x->stage + piece->stage_at;
}

/* Where a piece arrives. */
static char *landing(const struct mt_exchange *x, const struct piece *piece)
{
  return piece->stage_at < 0 ? x->recv + piece->own_at * x->width : stage_of(x, piece);
}

/* Receives the rows of node `from`. */
static void receive_node(struct mt_exchange *x, int from)
{
  struct mt_comm *comm = x->comm;
  const int *first = comm->node_first;
  struct pair pair = decide(x, from, comm->node);
  int nfrom = first[from + 1] - first[from], n = comm->node_size, me = comm->node_rank;
  if (!pair.npiece) {
    receive_direct(x, first[from], nfrom, me % nfrom);
    return;
  }
  tally(x, &pair);
  int64_t at = x->recv_at[first[from]];
  for (int c = 0; c < pair.npiece; c++) {
    int64_t begin, count = mt_part_range(pair.rows, pair.npiece, c, &begin), own = x->by_target[c * n + me];
    int bridge = bridge_of(x, &pair, comm->node, c, x->by_target);
    if (bridge == comm->rank && count) {
      struct piece *piece = add_piece(x);
      *piece =
          (struct piece){.other = from, .number = c, .first = begin, .rows = count, .own = own, .own_at = at};
      piece->peer = bridge_of(x, &pair, from, c, x->by_source);
      piece->stage_at = own < count ? x->stage_bytes : -1;
      x->stage_bytes += own < count ? count * x->width : 0;
      piece->open =
          post_recv(x, landing(x, piece), count, piece->peer, tag_of(x, MT_MSG_BRIDGE, 0, c), x->npiece - 1);
      for (int d = 0; d < n && x->counting; d++) /* step 3 */
        if (d != me)
          post_send(x, NULL, x->by_target[c * n + d], comm->rank - me + d, 0);
    } else if (own) {
      post_recv(x, x->recv + at * x->width, own, bridge, tag_of(x, MT_MSG_DEAL, from, c), -1);
    }
    at += own;
  }
}

static void cross(struct mt_exchange *x, const struct piece *piece);

/* Sends my rows to node `to`, and receives those that I am the bridge of. */
static void send_node(struct mt_exchange *x, int to)
{
  struct mt_comm *comm = x->comm;
  const int *first = comm->node_first;
  struct pair pair = decide(x, comm->node, to);
  int nto = first[to + 1] - first[to], n = comm->node_size, me = comm->node_rank;
  if (!pair.npiece) {
    send_direct(x, first[to], nto, me % nto);
    return;
  }
  tally(x, &pair);
  int64_t at = x->send_at[first[to]];
  for (int c = 0; c < pair.npiece; c++) {
    const int64_t *part = x->by_source + c * n;
    int64_t begin, count = mt_part_range(pair.rows, pair.npiece, c, &begin), own = part[me];
    int bridge = bridge_of(x, &pair, comm->node, c, x->by_source);
    if (bridge == comm->rank && count) {
      struct piece *piece = add_piece(x);
      *piece = (struct piece){
          .other = to, .number = c, .outward = 1, .first = begin, .rows = count, .own = own, .own_at = at};
      piece->peer = bridge_of(x, &pair, to, c, x->by_target);
      piece->stage_at = own < count ? x->stage_bytes : -1;
      x->stage_bytes += own < count ? (2 * count - own) * x->width : 0;
      if (x->counting) /* step 2 */
        post_send(x, NULL, count, piece->peer, 0);
      /* What comes lies behind what will go. */
      char *raw = own < count && !x->counting ? stage_of(x, piece) + count * x->width : NULL;
      for (int s = 0; s < n; s++) {
        if (s == me || !part[s])
          continue;
        piece->open +=
            post_recv(x, raw, part[s], comm->rank - me + s, tag_of(x, MT_MSG_BRIDGE, to, c), x->npiece - 1);
        raw = raw ? raw + part[s] * x->width : NULL;
      }
      if (!piece->open && !x->counting)
        cross(x, piece); /* waits for nobody */
    } else if (own) {
      post_send(x, x->send + at * x->width, own, bridge, tag_of(x, MT_MSG_BRIDGE, to, c));
    }
    at += own;
  }
}

/* ---- steps 2 and 3 ---- */

/* Calls for the rows of a piece that go from s to d, in the list's order, first where it begins: the list's
 * block (s, d) is
 * [*at, *at + rows) and the result the part of it that the piece holds. */
static int64_t part_of_block(const struct mt_exchange *x, const struct piece *piece, int s, int d,
                             int64_t *at)
{
  int64_t begin = *at, end = begin + rows(x, s, d), last = piece->first + piece->rows;
  *at = end;
  begin = begin > piece->first ? begin : piece->first;
  end = end < last ? end : last;
  return end > begin ? end - begin : 0;
}

/* Step 2: everything of the piece is here. */
static void cross(struct mt_exchange *x, const struct piece *piece)
{
  struct mt_comm *comm = x->comm;
  const int *first = comm->node_first;
  const char *own = x->send + piece->own_at * x->width, *data = own;
  int me = comm->node_rank, mine = comm->rank - me;
  if (piece->own < piece->rows) {
    char *to = stage_of(x, piece);
    int64_t at = 0, count[comm->node_size];
    memset(count, 0, sizeof count);
    for (int d = first[piece->other]; d < first[piece->other + 1]; d++)
      for (int s = 0; s < comm->node_size; s++)
        count[s] += part_of_block(x, piece, mine + s, d, &at);
    const char *raw = to + piece->rows * x->width;
    for (int s = 0; s < comm->node_size; s++) {
      x->cursor[s] = s == me ? own : raw;
      raw += s == me ? 0 : count[s] * x->width;
    }
    data = to;
    at = 0;
    for (int d = first[piece->other]; d < first[piece->other + 1]; d++)
      for (int s = 0; s < comm->node_size; s++) {
        int64_t bytes = part_of_block(x, piece, mine + s, d, &at) * x->width;
        if (!bytes)
          continue;
        memcpy(to, x->cursor[s], (size_t)bytes);
        x->cursor[s] += bytes;
        to += bytes;
      }
  }
  post_send(x, data, piece->rows, piece->peer, tag_of(x, MT_MSG_BRIDGE, 0, piece->number));
}

/* Step 3: the piece is here. */
static void deal(struct mt_exchange *x, const struct piece *piece)
{
  struct mt_comm *comm = x->comm;
  const int *first = comm->node_first;
  if (piece->own == piece->rows)
    return;
  const char *data = stage_of(x, piece);
  int64_t at = 0;
  for (int d = first[comm->node]; d < first[comm->node + 1]; d++) {
    int64_t count = 0;
    for (int s = first[piece->other]; s < first[piece->other + 1]; s++)
      count += part_of_block(x, piece, s, d, &at);
    if (d != comm->rank)
      post_send(x, data, count, d, tag_of(x, MT_MSG_DEAL, piece->other, piece->number));
    else if (count)
      memcpy(x->recv + piece->own_at * x->width, data, (size_t)(count * x->width));
    data += count * x->width;
  }
}

/* ---- running ---- */

/* Posts everything that waits for nothing, or counts everything. Of nodes each begins with the one behind it.
 */
static void prepare(struct mt_exchange *x, const struct mt_pattern *pattern, enum mt_direction direction,
                    int64_t width, int counting)
{
  struct mt_comm *comm = x->comm;
  x->pattern = pattern;
  x->direction = direction;
  x->width = width;
  x->counting = counting;
  x->segment = mt_link_usual(comm->cluster, MT_LEVEL_NET).beta_ps < FAST_PS ? INT64_MAX : mt_exchange_segment;
  x->npiece = 0;
  x->nrequest = x->stage_bytes = 0;
  x->send_at[0] = x->recv_at[0] = 0;
  for (int r = 0; r < comm->size; r++) {
    x->send_at[r + 1] = x->send_at[r] + rows(x, comm->rank, r);
    x->recv_at[r + 1] = x->recv_at[r] + rows(x, r, comm->rank);
  }
  int first = comm->rank - comm->node_rank;
  for (int i = 1; i < comm->nnode; i++)
    receive_node(x, (comm->node + comm->nnode - i) % comm->nnode);
  receive_direct(x, first, comm->node_size, comm->node_rank);
  for (int i = 1; i < comm->nnode; i++)
    send_node(x, (comm->node + i) % comm->nnode);
  send_direct(x, first, comm->node_size, comm->node_rank);
}

void mt_exchange_reserve(struct mt_exchange *x, const struct mt_pattern *pattern, int64_t width)
{
  MT_CHECK(!x->pattern, "an exchange was reserved before the last one ended");
  for (enum mt_direction direction = MT_FORWARD; direction <= MT_BACK; direction++) {
    prepare(x, pattern, direction, width, 1);
    MT_CHECK(x->nrequest < 1 << 30, "an exchange of %lld messages", (long long)x->nrequest);
    mt_requests_reserve(&x->set, (int)x->nrequest);
    mt_grow(MT_TAG_COMM, (void **)&x->label, &x->label_capacity, x->nrequest, sizeof *x->label);
    mt_grow(MT_TAG_COMM, &x->stage, &x->stage_capacity, x->stage_bytes, 1);
  }
  x->pattern = NULL;
}

int64_t mt_exchange_staging(struct mt_exchange *x, const struct mt_pattern *pattern, int64_t width, int64_t held)
{
  for (enum mt_direction direction = MT_FORWARD; direction <= MT_BACK; direction++) {
    prepare(x, pattern, direction, width, 1);
    if (x->stage_bytes > held)
      held = x->stage_bytes > held + held / 2 ? x->stage_bytes : held + held / 2;
  }
  x->pattern = NULL;
  return held;
}

void mt_exchange_begin(struct mt_exchange *x, const struct mt_pattern *pattern, enum mt_direction direction,
                       int64_t width, const void *send, void *recv)
{
  MT_CHECK(!x->pattern, "an exchange was begun before the last one ended");
  x->send = send;
  x->recv = recv;
  prepare(x, pattern, direction, width, 0);
  int me = x->comm->rank;
  int64_t mine = rows(x, me, me) * width;
  if (mine)
    memcpy(x->recv + x->recv_at[me] * width, x->send + x->send_at[me] * width, (size_t)mine);
}

void mt_exchange_end(struct mt_exchange *x)
{
  MT_CHECK(x->pattern, "an exchange was ended that was not begun");
  const int *done;
  for (int n; (n = mt_wait_some(x->comm, &x->set, &done)) > 0;)
    for (int i = 0; i < n; i++) {
      int label = x->label[done[i]];
      if (label < 0 || --x->piece[label].open)
        continue;
      if (x->piece[label].outward)
        cross(x, &x->piece[label]);
      else
        deal(x, &x->piece[label]);
    }
  x->pattern = NULL;
}
