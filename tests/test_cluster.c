/* The cluster as data: grouping, bridges, the JSON form, the printed tree. ranks: 1 */
#include "test.h"
#include "topology/cluster.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/random.h"

/* What every cluster must satisfy, however it was made. */
static void check_cluster(const struct mt_cluster *c, int n)
{
  ck_assert_int_eq(c->nplace, n);
  ck_assert_int_ge(c->nnode, 1);
  ck_assert_int_eq(c->node_first[0], 0);
  ck_assert_int_eq(c->node_first[c->nnode], n);
  ck_assert_int_eq(c->place[0].launch_rank, 0);
  int *seen = MT_ZNEW(MT_TAG_MISC, int, n);
  for (int i = 0; i < c->nnode; i++) {
    ck_assert_int_lt(c->node_first[i], c->node_first[i + 1]);
    if (i > 0) /* nodes by lowest launch rank */
      ck_assert_int_lt(c->place[c->node_first[i - 1]].launch_rank, c->place[c->node_first[i]].launch_rank);
    for (int p = c->node_first[i]; p < c->node_first[i + 1]; p++) {
      ck_assert_int_eq(c->node_of[p], i);
      ck_assert_str_eq(c->place[p].host, c->place[c->node_first[i]].host);
      if (p > c->node_first[i])
        ck_assert_int_lt(c->place[p - 1].launch_rank, c->place[p].launch_rank);
      ck_assert_int_lt(c->place[p].launch_rank, n);
      ck_assert_int_eq(seen[c->place[p].launch_rank]++, 0);
    }
    for (int k = 0; k < i; k++)
      ck_assert_str_ne(c->place[c->node_first[k]].host, c->place[c->node_first[i]].host);
  }
  for (int a = 0; a < n && n <= 32; a++)
    for (int b = 0; b < n; b++)
      ck_assert_int_eq(mt_cluster_level(c, a, b), a == b                           ? MT_LEVEL_SELF
                                                  : c->node_of[a] == c->node_of[b] ? MT_LEVEL_NODE
                                                                                   : MT_LEVEL_NET);
  for (int from = 0; from < c->nnode; from++) {
    memset(seen, 0, (size_t)n * sizeof *seen);
    for (int to = 0; to < c->nnode; to++) {
      if (to == from)
        continue;
      int bridge = mt_cluster_bridge(c, from, to);
      ck_assert_int_ge(bridge, c->node_first[from]);
      ck_assert_int_lt(bridge, c->node_first[from + 1]);
      seen[bridge]++;
    }
    int low = seen[c->node_first[from]], high = low;
    for (int p = c->node_first[from]; p < c->node_first[from + 1]; p++) {
      low = seen[p] < low ? seen[p] : low;
      high = seen[p] > high ? seen[p] : high;
    }
    ck_assert_int_le(high - low, 1);
  }
  mt_free(seen);
}

static const struct {
  const char *sizes;
  int n, nnode;
} made_up[] = {{"1", 1, 1}, {"2,1,4", 7, 3}, {"1,3", 4, 2}, {"8,8,4,2", 22, 4}, {"1,1,1", 3, 3}, {"7", 7, 1}};

START_TEST(test_sizes)
{
  struct mt_cluster *c;
  ck_assert_int_eq(mt_cluster_from_sizes(made_up[_i].sizes, &c), MT_OK);
  check_cluster(c, made_up[_i].n);
  ck_assert_int_eq(c->nnode, made_up[_i].nnode);
  char text[64] = "";
  for (int i = 0; i < c->nnode; i++)
    sprintf(text + strlen(text), "%s%d", i ? "," : "", c->node_first[i + 1] - c->node_first[i]);
  ck_assert_str_eq(text, made_up[_i].sizes);
  mt_cluster_free(c);
}
END_TEST

static const char *const bad_sizes[] = {
    "", ",", "0", "2,", ",2", "2,0,1", "2,-1", "a", "2,1x", "2 1", "1.5", "99999999999999999999999", "1048576,1"};

START_TEST(test_bad_sizes)
{
  struct mt_cluster *c = NULL;
  ck_assert_int_eq(mt_cluster_from_sizes(bad_sizes[_i], &c), MT_USAGE);
  ck_assert_ptr_null(c);
}
END_TEST

/* Places on `hosts` hosts; rank r lies on host pick(r). */
static struct mt_place *places(int n, const int *host)
{
  struct mt_place *place = MT_ZNEW(MT_TAG_MISC, struct mt_place, n);
  for (int r = 0; r < n; r++) {
    snprintf(place[r].host, sizeof place[r].host, "host%d", host[r]);
    place[r].launch_rank = r;
    place[r].device = -1;
    place[r].cores = place[r].node_cores = place[r].packages = place[r].numas = place[r].threads = 1;
    place[r].speed = 1000 + r; /* follows its place through renumbering */
  }
  return place;
}

START_TEST(test_interleaved)
{
  int host[11]; /* hosts 2, 0, 1 in order of appearance; 5, 3 and 3 ranks */
  for (int r = 0; r < 11; r++)
    host[r] = (r + 2) % 3;
  host[10] = 2;
  struct mt_place *place = places(11, host);
  struct mt_cluster *c;
  ck_assert_int_eq(mt_cluster_build(place, 11, NULL, &c), MT_OK);
  check_cluster(c, 11);
  static const int expected[11] = {0, 3, 6, 9, 10, 1, 4, 7, 2, 5, 8};
  for (int p = 0; p < 11; p++) {
    ck_assert_int_eq(c->place[p].launch_rank, expected[p]);
    ck_assert_int_eq(c->place[p].speed, 1000 + expected[p]);
  }
  ck_assert_int_eq(c->nnode, 3);
  ck_assert_str_eq(c->place[0].host, "host2");
  ck_assert_str_eq(c->place[5].host, "host0");
  mt_cluster_free(c);

  /* Pretend nodes: consecutive launch ranks whatever the hosts. */
  ck_assert_int_eq(mt_cluster_build(place, 11, "2,1,8", &c), MT_OK);
  check_cluster(c, 11);
  for (int p = 0; p < 11; p++)
    ck_assert_int_eq(c->place[p].launch_rank, p);
  ck_assert_int_eq(c->node_first[1], 2);
  ck_assert_int_eq(c->node_first[2], 3);
  ck_assert_str_eq(c->place[1].host, "host2#0");
  ck_assert_str_eq(c->place[2].host, "host1#1");
  ck_assert_str_eq(c->place[10].host, "host2#2");
  mt_cluster_free(c);

  /* An empty wish is no wish. */
  ck_assert_int_eq(mt_cluster_build(place, 11, "", &c), MT_OK);
  ck_assert_int_eq(c->nnode, 3);
  mt_cluster_free(c);
  c = NULL;
  static const char *const misfit[] = {"11,1", "10", "5,5", "0,11", "11,", "a"};
  for (size_t i = 0; i < sizeof misfit / sizeof *misfit; i++)
    ck_assert_int_eq(mt_cluster_build(place, 11, misfit[i], &c), MT_USAGE);
  ck_assert_ptr_null(c);
  mt_free(place);
}
END_TEST

START_TEST(test_long_hosts)
{
  /* Names as long as they may be, that differ in their last letter only; pretend nodes of them stay distinct.
   */
  int host[4] = {0, 1, 0, 1};
  struct mt_place *place = places(4, host);
  for (int r = 0; r < 4; r++) {
    memset(place[r].host, 'h', sizeof place[r].host - 1);
    place[r].host[sizeof place[r].host - 2] = (char)('a' + host[r]);
  }
  struct mt_cluster *c;
  ck_assert_int_eq(mt_cluster_build(place, 4, NULL, &c), MT_OK);
  check_cluster(c, 4);
  ck_assert_int_eq(c->nnode, 2);
  mt_cluster_free(c);
  ck_assert_int_eq(mt_cluster_build(place, 4, "1,3", &c), MT_OK);
  check_cluster(c, 4);
  ck_assert_str_eq(c->place[3].host + sizeof place->host - 3, "#1");
  mt_cluster_free(c);
  mt_free(place);
}
END_TEST

START_TEST(test_random)
{
  uint64_t draw = 0;
  int host[500], n = 1 + (int)(mt_random_bits((uint64_t)_i, MT_STREAM_TEST, draw++) % 500);
  for (int r = 0; r < n; r++)
    host[r] = (int)(mt_random_bits((uint64_t)_i, MT_STREAM_TEST, draw++) % 64);
  struct mt_place *place = places(n, host);
  struct mt_cluster *c;
  ck_assert_int_eq(mt_cluster_build(place, n, NULL, &c), MT_OK);
  check_cluster(c, n);
  for (int p = 0; p < n; p++)
    ck_assert_str_eq(c->place[p].host, place[c->place[p].launch_rank].host);
  ck_assert_int_eq(mt_cluster_same(c, c), 1);
  mt_cluster_free(c);
  mt_free(place);
}
END_TEST

START_TEST(test_same)
{
  struct mt_cluster *a, *b;
  ck_assert_int_eq(mt_cluster_from_sizes("2,1,4", &a), MT_OK);
  ck_assert_int_eq(mt_cluster_from_sizes("2,1,4", &b), MT_OK);
  b->place[3].speed = 5;
  b->link[MT_LEVEL_NET].alpha_ns = 7;
  ck_assert_int_eq(mt_cluster_same(a, b), 1);
  b->place[6].threads = 2;
  ck_assert_int_eq(mt_cluster_same(a, b), 0);
  b->place[6].threads = 1;
  b->place[6].cores = 2;
  ck_assert_int_eq(mt_cluster_same(a, b), 0);
  b->place[6].cores = 1;
  b->place[6].kind = MT_DEVICE_CUDA;
  ck_assert_int_eq(mt_cluster_same(a, b), 0);
  b->place[6].kind = MT_DEVICE_CPU;
  strcpy(b->place[6].model, "other");
  ck_assert_int_eq(mt_cluster_same(a, b), 0);
  b->place[6].model[0] = 0;
  ck_assert_int_eq(mt_cluster_same(a, b), 1);
  strcpy(b->place[6].host, "other");
  ck_assert_int_eq(mt_cluster_same(a, b), 0);
  mt_cluster_free(b);
  ck_assert_int_eq(mt_cluster_from_sizes("1,2,4", &b), MT_OK);
  for (int p = 0; p < 7; p++)
    strcpy(b->place[p].host, a->place[p].host);
  ck_assert_int_eq(mt_cluster_same(a, b), 0); /* same places, other nodes */
  mt_cluster_free(b);
  ck_assert_int_eq(mt_cluster_from_sizes("2,1,3", &b), MT_OK);
  ck_assert_int_eq(mt_cluster_same(a, b), 0);
  mt_cluster_free(b);
  mt_cluster_free(a);
}
END_TEST

/* Every member of every place, links included: the JSON form must lose nothing. */
static void check_equal(const struct mt_cluster *a, const struct mt_cluster *b)
{
  ck_assert_int_eq(a->nplace, b->nplace);
  ck_assert_int_eq(a->nnode, b->nnode);
  ck_assert_int_eq(memcmp(a->node_first, b->node_first, (size_t)(a->nnode + 1) * sizeof(int)), 0);
  ck_assert_int_eq(memcmp(a->node_of, b->node_of, (size_t)a->nplace * sizeof(int)), 0);
  ck_assert_int_eq(memcmp(a->link, b->link, sizeof a->link), 0);
  ck_assert_int_eq(memcmp(&a->learnt, &b->learnt, sizeof a->learnt), 0);
  for (int p = 0; p < a->nplace; p++) {
    const struct mt_place *x = &a->place[p], *y = &b->place[p];
    ck_assert_str_eq(x->host, y->host);
    ck_assert_str_eq(x->model, y->model);
    ck_assert_int_eq(x->launch_rank, y->launch_rank);
    ck_assert_int_eq(x->kind, y->kind);
    ck_assert_int_eq(x->device, y->device);
    ck_assert_int_eq(x->package, y->package);
    ck_assert_int_eq(x->numa, y->numa);
    ck_assert_int_eq(x->cores, y->cores);
    ck_assert_int_eq(x->node_cores, y->node_cores);
    ck_assert_int_eq(x->packages, y->packages);
    ck_assert_int_eq(x->numas, y->numas);
    ck_assert_int_eq(x->threads, y->threads);
    ck_assert_int_eq(x->flat, y->flat);
    ck_assert_int_eq(x->mem_bytes, y->mem_bytes);
    ck_assert_int_eq(x->speed, y->speed);
  }
}

/* Through text and back. */
static void round_trip(const struct mt_cluster *c)
{
  mt_json *json = mt_cluster_to_json(c), *again = NULL;
  char *text = mt_json_print(json, 2);
  mt_json_free(json);
  ck_assert_int_eq(mt_json_parse("text", text, &again), MT_OK);
  struct mt_cluster *back = NULL;
  ck_assert_int_eq(mt_cluster_from_json("text", again, &back), MT_OK);
  check_cluster(back, c->nplace);
  check_equal(c, back);
  mt_cluster_free(back);
  mt_json_free(again);
  mt_free(text);
}

/* What steps taught: all of it, some of it, nothing; a file without it says nothing. */
START_TEST(test_learnt)
{
  struct mt_cluster *c;
  ck_assert_int_eq(mt_cluster_from_sizes("2,1,4", &c), MT_OK);
  round_trip(c);
  c->learnt = (struct mt_learnt){.slow_compute = 1100, .slow_comm = 1234, .hand_ns = 9876, .late_ns = {55, 66}};
  round_trip(c);
  c->learnt.n = MT_MOST_LEARNT;
  for (int i = 0; i < MT_MOST_LEARNT; i++) {
    snprintf(c->learnt.task[i].name, sizeof c->learnt.task[i].name, "task %d of some length", i);
    c->learnt.task[i].extra_ns = 1000 * i;
    c->learnt.task[i].thousandths = 1 + i * i;
  }
  round_trip(c);
  mt_cluster_free(c);
}
END_TEST

/* n places on up to `hosts` hosts whose members are drawn, within what discovery may find. */
static struct mt_place *drawn_places(uint64_t seed, int n, int hosts)
{
  uint64_t k = 0;
#define DRAW(below) ((int64_t)(mt_random_bits(seed, MT_STREAM_TEST, k++) % (uint64_t)(below)))
  struct mt_place *place = MT_ZNEW(MT_TAG_MISC, struct mt_place, n);
  for (int r = 0; r < n; r++) {
    struct mt_place *p = &place[r];
    snprintf(p->host, sizeof p->host, "host%d", (int)DRAW(hosts));
    snprintf(p->model, sizeof p->model, "Model \"%d\" \\", (int)DRAW(2));
    p->launch_rank = r;
    p->kind = DRAW(4) ? MT_DEVICE_CPU : MT_DEVICE_CUDA;
    p->device = p->kind == MT_DEVICE_CUDA ? (int32_t)DRAW(8) : -1;
    p->packages = 1 + (int32_t)DRAW(3);
    p->numas = 1 + (int32_t)DRAW(5);
    p->package = (int32_t)DRAW(p->packages + 1) - 1;
    p->numa = (int32_t)DRAW(p->numas + 1) - 1;
    p->node_cores = 1 + (int32_t)DRAW(INT32_MAX);
    p->cores = 1 + (int32_t)DRAW(p->node_cores);
    p->threads = 1 + (int32_t)DRAW(100);
    p->flat = (int32_t)DRAW(2);
    p->mem_bytes = DRAW(INT64_MAX);
    p->speed = DRAW(INT64_MAX);
  }
#undef DRAW
  return place;
}

START_TEST(test_round_trip)
{
  struct mt_cluster *c;
  for (size_t i = 0; i < sizeof made_up / sizeof *made_up; i++) {
    ck_assert_int_eq(mt_cluster_from_sizes(made_up[i].sizes, &c), MT_OK);
    round_trip(c);
    mt_cluster_free(c);
  }
  for (uint64_t seed = 0; seed < 10; seed++) {
    int n = 1 + (int)(mt_random_bits(seed, MT_STREAM_TEST, 1 << 20) % 200);
    struct mt_place *place = drawn_places(seed, n, 1 + n / 5);
    ck_assert_int_eq(mt_cluster_build(place, n, NULL, &c), MT_OK);
    c->link[MT_LEVEL_NODE] = (struct mt_link){400, 101, 5};
    c->link[MT_LEVEL_NET] = (struct mt_link){1000000000000, 1000000000, 1000000000000};
    round_trip(c);
    mt_cluster_free(c);
    mt_free(place);
  }
}
END_TEST

/* A cluster as a person writes it: what ranks share stands at the node, the rest is left out. */
#define HEAD "{\"format\": \"motley-cluster\", \"version\": 1, "
#define NODE(host, ranks) "{\"host\": \"" host "\", \"node_cores\": 4, \"cores\": 2, \"ranks\": [" ranks "]}"

START_TEST(test_by_hand)
{
  mt_json *json;
  struct mt_cluster *c;
  ck_assert_int_eq(mt_json_parse("hand",
                                 HEAD "\"nodes\": [" NODE("a", "{}, {\"cores\": 1, \"threads\": 3}") ", " NODE(
                                     "b", "{\"kind\": \"cuda\", \"device\": 0, \"mem_bytes\": 1000}") "]}",
                                 &json),
                   MT_OK);
  ck_assert_int_eq(mt_cluster_from_json("hand", json, &c), MT_OK);
  mt_json_free(json);
  check_cluster(c, 3);
  ck_assert_int_eq(c->nnode, 2);
  ck_assert_int_eq(c->place[0].cores, 2);
  ck_assert_int_eq(c->place[0].threads, 1);
  ck_assert_int_eq(c->place[0].device, -1);
  ck_assert_int_eq(c->place[1].cores, 1);
  ck_assert_int_eq(c->place[1].threads, 3);
  ck_assert_int_eq(c->place[2].kind, MT_DEVICE_CUDA);
  ck_assert_int_eq(c->place[2].mem_bytes, 1000);
  ck_assert_int_eq(c->place[2].launch_rank, 2);
  ck_assert_str_eq(c->place[2].host, "b");
  mt_cluster_free(c);
}
END_TEST

#define X64 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
/* The place that the message must name, and the text. */
static const struct {
  const char *where, *text;
} bad_json[] = {
    {"format", "[]"},
    {"format", "{}"},
    {"format", "{\"format\": \"other\", \"version\": 1}"},
    {"version", "{\"format\": \"motley-cluster\", \"nodes\": []}"},
    {"version", "{\"format\": \"motley-cluster\", \"version\": 2, \"nodes\": []}"},
    {"nodes", HEAD "\"links\": {}}"},
    {"nodes", HEAD "\"nodes\": {}}"},
    {"nodes", HEAD "\"nodes\": []}"},
    {"nodez", HEAD "\"nodez\": [], \"nodes\": [" NODE("a", "{}") "]}"},
    {"links", HEAD "\"links\": 3, \"nodes\": [" NODE("a", "{}") "]}"},
    {"costs", HEAD "\"costs\": [], \"nodes\": [" NODE("a", "{}") "]}"},
    {"slow", HEAD "\"costs\": {\"slow\": 1}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"costs.hand_ns", HEAD "\"costs\": {\"hand_ns\": -1}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"costs.slow_comm", HEAD "\"costs\": {\"slow_comm\": 1000001}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"costs.tasks", HEAD "\"costs\": {\"tasks\": []}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"costs.tasks.x", HEAD "\"costs\": {\"tasks\": {\"x\": 7}}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"costs.tasks.x", HEAD "\"costs\": {\"tasks\": {\"x\": {\"extra_ns\": 1}}}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"factor", HEAD "\"costs\": {\"tasks\": {\"x\": {\"factor\": 1}}}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"costs.tasks." X64, HEAD "\"costs\": {\"tasks\": {\"" X64 "\": {}}}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"lan", HEAD "\"links\": {\"lan\": {}}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"links.net", HEAD "\"links\": {\"net\": []}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"links.net.beta_ps", HEAD "\"links\": {\"net\": {\"alpha_ns\": 1}}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"links.net.beta_ps",
     HEAD "\"links\": {\"net\": {\"alpha_ns\": 1, \"beta_ps\": 1000000001}}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"links.self.alpha_ns",
     HEAD "\"links\": {\"self\": {\"alpha_ns\": 1000000000001, \"beta_ps\": 0}}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"links.net.gap_ns",
     HEAD "\"links\": {\"net\": {\"alpha_ns\": 1, \"beta_ps\": 1, \"gap_ns\": -1}}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"links.node.alpha_ns",
     HEAD "\"links\": {\"node\": {\"alpha_ns\": -1, \"beta_ps\": 0}}, \"nodes\": [" NODE("a", "{}") "]}"},
    {"nodes[0].ranks", HEAD "\"nodes\": [7]}"},
    {"nodes[0].ranks", HEAD "\"nodes\": [{\"host\": \"a\"}]}"},
    {"nodes[1].ranks", HEAD "\"nodes\": [" NODE("a", "{}") ", " NODE("b", "") "]}"},
    {"nodes[0].ranks[1]", HEAD "\"nodes\": [" NODE("a", "{}, 4") "]}"},
    {"nodes[0].host", HEAD "\"nodes\": [{\"ranks\": [{}]}]}"},
    {"nodes[0].host", HEAD "\"nodes\": [" NODE("", "{}") "]}"},
    {"nodes[0].host", HEAD "\"nodes\": [" NODE(X64, "{}") "]}"},
    {"nodes[0].host", HEAD "\"nodes\": [" NODE("a\\nb", "{}") "]}"},
    {"nodes[2].host", HEAD "\"nodes\": [" NODE("a", "{}") ", " NODE("b", "{}") ", " NODE("a", "{}") "]}"},
    {"nodes[0].ranks[0].cores", HEAD "\"nodes\": [{\"host\": \"a\", \"node_cores\": 2, \"ranks\": [{}]}]}"},
    {"nodes[0].ranks[0].node_cores", HEAD "\"nodes\": [{\"host\": \"a\", \"cores\": 2, \"ranks\": [{}]}]}"},
    {"nodes[0].cores", HEAD "\"nodes\": [{\"host\": \"a\", \"cores\": \"2\", \"node_cores\": 2, \"ranks\": [{}]}]}"},
    {"nodes[0].ranks[0].cores", HEAD "\"nodes\": [" NODE("a", "{\"cores\": -3}") "]}"},
    {"nodes[0].ranks[0].cores", HEAD "\"nodes\": [" NODE("a", "{\"cores\": 0}") "]}"},
    {"nodes[0].ranks[0].cores", HEAD "\"nodes\": [" NODE("a", "{\"cores\": 1.5}") "]}"},
    {"nodes[0].ranks[0].cores", HEAD "\"nodes\": [" NODE("a", "{\"cores\": 5}") "]}"},
    {"nodes[0].ranks[0].cores", HEAD "\"nodes\": [" NODE("a", "{\"cores\": 4294967297}") "]}"},
    {"nodes[0].ranks[1].threads", HEAD "\"nodes\": [" NODE("a", "{}, {\"threads\": 0}") "]}"},
    {"nodes[0].ranks[0].packages", HEAD "\"nodes\": [" NODE("a", "{\"packages\": 0}") "]}"},
    {"nodes[0].ranks[0].package", HEAD "\"nodes\": [" NODE("a", "{\"package\": 1}") "]}"},
    {"nodes[0].ranks[0].numa", HEAD "\"nodes\": [" NODE("a", "{\"numas\": 2, \"numa\": 2}") "]}"},
    {"nodes[0].ranks[0].numa", HEAD "\"nodes\": [" NODE("a", "{\"numa\": -2}") "]}"},
    {"nodes[0].ranks[0].mem_bytes", HEAD "\"nodes\": [" NODE("a", "{\"mem_bytes\": -1}") "]}"},
    {"nodes[0].ranks[0].speed", HEAD "\"nodes\": [" NODE("a", "{\"speed\": null}") "]}"},
    {"nodes[0].ranks[0].flat", HEAD "\"nodes\": [" NODE("a", "{\"flat\": 1}") "]}"},
    {"nodes[0].ranks[0].kind", HEAD "\"nodes\": [" NODE("a", "{\"kind\": \"tpu\"}") "]}"},
    {"nodes[0].ranks[0].kind", HEAD "\"nodes\": [" NODE("a", "{\"kind\": 0}") "]}"},
    {"nodes[0].ranks[0].device", HEAD "\"nodes\": [" NODE("a", "{\"kind\": \"cuda\"}") "]}"},
    {"nodes[0].ranks[0].device", HEAD "\"nodes\": [" NODE("a", "{\"device\": 0}") "]}"},
    {"nodes[0].ranks[0].model", HEAD "\"nodes\": [" NODE("a", "{\"model\": 7}") "]}"},
    {"nodes[0].ranks[0].gpu", HEAD "\"nodes\": [" NODE("a", "{\"gpu\": 7}") "]}"},
    {"nodes[0].ranks[0].launch_rank", HEAD "\"nodes\": [" NODE("a", "{\"launch_rank\": -1}") "]}"},
    {"nodes[0].ranks[0].launch_rank", HEAD "\"nodes\": [" NODE("a", "{\"launch_rank\": 1}") "]}"},
    {"nodes[0].ranks[1].launch_rank", HEAD "\"nodes\": [" NODE("a", "{}, {\"launch_rank\": 0}") "]}"},
    {"nodes[0].ranks[1].launch_rank", HEAD "\"nodes\": [" NODE("a", "{\"launch_rank\": 1}, {\"launch_rank\": 0}") "]}"},
    {"nodes[1].ranks[0].launch_rank",
     HEAD "\"nodes\": [" NODE("a", "{\"launch_rank\": 1}") ", " NODE("b", "{\"launch_rank\": 0}") "]}"},
};

/* What `act` writes on stderr; the caller frees. */
static char *said(void (*act)(void *), void *argument)
{
  char name[] = "/tmp/motley-test-XXXXXX";
  int file = mkstemp(name), saved = dup(STDERR_FILENO);
  ck_assert_int_ge(file, 0);
  unlink(name);
  dup2(file, STDERR_FILENO);
  act(argument);
  dup2(saved, STDERR_FILENO);
  close(saved);
  off_t size = lseek(file, 0, SEEK_END);
  char *text = MT_ZNEW(MT_TAG_MISC, char, size + 1);
  ck_assert_int_eq(pread(file, text, (size_t)size, 0), size);
  close(file);
  return text;
}

static void read_bad(void *argument)
{
  const char *text = argument;
  mt_json *json = NULL;
  struct mt_cluster *c = NULL;
  ck_assert_int_eq(mt_json_parse("made-up", text, &json), MT_OK);
  ck_assert_int_eq(mt_cluster_from_json("made-up", json, &c), MT_CORRUPT);
  ck_assert_ptr_null(c);
  mt_json_free(json);
}

START_TEST(test_bad_json)
{
  char *text = said(read_bad, (char *)bad_json[_i].text);
  char *prefix = mt_format("motley: error: made-up: %s: found ", bad_json[_i].where);
  ck_assert_msg(strncmp(text, prefix, strlen(prefix)) == 0, "\"%s\" should begin with \"%s\"", text, prefix);
  ck_assert_ptr_nonnull(strstr(text, ", expected "));
  ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
  mt_free(prefix);
  mt_free(text);
}
END_TEST

START_TEST(test_files)
{
  struct mt_cluster *c = NULL, *back = NULL;
  ck_assert_int_eq(mt_cluster_read("2,1,4", &c), MT_OK);
  check_cluster(c, 7);
  char name[] = "/tmp/motley-test-XXXXXX";
  int file = mkstemp(name);
  ck_assert_int_ge(file, 0);
  mt_json *json = mt_cluster_to_json(c);
  char *text = mt_json_print(json, 0);
  mt_json_free(json);
  ck_assert_int_eq(write(file, text, strlen(text)), (ssize_t)strlen(text));
  ck_assert_int_eq(mt_cluster_read(name, &back), MT_OK);
  check_equal(c, back);
  mt_cluster_free(back);
  mt_cluster_free(c);
  back = NULL;
  ck_assert_int_eq(ftruncate(file, (off_t)strlen(text) / 2), 0);
  ck_assert_int_eq(mt_cluster_read(name, &back), MT_CORRUPT);
  close(file);
  unlink(name);
  ck_assert_int_eq(mt_cluster_read(name, &back), MT_USAGE);
  ck_assert_int_eq(mt_cluster_read("/tmp", &back), MT_CORRUPT);
  ck_assert_int_eq(mt_cluster_read("", &back), MT_USAGE);
  ck_assert_int_eq(mt_cluster_read("2,,1", &back), MT_USAGE);
  ck_assert_ptr_null(back);
  mt_free(text);
}
END_TEST

static void check_print(const struct mt_cluster *c, const char *expected)
{
  char *text = mt_cluster_print(c);
  ck_assert_str_eq(text, expected);
  mt_free(text);
}

START_TEST(test_print)
{
  struct mt_cluster *c;
  ck_assert_int_eq(mt_cluster_from_sizes("1", &c), MT_OK);
  check_print(c, "1 node, 1 rank, 1 core, 1 thread\n"
                 "node 0: node0, 1 rank, 1 core\n"
                 "  rank 0: 1 core, 1 thread\n");
  mt_cluster_free(c);

  /* Equal neighbours are folded, ranks and nodes; what differs is not. */
  ck_assert_int_eq(mt_cluster_from_sizes("4,2,2,2,1", &c), MT_OK);
  c->place[2].threads = 2;
  check_print(c, "5 nodes, 11 ranks, 11 cores, 12 threads\n"
                 "node 0: node0, 4 ranks, 4 cores\n"
                 "  ranks 0-1: 2 x 1 core, 1 thread\n"
                 "  rank 2: 1 core, 2 threads\n"
                 "  rank 3: 1 core, 1 thread\n"
                 "nodes 1-3: node1 ... node3, ranks 4-9, 3 x 2 ranks, 2 cores\n"
                 "  each: 2 x 1 core, 1 thread\n"
                 "node 4: node4, 1 rank, 1 core\n"
                 "  rank 10: 1 core, 1 thread\n"
                 "! more threads than cores: node0 (5 on 4)\n");
  mt_cluster_free(c);

  /* Nodes whose GPUs have other numbers are not equal. */
  ck_assert_int_eq(mt_cluster_from_sizes("1,1", &c), MT_OK);
  for (int p = 0; p < 2; p++) {
    c->place[p].kind = MT_DEVICE_CUDA;
    c->place[p].device = p;
  }
  check_print(c, "2 nodes, 2 ranks, 2 GPUs, 2 cores, 2 threads\n"
                 "node 0: node0, 1 rank, 1 core\n"
                 "  rank 0: GPU 0, 1 core, 1 thread\n"
                 "node 1: node1, 1 rank, 1 core\n"
                 "  rank 1: GPU 1, 1 core, 1 thread\n");
  mt_cluster_free(c);

  /* Interleaved launch, a GPU, NUMA, memory, links. Ranks that are not bound share the cores. */
  int host[5] = {0, 1, 0, 1, 1};
  struct mt_place *place = places(5, host);
  for (int r = 0; r < 5; r++) {
    place[r].speed = 0;
    if (host[r] == 0) {
      place[r].cores = place[r].node_cores = 8;
      place[r].threads = 4;
      place[r].mem_bytes = (int64_t)64 << 30;
      strcpy(place[r].model, "CPU model");
    } else {
      place[r].node_cores = 4;
      place[r].numas = 2;
      place[r].packages = 2;
      place[r].numa = place[r].package = r == 4 ? -1 : 1;
      place[r].flat = 1;
    }
  }
  place[4].kind = MT_DEVICE_CUDA;
  place[4].device = 0;
  place[4].mem_bytes = (int64_t)139 << 30;
  place[4].speed = 50000000;
  ck_assert_int_eq(mt_cluster_build(place, 5, NULL, &c), MT_OK);
  c->link[MT_LEVEL_NODE] = (struct mt_link){380, 100, 0};
  c->link[MT_LEVEL_NET] = (struct mt_link){50000, 16000, 8000};
  check_print(c, "2 nodes, 5 ranks, 1 GPU, 11 cores, 11 threads, 64.0 GiB\n"
                 "node 0: host0, 2 ranks, 8 cores, 64.0 GiB, CPU model\n"
                 "  ranks 0-1: 2 x 8 cores, 4 threads, launched as 0,2\n"
                 "node 1: host1, 3 ranks, 4 cores, 2 packages, 2 NUMA domains\n"
                 "  ranks 2-3: 2 x 1 core, 1 thread, package 1, NUMA domain 1, launched as 1,3\n"
                 "  rank 4: GPU 0, 139 GiB, 1 core, 1 thread, any package, any NUMA domain, 50000.0 GFLOP/s\n"
                 "link in a node: 0.38 us, 10 GB/s\n"
                 "link between nodes: 50.00 us, 0.0625 GB/s, 8.00 us for each further message\n"
                 "! topology not readable, taken as flat: host1\n");
  mt_cluster_free(c);

  /* Pretend nodes share their machine's cores and memory, which count once. */
  for (int r = 0; r < 5; r++)
    place[r] = place[0];
  ck_assert_int_eq(mt_cluster_build(place, 5, "1,4", &c), MT_OK);
  check_print(c, "2 nodes (pretended on 1), 5 ranks, 8 cores, 20 threads, 64.0 GiB\n"
                 "node 0: host0#0, 1 rank, 8 cores, 64.0 GiB, CPU model\n"
                 "  rank 0: 8 cores, 4 threads\n"
                 "node 1: host0#1, 4 ranks, 8 cores, 64.0 GiB, CPU model\n"
                 "  ranks 1-4: 4 x 8 cores, 4 threads\n"
                 "! more threads than cores: host0 (20 on 8)\n");
  mt_cluster_free(c);
  mt_free(place);
}
END_TEST

/* However many ranks: equal nodes take two lines, and drawn ones print without an accident. */
START_TEST(test_print_large)
{
  char sizes[1024] = "";
  for (int i = 0; i < 64; i++)
    sprintf(sizes + strlen(sizes), "%s8", i ? "," : "");
  struct mt_cluster *c;
  ck_assert_int_eq(mt_cluster_from_sizes(sizes, &c), MT_OK);
  check_print(c, "64 nodes, 512 ranks, 512 cores, 512 threads\n"
                 "nodes 0-63: node0 ... node63, ranks 0-511, 64 x 8 ranks, 8 cores\n"
                 "  each: 8 x 1 core, 1 thread\n");
  mt_cluster_free(c);
  struct mt_place *place = drawn_places(99, 300, 64);
  ck_assert_int_eq(mt_cluster_build(place, 300, NULL, &c), MT_OK);
  char *text = mt_cluster_print(c), head[64];
  snprintf(head, sizeof head, "%d nodes, 300 ranks, ", c->nnode);
  ck_assert_int_eq(strncmp(text, head, strlen(head)), 0);
  mt_free(text);
  mt_cluster_free(c);
  mt_free(place);
}
END_TEST

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

int main(void)
{
  Suite *suite = suite_create("cluster");
  TCase *tests = tcase_create("cluster");
  tcase_add_loop_test(tests, test_sizes, 0, LENGTH(made_up));
  tcase_add_loop_test(tests, test_bad_sizes, 0, LENGTH(bad_sizes));
  tcase_add_test(tests, test_interleaved);
  tcase_add_test(tests, test_long_hosts);
  tcase_add_loop_test(tests, test_random, 0, 20);
  tcase_add_test(tests, test_same);
  tcase_add_test(tests, test_round_trip);
  tcase_add_test(tests, test_learnt);
  tcase_add_test(tests, test_by_hand);
  tcase_add_loop_test(tests, test_bad_json, 0, LENGTH(bad_json));
  tcase_add_test(tests, test_files);
  tcase_add_test(tests, test_print);
  tcase_add_test(tests, test_print_large);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
