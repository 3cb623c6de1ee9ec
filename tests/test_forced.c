/* Routing that is made up. ranks: 1 */
#include "experts/forced.h"
#include "base/memory.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { E = 13 };

static struct mt_forced *forced_of(int K, double skew, double drift)
{
  struct mt_config config = {0};
  config.model.num_local_experts = E;
  config.model.num_experts_per_tok = K;
  config.moe.skew = skew;
  config.moe.drift = drift;
  config.train.seed = 3;
  config.moe.router = MT_ROUTER_ZIPF;
  struct mt_forced *forced;
  ck_assert_int_eq(mt_forced_new(&config, &forced), MT_OK);
  return forced;
}

/* Place of an expert in the order of popularity. */
static int place_of(const double *share, int e)
{
  int larger = 0;
  for (int i = 0; i < E; i++)
    larger += share[i] > share[e];
  return larger;
}

START_TEST(test_zipf)
{
  struct mt_forced *forced = forced_of(2, 1.5, 0);
  double share[E], other[E], harmonic = 0, sum = 0;
  mt_forced_shares(forced, 0, 0, share);
  mt_forced_shares(forced, 0, 1, other);
  ck_assert(memcmp(share, other, sizeof share)); /* layers differ */
  mt_forced_shares(forced, 1000, 0, other);
  ck_assert(!memcmp(share, other, sizeof share)); /* without drift steps do not */
  for (int i = 1; i <= E; i++)
    harmonic += pow(i, -1.5);
  for (int e = 0; e < E; e++) {
    ck_assert_double_eq_tol(share[e], pow(place_of(share, e) + 1, -1.5) / harmonic, 1e-12);
    sum += share[e];
  }
  ck_assert_double_eq_tol(sum, 1, 1e-12);
  mt_forced_free(forced);
}
END_TEST

/* After `drift` steps each expert is one place further, the last one first; half way, half way. */
START_TEST(test_drift)
{
  struct mt_forced *forced = forced_of(1, 1, 10);
  double at[E], half[E], then[E];
  for (int step = 0; step < 300; step += 70) {
    mt_forced_shares(forced, step, 2, at);
    mt_forced_shares(forced, step + 5, 2, half);
    mt_forced_shares(forced, step + 10, 2, then);
    for (int e = 0; e < E; e++) {
      ck_assert_int_eq(place_of(then, e), (place_of(at, e) + 1) % E);
      ck_assert_double_eq_tol(half[e], (at[e] + then[e]) / 2, 1e-12);
    }
  }
  mt_forced_free(forced);
}
END_TEST

/* K different experts a token, as often as they should; the same however the tokens are cut. */
START_TEST(test_picks)
{
  enum { N = 20000, K = 3 };
  struct mt_forced *forced = forced_of(K, 1, 4);
  int32_t *all = MT_NEW(MT_TAG_MISC, int32_t, N * K), *cut = MT_NEW(MT_TAG_MISC, int32_t, N * K);
  double share[E], found[E] = {0};
  mt_forced_picks(forced, 7, 1, N, 0, N, all);
  for (int64_t at = 0, n; at < N; at += n) {
    n = at + 777 < N ? 777 : N - at;
    mt_forced_picks(forced, 7, 1, N, at, n, cut + at * K);
  }
  ck_assert(!memcmp(all, cut, sizeof(int32_t) * N * K));
  mt_forced_picks(forced, 8, 1, N, 0, N, cut);
  ck_assert(memcmp(all, cut, sizeof(int32_t) * N * K)); /* steps differ */
  mt_forced_shares(forced, 7, 1, share);
  for (int64_t t = 0; t < N; t++) {
    const int32_t *pick = all + t * K;
    for (int k = 0; k < K; k++)
      ck_assert(pick[k] >= 0 && pick[k] < E && pick[k] != pick[(k + 1) % K]);
    found[pick[0]] += 1.0 / N;
  }
  for (int e = 0; e < E; e++)
    ck_assert_double_eq_tol(found[e], share[e], 4 * sqrt(share[e] / N));
  mt_free(all);
  mt_free(cut);
  mt_forced_free(forced);
}
END_TEST

/* All experts a token; one that nearly everybody picks; no skew. */
START_TEST(test_limits)
{
  int32_t pick[5 * E], seen;
  struct mt_forced *forced = forced_of(E, 200, 0);
  mt_forced_picks(forced, 0, 0, 5, 0, 5, pick);
  for (int t = 0; t < 5; t++) {
    seen = 0;
    for (int k = 0; k < E; k++)
      seen |= 1 << pick[t * E + k];
    ck_assert_int_eq(seen, (1 << E) - 1);
    ck_assert_int_eq(pick[t * E], pick[0]);
  }
  mt_forced_free(forced);
  forced = forced_of(1, 0, 3);
  double share[E];
  mt_forced_shares(forced, 11, 0, share);
  for (int e = 0; e < E; e++)
    ck_assert_double_eq_tol(share[e], 1.0 / E, 1e-12);
  mt_forced_free(forced);
  ck_assert_int_eq(mt_memory_bytes(), 0);
}
END_TEST

/* A file's loads: each stretch of tokens after its rank, each expert as often as there, in all or in no picks where it has more
 * rows than tokens or none; steps and layers go round; no cut of the tokens changes it. */
START_TEST(test_replay)
{
  enum { P = 3, N = 30000, K = 2 };
  static const int64_t rows[2][P][4] = {{{10, 20, 30, 40}, {0, 0, 5, 0}, {90, 4, 4, 2}}, {{0}, {1, 1, 1, 1}, {0, 7, 7, 0}}};
  static const double chance[2][P][4] = {{{0.2, 0.4, 0.6, 0.8}, {1 / 3.0, 1 / 3.0, 1, 1 / 3.0}, {1, 0.4, 0.4, 0.2}},
                                         {{0.5, 0.5, 0.5, 0.5}, {0.5, 0.5, 0.5, 0.5}, {0, 1, 1, 0}}};
  char path[] = "/tmp/motley-forced-XXXXXX";
  FILE *file = fdopen(mkstemp(path), "w");
  fprintf(file, "step,layer,rank,expert,rows\n");
  for (int step = 0; step < 2; step++)
    for (int p = 0; p < P; p++)
      for (int e = 0; e < 4; e++)
        fprintf(file, "%d,0,%d,%d,%lld\n", step, p, e, (long long)rows[step][p][e]);
  fclose(file);
  struct mt_config config = {0};
  config.model.num_local_experts = 4;
  config.model.num_experts_per_tok = K;
  config.moe.router = MT_ROUTER_REPLAY;
  config.moe.loads = path;
  config.parallel.slots = (char *)"";
  struct mt_forced *forced;
  ck_assert_int_eq(mt_forced_new(&config, &forced), MT_OK);
  unlink(path);
  int32_t *all = MT_NEW(MT_TAG_MISC, int32_t, N * K), *cut = MT_NEW(MT_TAG_MISC, int32_t, N * K);
  for (int step = 1; step <= 5; step++) { /* the first is the file's step 0 */
    double found[P][4] = {{0}};
    mt_forced_picks(forced, step, step % 3, N, 0, N, all);
    for (int64_t at = 0, n; at < N; at += n) {
      n = at + 777 < N ? 777 : N - at;
      mt_forced_picks(forced, step, step % 3, N, at, n, cut + at * K);
    }
    ck_assert(!memcmp(all, cut, sizeof(int32_t) * N * K));
    for (int64_t t = 0; t < N; t++) {
      ck_assert(all[t * K] >= 0 && all[t * K] < all[t * K + 1] && all[t * K + 1] < 4);
      for (int k = 0; k < K; k++)
        found[t * P / N][all[t * K + k]] += (double)P / N;
    }
    for (int p = 0; p < P; p++)
      for (int e = 0; e < 4; e++) {
        const double expected = chance[(step - 1) % 2][p][e];
        ck_assert_double_eq_tol(found[p][e], expected, 5 * sqrt(expected * (1 - expected) * P / N) + 1e-9);
      }
  }
  mt_free(all);
  mt_free(cut);
  mt_forced_free(forced);
  config.moe.loads = (char *)"/nonexistent/loads.csv";
  ck_assert_int_eq(mt_forced_new(&config, &forced), MT_USAGE);
  ck_assert_int_eq(mt_memory_bytes(), 0);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("forced");
  TCase *tests = tcase_create("forced");
  tcase_add_test(tests, test_zipf);
  tcase_add_test(tests, test_drift);
  tcase_add_test(tests, test_picks);
  tcase_add_test(tests, test_replay);
  tcase_add_test(tests, test_limits);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
