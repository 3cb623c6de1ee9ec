/* The cluster's JSON form, both ways; see cluster.h.
 *
 *   {"format": "motley-cluster", "version": 1,
 *    "links": {"self": {"alpha_ns": 0, "beta_ps": 0, "gap_ns": 0}, "node": {...}, "net": {...}},
 *    "costs": {"slow_compute": 1100, "slow_comm": 1400, "hand_ns": 9000, "late_ns": 0, "late_beside_ns": 0,
 *              "tasks": {"attention": {"extra_ns": 0, "thousandths": 1250}, ...}},
 *    "nodes": [{"host": "a", "model": "...", "node_cores": 16, "packages": 2, "numas": 2,
 *               "ranks": [{"launch_rank": 0, "kind": "cpu", "cores": 4, ...}, ...]}, ...]}
 *
 * The idea: one table of a place's members drives writing and reading. What the ranks of a node share stands
 * at the node; reading takes any member from the rank, else from its node, else its default, so a cluster
 * written by hand is short, and ranks of one node that differ all the same (one of them in a container, say)
 * lose nothing. The trap: what is read drives arrays and communication; so everything is refused that
 * discovery could not have made. */
#include "topology/cluster.h"
#include "base/log.h"
#include "base/memory.h"
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>

static const char FORMAT[] = "motley-cluster";
enum { VERSION = 1 };

enum type { INT32, INT64, TEXT, KIND, BOOLEAN };

/* A member of struct mt_place. */
struct member {
  const char *name;
  size_t offset;
  enum type type;
  int shared;        /* stands at the node */
  int required;      /* has no default */
  int64_t low, high; /* range of a number */
  int64_t fallback;
};

#define AT(name) #name, offsetof(struct mt_place, name)
static const struct member member[] = {
    {AT(model), TEXT, 1, 0, 0, sizeof((struct mt_place *)0)->model, 0},
    {AT(node_cores), INT32, 1, 1, 1, INT32_MAX, 0},
    {AT(packages), INT32, 1, 0, 1, INT32_MAX, 1},
    {AT(numas), INT32, 1, 0, 1, INT32_MAX, 1},
    {AT(flat), BOOLEAN, 1, 0, 0, 1, 0},
    {AT(launch_rank), INT32, 0, 0, 0, INT32_MAX, -1}, /* default: its place */
    {AT(kind), KIND, 0, 0, 0, 0, MT_DEVICE_CPU},
    {AT(device), INT32, 0, 0, -1, INT32_MAX, -1},
    {AT(package), INT32, 0, 0, -1, INT32_MAX, -1},
    {AT(numa), INT32, 0, 0, -1, INT32_MAX, -1},
    {AT(cores), INT32, 0, 1, 1, INT32_MAX, 0},
    {AT(threads), INT32, 0, 0, 1, INT32_MAX, 1},
    {AT(mem_bytes), INT64, 0, 0, 0, INT64_MAX, 0},
    {AT(speed), INT64, 0, 0, 0, INT64_MAX, 0},
};
#undef AT
enum { NMEMBER = sizeof member / sizeof *member };

static const char *const kind_name[] = {[MT_DEVICE_CPU] = "cpu", [MT_DEVICE_CUDA] = "cuda"};
enum { NKIND = sizeof kind_name / sizeof *kind_name };
static const char *const level_name[MT_NLEVEL] = {"self", "node", "net"};

/* ---- writing ---- */

static int64_t number_of(const struct member *m, const struct mt_place *place)
{
  const char *at = (const char *)place + m->offset;
  if (m->type == INT64)
    return *(const int64_t *)at;
  return *(const int32_t *)at;
}

static int equal(const struct member *m, const struct mt_place *a, const struct mt_place *b)
{
  if (m->type == TEXT)
    return strcmp((const char *)a + m->offset, (const char *)b + m->offset) == 0;
  return number_of(m, a) == number_of(m, b);
}

static void write_member(mt_json *object, const struct member *m, const struct mt_place *place)
{
  if (m->type == TEXT)
    mt_json_set(object, m->name, mt_json_string((const char *)place + m->offset));
  else if (m->type == KIND)
    mt_json_set(object, m->name, mt_json_string(kind_name[number_of(m, place)]));
  else if (m->type == BOOLEAN)
    mt_json_set(object, m->name, mt_json_boolean(number_of(m, place) != 0));
  else
    mt_json_set(object, m->name, mt_json_integer(number_of(m, place)));
}

/* The numbers of mt_learnt, in its order. */
static const char *const learnt_name[] = {"slow_compute", "slow_comm", "hand_ns", "late_ns", "late_beside_ns", "tasks", NULL};
enum { NLEARNT = 5 };

static mt_json *learnt_json(const struct mt_learnt *learnt)
{
  const int64_t number[NLEARNT] = {learnt->slow_compute, learnt->slow_comm, learnt->hand_ns, learnt->late_ns[0],
                                   learnt->late_ns[1]};
  mt_json *json = mt_json_object(), *tasks = mt_json_object();
  for (int i = 0; i < NLEARNT; i++)
    mt_json_set(json, learnt_name[i], mt_json_integer(number[i]));
  for (int64_t i = 0; i < learnt->n; i++) {
    mt_json *task = mt_json_object();
    mt_json_set(task, "extra_ns", mt_json_integer(learnt->task[i].extra_ns));
    mt_json_set(task, "thousandths", mt_json_integer(learnt->task[i].thousandths));
    mt_json_set(tasks, learnt->task[i].name, task);
  }
  mt_json_set(json, "tasks", tasks);
  return json;
}

mt_json *mt_cluster_to_json(const struct mt_cluster *cluster)
{
  mt_json *json = mt_json_object(), *links = mt_json_object(), *nodes = mt_json_array();
  mt_json_set(json, "format", mt_json_string(FORMAT));
  mt_json_set(json, "version", mt_json_integer(VERSION));
  for (int level = 0; level < MT_NLEVEL; level++) {
    mt_json *link = mt_json_object();
    mt_json_set(link, "alpha_ns", mt_json_integer(cluster->link[level].alpha_ns));
    mt_json_set(link, "beta_ps", mt_json_integer(cluster->link[level].beta_ps));
    mt_json_set(link, "gap_ns", mt_json_integer(cluster->link[level].gap_ns));
    mt_json_set(links, level_name[level], link);
  }
  mt_json_set(json, "links", links);
  const struct mt_learnt *learnt = &cluster->learnt;
  if (learnt->n || learnt->slow_compute || learnt->slow_comm || learnt->hand_ns || learnt->late_ns[0] || learnt->late_ns[1])
    mt_json_set(json, "costs", learnt_json(learnt));
  for (int i = 0; i < cluster->nnode; i++) {
    const struct mt_place *head = &cluster->place[cluster->node_first[i]];
    mt_json *node = mt_json_object(), *ranks = mt_json_array();
    mt_json_set(node, "host", mt_json_string(head->host));
    for (const struct member *m = member; m < member + NMEMBER; m++)
      if (m->shared)
        write_member(node, m, head);
    for (int p = cluster->node_first[i]; p < cluster->node_first[i + 1]; p++) {
      mt_json *rank = mt_json_object();
      for (const struct member *m = member; m < member + NMEMBER; m++)
        if (!m->shared || !equal(m, head, &cluster->place[p]))
          write_member(rank, m, &cluster->place[p]);
      mt_json_push(ranks, rank);
    }
    mt_json_set(node, "ranks", ranks);
    mt_json_push(nodes, node);
  }
  mt_json_set(json, "nodes", nodes);
  return json;
}

/* ---- reading ---- */

/* Where a value stands: "FILE: nodes[1].ranks[0].cores". A negative index is left out. */
struct where {
  const char *name;
  int64_t node, rank;
};

/* One message: place, what was found (a copy of the JSON text, shortened), what was expected. */
static enum mt_status bad(struct where where, const char *key, const mt_json *found, const char *expected)
{
  char *text = found ? mt_json_print(found, 0) : mt_strdup("nothing");
  char *node = where.node < 0 ? mt_strdup("")
                              : mt_format("nodes[%" PRId64 "]%s", where.node, *key || where.rank >= 0 ? "." : "");
  char *rank = where.rank < 0 ? mt_strdup("") : mt_format("ranks[%" PRId64 "]%s", where.rank, *key ? "." : "");
  const int most = 60;
  mt_error("%s: %s%s%s: found %.*s%s, expected %s", where.name, node, rank, key, most, text,
           strlen(text) > (size_t)most ? "..." : "", expected);
  mt_free(rank);
  mt_free(node);
  mt_free(text);
  return MT_CORRUPT;
}

/* Every key of the object must be among the members (all, or those of a rank) or the `others`, ended by NULL.
 */
static enum mt_status known_keys(struct where where, const mt_json *object, int members, const char *const *others)
{
  for (int64_t k = 0; k < mt_json_size(object); k++) {
    mt_json *value;
    const char *key = mt_json_key_at(object, k, &value);
    int known = 0;
    for (int m = 0; members && m < NMEMBER; m++)
      known |= strcmp(key, member[m].name) == 0;
    for (const char *const *other = others; *other; other++)
      known |= strcmp(key, *other) == 0;
    if (!known)
      return bad(where, key, value, "no such key");
  }
  return MT_OK;
}

static enum mt_status read_integer(struct where where, const char *key, const mt_json *value, int64_t low, int64_t high,
                                   int64_t *number)
{
  int64_t found = mt_json_as_integer(value, 0);
  if (mt_json_is_integer(value) && found >= low && found <= high) {
    *number = found;
    return MT_OK;
  }
  char *expected = high == INT64_MAX ? mt_format("an integer from %" PRId64 " up", low)
                                     : mt_format("an integer from %" PRId64 " to %" PRId64, low, high);
  enum mt_status status = bad(where, key, value, expected);
  mt_free(expected);
  return status;
}

/* A text of printable ASCII that fits. */
static enum mt_status read_text(struct where where, const char *key, const mt_json *value, size_t size, int empty,
                                char *text)
{
  const char *found = mt_json_as_string(value, NULL);
  size_t length = found ? strlen(found) : 0, good = 0;
  while (good < length && found[good] >= ' ' && found[good] <= '~')
    good++;
  if (!found || good < length || length >= size || (!empty && length == 0)) {
    char *expected = mt_format("a text of %d to %zu ASCII characters", !empty, size - 1);
    enum mt_status status = bad(where, key, value, expected);
    mt_free(expected);
    return status;
  }
  memcpy(text, found, length + 1);
  return MT_OK;
}

/* Member m of a rank, from the rank, its node or the default. */
static enum mt_status read_member(struct where where, const struct member *m, const mt_json *node, const mt_json *rank,
                                  struct mt_place *place)
{
  char *at = (char *)place + m->offset;
  const mt_json *value = mt_json_get(rank, m->name);
  if (!value) {
    value = mt_json_get(node, m->name);
    if (value)
      where.rank = -1;
  }
  int64_t number = m->fallback;
  if (!value) {
    if (m->required)
      return bad(where, m->name, NULL, "an integer here or at the node");
  } else if (m->type == TEXT) {
    return read_text(where, m->name, value, (size_t)m->high, 1, at);
  } else if (m->type == BOOLEAN) {
    if (!mt_json_is_boolean(value))
      return bad(where, m->name, value, "true or false");
    number = mt_json_as_boolean(value, 0);
  } else if (m->type == KIND) {
    const char *text = mt_json_as_string(value, "");
    for (number = 0; number < NKIND && strcmp(text, kind_name[number]) != 0; number++)
      ;
    if (number == NKIND)
      return bad(where, m->name, value, "\"cpu\" or \"cuda\"");
  } else {
    MT_TRY(read_integer(where, m->name, value, m->low, m->high, &number));
  }
  if (m->type == INT64)
    *(int64_t *)at = number;
  else
    *(int32_t *)at = (int32_t)number;
  return MT_OK;
}

/* What no discovery could have found, between the members of one place. */
static enum mt_status check_place(struct where where, const struct mt_place *place)
{
  const struct {
    const char *key, *limit;
    int32_t value, below;
  } pair[] = {{"package", "packages", place->package, place->packages},
              {"numa", "numas", place->numa, place->numas},
              {"cores", "node_cores", place->cores - 1, place->node_cores}};
  for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
    if (pair[i].value < pair[i].below)
      continue;
    char *expected =
        mt_format("at most %d, as %s is %d", i == 2 ? pair[i].below : pair[i].below - 1, pair[i].limit, pair[i].below);
    mt_json *found = mt_json_integer(i == 2 ? place->cores : pair[i].value);
    enum mt_status status = bad(where, pair[i].key, found, expected);
    mt_json_free(found);
    mt_free(expected);
    return status;
  }
  if ((place->kind == MT_DEVICE_CPU) != (place->device < 0)) {
    mt_json *found = mt_json_integer(place->device);
    enum mt_status status =
        bad(where, "device", found, place->kind == MT_DEVICE_CPU ? "-1, as kind is cpu" : "0 or more, as kind is cuda");
    mt_json_free(found);
    return status;
  }
  return MT_OK;
}

/* Places are in the order of mt_cluster_build: launch ranks a permutation, ascending within a node, nodes by
 * their lowest. */
static enum mt_status check_order(struct where where, const struct mt_cluster *cluster)
{
  char *seen = MT_ZNEW(MT_TAG_PLAN, char, cluster->nplace);
  const char *expected = NULL;
  for (int p = 0; p < cluster->nplace && !expected; p++) {
    int r = cluster->place[p].launch_rank, i = cluster->node_of[p], head = cluster->node_first[i];
    if (r >= cluster->nplace)
      expected = "less than the number of ranks";
    else if (seen[r])
      expected = "a number that no other rank has";
    else if (p > head && r < cluster->place[p - 1].launch_rank)
      expected = "more than the rank before it in the node";
    else if (p == head && i > 0 && r < cluster->place[cluster->node_first[i - 1]].launch_rank)
      expected = "more than the first of the node before it: nodes are ordered by their lowest launch rank";
    else
      seen[r] = 1;
    if (expected) {
      where.node = i;
      where.rank = p - head;
      mt_json *found = mt_json_integer(r);
      bad(where, "launch_rank", found, expected);
      mt_json_free(found);
    }
  }
  mt_free(seen);
  return expected ? MT_CORRUPT : MT_OK;
}

static enum mt_status read_links(struct where where, const mt_json *links, struct mt_link link[MT_NLEVEL])
{
  static const char *const levels[] = {"self", "node", "net", NULL};
  static const char *const costs[] = {"alpha_ns", "beta_ps", "gap_ns", NULL};
  /* A quarter of an hour for a message, a second for a kilobyte: longer, and sums of a step's costs might not fit. */
  static const int64_t longest[] = {1000000000000, 1000000000, 1000000000000};
  if (!links)
    return MT_OK;
  if (!mt_json_is_object(links))
    return bad(where, "links", links, "an object");
  MT_TRY(known_keys(where, links, 0, levels));
  for (int level = 0; level < MT_NLEVEL; level++) {
    const mt_json *object = mt_json_get(links, level_name[level]);
    if (!object)
      continue;
    char *key = mt_format("links.%s", level_name[level]);
    enum mt_status status =
        mt_json_is_object(object) ? known_keys(where, object, 0, costs) : bad(where, key, object, "an object");
    int64_t *number[] = {&link[level].alpha_ns, &link[level].beta_ps, &link[level].gap_ns};
    for (int k = 0; k < 3 && status == MT_OK; k++) {
      if (k == 2 && !mt_json_get(object, costs[k])) { /* nobody knew better: as much as a message alone */
        *number[k] = link[level].alpha_ns;
        continue;
      }
      char *full = mt_format("%s.%s", key, costs[k]);
      status = read_integer(where, full, mt_json_get(object, costs[k]), 0, longest[k], number[k]);
      mt_free(full);
    }
    mt_free(key);
    MT_TRY(status);
  }
  return MT_OK;
}

/* Absent numbers are as if nothing had been learnt. */
static enum mt_status read_learnt(struct where where, const mt_json *costs, struct mt_learnt *learnt)
{
  static const char *const members[] = {"extra_ns", "thousandths", NULL};
  enum { LONGEST = 1000000 }; /* thousandths: what is a thousand times as long was not measured */
  const int64_t longest_ns = 1000000000000;
  if (!costs)
    return MT_OK;
  if (!mt_json_is_object(costs))
    return bad(where, "costs", costs, "an object");
  MT_TRY(known_keys(where, costs, 0, learnt_name));
  int64_t *number[NLEARNT] = {&learnt->slow_compute, &learnt->slow_comm, &learnt->hand_ns, &learnt->late_ns[0],
                                &learnt->late_ns[1]};
  for (int i = 0; i < NLEARNT; i++) {
    const mt_json *value = mt_json_get(costs, learnt_name[i]);
    if (!value)
      continue;
    char *key = mt_format("costs.%s", learnt_name[i]);
    enum mt_status status = read_integer(where, key, value, 0, i < 2 ? LONGEST : longest_ns, number[i]);
    mt_free(key);
    MT_TRY(status);
  }
  const mt_json *tasks = mt_json_get(costs, "tasks");
  learnt->n = mt_json_size(tasks);
  if (tasks && (!mt_json_is_object(tasks) || learnt->n > MT_MOST_LEARNT))
    return bad(where, "costs.tasks", tasks, "an object of at most 64 members");
  for (int64_t i = 0; i < learnt->n; i++) {
    mt_json *task;
    const char *name = mt_json_key_at(tasks, i, &task);
    char *key = mt_format("costs.tasks.%s", name);
    enum mt_status status = strlen(name) >= sizeof learnt->task[i].name ? bad(where, key, task, "a shorter name")
                            : !mt_json_is_object(task)                  ? bad(where, key, task, "an object")
                                                                        : known_keys(where, task, 0, members);
    if (status == MT_OK) {
      strcpy(learnt->task[i].name, name);
      status = read_integer(where, key, mt_json_get(task, "extra_ns"), 0, longest_ns, &learnt->task[i].extra_ns);
    }
    if (status == MT_OK)
      status = read_integer(where, key, mt_json_get(task, "thousandths"), 0, LONGEST, &learnt->task[i].thousandths);
    mt_free(key);
    MT_TRY(status);
  }
  return MT_OK;
}

/* Fills a cluster whose arrays have room for what was counted. */
static enum mt_status read_nodes(struct where where, const mt_json *nodes, struct mt_cluster *cluster)
{
  static const char *const node_keys[] = {"host", "ranks", NULL}, *const rank_keys[] = {NULL};
  for (int i = 0, p = 0; i < cluster->nnode; i++) {
    const mt_json *node = mt_json_at(nodes, i), *ranks = mt_json_get(node, "ranks");
    char host[sizeof cluster->place->host];
    where.node = i;
    where.rank = -1;
    MT_TRY(known_keys(where, node, 1, node_keys));
    MT_TRY(read_text(where, "host", mt_json_get(node, "host"), sizeof host, 0, host));
    for (int k = 0; k < i; k++)
      if (strcmp(host, cluster->place[cluster->node_first[k]].host) == 0)
        return bad(where, "host", mt_json_get(node, "host"), "a name that no node before it has");
    cluster->node_first[i + 1] = cluster->node_first[i] + (int)mt_json_size(ranks);
    for (; p < cluster->node_first[i + 1]; p++) {
      struct mt_place *place = &cluster->place[p];
      where.rank = p - cluster->node_first[i];
      const mt_json *rank = mt_json_at(ranks, where.rank);
      if (!mt_json_is_object(rank))
        return bad(where, "", rank, "an object");
      MT_TRY(known_keys(where, rank, 1, rank_keys));
      for (int m = 0; m < NMEMBER; m++)
        MT_TRY(read_member(where, &member[m], node, rank, place));
      if (place->launch_rank < 0)
        place->launch_rank = p;
      MT_TRY(check_place(where, place));
      memcpy(place->host, host, sizeof host);
      cluster->node_of[p] = i;
    }
  }
  where.node = where.rank = -1;
  return check_order(where, cluster);
}

enum mt_status mt_cluster_from_json(const char *name, const mt_json *json, struct mt_cluster **cluster)
{
  static const char *const keys[] = {"format", "version", "links", "costs", "nodes", NULL};
  struct where where = {name, -1, -1};
  const mt_json *format = mt_json_get(json, "format"), *version = mt_json_get(json, "version");
  if (strcmp(mt_json_as_string(format, ""), FORMAT) != 0)
    return bad(where, "format", format, "\"motley-cluster\"");
  if (!mt_json_is_integer(version) || mt_json_as_integer(version, 0) != VERSION)
    return bad(where, "version", version, "1");
  MT_TRY(known_keys(where, json, 0, keys));
  struct mt_link link[MT_NLEVEL] = {{0, 0, 0}};
  MT_TRY(read_links(where, mt_json_get(json, "links"), link));
  struct mt_learnt learnt = {0};
  MT_TRY(read_learnt(where, mt_json_get(json, "costs"), &learnt));

  const mt_json *nodes = mt_json_get(json, "nodes");
  int64_t nnode = mt_json_size(nodes), nplace = 0;
  if (!mt_json_is_array(nodes) || nnode < 1)
    return bad(where, "nodes", nodes, "a list of one node or more");
  for (int64_t i = 0; i < nnode; i++) {
    const mt_json *node = mt_json_at(nodes, i), *ranks = mt_json_get(node, "ranks");
    where.node = i;
    if (!mt_json_is_object(node) || !mt_json_is_array(ranks) || mt_json_size(ranks) < 1)
      return bad(where, "ranks", ranks, "a list of one rank or more");
    nplace += mt_json_size(ranks);
  }
  where.node = -1;
  if (nplace > INT_MAX / 2)
    return bad(where, "nodes", nodes, "fewer ranks");

  struct mt_cluster *made = MT_ZNEW(MT_TAG_PLAN, struct mt_cluster, 1);
  made->nnode = (int)nnode;
  made->nplace = (int)nplace;
  made->place = MT_ZNEW(MT_TAG_PLAN, struct mt_place, nplace);
  made->node_of = MT_ZNEW(MT_TAG_PLAN, int, nplace);
  made->node_first = MT_ZNEW(MT_TAG_PLAN, int, nnode + 1);
  memcpy(made->link, link, sizeof link);
  made->learnt = learnt;
  enum mt_status status = read_nodes(where, nodes, made);
  if (status == MT_OK)
    *cluster = made;
  else
    mt_cluster_free(made);
  return status;
}

/* ---- a file or the short form ---- */

enum mt_status mt_cluster_read(const char *path_or_sizes, struct mt_cluster **cluster)
{
  if (*path_or_sizes && path_or_sizes[strspn(path_or_sizes, "0123456789,")] == 0)
    return mt_cluster_from_sizes(path_or_sizes, cluster);
  mt_json *json;
  MT_TRY(mt_json_read(path_or_sizes, &json));
  enum mt_status status = mt_cluster_from_json(path_or_sizes, json, cluster);
  mt_json_free(json);
  return status;
}
