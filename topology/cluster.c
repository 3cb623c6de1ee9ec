/* The cluster as plain data; see cluster.h.
 *
 * Grouping is by host name and stable in the launch order, so it is the same on every rank that holds the same places,
 * and launch rank 0 is always place 0. Bridges need no table: the place is a function of the distance between two
 * nodes. */
#include "topology/cluster.h"
#include "base/log.h"
#include "base/memory.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* No job has this many ranks; keeps sums of made-up sizes far from overflow. */
enum { LARGEST = 1 << 20 };

/* Parses "2,1,4" into sizes[*nnode] (freed by the caller) and their sum. `what` begins the message. */
static enum mt_status parse_sizes(const char *what, const char *text, int **sizes, int *nnode, int *nplace)
{
  int fields = 1, n = 0;
  for (const char *c = text; *c; c++)
    fields += *c == ',';
  int *size = MT_NEW(MT_TAG_PLAN, int, fields);
  int64_t sum = 0;
  for (const char *c = text; n < fields; c++) {
    int64_t value = 0;
    int length = (int)strcspn(c, ","), digits = 0;
    for (; digits < length && isdigit((unsigned char)c[digits]) && value <= LARGEST; digits++)
      value = 10 * value + (c[digits] - '0');
    sum += value;
    if (digits < length || value < 1 || sum > LARGEST) {
      mt_error(
          "%s \"%s\": node %d: found \"%.*s\", expected a number of ranks from 1 up (at most %d in all), as in 2,1,4",
          what, text, n, length, c, LARGEST);
      mt_free(size);
      return MT_USAGE;
    }
    size[n++] = (int)value;
    c += length;
  }
  *sizes = size;
  *nnode = n;
  *nplace = (int)sum;
  return MT_OK;
}

/* The name of pretend node i: the host cut so that the suffix, which tells the nodes apart, always fits. */
static void pretend_host(char *host, size_t size, int i)
{
  char suffix[16];
  int length = snprintf(suffix, sizeof suffix, "#%d", i);
  size_t room = size - (size_t)length - 1, used = strnlen(host, room);
  memcpy(host + used, suffix, (size_t)length + 1);
}

static struct mt_cluster *cluster_new(int nplace, int nnode)
{
  struct mt_cluster *cluster = MT_ZNEW(MT_TAG_PLAN, struct mt_cluster, 1);
  cluster->nplace = nplace;
  cluster->nnode = nnode;
  cluster->place = MT_ZNEW(MT_TAG_PLAN, struct mt_place, nplace);
  cluster->node_of = MT_NEW(MT_TAG_PLAN, int, nplace);
  cluster->node_first = MT_ZNEW(MT_TAG_PLAN, int, nnode + 1);
  return cluster;
}

enum mt_status mt_cluster_build(const struct mt_place *place, int n, const char *pretend, struct mt_cluster **cluster)
{
  MT_CHECK(n >= 1, "a cluster of %d places", n);
  int *node = MT_NEW(MT_TAG_PLAN, int, n), *leader = MT_NEW(MT_TAG_PLAN, int, n), nnode = 0;
  if (pretend && *pretend) {
    int *sizes, sum;
    enum mt_status status = parse_sizes("MOTLEY_NODES", pretend, &sizes, &nnode, &sum);
    if (status == MT_OK && sum != n) {
      mt_error("MOTLEY_NODES \"%s\": found %d ranks in all, expected the job's %d", pretend, sum, n);
      mt_free(sizes);
      status = MT_USAGE;
    }
    if (status != MT_OK) {
      mt_free(node);
      mt_free(leader);
      return status;
    }
    for (int i = 0, r = 0; i < nnode; r += sizes[i++])
      for (int k = 0; k < sizes[i]; k++) {
        node[r + k] = i;
        leader[i] = r;
      }
    mt_free(sizes);
  } else {
    for (int r = 0; r < n; r++) {
      /* A node's ranks mostly follow each other: look at the last node first. */
      int i = nnode - 1;
      while (i >= 0 && strncmp(place[leader[i]].host, place[r].host, sizeof place[r].host) != 0)
        i--;
      if (i < 0)
        leader[i = nnode++] = r;
      node[r] = i;
    }
  }

  struct mt_cluster *made = cluster_new(n, nnode);
  for (int r = 0; r < n; r++)
    made->node_first[node[r] + 1]++;
  for (int i = 0; i < nnode; i++)
    made->node_first[i + 1] += made->node_first[i];
  int *next = MT_NEW(MT_TAG_PLAN, int, nnode);
  memcpy(next, made->node_first, (size_t)nnode * sizeof *next);
  for (int r = 0; r < n; r++) {
    int p = next[node[r]]++;
    made->place[p] = place[r];
    made->place[p].launch_rank = r;
    made->node_of[p] = node[r];
    if (pretend && *pretend) {
      memcpy(made->place[p].host, place[leader[node[r]]].host, sizeof place->host);
      pretend_host(made->place[p].host, sizeof place->host, node[r]);
    }
  }
  mt_free(next);
  mt_free(node);
  mt_free(leader);
  *cluster = made;
  return MT_OK;
}

enum mt_status mt_cluster_from_sizes(const char *text, struct mt_cluster **cluster)
{
  int *sizes, nnode, nplace;
  MT_TRY(parse_sizes("cluster", text, &sizes, &nnode, &nplace));
  struct mt_cluster *made = cluster_new(nplace, nnode);
  for (int i = 0, p = 0; i < nnode; i++) {
    made->node_first[i + 1] = made->node_first[i] + sizes[i];
    for (; p < made->node_first[i + 1]; p++) {
      made->node_of[p] = i;
      made->place[p] = (struct mt_place){.launch_rank = p,
                                         .kind = MT_DEVICE_CPU,
                                         .device = -1,
                                         .cores = 1,
                                         .node_cores = sizes[i],
                                         .packages = 1,
                                         .numas = 1,
                                         .threads = 1};
      snprintf(made->place[p].host, sizeof made->place[p].host, "node%d", i);
    }
  }
  mt_free(sizes);
  *cluster = made;
  return MT_OK;
}

void mt_cluster_free(struct mt_cluster *cluster)
{
  if (!cluster)
    return;
  mt_free(cluster->place);
  mt_free(cluster->node_of);
  mt_free(cluster->node_first);
  mt_free(cluster);
}

int mt_cluster_bridge(const struct mt_cluster *cluster, int from, int to)
{
  MT_ASSERT(from != to);
  /* The other nodes in cyclic order are numbered 0 .. nnode - 2 and dealt over the places like cards: no place speaks
   * to two nodes more than another. */
  int distance = to - from + (to < from ? cluster->nnode : 0);
  int first = cluster->node_first[from], size = cluster->node_first[from + 1] - first;
  return first + (distance - 1) % size;
}

enum mt_level mt_cluster_level(const struct mt_cluster *cluster, int a, int b)
{
  if (a == b)
    return MT_LEVEL_SELF;
  return cluster->node_of[a] == cluster->node_of[b] ? MT_LEVEL_NODE : MT_LEVEL_NET;
}

int mt_place_alike(const struct mt_place *a, const struct mt_place *b)
{
  return a->kind == b->kind && a->cores == b->cores && a->threads == b->threads &&
         strncmp(a->model, b->model, sizeof a->model) == 0;
}

int mt_cluster_same(const struct mt_cluster *a, const struct mt_cluster *b)
{
  if (a->nplace != b->nplace || a->nnode != b->nnode)
    return 0;
  for (int p = 0; p < a->nplace; p++) {
    const struct mt_place *x = &a->place[p], *y = &b->place[p];
    if (a->node_of[p] != b->node_of[p] || !mt_place_alike(x, y) || strncmp(x->host, y->host, sizeof x->host) != 0)
      return 0;
  }
  return 1;
}
