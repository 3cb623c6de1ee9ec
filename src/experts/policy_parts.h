/* What the policies share; for policy*.c and their tests. */
#ifndef MT_POLICY_PARTS_H
#define MT_POLICY_PARTS_H
#include "experts/layout_cost.h"
#include "experts/policy.h"
#include "experts/shares.h"

struct mt_policy {
  int P, E, S, nnode;
  int *slot_first;                             /* [P + 1] */
  int64_t *load;                               /* [E] rows of each expert, all sources */
  int64_t *ps;                                 /* [P] of a row at each place */
  int *replica;                                /* [E] slots of each expert */
  int *order;                                  /* [S] a heap, or an order */
  int *copy;                                   /* [S] replicas: their experts */
  int *other;                                  /* [S] another candidate */
  int64_t *device_load;                        /* [P] */
  int *used;                                   /* [P] slots taken */
  int *device;                                 /* [P] a heap */
  int *node_copies, *node_device, *node_order; /* [nnode] */
  int64_t *node_load, *node_speed;             /* [nnode] */
  int by_finish;                               /* placement: devices are not alike */
  int64_t *relative;                           /* [P] then: time a row over that of the fastest, << 20 */
  struct mt_layout *trial;                     /* for scores */
  struct mt_shares *shares;
  struct mt_motley *motley;
};

/* Loads are sums of integers, and are divided into fractions of a row by shifts, so that parts still add up. */
enum { MT_LOAD_SHIFT = 20 };

/* A heap of n ids whose root comes before all others; before() is a total order. */
typedef int mt_before(const struct mt_policy *policy, int a, int b);
void mt_heap_sink(int *heap, int n, int i, mt_before *before, const struct mt_policy *policy); /* entry i got later */
void mt_heap_make(int *heap, int n, mt_before *before, const struct mt_policy *policy);

/* Which expert has more load a copy; ties to the lower. */
mt_before mt_policy_hotter;

/* Each writes slot_expert[S]. laer's better candidate under lite dispatch. */
void mt_policy_laer(struct mt_policy *policy, const struct mt_policy_problem *problem, int *slot_expert);
/* Its parts. Replicas by load; 0 = there is no even candidate. */
void mt_laer_replicas(struct mt_policy *policy);
int mt_laer_even(struct mt_policy *policy);
/* Greedy placement of policy->replica; returns the largest planned load of a device, << MT_LOAD_SHIFT. */
int64_t mt_laer_place(struct mt_policy *policy, const struct mt_cluster *cluster, int *slot_expert);
/* The same by finish times of unlike devices instead of loads. */
void mt_policy_by_finish(struct mt_policy *policy, const struct mt_cluster *cluster, int *slot_expert);
/* Picoseconds of laer's own objective under lite dispatch: communication is a sum over devices. */
int64_t mt_laer_score(struct mt_policy *policy, const struct mt_policy_problem *problem, const int *slot_expert);
void mt_policy_eplb(struct mt_policy *policy, const struct mt_policy_problem *problem, int *slot_expert);
/* EPLB with experts in `groups` groups on the cluster's nodes (1: global, any nodes and slots). Hierarchical asks for nodes of
 * equal slots throughout and a number of groups that they divide; returns 0 if that does not hold. */
int mt_eplb_place(struct mt_policy *policy, const struct mt_cluster *cluster, int groups, int *slot_expert);
void mt_policy_flexmoe(struct mt_policy *policy, const struct mt_policy_problem *problem, int *slot_expert);
void mt_policy_motley(struct mt_policy *policy, const struct mt_policy_problem *problem, int *slot_expert);
struct mt_motley *mt_motley_new(const struct mt_policy *policy, const struct mt_cluster *cluster);
void mt_motley_free(struct mt_motley *motley);
/* The predicted cost of a candidate with the problem's dispatch, a micro-step. */
struct mt_layout_cost mt_policy_cost(struct mt_policy *policy, const struct mt_policy_problem *problem,
                                     const int *slot_expert);

#endif
