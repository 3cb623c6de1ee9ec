/* Layouts that follow the load; see relayout.h.
 *
 * Rank r plans, and keeps the windows of, the layers r, r + P, r + 2P, ... Between plan and tell the thread reads windows and
 * layouts, and nobody writes them; the mutex only hands the turn over. */
#include "experts/relayout.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include "base/memory.h"
#include "experts/layout_cost.h"
#include "experts/policy.h"
#include "experts/shares.h"

enum turn { IDLE, WANTED, DONE, QUIT };

/* What travels of a layer: this, then slot_expert[S] as int32, to a multiple of 8 bytes. */
struct record {
  int64_t revision, changed, before_ps, after_ps, planner_ns, waited_ns;
  int64_t bytes[MT_NLEVEL];
};

struct mt_relayout {
  struct mt_comm *comm; /* borrowed */
  enum mt_layout_policy policy;
  enum mt_dispatch_kind dispatch;
  struct mt_work work;
  int nmoe, E, S, planning; /* planning: the policy plans */
  int64_t interval, window;
  struct mt_layout **layout; /* [nmoe], owned: in force */

  /* of the layers that this rank plans */
  int nown;
  struct mt_layout **planned; /* [nown], owned */
  int64_t **ring;             /* [nown], owned: [window][P E] counts of the last steps */
  int64_t *sum;               /* [P E] scratch of the thread */
  struct mt_policy *planner;  /* of the thread */
  struct mt_shares *shares;   /* of the thread */

  int64_t *micro;     /* [window] micro-steps that a step's counts are a sum of */
  int64_t step;       /* under way */
  int newest, nkept;  /* the place of the step under way in the ring; steps in it */
  int wanted;         /* 1 between plan and adopt, where it is the step's turn */

  char *mine, *all;   /* [nown] records of this rank; [nmoe] of all, by (rank, layer) */
  int64_t record;     /* bytes of a record */
  int64_t *bytes;     /* [P] that each rank gives */
  struct mt_gather gather;
  struct mt_relayout_report report;

  int threaded;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  enum turn turn;
};

const char *mt_relayout_why_static(const struct mt_config *config, int nrank, int nslot)
{
  if (config->parallel.layout == MT_LAYOUT_STATIC || config->parallel.layout == MT_LAYOUT_RANDOM)
    return NULL;
  if (nrank == 1)
    return "one rank holds all experts";
  if (config->parallel.sharding == MT_SHARDING_OWNER && nslot == config->model.num_local_experts)
    return "with parallel.sharding = owner and a slot for each expert they would only move weights; parallel.slots gives more";
  return NULL;
}

enum mt_layout_policy mt_relayout_policy(const struct mt_config *config, int nrank, int nslot, int training)
{
  enum mt_layout_policy policy = config->parallel.layout;
  if (policy == MT_LAYOUT_STATIC || policy == MT_LAYOUT_RANDOM)
    return policy;
  return training && !mt_relayout_why_static(config, nrank, nslot) ? policy : MT_LAYOUT_STATIC;
}

static int layers_of(const struct mt_relayout *r, int rank)
{
  return rank < r->nmoe ? (r->nmoe - rank - 1) / r->comm->size + 1 : 0;
}

/* ---- planning, in the thread ---- */

/* The window of the i-th own layer into r->sum. Returns the micro-steps that it is a sum of. */
static int64_t sum_window(struct mt_relayout *r, int i)
{
  const int64_t n = (int64_t)r->comm->size * r->E, *counts[MT_MOST_WINDOW];
  int64_t micros[MT_MOST_WINDOW];
  for (int age = 0; age < r->nkept; age++) {
    const int at = (int)((r->newest - age + r->window) % r->window);
    counts[age] = r->ring[i] + at * n;
    micros[age] = r->micro[at];
  }
  return mt_policy_window(r->sum, n, counts, micros, r->nkept);
}

static struct mt_layout_cost cost_of(struct mt_relayout *r, const struct mt_work *work, const struct mt_layout *layout)
{
  mt_shares_deal(r->shares, r->dispatch, r->comm->cluster, work, layout, r->sum);
  return mt_layout_cost(r->comm->cluster, work, layout, r->shares);
}

static void plan_layer(struct mt_relayout *r, int i)
{
  const double start = mt_time();
  const int l = r->comm->rank + i * r->comm->size;
  const struct mt_layout *before = r->layout[l];
  struct mt_layout *after = r->planned[i];
  const struct mt_work work = mt_work_of_layer(&r->work, l, r->nmoe);
  struct mt_policy_problem problem = {.cluster = r->comm->cluster, .work = work, .dispatch = r->dispatch,
                                      .nstep = sum_window(r, i), .counts = r->sum, .before = before};
  mt_policy_plan(r->planner, r->policy, &problem, after);
  const double planned = mt_time();
  for (int64_t k = 0; k < (int64_t)r->comm->size * r->E; k++) /* of a mean micro-step */
    r->sum[k] = (r->sum[k] + problem.nstep / 2) / problem.nstep;
  struct mt_layout_cost now = cost_of(r, &work, before), then = cost_of(r, &work, after);
  const int64_t micros = r->micro[r->newest];
  struct record *record = (struct record *)(r->mine + i * r->record);
  *record = (struct record){.revision = after->revision, .changed = after->revision != before->revision,
                            .before_ps = micros * now.total_ps, .after_ps = micros * then.total_ps,
                            .planner_ns = (int64_t)(1e9 * (planned - start))};
  for (int level = 0; level < MT_NLEVEL; level++)
    record->bytes[level] = micros * (then.row_bytes[level] + then.weight_bytes[level]);
  memcpy(record + 1, after->slot_expert, sizeof(int32_t) * (size_t)r->S);
}

static void *planner(void *self)
{
  struct mt_relayout *r = self;
  pthread_mutex_lock(&r->lock);
  for (;;) {
    while (r->turn != WANTED && r->turn != QUIT)
      pthread_cond_wait(&r->changed, &r->lock);
    if (r->turn == QUIT)
      break;
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < r->nown; i++)
      plan_layer(r, i);
    pthread_mutex_lock(&r->lock);
    if (r->turn == WANTED)
      r->turn = DONE;
    pthread_cond_broadcast(&r->changed);
  }
  pthread_mutex_unlock(&r->lock);
  return NULL;
}

/* Signals are the first thread's business, which has a stack for them (train.c): the new thread blocks them all. */
static void start_thread(struct mt_relayout *r)
{
  sigset_t all, kept;
  sigfillset(&all);
  pthread_mutex_init(&r->lock, NULL);
  pthread_cond_init(&r->changed, NULL);
  pthread_sigmask(SIG_SETMASK, &all, &kept);
  int error = pthread_create(&r->thread, NULL, planner, r);
  pthread_sigmask(SIG_SETMASK, &kept, NULL);
  MT_CHECK(!error, "no thread for planning layouts: %s", strerror(error));
  r->threaded = 1;
}

static void hand_over(struct mt_relayout *r, enum turn turn)
{
  pthread_mutex_lock(&r->lock);
  r->turn = turn;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->lock);
}

/* ---- making ---- */

struct mt_relayout *mt_relayout_new(struct mt_comm *comm, const struct mt_config *config, enum mt_layout_policy policy,
                                    int nmoe, const int *slots, const struct mt_work *work)
{
  struct mt_relayout *r = MT_ZNEW(MT_TAG_PLAN, struct mt_relayout, 1);
  const int P = comm->size;
  r->comm = comm;
  r->policy = policy;
  r->dispatch = config->parallel.dispatch;
  r->work = *work;
  r->nmoe = nmoe;
  r->E = (int)config->model.num_local_experts;
  r->planning = policy != MT_LAYOUT_STATIC && policy != MT_LAYOUT_RANDOM;
  r->interval = config->parallel.relayout_interval;
  r->window = config->parallel.relayout_window;
  r->layout = MT_NEW(MT_TAG_PLAN, struct mt_layout *, nmoe);
  for (int l = 0; l < nmoe; l++)
    r->layout[l] = mt_layout_new(comm->cluster, r->E, slots);
  for (int p = 0; p < P; p++)
    r->S += slots[p];
  if (!r->planning)
    return r;
  const int64_t n = (int64_t)P * r->E;
  r->nown = layers_of(r, comm->rank);
  r->record = ((int64_t)sizeof(struct record) + r->S * (int64_t)sizeof(int32_t) + 7) / 8 * 8;
  r->bytes = MT_NEW(MT_TAG_PLAN, int64_t, P);
  for (int p = 0; p < P; p++)
    r->bytes[p] = layers_of(r, p) * r->record;
  r->mine = MT_ZNEW(MT_TAG_PLAN, char, r->nown * r->record);
  r->all = MT_ZNEW(MT_TAG_PLAN, char, nmoe * r->record);
  r->gather = mt_gather_new(comm);
  r->micro = MT_ZNEW(MT_TAG_PLAN, int64_t, r->window);
  r->report.layer = MT_NEW(MT_TAG_PLAN, int, nmoe);
  if (!r->nown)
    return r;
  r->planned = MT_NEW(MT_TAG_PLAN, struct mt_layout *, r->nown);
  r->ring = MT_NEW(MT_TAG_PLAN, int64_t *, r->nown);
  for (int i = 0; i < r->nown; i++) {
    r->planned[i] = mt_layout_new(comm->cluster, r->E, slots);
    r->ring[i] = MT_ZNEW(MT_TAG_PLAN, int64_t, r->window * n);
  }
  r->sum = MT_NEW(MT_TAG_PLAN, int64_t, n);
  r->planner = mt_policy_new(comm->cluster, r->E, slots);
  r->shares = mt_shares_new(comm->cluster, r->E, r->S);
  start_thread(r);
  return r;
}

void mt_relayout_free(struct mt_relayout *r)
{
  if (!r)
    return;
  if (r->threaded) {
    hand_over(r, QUIT);
    pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
  }
  for (int l = 0; l < r->nmoe; l++)
    mt_layout_free(r->layout[l]);
  mt_free(r->layout);
  for (int i = 0; i < r->nown; i++) {
    mt_layout_free(r->planned[i]);
    mt_free(r->ring[i]);
  }
  mt_free(r->planned);
  mt_free(r->ring);
  mt_free(r->sum);
  mt_policy_free(r->planner);
  mt_shares_free(r->shares);
  mt_free(r->micro);
  mt_free(r->mine);
  mt_free(r->all);
  mt_free(r->bytes);
  mt_free(r->report.layer);
  if (r->planning)
    mt_gather_free(&r->gather);
  mt_free(r);
}

const struct mt_layout *mt_relayout_layout(const struct mt_relayout *r, int l)
{
  return r->layout[l];
}

void mt_relayout_shuffle(struct mt_relayout *r, int64_t key)
{
  for (int l = 0; l < r->nmoe && r->policy == MT_LAYOUT_RANDOM; l++)
    mt_layout_random(r->layout[l], r->comm->cluster, 1, (uint64_t)(key * r->nmoe + l));
}

/* ---- a step ---- */

void mt_relayout_begin(struct mt_relayout *r, int64_t step)
{
  if (!r->planning)
    return;
  const int64_t n = (int64_t)r->comm->size * r->E;
  r->step = step;
  r->newest = (int)((r->newest + 1) % r->window);
  r->nkept += r->nkept < r->window;
  r->micro[r->newest] = 0;
  for (int i = 0; i < r->nown; i++)
    memset(r->ring[i] + r->newest * n, 0, sizeof(int64_t) * (size_t)n);
}

void mt_relayout_count(struct mt_relayout *r, int l, const int64_t *counts)
{
  if (!r->planning)
    return;
  r->micro[r->newest] += l == 0;
  if (l % r->comm->size != r->comm->rank)
    return;
  const int64_t n = (int64_t)r->comm->size * r->E;
  int64_t *sum = r->ring[l / r->comm->size] + r->newest * n;
  for (int64_t k = 0; k < n; k++)
    sum[k] += counts[k];
}

void mt_relayout_plan(struct mt_relayout *r)
{
  r->wanted = r->planning && r->step % r->interval == 0;
  if (r->wanted && r->threaded)
    hand_over(r, WANTED);
}

void mt_relayout_tell(struct mt_relayout *r)
{
  if (!r->wanted)
    return;
  if (r->threaded) {
    double start = mt_time();
    pthread_mutex_lock(&r->lock);
    while (r->turn != DONE)
      pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
    ((struct record *)r->mine)->waited_ns = (int64_t)(1e9 * (mt_time() - start));
  }
  mt_gather_begin(r->comm, &r->gather, r->mine, r->all, r->bytes);
}

const struct mt_relayout_report *mt_relayout_adopt(struct mt_relayout *r)
{
  if (!r->wanted)
    return NULL;
  r->wanted = 0;
  mt_gather_end(r->comm, &r->gather);
  const int P = r->comm->size;
  struct mt_relayout_report *report = &r->report;
  *report = (struct mt_relayout_report){.layer = report->layer};
  int64_t before = 0, after = 0, most_planned = 0, most_waited = 0;
  const char *at = r->all;
  for (int p = 0; p < P && p < r->nmoe; p++) {
    int64_t planned = 0;
    for (int l = p; l < r->nmoe; l += P, at += r->record) {
      const struct record *record = (const struct record *)at;
      struct mt_layout *layout = r->layout[l];
      before += record->before_ps;
      after += record->after_ps;
      planned += record->planner_ns;
      most_waited = record->waited_ns > most_waited ? record->waited_ns : most_waited;
      for (int level = 0; level < MT_NLEVEL; level++)
        report->bytes[level] += record->bytes[level];
      if (!record->changed)
        continue;
      report->layer[report->nlayer++] = l;
      memcpy(layout->slot_expert, record + 1, sizeof(int32_t) * (size_t)r->S);
      mt_layout_index(layout, r->comm->cluster, record->revision);
    }
    most_planned = planned > most_planned ? planned : most_planned;
  }
  report->before_s = 1e-12 * (double)before;
  report->after_s = 1e-12 * (double)after;
  report->planner_ms = 1e-6 * (double)most_planned;
  report->waited_ms = 1e-6 * (double)most_waited;
#ifdef MT_DEBUG
  for (int l = 0; l < r->nmoe; l++)
    MT_CHECK(mt_same(r->comm, r->layout[l]->slot_expert, r->S * (int64_t)sizeof(int)) &&
                 mt_same(r->comm, &r->layout[l]->revision, sizeof r->layout[l]->revision),
             "ranks have adopted different layouts of MoE layer %d", l);
#endif
  return report;
}

/* ---- checkpoints ---- */

static struct mt_relayout_state state_new(const struct mt_relayout *r, int nstep)
{
  const int64_t n = (int64_t)r->comm->size * r->E;
  const int nown = nstep ? layers_of(r, r->comm->rank) : 0;
  return (struct mt_relayout_state){.nlayer = r->nmoe,
                                    .nslot = r->S,
                                    .nstep = nstep,
                                    .nown = nown,
                                    .ncount = n,
                                    .revision = MT_ZNEW(MT_TAG_IO, int64_t, r->nmoe),
                                    .micro = MT_ZNEW(MT_TAG_IO, int64_t, nstep),
                                    .expert = MT_ZNEW(MT_TAG_IO, int32_t, (int64_t)r->nmoe * r->S),
                                    .loads = MT_ZNEW(MT_TAG_IO, int64_t, nown * nstep * n)};
}

void mt_relayout_state_free(struct mt_relayout_state *state)
{
  mt_free(state->revision);
  mt_free(state->micro);
  mt_free(state->expert);
  mt_free(state->loads);
  *state = (struct mt_relayout_state){0};
}

struct mt_relayout_state mt_relayout_save(const struct mt_relayout *r, mt_json **what_for)
{
  const int P = r->comm->size;
  struct mt_relayout_state state = state_new(r, r->nkept);
  for (int l = 0; l < r->nmoe; l++) {
    state.revision[l] = r->layout[l]->revision;
    memcpy(state.expert + (int64_t)l * r->S, r->layout[l]->slot_expert, sizeof(int32_t) * (size_t)r->S);
  }
  for (int k = 0; k < state.nstep; k++) {
    const int64_t at = (r->newest - (state.nstep - 1 - k) + r->window) % r->window;
    state.micro[k] = r->micro[at];
    for (int i = 0; i < state.nown; i++)
      memcpy(state.loads + ((int64_t)i * state.nstep + k) * state.ncount, r->ring[i] + at * state.ncount,
             sizeof(int64_t) * (size_t)state.ncount);
  }
  int64_t slots[P];
  for (int p = 0; p < P; p++)
    slots[p] = r->layout[0]->slot_first[p + 1] - r->layout[0]->slot_first[p];
  *what_for = mt_json_object();
  mt_json_set(*what_for, "experts", mt_json_integer(r->E));
  mt_json_set(*what_for, "slots", mt_json_integers(slots, P));
  mt_json_set(*what_for, "revisions", mt_json_integers(state.revision, r->nmoe));
  mt_json_set(*what_for, "micro_steps", mt_json_integers(state.micro, state.nstep));
  return state;
}

int mt_relayout_expect(const struct mt_relayout *r, const mt_json *what_for, struct mt_relayout_state *state)
{
  const int P = r->comm->size;
  const mt_json *slots = mt_json_get(what_for, "slots"), *revisions = mt_json_get(what_for, "revisions");
  const mt_json *micro = mt_json_get(what_for, "micro_steps");
  const int64_t nstep = mt_json_size(micro);
  if (mt_json_as_integer(mt_json_get(what_for, "experts"), -1) != r->E || mt_json_size(slots) != P ||
      mt_json_size(revisions) != r->nmoe || nstep < 0 || nstep > MT_MOST_WINDOW)
    return 0;
  for (int p = 0; p < P; p++)
    if (mt_json_as_integer(mt_json_at(slots, p), -1) != r->layout[0]->slot_first[p + 1] - r->layout[0]->slot_first[p])
      return 0;
  *state = state_new(r, (int)nstep);
  for (int l = 0; l < r->nmoe; l++)
    state->revision[l] = mt_json_as_integer(mt_json_at(revisions, l), 1);
  for (int k = 0; k < nstep; k++)
    state->micro[k] = mt_json_as_integer(mt_json_at(micro, k), 1);
  return 1;
}

/* 1 if every expert has a slot and every slot an expert. */
static int is_layout(const struct mt_relayout *r, const int32_t *expert)
{
  int seen = 0;
  char has[r->E];
  memset(has, 0, sizeof has);
  for (int s = 0; s < r->S; s++) {
    if (expert[s] < 0 || expert[s] >= r->E)
      return 0;
    seen += !has[expert[s]];
    has[expert[s]] = 1;
  }
  return seen == r->E;
}

int mt_relayout_restore(struct mt_relayout *r, struct mt_relayout_state *state)
{
  int64_t misfit = 0;
  mt_bcast(r->comm, state->expert, (int64_t)sizeof *state->expert * r->nmoe * r->S, 0);
  for (int l = 0; l < r->nmoe; l++)
    misfit |= !is_layout(r, state->expert + (int64_t)l * r->S);
  for (int64_t k = 0; k < state->nown * state->nstep * state->ncount; k++)
    misfit |= state->loads[k] < 0;
  mt_max_int(r->comm, &misfit, 1); /* a window is seen only by the rank that keeps it */
  if (misfit)
    return 0;
  for (int l = 0; l < r->nmoe; l++) {
    memcpy(r->layout[l]->slot_expert, state->expert + (int64_t)l * r->S, sizeof(int32_t) * (size_t)r->S);
    mt_layout_index(r->layout[l], r->comm->cluster, state->revision[l]);
  }
  if (!r->planning)
    return 1;
  const int kept = state->nstep < r->window ? state->nstep : (int)r->window; /* of a longer window the newest */
  for (int k = 0; k < kept; k++) {
    const int from = state->nstep - kept + k;
    r->micro[k] = state->micro[from];
    for (int i = 0; i < r->nown; i++)
      memcpy(r->ring[i] + k * state->ncount, state->loads + ((int64_t)i * state->nstep + from) * state->ncount,
             sizeof(int64_t) * (size_t)state->ncount);
  }
  r->nkept = kept;
  r->newest = kept ? kept - 1 : 0;
  return 1;
}
