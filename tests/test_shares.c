/* Shares: rows conserved and in slots of their expert, the same whatever came before; lite against its definition; solved
 * against the least time that no set of experts refutes. ranks: 1 */
#include "experts/shares.h"
#include <string.h>
#include "experts/layout_cost.h"
#include "made_up.h"
#include "test.h"

enum { MAX_RANK = 20, MAX_EXPERT = 7 };

static const struct mt_work work = {
    .row_flops = 6000000, .row_bytes = 512, .row_trips = 4, .expert_bytes = 1000, .expert_trips = 3};

struct made_up {
  struct mt_cluster *cluster;
  struct mt_layout *layout;
  int P, E;
  int64_t counts[MAX_RANK * MAX_EXPERT];
};

/* Ragged nodes, unlike speeds, any slots; counts of many kinds, zeros among them. */
static struct made_up make(uint64_t seed)
{
  struct dice dice = {seed, 0};
  struct made_up m = {.cluster = made_up_cluster(&dice)};
  int slots[MAX_RANK], kind = roll(&dice, 4);
  m.P = m.cluster->nplace;
  m.E = 1 + roll(&dice, MAX_EXPERT);
  for (int p = 0; p < m.P; p++)
    m.cluster->place[p].speed = seed % 3 ? 20000 + 1000 * roll(&dice, seed % 2 ? 100 : 1) : 0;
  if (seed % 5)
    m.cluster->link[MT_LEVEL_NET] = (struct mt_link){1000, 1 + roll(&dice, 100000), 0};
  made_up_slots(&dice, m.P, 4, m.E, slots);
  m.layout = mt_layout_new(m.cluster, m.E, slots);
  mt_layout_random(m.layout, m.cluster, seed, 1);
  for (int i = 0; i < m.P * m.E; i++) {
    int hot = kind == 1 ? i % m.E == 0 : kind == 2 ? i / m.E == 0 : 1;
    m.counts[i] = kind == 3 ? roll(&dice, 2) : hot ? roll(&dice, 1000) : 0;
  }
  return m;
}

static void unmake(struct made_up *m)
{
  mt_layout_free(m->layout);
  mt_cluster_free(m->cluster);
}

static void check_runs(const struct made_up *m, const struct mt_shares *shares)
{
  for (int s = 0; s < m->P; s++)
    for (int e = 0; e < m->E; e++) {
      int64_t sum = 0;
      for (int i = shares->first[s * m->E + e]; i < shares->first[s * m->E + e + 1]; i++) {
        ck_assert_int_ge(shares->slot[i], 0);
        ck_assert_int_lt(shares->slot[i], m->layout->slot_first[m->P]);
        ck_assert_int_eq(m->layout->slot_expert[shares->slot[i]], e);
        ck_assert_int_gt(shares->rows[i], 0);
        sum += shares->rows[i];
      }
      ck_assert_int_eq(sum, m->counts[s * m->E + e]);
    }
}

static struct mt_shares *shares_of(const struct made_up *m)
{
  return mt_shares_new(m->cluster, m->E, m->layout->slot_first[m->P]);
}

START_TEST(test_lite)
{
  for (uint64_t seed = 0; seed < 2000; seed++) {
    struct made_up m = make(seed);
    struct mt_shares *shares = shares_of(&m);
    mt_shares_deal(shares, MT_DISPATCH_LITE, m.cluster, &work, m.layout, m.counts);
    check_runs(&m, shares);
    for (int s = 0; s < m.P; s++)
      for (int e = 0; e < m.E; e++) {
        /* evenly over the node's slots, or over all if it has none; one row apart at most, the first ones get more */
        const int *at = &m.layout->expert_first[e * m.layout->nnode];
        int q = m.cluster->node_of[s], local = at[q + 1] - at[q], n = local ? local : at[m.layout->nnode] - at[0];
        int first = shares->first[s * m.E + e], runs = shares->first[s * m.E + e + 1] - first;
        int64_t rows = m.counts[s * m.E + e];
        ck_assert_int_eq(runs, rows < n ? rows : n);
        for (int i = 0; i < runs; i++) {
          ck_assert_int_eq(shares->rows[first + i], rows / n + (i < rows % n));
          ck_assert_int_eq(shares->slot[first + i], m.layout->by_expert[(local ? at[q] : at[0]) + i]);
        }
      }
    mt_shares_free(shares);
    unmake(&m);
  }
}
END_TEST

/* The least time by which any set of experts can be done on the devices that hold them: what no schedule beats. */
static int64_t least_time(const struct made_up *m, const int64_t *ps)
{
  int64_t time = 0;
  for (int set = 1; set < 1 << m->E; set++) {
    int64_t rows = 0;
    int in[MAX_RANK] = {0};
    for (int i = 0; i < m->P * m->E; i++)
      rows += set >> i % m->E & 1 ? m->counts[i] : 0;
    for (int s = 0; s < m->layout->slot_first[m->P]; s++)
      in[m->layout->slot_rank[s]] |= set >> m->layout->slot_expert[s] & 1;
    int64_t low = -1, high = INT64_MAX / 2;
    while (high - low > 1) {
      int64_t middle = low + (high - low) / 2, sum = 0;
      for (int p = 0; p < m->P; p++)
        sum += in[p] ? middle / ps[p] : 0;
      *(sum >= rows ? &high : &low) = middle;
    }
    time = high > time ? high : time;
  }
  return time;
}

static int64_t last_time(const struct made_up *m, const struct mt_shares *shares, const int64_t *ps)
{
  int64_t rows[MAX_RANK * 4 + MAX_EXPERT], time = 0;
  mt_layout_rows(m->layout, shares, rows);
  for (int p = 0; p < m->P; p++) {
    int64_t sum = 0;
    for (int s = m->layout->slot_first[p]; s < m->layout->slot_first[p + 1]; s++)
      sum += rows[s];
    time = sum * ps[p] > time ? sum * ps[p] : time;
  }
  return time;
}

/* The rows over the busiest uplink. */
static int64_t busiest(const struct made_up *m, const struct mt_shares *shares)
{
  int64_t out[MAX_RANK] = {0}, in[MAX_RANK] = {0}, most = 0;
  for (int s = 0; s < m->P; s++)
    for (int i = shares->first[s * m->E]; i < shares->first[(s + 1) * m->E]; i++) {
      int from = m->cluster->node_of[s], to = m->cluster->node_of[m->layout->slot_rank[shares->slot[i]]];
      out[from] += from != to ? shares->rows[i] : 0;
      in[to] += from != to ? shares->rows[i] : 0;
    }
  for (int q = 0; q < m->cluster->nnode; q++) {
    most = out[q] > most ? out[q] : most;
    most = in[q] > most ? in[q] : most;
  }
  return most;
}

static int64_t cost(const struct made_up *m, const struct mt_work *w, const struct mt_shares *shares)
{
  int64_t ps[MAX_RANK];
  mt_work_row_ps(w, m->cluster, ps);
  return last_time(m, shares, ps) + mt_work_link_ps(w, m->cluster, MT_LEVEL_NET) * busiest(m, shares);
}

START_TEST(test_solved)
{
  int64_t ps[MAX_RANK], all = 0;
  for (uint64_t seed = 0; seed < 3000; seed++) {
    struct made_up m = make(seed);
    struct mt_shares *shares = shares_of(&m), *lite = shares_of(&m);
    struct mt_work free_links = work, no_links = work;
    mt_work_row_ps(&work, m.cluster, ps);
    mt_shares_deal(lite, MT_DISPATCH_LITE, m.cluster, &work, m.layout, m.counts);

    /* rows that cost nothing on the links: the earliest time there is */
    free_links.row_bytes = 0;
    mt_shares_deal(shares, MT_DISPATCH_SOLVED, m.cluster, &free_links, m.layout, m.counts);
    check_runs(&m, shares);
    int64_t time = least_time(&m, ps);
    ck_assert_int_eq(last_time(&m, shares, ps), time);
    for (int p = 0; p < m.P; p++)
      all += ps[p];

    /* links that cost more than any time */
    no_links.row_bytes = 1 << 20;
    no_links.row_flops = 1;
    mt_shares_deal(shares, MT_DISPATCH_SOLVED, m.cluster, &no_links, m.layout, m.counts);
    check_runs(&m, shares);
    ck_assert_int_le(cost(&m, &no_links, shares), cost(&m, &no_links, lite));

    /* the links there are: not slower than lite */
    mt_shares_deal(shares, MT_DISPATCH_SOLVED, m.cluster, &work, m.layout, m.counts);
    check_runs(&m, shares);
    ck_assert_int_ge(last_time(&m, shares, ps), m.cluster->nnode == 1 ? time : 0);
    ck_assert_int_le(cost(&m, &work, shares), cost(&m, &work, lite));
    int most = m.P * m.E + m.E * m.cluster->nnode + 2 * m.layout->slot_first[m.P];
    int as_lite = lite->first[m.P * m.E];
    ck_assert_int_le(shares->first[m.P * m.E], most > as_lite ? most : as_lite);

    /* the same again, from other scratch */
    int runs = shares->first[m.P * m.E];
    mt_shares_deal(lite, MT_DISPATCH_SOLVED, m.cluster, &work, m.layout, m.counts);
    ck_assert_mem_eq(shares->first, lite->first, sizeof *lite->first * (size_t)(m.P * m.E + 1));
    ck_assert_mem_eq(shares->slot, lite->slot, sizeof *lite->slot * (size_t)runs);
    ck_assert_mem_eq(shares->rows, lite->rows, sizeof *lite->rows * (size_t)runs);
    mt_shares_free(lite);
    mt_shares_free(shares);
    unmake(&m);
  }
  ck_assert_int_gt(all, 0);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("shares");
  TCase *tcase = tcase_create("shares");
  tcase_set_timeout(tcase, 60);
  tcase_add_test(tcase, test_lite);
  tcase_add_test(tcase, test_solved);
  suite_add_tcase(suite, tcase);
  return mt_test_run(suite);
}
