/* The cluster as plain data: who is where, which links join them. No MPI, no hwloc: a cluster can be made up, read from
 * a file or discovered (discover.h), and everything that plans on it is a pure function.
 *
 * The idea: places are numbered so that a node's ranks are consecutive; nodes may hold any number of ranks from one up.
 * The trap: two nodes rarely hold the same number of ranks, so neither "leaders only" nor "the same local rank
 * everywhere" is a valid way between them; mt_cluster_bridge names who speaks for a node to each other node. */
#ifndef MT_CLUSTER_H
#define MT_CLUSTER_H
#include <stdint.h>
#include "base/json.h"
#include "base/status.h"

enum mt_device_kind { MT_DEVICE_CPU, MT_DEVICE_CUDA };
/* What a message crosses. */
enum mt_level { MT_LEVEL_SELF, MT_LEVEL_NODE, MT_LEVEL_NET, MT_NLEVEL };

/* One rank's place. Fixed-size on purpose: ranks exchange it as bytes. */
struct mt_place {
  char host[64];       /* host name, printable ASCII; ranks with equal names form a node */
  char model[64];      /* CPU model as hwloc tells it, printable ASCII, "" if unknown */
  int32_t launch_rank; /* rank in MPI_COMM_WORLD, before renumbering */
  int32_t kind;        /* enum mt_device_kind */
  int32_t device;      /* ordinal of the GPU, -1 on a CPU */
  int32_t package;     /* of the cores this rank may use, from 0 below packages; -1 = several or unknown */
  int32_t numa;        /* likewise, below numas */
  int32_t cores;       /* cores this rank may use (its binding); >= 1, at most node_cores */
  int32_t node_cores;  /* cores of the node that its control group allows: those that all its ranks share */
  int32_t packages, numas; /* of the whole node; >= 1; NUMA domains that hold cores */
  int32_t threads;     /* compute threads this rank will use; >= 1 */
  int32_t flat;        /* 1 = the topology could not be read: one package, one NUMA domain assumed */
  int64_t mem_bytes;   /* memory of the device (of the node, for a CPU rank), 0 = unknown */
  int64_t speed;       /* measured GEMM MFLOP/s, 0 = not measured */
};

struct mt_link {
  int64_t alpha_ns; /* latency of a message */
  int64_t beta_ps;  /* picoseconds a byte; between nodes: a byte over a node's uplink, all its ranks together */
  int64_t gap_ns;   /* what each further message adds where a rank sends or gets several at once */
}; /* beta 0 = not measured */

/* What training steps took beside what speeds and links foretell, in a form that carries over to other configurations: a
 * task takes extra_ns + thousandths / 1000 of its prediction. Tasks are named by whoever predicts them. */
enum { MT_MOST_LEARNT = 64 };
struct mt_learnt {
  int64_t slow_compute, slow_comm; /* thousandths: how much longer tasks take while others compute and communicate; 0 = as 1000 */
  int64_t hand_ns;                 /* until a task begins that waited for one on another thread */
  int64_t late_ns[2];              /* what a transfer waits for ranks that are late by chance: in steps run one after the other;
                                      and with communication beside computing */
  int64_t n;
  struct {
    char name[24];
    int64_t extra_ns, thousandths;
  } task[MT_MOST_LEARNT];
};

struct mt_cluster {
  int nplace, nnode;
  struct mt_place *place; /* [nplace], owned; a node's places are consecutive */
  int *node_of;           /* [nplace], owned */
  int *node_first;        /* [nnode + 1], owned: node i holds places [node_first[i], node_first[i + 1]) */
  struct mt_link link[MT_NLEVEL];
  struct mt_learnt learnt; /* n = 0: nothing yet */
};

/* Builds a cluster from n >= 1 places in launch order (place[i].launch_rank = i): nodes are ordered by their lowest
 * launch rank, a node's places by launch rank; so launch rank 0 is place 0. `pretend` (NULL, or sizes such as "2,1,4"
 * that must sum to n) overrides the host names by consecutive launch ranks: pretend node i is named after the host of
 * its first rank with "#i" behind it; "" counts as NULL. Local. The caller frees with mt_cluster_free. MT_USAGE with
 * one message (naming MOTLEY_NODES) if pretend does not fit. */
enum mt_status mt_cluster_build(const struct mt_place *place, int n, const char *pretend, struct mt_cluster **cluster);
/* A made-up cluster of identical CPU places from the short form "2,1,4". Local. MT_USAGE, with one message, if bad. */
enum mt_status mt_cluster_from_sizes(const char *sizes, struct mt_cluster **cluster);
/* The one JSON form, both ways (see cluster_json.c). `name` is used in messages; MT_CORRUPT, once, located, if bad or
 * impossible. Local. The caller frees. */
mt_json *mt_cluster_to_json(const struct mt_cluster *cluster);
enum mt_status mt_cluster_from_json(const char *name, const mt_json *json, struct mt_cluster **cluster);
/* A file that holds the JSON form, or the short form if the argument is digits and commas. Local. MT_USAGE for
 * sizes and a file that is not there, MT_CORRUPT for one that is, with one message. */
enum mt_status mt_cluster_read(const char *path_or_sizes, struct mt_cluster **cluster);
void mt_cluster_free(struct mt_cluster *cluster); /* NULL allowed */

/* The place of node `from` that sends to and receives from node `to` (from != to): spread over from's places, so
 * that no place speaks for the whole node. A message from p to q goes from bridge(p, q) to bridge(q, p). Pure. */
int mt_cluster_bridge(const struct mt_cluster *cluster, int from, int to);
/* What a message between two places crosses. Pure. */
enum mt_level mt_cluster_level(const struct mt_cluster *cluster, int a, int b);
/* 1 if two places look as if they computed equally fast (kind, CPU model, cores, threads). Pure. */
int mt_place_alike(const struct mt_place *a, const struct mt_place *b);
/* 1 if both describe the same places in the same order (hosts, CPU models, cores, threads, kinds, nodes; not speeds).
 * Pure. */
int mt_cluster_same(const struct mt_cluster *a, const struct mt_cluster *b);
/* A tree a person can read: nodes, then places with cores, package, NUMA, memory, device; sums at the top; equal
 * neighbours folded. The caller frees the text with mt_free. Pure. */
char *mt_cluster_print(const struct mt_cluster *cluster);

#endif
