/* Measuring a cluster, and what is concluded: lines, ways between nodes. ranks: 1 2 3 4 7 */
#include "test.h"
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/memory.h"
#include "comm/measure.h"
#include "comm/way.h"

static int world_size;

/* ---- numbers ---- */

START_TEST(test_digits)
{
  static const struct {
    double x;
    int digits;
    int64_t rounded;
  } cases[] = {{0, 2, 0},           {0.49, 2, 0},
               {0.5, 2, 1},         {1, 2, 1},
               {99, 2, 99},         {99.6, 2, 100},
               {101, 2, 100},       {104.9, 2, 100},
               {105, 2, 110},       {123456, 2, 120000},
               {123456, 3, 123000}, {999999, 3, 1000000},
               {-5, 2, 0},          {5e12, 1, 5000000000000}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    ck_assert_msg(mt_round_digits(cases[i].x, cases[i].digits) == cases[i].rounded,
                  "%g to %d digits: found %lld", cases[i].x, cases[i].digits,
                  (long long)mt_round_digits(cases[i].x, cases[i].digits));
  ck_assert_int_eq(mt_round_digits((double)NAN, 2), 0);
}
END_TEST

/* Speeds of three hosts; then a place that looks otherwise; then all pretend nodes are on one host. */
START_TEST(test_speeds)
{
  static const double speed[] = {10, 12, 50, 11, 13, 30, 34};
  static const int64_t want[3][7] = {{13, 13, 13, 13, 13, 32, 32}, {13, 13, 13, 13, 13, 30, 34}, {13, 13, 13, 13, 13, 13, 34}};
  struct mt_cluster *cluster;
  ck_assert_int_eq(mt_cluster_from_sizes("3,2,2", &cluster), MT_OK);
  for (int i = 0; i < 3; i++) {
    cluster->place[6].cores += i == 1;
    for (int p = 0; p < 7 && i == 2; p++)
      snprintf(cluster->place[p].host, sizeof cluster->place[p].host, "one#%d", cluster->node_of[p]);
    ck_assert_int_eq(mt_speeds_settle(cluster, speed), i < 2);
    for (int p = 0; p < 7; p++)
      ck_assert_int_eq(cluster->place[p].speed, want[i][p]);
  }
  mt_cluster_free(cluster);
}
END_TEST

START_TEST(test_line)
{
  double bytes[] = {1000, 10000, 100000, 1000000}, seconds[4];
  /* Exact points give the line. */
  for (int i = 0; i < 4; i++)
    seconds[i] = 50e-6 + 8e-9 * bytes[i];
  struct mt_link link = mt_link_fit(bytes, seconds, 4);
  ck_assert_int_eq(link.alpha_ns, 50000);
  ck_assert_int_eq(link.beta_ps, 8000);
  /* Noise of a few percent changes little. */
  const double noise[] = {1.03, 0.97, 1.02, 0.99};
  for (int i = 0; i < 4; i++)
    seconds[i] *= noise[i];
  link = mt_link_fit(bytes, seconds, 4);
  ck_assert(link.alpha_ns > 45000 && link.alpha_ns < 55000);
  ck_assert(link.beta_ps > 7700 && link.beta_ps < 8300);
  /* A line that meets the axis below zero: no negative latency, and the slope goes through the points again. */
  double curved[] = {0.5e-6, 80e-6, 900e-6, 10e-3};
  link = mt_link_fit(bytes, curved, 4);
  ck_assert_int_eq(link.alpha_ns, 0);
  double slope = 0, weight = 0; /* the best line through the origin in the relative sense */
  for (int i = 0; i < 4; i++) {
    slope += bytes[i] / curved[i];
    weight += bytes[i] * bytes[i] / (curved[i] * curved[i]);
  }
  ck_assert_int_eq(link.beta_ps, mt_round_digits(1e12 * slope / weight, 3));
  /* Times that fall with the size: all latency, and a bandwidth that is not infinite. */
  double falling[] = {100e-6, 90e-6, 80e-6, 70e-6};
  link = mt_link_fit(bytes, falling, 4);
  ck_assert(link.alpha_ns > 70000 && link.alpha_ns < 100000);
  ck_assert_int_eq(link.beta_ps, 1);
  /* One point, or one size: all bandwidth. */
  double same[] = {4000, 4000}, one[] = {8e-6, 8e-6};
  for (int n = 1; n <= 2; n++) {
    link = mt_link_fit(same, one, n);
    ck_assert_int_eq(link.alpha_ns, 0);
    ck_assert_int_eq(link.beta_ps, 2000);
  }
}
END_TEST

/* ---- ways ---- */

static struct mt_cluster *cluster_of(const char *sizes, struct mt_link self, struct mt_link node,
                                     struct mt_link net)
{
  struct mt_cluster *cluster;
  ck_assert_int_eq(mt_cluster_from_sizes(sizes, &cluster), MT_OK);
  cluster->link[MT_LEVEL_SELF] = self;
  cluster->link[MT_LEVEL_NODE] = node;
  cluster->link[MT_LEVEL_NET] = net;
  return cluster;
}

static struct mt_way_problem even(int senders, int receivers, int64_t bytes)
{
  return (struct mt_way_problem){.senders = senders,
                                 .receivers = receivers,
                                 .bytes = bytes,
                                 .messages = (int64_t)senders * receivers,
                                 .most_out = receivers,
                                 .most_in = senders};
}

static const struct mt_link self = {0, 100, 0}, node = {1000, 250, 200}, gigabit = {40000, 8000, 10000},
                            fast = {1500, 40, 300};

START_TEST(test_way)
{
  struct mt_cluster *slow = cluster_of("8,8", self, node, gigabit),
                    *quick = cluster_of("8,8", self, node, fast);
  struct mt_way_problem small = even(8, 8, 64 * 256), large = even(8, 8, 64 << 20);
  /* Small messages on a network with a high latency: few of them. */
  struct mt_way way = mt_way_choose(slow, &small, MT_EXCHANGE_AUTO, MT_MOST_PIECES);
  ck_assert_int_eq(way.npiece, 1);
  ck_assert(way.bridged_ns < way.direct_ns);
  /* A network as fast as memory: what is large goes directly. */
  way = mt_way_choose(quick, &large, MT_EXCHANGE_AUTO, MT_MOST_PIECES);
  ck_assert_int_eq(way.npiece, 0);
  ck_assert(way.direct_ns < way.bridged_ns);
  /* If bridges are forced there, they share the work. */
  way = mt_way_choose(quick, &large, MT_EXCHANGE_HIERARCHICAL, MT_MOST_PIECES);
  ck_assert_int_gt(way.npiece, 1);
  ck_assert_int_eq(way.spread, 1);
  /* Force is obeyed, both ways. */
  ck_assert_int_eq(mt_way_choose(slow, &small, MT_EXCHANGE_PAIRWISE, MT_MOST_PIECES).npiece, 0);
  ck_assert_int_gt(mt_way_choose(quick, &large, MT_EXCHANGE_HIERARCHICAL, MT_MOST_PIECES).npiece, 0);
  ck_assert_int_eq(mt_way_choose(quick, &large, MT_EXCHANGE_HIERARCHICAL, 1).npiece, 1);
  /* Nodes of one rank: nothing to gather or deal, so one message is all there is. */
  struct mt_way_problem lone = even(1, 1, 1 << 20);
  way = mt_way_choose(slow, &lone, MT_EXCHANGE_HIERARCHICAL, MT_MOST_PIECES);
  ck_assert_int_eq(way.npiece, 1);
  ck_assert_int_eq(way.bridged_ns, way.direct_ns);
  /* On a slow network the time is the network's, whatever the way. */
  way = mt_way_choose(slow, &large, MT_EXCHANGE_AUTO, MT_MOST_PIECES);
  double bound = 8.0 * (64 << 20);
  ck_assert(1.0 * (double)way.bridged_ns < 1.05 * bound && (double)way.bridged_ns >= bound);
  mt_cluster_free(slow);
  mt_cluster_free(quick);
}
END_TEST

/* The exact sums of way.h. */
START_TEST(test_way_formulas)
{
  struct mt_cluster *cluster = cluster_of("4,2", self, node, gigabit);
  struct mt_way_problem p = even(4, 2, 80000);
  struct mt_way way = mt_way_choose(cluster, &p, MT_EXCHANGE_PAIRWISE, 1);
  ck_assert_int_eq(way.direct_ns, 40000 + 3 * 10000 + 80000 * 8);
  /* gather: 3 messages, 60000 bytes, and arranging 80000; deal: one message of 40000 */
  int64_t gather = 1000 + 2 * 200 + 60000 / 4 + 80000 / 10, deal = 1000 + 40000 / 4;
  ck_assert_int_eq(mt_way_bridged(cluster, &p, 1, 0), gather + deal + 40000 + 80000 * 8);
  ck_assert_int_eq(mt_way_bridged(cluster, &p, 1, 0), way.bridged_ns);
  /* two pieces over one bridge: half the work is hidden, one message more */
  gather = 1000 + 2 * 200 + 30000 / 4 + 40000 / 10, deal = 1000 + 20000 / 4;
  ck_assert_int_eq(mt_way_bridged(cluster, &p, 2, 0), gather + deal + 50000 + 80000 * 8);
  /* spread over both receivers: hardly anything is dealt, and no bridge has two */
  ck_assert_int_eq(mt_way_bridged(cluster, &p, 2, 1), gather + 1000 + 40000 + 80000 * 8);
  /* No overflow: 8 TB at 1 MB/s. */
  cluster->link[MT_LEVEL_NET].beta_ps = 1000000;
  p.bytes = (int64_t)8 << 40;
  way = mt_way_choose(cluster, &p, MT_EXCHANGE_AUTO, MT_MOST_PIECES);
  ck_assert((double)way.direct_ns > 0.999e3 * (double)p.bytes &&
            (double)way.direct_ns < 1.001e3 * (double)p.bytes);
  mt_cluster_free(cluster);
}
END_TEST

START_TEST(test_explain)
{
  struct mt_cluster *cluster = cluster_of("2,1,4", self, node, gigabit);
  char *text = mt_way_explain(cluster, MT_EXCHANGE_PAIRWISE, 70, 100);
  ck_assert_msg(strstr(text, "6 node pairs directly, 0 over bridges;") && strstr(text, "as measured"), "%s",
                text);
  mt_free(text);
  text = mt_way_explain(cluster, MT_EXCHANGE_HIERARCHICAL, 70, 100);
  ck_assert_msg(strstr(text, "0 node pairs directly, 6 over bridges (in 1 piece,"), "%s", text);
  mt_free(text);
  cluster->link[MT_LEVEL_NET] = (struct mt_link){0, 0, 0};
  text = mt_way_explain(cluster, MT_EXCHANGE_AUTO, 70, 100);
  ck_assert_msg(strstr(text, "not measured") != NULL, "%s", text);
  mt_free(text);
  mt_cluster_free(cluster);
  cluster = cluster_of("3", self, node, gigabit);
  text = mt_way_explain(cluster, MT_EXCHANGE_AUTO, 70, 100);
  ck_assert_str_eq(text, "exchange: pairwise, within one node");
  mt_free(text);
  mt_cluster_free(cluster);
}
END_TEST

/* ---- measuring ---- */

static void check_measured(struct mt_comm *comm, int with_speed)
{
  struct mt_cluster *cluster = comm->cluster;
  int64_t *all = MT_NEW(MT_TAG_MISC, int64_t, comm->size + 3 * MT_NLEVEL);
  int n = 0;
  for (int p = 0; p < comm->size; p++)
    all[n++] = cluster->place[p].speed;
  for (int level = 0; level < MT_NLEVEL; level++) {
    all[n++] = cluster->link[level].alpha_ns;
    all[n++] = cluster->link[level].beta_ps;
    all[n++] = cluster->link[level].gap_ns;
  }
  ck_assert_msg(mt_same(comm, all, n * (int64_t)sizeof *all), "ranks disagree");
  for (int i = 0; i < n; i++) {
    /* two digits, beta three */
    int digits = i >= comm->size && (i - comm->size) % 3 == 1 ? 3 : 2;
    ck_assert_int_eq(all[i], mt_round_digits((double)all[i], digits));
  }
  mt_free(all);
  for (int p = 0; p < comm->size; p++)
    ck_assert_int_eq(cluster->place[p].speed > 0, with_speed);
  ck_assert_int_eq(mt_measured(cluster), with_speed);
  ck_assert_int_gt(cluster->link[MT_LEVEL_SELF].beta_ps, 0);
  ck_assert_int_eq(cluster->link[MT_LEVEL_NODE].beta_ps > 0, comm->size > comm->nnode);
  ck_assert_int_eq(cluster->link[MT_LEVEL_NET].beta_ps > 0, comm->nnode > 1);
  for (int level = 0; level < MT_NLEVEL; level++)
    ck_assert_int_le(cluster->link[level].gap_ns, cluster->link[level].alpha_ns);
}

static void try_nodes(const char *nodes)
{
  if (nodes)
    setenv("MOTLEY_NODES", nodes, 1);
  struct mt_comm *comm;
  ck_assert_int_eq(mt_comm_new(NULL, NULL, &comm), MT_OK);
  unsetenv("MOTLEY_NODES");
  ck_assert_int_eq(mt_measured(comm->cluster), 0);
  mt_measure(comm, NULL);
  check_measured(comm, 0);
  struct mt_device *device;
  ck_assert_int_eq(mt_device_open("cpu", 1, &device), MT_OK);
  mt_measure(comm, device);
  device->ops->close(device);
  check_measured(comm, 1);
  /* Its messages are nobody's traffic, its waiting nobody's loss. */
  for (int level = 0; level < MT_NLEVEL; level++)
    ck_assert(comm->sent_bytes[level] == 0 && comm->sent_messages[level] == 0);

  /* What rank 0 knows, all know; a stored description gives the same. */
  struct mt_cluster *copy;
  mt_json *json = mt_cluster_to_json(comm->cluster);
  ck_assert_int_eq(mt_cluster_from_json("copy", json, &copy), MT_OK);
  mt_json_free(json);
  for (int p = 0; p < comm->size; p++)
    comm->cluster->place[p].speed = 0;
  memset(comm->cluster->link, 0, sizeof comm->cluster->link);
  if (comm->rank == 0)
    mt_measured_copy(comm->cluster, copy);
  mt_measured_share(comm);
  check_measured(comm, 1);
  ck_assert_int_eq(memcmp(comm->cluster->link, copy->link, sizeof copy->link), 0);
  ck_assert_int_eq(comm->cluster->place[comm->size - 1].speed, copy->place[comm->size - 1].speed);
  mt_cluster_free(copy);
  mt_comm_free(comm);
}

START_TEST(test_measure)
{
  try_nodes(NULL);
}
END_TEST

START_TEST(test_measure_nodes)
{
  static const char *const shapes[] = {"1,1", "1,2", "2,1,1", "1,1,1,1", "2,1,4"};
  static const int total[] = {2, 3, 4, 4, 7};
  for (int i = 0; i < 5; i++)
    if (total[i] == world_size)
      try_nodes(shapes[i]);
}
END_TEST

int main(int argc, char **argv)
{
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &(int){0});
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  Suite *suite = suite_create("measure");
  TCase *tests = tcase_create("measure");
  tcase_add_test(tests, test_digits);
  tcase_add_test(tests, test_speeds);
  tcase_add_test(tests, test_line);
  tcase_add_test(tests, test_way);
  tcase_add_test(tests, test_way_formulas);
  tcase_add_test(tests, test_explain);
  tcase_add_test(tests, test_measure);
  tcase_add_test(tests, test_measure_nodes);
  suite_add_tcase(suite, tests);
  int code = mt_test_run(suite);
  MPI_Finalize();
  return code;
}
