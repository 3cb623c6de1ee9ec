/* Planning for 2048 ranks, 256 experts and 16384 slots, on a small stack: what grows with them is not on it. ranks: 1
 *
 * One rank's part is planned in a thread with a stack of 128 KiB, which main checks when it has ended (Check's assertions
 * belong to the main thread). The sums are computed anew from the shares. */
#include <pthread.h>
#include <string.h>
#include "base/config.h"
#include "comm/exchange_plan.h"
#include "experts/dispatch.h"
#include "experts/layout_cost.h"
#include "experts/tree.h"
#include "made_up.h"
#include "test.h"

enum { NODES = 256, E = 256, SLOTS = 8, STACK = 128 << 10, LENGTH = 100000, K = 3 };

struct scale {
  enum mt_dispatch_kind dispatch;
  enum mt_exchange_kind exchange;
  struct mt_cluster *cluster;
  struct mt_comm comm;
  /* found */
  int64_t nrow, sent, received, pattern_sent, pattern_received, sent_by_shares, received_by_shares;
  int64_t out[2], in[2]; /* rows that the exchange's plan takes from the send buffer and puts into the other, by direction */
  int64_t net_bytes, expected_net_bytes;
  struct mt_layout_cost cost;
};

/* Rows of rank s for expert e. */
static int64_t rows_of(int s, int e)
{
  return (s * 7 + e * 3) % 5 ? 0 : 1 + (s + e) % 3;
}

static void plan_rows(struct scale *x, const struct mt_layout *layout, const struct mt_work *work)
{
  const int P = x->comm.size, me = x->comm.rank;
  int64_t *counts = MT_NEW(MT_TAG_MISC, int64_t, (int64_t)P * E);
  for (int s = 0; s < P; s++)
    for (int e = 0; e < E; e++)
      counts[(int64_t)s * E + e] = rows_of(s, e);
  int32_t *first = MT_NEW(MT_TAG_MISC, int32_t, E * K + 1), *expert = MT_NEW(MT_TAG_MISC, int32_t, E * K);
  int32_t token = 0;
  for (int e = 0; e < E; e++) /* one row a token */
    for (int64_t i = 0; i < rows_of(me, e); i++, token++) {
      first[token] = token;
      expert[token] = e;
    }
  first[token] = token;
  x->nrow = token;
  struct mt_routing routing = {token, token, first, expert};

  struct mt_shares *shares = mt_shares_new(x->cluster, E, layout->slot_first[P]);
  mt_shares_deal(shares, x->dispatch, x->cluster, work, layout, counts);
  x->cost = mt_layout_cost(x->cluster, work, layout, shares);
  struct mt_dispatcher dispatcher = mt_dispatcher_new(&x->comm, layout);
  struct mt_dispatch dispatch = mt_dispatch_new(SLOTS);
  mt_dispatch_plan(&dispatcher, &dispatch, layout, shares, &routing);
  x->sent = dispatch.sent;
  x->received = dispatch.received;
  x->pattern_sent = mt_pattern_sent(&x->comm, &dispatcher.pattern);
  x->pattern_received = mt_pattern_received(&x->comm, &dispatcher.pattern);
  for (int s = 0; s < P; s++)
    for (int32_t i = shares->first[s * E]; i < shares->first[(s + 1) * E]; i++) {
      x->sent_by_shares += s == me ? shares->rows[i] : 0;
      x->received_by_shares += layout->slot_rank[shares->slot[i]] == me ? shares->rows[i] : 0;
    }

  struct mt_exchange *exchange = mt_exchange_new(&x->comm, (int)x->exchange);
  struct mt_exchange_plan *plan = mt_exchange_plan_new();
  mt_exchange_plan(exchange, plan, &dispatcher.pattern, 64);
  mt_exchange_reserve(exchange, plan);
  for (int i = 0; i < 2; i++) {
    const struct mt_script *script = &plan->script[i];
    x->out[i] = x->in[i] = script->self.rows;
    for (int64_t k = 0; k < script->send.n; k++)
      x->out[i] += script->send.message[k].rows;
    for (int64_t k = 0; k < script->await.n; k++)
      x->in[i] += script->await.message[k].buffer == MT_BUFFER_RECV ? script->await.message[k].rows : 0;
    for (int64_t k = 0; k < script->ncopy; k++) {
      x->out[i] += script->copy[k].from == MT_BUFFER_SEND ? script->copy[k].rows : 0;
      x->in[i] += script->copy[k].to == MT_BUFFER_RECV ? script->copy[k].rows : 0;
    }
  }
  mt_exchange_plan_free(plan);
  mt_exchange_free(exchange);
  mt_dispatch_free(&dispatch);
  mt_dispatcher_free(&dispatcher);
  mt_shares_free(shares);
  mt_free(counts);
  mt_free(first);
  mt_free(expert);
}

/* An owner sends its piece of an expert once to each other node that holds it. */
static void plan_weights(struct scale *x, const struct mt_layout *layout)
{
  struct mt_cut cut = mt_cut_full(&x->comm, LENGTH, NULL);
  struct mt_tree *tree = mt_tree_new(&x->comm, NULL, &cut, 1);
  mt_tree_plan(tree, 0, layout);
  x->net_bytes = mt_tree_unshard_bytes(tree, MT_LEVEL_NET);
  for (int bin = 0; bin < E * NODES; bin++)
    if (bin % NODES != x->comm.node && layout->expert_first[bin] < layout->expert_first[bin + 1])
      x->expected_net_bytes += 4 * mt_part_count(&cut.part[0], x->comm.rank);
  mt_tree_free(tree);
  mt_cut_free(&cut);
}

static void *plan_all(void *self)
{
  struct scale *x = self;
  int *slots = MT_NEW(MT_TAG_MISC, int, x->cluster->nplace);
  for (int r = 0; r < x->cluster->nplace; r++)
    slots[r] = SLOTS;
  struct mt_layout *layout = mt_layout_new(x->cluster, E, slots);
  mt_layout_random(layout, x->cluster, 5, 1);
  struct mt_work work = mt_work_of(64, 128, 1, 4, 0, MT_SHARDING_FULL);
  plan_rows(x, layout, &work);
  plan_weights(x, layout);
  mt_layout_free(layout);
  mt_free(slots);
  return NULL;
}

/* Nodes of 7, 8 and 9 ranks. */
static struct mt_cluster *large_cluster(void)
{
  char sizes[2 * NODES + 1];
  for (int i = 0; i < NODES; i++)
    snprintf(sizes + 2 * i, 3, "%d,", i < NODES - 1 ? 7 + i % 3 : 8);
  sizes[2 * NODES - 1] = '\0';
  struct mt_cluster *cluster;
  ck_assert_int_eq(mt_cluster_from_sizes(sizes, &cluster), MT_OK);
  ck_assert_int_ge(cluster->nplace, 2040);
  return cluster;
}

START_TEST(test_small_stack)
{
  struct scale x = {.dispatch = _i ? MT_DISPATCH_SOLVED : MT_DISPATCH_LITE,
                    .exchange = _i ? MT_EXCHANGE_HIERARCHICAL : MT_EXCHANGE_PAIRWISE,
                    .cluster = large_cluster()};
  x.comm = made_up_comm(x.cluster, 1234);
  pthread_attr_t small;
  pthread_t thread;
  ck_assert_int_eq(pthread_attr_init(&small), 0);
  ck_assert_int_eq(pthread_attr_setstacksize(&small, STACK), 0);
  ck_assert_int_eq(pthread_create(&thread, &small, plan_all, &x), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  pthread_attr_destroy(&small);
  ck_assert_int_gt(x.nrow, 0);
  ck_assert_int_eq(x.sent, x.nrow);
  ck_assert_int_eq(x.sent_by_shares, x.nrow);
  ck_assert_int_eq(x.pattern_sent, x.nrow);
  ck_assert_int_gt(x.received_by_shares, 0);
  ck_assert_int_eq(x.received, x.received_by_shares);
  ck_assert_int_eq(x.pattern_received, x.received_by_shares);
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(x.out[i], i == MT_FORWARD ? x.sent : x.received);
    ck_assert_int_eq(x.in[i], i == MT_FORWARD ? x.received : x.sent);
  }
  ck_assert_int_gt(x.cost.total_ps, 0);
  ck_assert_int_gt(x.expected_net_bytes, 0);
  ck_assert_int_eq(x.net_bytes, x.expected_net_bytes);
  mt_cluster_free(x.cluster);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("scale");
  TCase *tests = tcase_create("scale");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_small_stack, 0, 2);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
