/* What a plan of an exchange holds: written by exchange_plan.c, carried out by exchange.c; nobody else looks into it.
 *
 * A rank's part in one direction is a script: messages it awaits, messages it sends at once, and steps. A step waits for
 * some of the awaited messages, then copies rows and sends messages on. All positions are in rows. */
#ifndef MT_EXCHANGE_PLAN_H
#define MT_EXCHANGE_PLAN_H
#include "comm/exchange.h"

enum mt_buffer { MT_BUFFER_SEND, MT_BUFFER_RECV, MT_BUFFER_STAGE, MT_NBUFFER };

struct mt_row_message {
  enum mt_buffer buffer;
  int partner, tag;
  int step;        /* that waits for it, -1 = none */
  int64_t at;      /* row in the buffer */
  int64_t rows;    /* > 0 */
  int64_t longest; /* bytes that may travel as one; else it goes in parts */
};

struct mt_row_copy {
  enum mt_buffer from, to;
  int64_t from_at, to_at, rows;
  int step; /* that it belongs to; -1 = none */
};

/* After what it waits for: copies [first_copy, those of the next step), then sends [first_send, likewise) of `onward`. */
struct mt_row_step {
  int64_t first_copy, first_send;
};

struct mt_messages {
  int64_t n, capacity;
  struct mt_row_message *message; /* [capacity], owned */
};

struct mt_script {
  struct mt_messages await, send, onward;
  struct mt_row_copy *copy; /* [ncopy], owned: those of the steps */
  int64_t ncopy, copy_capacity;
  struct mt_row_step *step; /* [nstep + 1], owned */
  int64_t nstep, step_capacity;
  struct mt_row_copy self; /* rows to oneself */
  int64_t send_rows, recv_rows; /* in the two buffers */
  int64_t stage_rows;           /* staging that the steps need */
  int64_t nrequest;             /* requests that all messages need */
};

struct mt_exchange_plan {
  int64_t width; /* bytes a row */
  struct mt_script script[2]; /* by enum mt_direction */
};

/* Who plans: what an exchange was told, and scratch. */
struct mt_planner {
  const struct mt_comm *comm; /* borrowed */
  int kind;                   /* enum mt_exchange_kind */
  int most_pieces;            /* of a node pair */
  int forced_pieces;          /* 0 = by cost */
  int forced_spread;          /* over several bridges; where pieces are forced */
  int64_t chunk;              /* longest message, bytes: the same on all ranks */
  int64_t *send_at, *recv_at; /* [P + 1], owned: rows before each partner's in send and recv */
  int64_t *by_source,
      *by_target;  /* [most_pieces, largest node], owned: rows of a piece by rank of the nodes */
  int64_t *cursor; /* [node_size], owned: where each rank's rows of a piece lie */
  /* of the script being written */
  const struct mt_pattern *pattern;
  enum mt_direction direction;
  int64_t width;
  int64_t segment; /* longest message between nodes, bytes */
  struct mt_script *script;
};

struct mt_planner mt_planner_new(const struct mt_comm *comm, int kind); /* Local */
void mt_planner_free(struct mt_planner *planner);
/* Writes both scripts. Local; allocates only where lists are too small (counted growths). */
void mt_planner_write(struct mt_planner *planner, struct mt_exchange_plan *plan, const struct mt_pattern *pattern,
                      int64_t width);

#endif
