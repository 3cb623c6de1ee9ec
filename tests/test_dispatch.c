/* Dealing rows to slots. ranks: 1
 *
 * Every rank of a made-up cluster is played in this process: each plans its dispatch, then buffers of
 * numbered rows are carried from one to the other as an exchange would, out and back. The plain form of the
 * rule is `reference` below. */
#include "experts/dispatch.h"
#include "made_up.h"
#include "test.h"
#include <string.h>

enum { MAX_RANK = 32, MAX_SLOT = 256 };

/* One rank's rows. */
struct source {
  int64_t ntoken, nrow;
  int32_t *first, *expert, *token; /* [ntoken + 1], [nrow], [nrow] */
  int *slot;                       /* [nrow] where each goes, by the reference */
};

struct play {
  struct mt_cluster *cluster;
  struct mt_layout *layout;
  struct mt_shares *shares;
  int P, E, S;
  int slots[MAX_RANK];
  struct mt_comm comm[MAX_RANK];
  struct mt_dispatcher dispatcher[MAX_RANK];
  struct mt_dispatch dispatch[MAX_RANK];
  struct source source[MAX_RANK];
  int64_t *counts; /* [P, E] */
};

static struct play *play_new(struct mt_cluster *cluster, int E, const int *slots)
{
  struct play *p = MT_ZNEW(MT_TAG_MISC, struct play, 1);
  p->cluster = cluster;
  p->P = cluster->nplace;
  p->E = E;
  memcpy(p->slots, slots, sizeof(int) * (size_t)p->P);
  p->layout = mt_layout_new(cluster, E, slots);
  p->shares = mt_shares_new(cluster, E, p->layout->slot_first[p->P]);
  p->S = p->layout->slot_first[p->P];
  ck_assert_int_le(p->S, MAX_SLOT);
  p->counts = MT_ZNEW(MT_TAG_MISC, int64_t, p->P * E);
  for (int r = 0; r < p->P; r++) {
    p->comm[r] = made_up_comm(cluster, r);
    p->dispatcher[r] = mt_dispatcher_new(&p->comm[r], p->layout);
    p->dispatch[r] = mt_dispatch_new(slots[r]);
  }
  return p;
}

static void source_free(struct source *source)
{
  mt_free(source->first);
  mt_free(source->expert);
  mt_free(source->token);
  mt_free(source->slot);
  *source = (struct source){0};
}

static void play_free(struct play *p)
{
  for (int r = 0; r < p->P; r++) {
    mt_dispatcher_free(&p->dispatcher[r]);
    mt_dispatch_free(&p->dispatch[r]);
    source_free(&p->source[r]);
  }
  mt_layout_free(p->layout);
  mt_shares_free(p->shares);
  mt_cluster_free(p->cluster);
  mt_free(p->counts);
  mt_free(p);
}

/* Makes a source's rows from the number of rows of each token; the caller fills in their experts. */
static void source_new(struct source *source, int64_t ntoken, const int *rows_of_token)
{
  source_free(source);
  source->ntoken = ntoken;
  source->first = MT_NEW(MT_TAG_MISC, int32_t, ntoken + 1);
  source->first[0] = 0;
  for (int64_t t = 0; t < ntoken; t++)
    source->first[t + 1] = source->first[t] + rows_of_token[t];
  source->nrow = source->first[ntoken];
  source->expert = MT_NEW(MT_TAG_MISC, int32_t, source->nrow);
  source->token = MT_NEW(MT_TAG_MISC, int32_t, source->nrow);
  source->slot = MT_NEW(MT_TAG_MISC, int, source->nrow);
  for (int64_t t = 0; t < ntoken; t++)
    for (int32_t i = source->first[t]; i < source->first[t + 1]; i++)
      source->token[i] = (int32_t)t;
}

/* ---- the rule, plainly ---- */

/* Slots that rows of expert e from rank s may go to, ascending: those in its node, else all. */
static int candidates(const struct play *p, int s, int e, int *slot)
{
  int n = 0;
  for (int local = 1; local >= 0 && !n; local--)
    for (int r = 0, i = 0; r < p->P; r++)
      for (int j = 0; j < p->slots[r]; j++, i++)
        if (p->layout->slot_expert[i] == e && (!local || p->cluster->node_of[r] == p->cluster->node_of[s]))
          slot[n++] = i;
  return n;
}

static void reference(struct play *p)
{
  for (int s = 0; s < p->P; s++)
    for (int e = 0; e < p->E; e++) {
      int slot[MAX_SLOT], n = candidates(p, s, e, slot);
      int64_t rows = p->counts[s * p->E + e], number = 0;
      for (int64_t i = 0; i < p->source[s].nrow; i++) {
        if (p->source[s].expert[i] != e)
          continue;
        /* the first `rows mod n` replicas take one more than the others */
        int64_t least = rows / n, longer = rows % n;
        int64_t k = number < longer * (least + 1) ? number / (least + 1)
                                                  : longer + (number - longer * (least + 1)) / least;
        p->source[s].slot[i] = slot[k];
        number++;
      }
      ck_assert_int_eq(number, rows);
    }
}

static int owner(const struct play *p, int slot)
{
  int r = 0;
  for (int end = p->slots[0]; slot >= end; end += p->slots[++r])
    ;
  return r;
}

/* What the rule promises, whatever the way it is written: nearest replicas only, evenly. */
static void check_reference(const struct play *p)
{
  for (int s = 0; s < p->P; s++)
    for (int e = 0; e < p->E; e++) {
      int64_t to[MAX_SLOT] = {0}, sum = 0, least = INT64_MAX, most = 0;
      int slot[MAX_SLOT], n = candidates(p, s, e, slot), at_home = 0;
      for (int64_t i = 0; i < p->source[s].nrow; i++)
        if (p->source[s].expert[i] == e)
          to[p->source[s].slot[i]]++;
      for (int i = 0; i < n; i++) {
        sum += to[slot[i]];
        least = to[slot[i]] < least ? to[slot[i]] : least;
        most = to[slot[i]] > most ? to[slot[i]] : most;
        at_home |= p->cluster->node_of[owner(p, slot[i])] == p->cluster->node_of[s];
      }
      ck_assert_int_eq(sum, p->counts[s * p->E + e]);
      ck_assert_int_le(most - least, 1);
      for (int i = 0; i < p->S; i++)
        if (to[i]) {
          ck_assert_int_eq(p->layout->slot_expert[i], e);
          ck_assert(!at_home || p->cluster->node_of[owner(p, i)] == p->cluster->node_of[s]);
        }
    }
}

/* ---- what the code makes of it ---- */

static void plan(struct play *p)
{
  mt_shares_deal(p->shares, MT_DISPATCH_LITE, p->cluster, NULL, p->layout, p->counts);
  for (int r = 0; r < p->P; r++) {
    struct mt_routing routing = {p->source[r].ntoken, p->source[r].nrow, p->source[r].first,
                                 p->source[r].expert};
    mt_dispatch_plan(&p->dispatcher[r], &p->dispatch[r], p->layout, p->shares, &routing);
  }
}

static void count(struct play *p)
{
  for (int r = 0; r < p->P; r++) {
    struct source *source = &p->source[r];
    struct mt_routing routing = {source->ntoken, source->nrow, source->first, source->expert};
    int64_t mine[p->E + 1];
    memset(mine, 0x55, sizeof mine);
    int64_t sentinel = mine[p->E];
    mt_dispatch_count(&routing, p->E, mine);
    ck_assert_int_eq(mine[p->E], sentinel);
    memcpy(p->counts + r * p->E, mine, sizeof(int64_t) * (size_t)p->E);
    for (int64_t i = 0; i < source->nrow; i++)
      mine[source->expert[i]]--;
    for (int e = 0; e < p->E; e++)
      ck_assert_int_eq(mine[e], 0);
  }
}

/* Rows from rank s to rank d by the reference. */
static int64_t between(const struct play *p, int s, int d)
{
  int64_t n = 0;
  for (int64_t i = 0; i < p->source[s].nrow; i++)
    n += owner(p, p->source[s].slot[i]) == d;
  return n;
}

static void check_patterns(const struct play *p)
{
  for (int s = 0; s < p->P; s++)
    for (int d = 0; d < p->P; d++) {
      int64_t expected = between(p, s, d);
      for (int r = 0; r < p->P; r++) { /* whoever knows of this pair says the same */
        const struct mt_comm *comm = &p->comm[r];
        int from = s - comm->node_first[comm->node], to = d - comm->node_first[comm->node];
        if (from >= 0 && from < comm->node_size)
          ck_assert_int_eq(p->dispatcher[r].pattern.out[from * p->P + d], expected);
        if (to >= 0 && to < comm->node_size)
          ck_assert_int_eq(p->dispatcher[r].pattern.in[s * comm->node_size + to], expected);
      }
    }
  for (int r = 0; r < p->P; r++) {
    ck_assert_int_eq(mt_pattern_sent(&p->comm[r], &p->dispatcher[r].pattern), p->source[r].nrow);
    ck_assert_int_eq(p->dispatch[r].sent, p->source[r].nrow);
    ck_assert_int_eq(mt_pattern_received(&p->comm[r], &p->dispatcher[r].pattern), p->dispatch[r].received);
  }
}

static int64_t name_of(int rank, int64_t triple)
{
  return (int64_t)rank << 40 | triple;
}

/* The rows of all ranks as an exchange carries them: to[d] = what each s has for d, in s's order, by s. The
 * sizes of the parts are the reference's; back = 1: from each d to each s. */
static void carry(const struct play *p, int64_t *const *from, int64_t *const *to, int back)
{
  int64_t taken[MAX_RANK] = {0};
  for (int d = 0; d < p->P; d++)
    for (int s = 0, at = 0; s < p->P; s++)
      for (int64_t n = back ? between(p, d, s) : between(p, s, d); n > 0; n--)
        to[d][at++] = from[s][taken[s]++];
}

static void check_permutation(const int32_t *index, int64_t n)
{
  char *seen = MT_ZNEW(MT_TAG_MISC, char, n + 1);
  for (int64_t i = 0; i < n; i++) {
    ck_assert(index[i] >= 0 && index[i] < n);
    ck_assert_int_eq(seen[index[i]]++, 0);
  }
  mt_free(seen);
}

static void check_journey(const struct play *p)
{
  int64_t *out[MAX_RANK], *in[MAX_RANK], *home[MAX_RANK];
  for (int r = 0; r < p->P; r++) {
    const struct mt_dispatch *dispatch = &p->dispatch[r];
    const struct source *source = &p->source[r];
    out[r] = MT_NEW(MT_TAG_MISC, int64_t, source->nrow);
    home[r] = MT_NEW(MT_TAG_MISC, int64_t, source->nrow);
    in[r] = MT_NEW(MT_TAG_MISC, int64_t, dispatch->received);
    check_permutation(dispatch->place, source->nrow);
    check_permutation(dispatch->gather, dispatch->received);
    check_permutation(dispatch->scatter, dispatch->received);
    for (int64_t i = 0; i < source->nrow; i++) {
      ck_assert_int_eq(dispatch->send_token[dispatch->place[i]], source->token[i]);
      out[r][dispatch->place[i]] = name_of(r, i);
    }
    /* sending order: by slot, then by position */
    for (int64_t i = 1; i < source->nrow; i++) {
      int64_t a = out[r][i - 1] & 0xffffffff, b = out[r][i] & 0xffffffff;
      ck_assert(source->slot[a] < source->slot[b] || (source->slot[a] == source->slot[b] && a < b));
    }
  }
  carry(p, out, in, 0);
  for (int d = 0; d < p->P; d++) {
    const struct mt_dispatch *dispatch = &p->dispatch[d];
    ck_assert_int_eq(dispatch->slot_row[0], 0);
    ck_assert_int_eq(dispatch->slot_row[p->slots[d]], dispatch->received);
    int64_t row = 0; /* slot order: by slot, source, position */
    for (int j = 0; j < p->slots[d]; j++) {
      ck_assert_int_eq(dispatch->slot_row[j], row);
      for (int s = 0; s < p->P; s++)
        for (int64_t i = 0; i < p->source[s].nrow; i++)
          if (p->source[s].slot[i] == p->layout->slot_first[d] + j) {
            ck_assert_int_lt(row, dispatch->received);
            ck_assert_int_eq(in[d][dispatch->gather[row]], name_of(s, i));
            ck_assert_int_eq(p->source[s].expert[i], p->layout->slot_expert[p->layout->slot_first[d] + j]);
            row++;
          }
    }
    ck_assert_int_eq(row, dispatch->received);
    for (int64_t i = 0; i < dispatch->received; i++)
      ck_assert_int_eq(dispatch->gather[dispatch->scatter[i]], i);
    /* the way home begins in slot order: what lies at a row's place there is this row */
    int64_t *sorted = MT_NEW(MT_TAG_MISC, int64_t, dispatch->received);
    for (int64_t i = 0; i < dispatch->received; i++)
      sorted[i] = in[d][dispatch->gather[i]];
    for (int64_t i = 0; i < dispatch->received; i++)
      in[d][i] = sorted[dispatch->scatter[i]];
    mt_free(sorted);
  }
  carry(p, in, home, 1);
  for (int r = 0; r < p->P; r++) {
    for (int64_t i = 0; i < p->source[r].nrow; i++)
      ck_assert_int_eq(home[r][p->dispatch[r].place[i]], name_of(r, i));
    mt_free(out[r]);
    mt_free(in[r]);
    mt_free(home[r]);
  }
}

static void check_all(struct play *p)
{
  count(p);
  reference(p);
  check_reference(p);
  plan(p);
  check_patterns(p);
  check_journey(p);
}

/* ---- cases ---- */

enum kind { ANY, ONE_EXPERT, FEW_EXPERTS, FEW_SOURCES, ALL_EXPERTS, NOTHING, REPEATED, NKIND };

/* Random tokens with 0..E experts each, in any order; some kinds leave most of it empty. */
static void make_sources(struct play *p, struct dice *dice, enum kind kind, int tokens)
{
  int one = roll(dice, p->E);
  for (int r = 0; r < p->P; r++) {
    int n = roll(dice, 4) ? roll(dice, tokens + 1) : 0, rows[256];
    if (kind == NOTHING || (kind == FEW_SOURCES && roll(dice, 4)))
      n = kind == NOTHING ? roll(dice, 3) : 0;
    for (int t = 0; t < n; t++)
      rows[t] = kind == NOTHING       ? 0
                : kind == ONE_EXPERT  ? roll(dice, 2)
                : kind == ALL_EXPERTS ? p->E
                                      : roll(dice, p->E + 1);
    source_new(&p->source[r], n, rows);
    struct source *source = &p->source[r];
    for (int t = 0; t < n; t++) {
      int experts[MAX_SLOT];
      for (int e = 0; e < p->E; e++)
        experts[e] = e;
      for (int k = 0; k < rows[t]; k++) {
        int pick = k + roll(dice, p->E - k), e = experts[pick];
        experts[pick] = experts[k];
        experts[k] = e;
        if (kind == ONE_EXPERT)
          e = one;
        if (kind == FEW_EXPERTS && e > 1)
          e %= 2;
        if (kind == REPEATED) /* a token may have an expert twice */
          e = roll(dice, p->E);
        source->expert[source->first[t] + k] = e;
      }
    }
  }
}

START_TEST(test_random)
{
  for (uint64_t seed = 0; seed < 40; seed++) {
    struct dice dice = {seed + 1000 * (uint64_t)_i, 0};
    struct mt_cluster *cluster = made_up_cluster(&dice);
    int slots[MAX_RANK], E = 1 + roll(&dice, 7);
    made_up_slots(&dice, cluster->nplace, 4, E, slots);
    struct play *p = play_new(cluster, E, slots);
    /* the same dispatch for several routings and layouts: nothing of one may show in the next */
    for (int round = 0; round < 4; round++) {
      if (round)
        mt_layout_random(p->layout, cluster, seed, (uint64_t)round);
      make_sources(p, &dice, round == 2 ? NOTHING : (enum kind)_i, 12 * round + 3);
      check_all(p);
    }
    play_free(p);
  }
}
END_TEST

/* The first plan may allocate; later ones only where rows outgrow the buffers, and each of those is counted.
 */
START_TEST(test_growth)
{
  struct dice dice = {7, 0};
  struct mt_cluster *cluster;
  ck_assert_int_eq(mt_cluster_from_sizes("2,1,3", &cluster), MT_OK);
  const int slots[6] = {2, 0, 3, 1, 1, 0};
  struct play *p = play_new(cluster, 5, slots);
  int64_t grown = 0;
  for (int round = 0; round < 12; round++) {
    if (round % 3 == 2)
      mt_layout_random(p->layout, cluster, 3, (uint64_t)round);
    if (round % 3 != 1)
      make_sources(p, &dice, ANY, round < 6 ? 10 : 60);
    count(p);
    int64_t allocations = mt_memory_allocations(), growths = mt_memory_growths();
    plan(p);
    allocations = mt_memory_allocations() - allocations;
    growths = mt_memory_growths() - growths;
    if (round) {
      ck_assert_int_eq(allocations, growths);
      grown += growths;
    }
    if (round % 3 == 1)
      ck_assert_int_eq(allocations, 0);
  }
  ck_assert_int_gt(grown, 0);
  play_free(p);
}
END_TEST

/* Largest number of rows that a rank gets when `placement` [16, 2] is in force and expert e has load[e] rows
 * in all, evenly from 16 ranks, the rest from the lowest. */
static int64_t largest_load(const int (*placement)[2], const int *load)
{
  enum { P = 16, E = 8 };
  struct mt_cluster *cluster;
  ck_assert_int_eq(mt_cluster_from_sizes("8,8", &cluster), MT_OK);
  int slots[P];
  for (int r = 0; r < P; r++)
    slots[r] = 2;
  struct play *p = play_new(cluster, E, slots);
  for (int r = 0; r < P; r++)
    memcpy(p->layout->slot_expert + 2 * r, placement[r], sizeof placement[r]);
  mt_layout_index(p->layout, cluster, 2);
  for (int r = 0; r < P; r++) {
    int rows = 0, one[512];
    for (int e = 0; e < E; e++)
      rows += load[e] / P + (r < load[e] % P);
    ck_assert_int_le(rows, 512);
    for (int t = 0; t < rows; t++)
      one[t] = 1;
    source_new(&p->source[r], rows, one);
    for (int e = 0, t = 0; e < E; e++)
      for (int n = load[e] / P + (r < load[e] % P); n > 0; n--)
        p->source[r].expert[t++] = e;
  }
  check_all(p);
  int64_t most = 0, sum = 0;
  for (int r = 0; r < P; r++) {
    sum += p->dispatch[r].received;
    most = p->dispatch[r].received > most ? p->dispatch[r].received : most;
    for (int s = 0; s < P; s++) /* every expert is on both nodes: none leaves its node */
      if (r / 8 != s / 8)
        ck_assert_int_eq(between(p, s, r), 0);
  }
  ck_assert_int_eq(sum, 4050);
  play_free(p);
  return most;
}

/* Known numbers of LAER-MoE's lite routing: 16 devices on 2 nodes, 8 experts, 2 slots a device. */
START_TEST(test_known)
{
  static const int load[8] = {1601, 809, 421, 397, 331, 241, 167, 83};
  static const int half[8][2] = {{4, 7}, {0, 2}, {0, 2}, {0, 3}, {0, 3}, {0, 6}, {1, 1}, {1, 5}};
  static const int even[4][2] = {{0, 7}, {1, 6}, {2, 5}, {3, 4}};
  int planned[16][2], four_each[16][2];
  for (int r = 0; r < 16; r++) {
    memcpy(planned[r], half[r % 8], sizeof planned[r]);
    memcpy(four_each[r], even[r % 4], sizeof four_each[r]);
  }
  ck_assert_int_eq(largest_load(planned, load), 272);
  ck_assert_int_eq(largest_load(four_each, load), 425);
}
END_TEST

/* By hand: nodes {0, 1} and {2}; expert 0 on ranks 0 and 1 (twice on 1), expert 1 on rank 2 only, twice. */
START_TEST(test_by_hand)
{
  struct mt_cluster *cluster;
  ck_assert_int_eq(mt_cluster_from_sizes("2,1", &cluster), MT_OK);
  const int slots[3] = {1, 2, 2}, held[5] = {0, 0, 0, 1, 1};
  struct play *p = play_new(cluster, 2, slots);
  memcpy(p->layout->slot_expert, held, sizeof held);
  mt_layout_index(p->layout, cluster, 2);
  source_new(&p->source[0], 5, (int[]){2, 1, 0, 1, 2});
  memcpy(p->source[0].expert, (int[]){1, 0, 0, 0, 0, 1}, sizeof(int[6]));
  source_new(&p->source[1], 0, NULL);
  source_new(&p->source[2], 2, (int[]){1, 1});
  memcpy(p->source[2].expert, (int[]){0, 0}, sizeof(int[2]));
  check_all(p);
  /* rank 0's 4 rows of expert 0: 2, 1, 1 over slots 0, 1, 2; its 2 rows of expert 1: slots 3 and 4; rank 2's
   * 2 rows of expert 0, which its node lacks: slots 0 and 1 */
  static const int place[6] = {4, 0, 1, 2, 3, 5}, token[6] = {0, 1, 3, 4, 0, 4};
  for (int i = 0; i < 6; i++) {
    ck_assert_int_eq(p->dispatch[0].place[i], place[i]);
    ck_assert_int_eq(p->dispatch[0].send_token[i], token[i]);
  }
  ck_assert_int_eq(p->dispatch[0].received, 3);
  ck_assert_int_eq(p->dispatch[1].received, 3);
  ck_assert_int_eq(p->dispatch[2].received, 2);
  ck_assert_int_eq(p->dispatch[1].slot_row[1], 2);
  static const int gather[3] = {0, 2, 1}; /* arrival: rank 0 slot 1, rank 0 slot 2, rank 2 slot 1 */
  for (int i = 0; i < 3; i++)
    ck_assert_int_eq(p->dispatch[1].gather[i], gather[i]);
  play_free(p);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("dispatch");
  TCase *tests = tcase_create("dispatch");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, test_random, 0, NKIND);
  tcase_add_test(tests, test_growth);
  tcase_add_test(tests, test_known);
  tcase_add_test(tests, test_by_hand);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
