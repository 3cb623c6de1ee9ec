/* The cluster as a tree a person can read; see cluster.h.
 *
 * The trap: cores do not add up over ranks. Ranks that are not bound each say that they may use all cores of
 * the node, and pretend nodes share one machine; so cores, memory and oversubscription are counted per
 * machine. */
#include "topology/cluster.h"
#include "base/text.h"
#include <inttypes.h>
#include <string.h>

static void put_count(struct mt_text_buffer *text, int64_t n, const char *one, const char *many)
{
  mt_text_add(text, "%" PRId64 " %s", n, n == 1 ? one : many);
}

/* ", 61.2 GiB", or nothing where it is not known. */
static void put_memory(struct mt_text_buffer *text, double bytes)
{
  static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes <= 0)
    return;
  int u = 0;
  for (; bytes >= 1024 && u < 5; u++)
    bytes /= 1024;
  mt_text_add(text, ", %.*f %s", bytes < 100 && u > 0 ? 1 : 0, bytes, unit[u]);
}

/* The machine's name: a pretend node's host without its "#i". */
static int machine_length(const char *host)
{
  return (int)strcspn(host, "#");
}

static int same_machine(const struct mt_place *a, const struct mt_place *b)
{
  int length = machine_length(a->host);
  return length == machine_length(b->host) && memcmp(a->host, b->host, (size_t)length) == 0;
}

/* What the ranks of one machine have together. */
struct machine {
  int64_t cores, threads, mem_bytes;
  int first; /* its first node */
  int flat;
};

/* The machine of node i, summed over all nodes on it. */
static struct machine machine_of(const struct mt_cluster *cluster, int i)
{
  const struct mt_place *self = &cluster->place[cluster->node_first[i]];
  struct machine sum = {.first = -1};
  int64_t limit = 0;
  for (int k = 0; k < cluster->nnode; k++) {
    if (!same_machine(self, &cluster->place[cluster->node_first[k]]))
      continue;
    if (sum.first < 0)
      sum.first = k;
    for (int p = cluster->node_first[k]; p < cluster->node_first[k + 1]; p++) {
      const struct mt_place *place = &cluster->place[p];
      sum.cores += place->cores;
      sum.threads += place->threads;
      sum.flat |= place->flat;
      limit = place->node_cores > limit ? place->node_cores : limit;
      if (place->kind == MT_DEVICE_CPU && place->mem_bytes > sum.mem_bytes)
        sum.mem_bytes = place->mem_bytes;
    }
  }
  if (sum.cores > limit)
    sum.cores = limit;
  return sum;
}

/* Where in the node, if there is a choice. */
static void put_domain(struct mt_text_buffer *text, int of, int which, const char *what)
{
  if (of > 1 && which >= 0)
    mt_text_add(text, ", %s %d", what, which);
  else if (of > 1)
    mt_text_add(text, ", any %s", what);
}

/* Equal but for the launch rank and, for GPUs, the ordinal. */
static int same_rank(const struct mt_place *a, const struct mt_place *b)
{
  return a->kind == b->kind && a->package == b->package && a->numa == b->numa && a->cores == b->cores &&
         a->threads == b->threads && a->mem_bytes == b->mem_bytes && a->speed == b->speed && a->flat == b->flat &&
         strcmp(a->model, b->model) == 0;
}

/* Equal but for the host's name. */
static int same_node(const struct mt_cluster *cluster, int a, int b)
{
  int first_a = cluster->node_first[a], size = cluster->node_first[a + 1] - first_a, first_b = cluster->node_first[b];
  if (size != cluster->node_first[b + 1] - first_b)
    return 0;
  for (int k = 0; k < size; k++) {
    const struct mt_place *x = &cluster->place[first_a + k], *y = &cluster->place[first_b + k];
    if (!same_rank(x, y) || x->device != y->device || x->node_cores != y->node_cores || x->packages != y->packages ||
        x->numas != y->numas)
      return 0;
  }
  return 1;
}

/* Places first .. last - 1, which are equal; `each` = those of every one of several equal nodes, so no
 * numbers. */
static void put_ranks(struct mt_text_buffer *text, const struct mt_cluster *cluster, int first, int last, int each)
{
  const struct mt_place *place = &cluster->place[first];
  int n = last - first;
  if (each && n == 1)
    mt_text_add(text, "  each: ");
  else if (each)
    mt_text_add(text, "  each: %d x ", n);
  else if (n == 1)
    mt_text_add(text, "  rank %d: ", first);
  else
    mt_text_add(text, "  ranks %d-%d: %d x ", first, last - 1, n);
  if (place->kind == MT_DEVICE_CUDA) {
    mt_text_add(text, "GPU");
    for (int p = first; p < last; p++)
      mt_text_add(text, "%c%d", p == first ? ' ' : ',', cluster->place[p].device);
    put_memory(text, (double)place->mem_bytes);
    mt_text_add(text, ", ");
  }
  put_count(text, place->cores, "core", "cores");
  mt_text_add(text, ", ");
  put_count(text, place->threads, "thread", "threads");
  put_domain(text, place->packages, place->package, "package");
  put_domain(text, place->numas, place->numa, "NUMA domain");
  if (place->speed > 0)
    mt_text_add(text, ", %.1f GFLOP/s", (double)place->speed / 1000);
  /* Only a launch order that interleaves the nodes is worth telling. */
  int moved = 0;
  for (int p = first; p < last; p++)
    moved |= cluster->place[p].launch_rank != p;
  for (int p = first; moved && !each && p < last; p++)
    mt_text_add(text, "%s%d", p == first ? ", launched as " : ",", cluster->place[p].launch_rank);
  mt_text_add(text, "\n");
}

/* Nodes first .. last - 1, which are equal. */
static void put_nodes(struct mt_text_buffer *text, const struct mt_cluster *cluster, int first, int last)
{
  int begin = cluster->node_first[first], end = cluster->node_first[first + 1];
  const struct mt_place *place = &cluster->place[begin];
  if (last - first == 1)
    mt_text_add(text, "node %d: %s, ", first, place->host);
  else
    mt_text_add(text, "nodes %d-%d: %s%s%s, ranks %d-%d, %d x ", first, last - 1, place->host,
                last - first == 2 ? ", " : " ... ", cluster->place[cluster->node_first[last - 1]].host, begin,
                cluster->node_first[last] - 1, last - first);
  put_count(text, end - begin, "rank", "ranks");
  mt_text_add(text, ", ");
  put_count(text, place->node_cores, "core", "cores");
  if (place->packages > 1)
    mt_text_add(text, ", %d packages", place->packages);
  if (place->numas > 1)
    mt_text_add(text, ", %d NUMA domains", place->numas);
  put_memory(text, (double)machine_of(cluster, first).mem_bytes);
  if (*place->model)
    mt_text_add(text, ", %s", place->model);
  mt_text_add(text, "\n");
  for (int p = begin, next; p < end; p = next) {
    for (next = p + 1; next < end && same_rank(&cluster->place[p], &cluster->place[next]); next++)
      ;
    put_ranks(text, cluster, p, next, last - first > 1);
  }
}

static void put_links(struct mt_text_buffer *text, const struct mt_cluster *cluster)
{
  static const char *const name[MT_NLEVEL] = {"in a rank", "in a node", "between nodes"};
  for (int level = 0; level < MT_NLEVEL; level++) {
    const struct mt_link *link = &cluster->link[level];
    if (link->alpha_ns == 0 && link->beta_ps == 0)
      continue;
    mt_text_add(text, "link %s: %.2f us", name[level], (double)link->alpha_ns / 1000);
    if (link->beta_ps > 0)
      mt_text_add(text, ", %.3g GB/s", 1000 / (double)link->beta_ps);
    if (link->gap_ns > 0)
      mt_text_add(text, ", %.2f us for each further message", (double)link->gap_ns / 1000);
    mt_text_add(text, "\n");
  }
}

/* One line for each kind of trouble, however many machines have it. */
static void put_warnings(struct mt_text_buffer *text, const struct mt_cluster *cluster)
{
  int nflat = 0, flat = 0, nover = 0, over = 0;
  for (int i = 0; i < cluster->nnode; i++) {
    struct machine machine = machine_of(cluster, i);
    if (machine.first != i)
      continue;
    if (machine.flat && nflat++ == 0)
      flat = i;
    if (machine.threads > machine.cores && nover++ == 0)
      over = i;
  }
  if (nflat > 0) {
    const char *host = cluster->place[cluster->node_first[flat]].host;
    mt_text_add(text, "! topology not readable, taken as flat: %.*s", machine_length(host), host);
    if (nflat > 1)
      mt_text_add(text, " and %d more", nflat - 1);
    mt_text_add(text, "\n");
  }
  if (nover > 0) {
    const char *host = cluster->place[cluster->node_first[over]].host;
    struct machine machine = machine_of(cluster, over);
    mt_text_add(text, "! more threads than cores: %.*s (%" PRId64 " on %" PRId64 ")", machine_length(host), host,
                machine.threads, machine.cores);
    if (nover > 1)
      mt_text_add(text, " and %d more", nover - 1);
    mt_text_add(text, "\n");
  }
}

char *mt_cluster_print(const struct mt_cluster *cluster)
{
  struct mt_text_buffer text = {0};
  int64_t cores = 0, threads = 0;
  double memory = 0; /* made-up sizes may be as large as they like */
  int machines = 0, gpus = 0;
  for (int i = 0; i < cluster->nnode; i++) {
    struct machine machine = machine_of(cluster, i);
    if (machine.first != i)
      continue;
    machines++;
    cores += machine.cores;
    threads += machine.threads;
    memory += (double)machine.mem_bytes;
  }
  for (int p = 0; p < cluster->nplace; p++)
    gpus += cluster->place[p].kind == MT_DEVICE_CUDA;
  put_count(&text, cluster->nnode, "node", "nodes");
  if (machines < cluster->nnode)
    mt_text_add(&text, " (pretended on %d)", machines);
  mt_text_add(&text, ", ");
  put_count(&text, cluster->nplace, "rank", "ranks");
  mt_text_add(&text, ", ");
  if (gpus > 0) {
    put_count(&text, gpus, "GPU", "GPUs");
    mt_text_add(&text, ", ");
  }
  put_count(&text, cores, "core", "cores");
  mt_text_add(&text, ", ");
  put_count(&text, threads, "thread", "threads");
  put_memory(&text, memory);
  mt_text_add(&text, "\n");
  for (int i = 0, next; i < cluster->nnode; i = next) {
    for (next = i + 1; next < cluster->nnode && same_node(cluster, i, next); next++)
      ;
    put_nodes(&text, cluster, i, next);
  }
  put_links(&text, cluster);
  put_warnings(&text, cluster);
  return text.text;
}
