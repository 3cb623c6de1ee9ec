/* Layouts that follow the load; see relayout.h.
 *
 * Rank r plans, and keeps the windows of, the layers r, r + P, r + 2P, ... Between plan and tell the thread reads windows and
 * layouts, and nobody writes them; the mutex only hands the turn over. */
#include "experts/relayout.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "base/text.h"
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

enum mt_layout_policy mt_relayout_policy(const struct mt_config *config, int nrank, int nslot, int training)
{
  enum mt_layout_policy policy = config->parallel.layout;
  int whole = config->parallel.sharding == MT_SHARDING_OWNER && nslot == config->model.num_local_experts;
  if (policy == MT_LAYOUT_STATIC || policy == MT_LAYOUT_RANDOM)
    return policy;
  return training && nrank > 1 && !whole ? policy : MT_LAYOUT_STATIC;
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

/* Counts of one step as words: a value each would be a hundred times as large in memory. */
static mt_json *counts_json(const int64_t *counts, int64_t n)
{
  struct mt_text_buffer text = {0};
  for (int64_t k = 0; k < n; k++)
    mt_text_add(&text, "%s%lld", k ? " " : "", (long long)counts[k]);
  mt_json *json = mt_json_string(text.text ? text.text : "");
  mt_free(text.text);
  return json;
}

/* The steps in layer l's window, oldest first, from the rank that keeps them. */
static void save_window(struct mt_relayout *r, int l, mt_json *layer)
{
  const int64_t n = (int64_t)r->comm->size * r->E;
  const int keeper = l % r->comm->size, me = r->comm->rank;
  int64_t *ring = me == keeper ? r->ring[l / r->comm->size] : MT_NEW(MT_TAG_MISC, int64_t, r->window * n);
  mt_bcast(r->comm, ring, r->window * n * (int64_t)sizeof(int64_t), keeper);
  mt_json *steps = me == 0 ? mt_json_array() : NULL;
  for (int age = r->nkept - 1; age >= 0 && me == 0; age--)
    mt_json_push(steps, counts_json(ring + (r->newest - age + r->window) % r->window * n, n));
  if (me == 0)
    mt_json_set(layer, "window", steps);
  if (me != keeper)
    mt_free(ring);
}

mt_json *mt_relayout_save(struct mt_relayout *r)
{
  const int P = r->comm->size, root = r->comm->rank == 0;
  mt_json *layers = root ? mt_json_array() : NULL;
  for (int l = 0; l < r->nmoe; l++) {
    const struct mt_layout *layout = r->layout[l];
    mt_json *layer = root ? mt_json_object() : NULL, *experts = root ? mt_json_array() : NULL;
    for (int s = 0; s < r->S && root; s++)
      mt_json_push(experts, mt_json_integer(layout->slot_expert[s]));
    if (root) {
      mt_json_set(layer, "revision", mt_json_integer(layout->revision));
      mt_json_set(layer, "expert", experts);
    }
    if (r->planning)
      save_window(r, l, layer);
    if (root)
      mt_json_push(layers, layer);
  }
  if (!root)
    return NULL;
  mt_json *json = mt_json_object(), *slots = mt_json_array(), *micro = mt_json_array();
  for (int p = 0; p < P; p++)
    mt_json_push(slots, mt_json_integer(r->layout[0]->slot_first[p + 1] - r->layout[0]->slot_first[p]));
  for (int age = r->nkept - 1; age >= 0; age--)
    mt_json_push(micro, mt_json_integer(r->micro[(r->newest - age + r->window) % r->window]));
  mt_json_set(json, "experts", mt_json_integer(r->E));
  mt_json_set(json, "slots", slots);
  mt_json_set(json, "micro_steps", micro);
  mt_json_set(json, "layers", layers);
  return json;
}

/* n integers of a text; 0 if there are fewer or more. */
static int read_counts(const char *text, int64_t *counts, int64_t n)
{
  for (int64_t k = 0; k < n; k++) {
    char *end;
    counts[k] = strtoll(text, &end, 10);
    if (end == text || counts[k] < 0)
      return 0;
    text = end;
  }
  return !text[strspn(text, " ")];
}

/* 1 if every expert has a slot and every slot an expert. */
static int is_layout(const struct mt_relayout *r, const mt_json *experts)
{
  int seen = 0;
  char has[r->E];
  memset(has, 0, sizeof has);
  for (int s = 0; s < r->S; s++) {
    int64_t e = mt_json_as_integer(mt_json_at(experts, s), -1);
    if (e < 0 || e >= r->E)
      return 0;
    seen += !has[e];
    has[e] = 1;
  }
  return mt_json_size(experts) == r->S && seen == r->E;
}

/* Looks only, or takes over: so that nothing is changed unless all of it fits. */
static int restore(struct mt_relayout *r, const mt_json *json, int take)
{
  const int P = r->comm->size;
  const int64_t n = (int64_t)P * r->E;
  const mt_json *slots = mt_json_get(json, "slots"), *layers = mt_json_get(json, "layers");
  const mt_json *micro = mt_json_get(json, "micro_steps");
  if (mt_json_as_integer(mt_json_get(json, "experts"), -1) != r->E || mt_json_size(slots) != P ||
      mt_json_size(layers) != r->nmoe)
    return 0;
  for (int p = 0; p < P; p++)
    if (mt_json_as_integer(mt_json_at(slots, p), -1) != r->layout[0]->slot_first[p + 1] - r->layout[0]->slot_first[p])
      return 0;
  const int steps = (int)mt_json_size(micro);
  const int kept = steps < r->window ? steps : (int)r->window; /* of a longer window the newest */
  for (int l = 0; l < r->nmoe; l++) {
    const mt_json *layer = mt_json_at(layers, l), *experts = mt_json_get(layer, "expert");
    const mt_json *window = mt_json_get(layer, "window");
    if (!is_layout(r, experts) || mt_json_size(window) != steps)
      return 0;
    for (int s = 0; s < r->S && take; s++)
      r->layout[l]->slot_expert[s] = (int)mt_json_as_integer(mt_json_at(experts, s), 0);
    if (take)
      mt_layout_index(r->layout[l], r->comm->cluster, mt_json_as_integer(mt_json_get(layer, "revision"), 1));
    if (!r->planning || l % P != r->comm->rank)
      continue;
    int64_t *scratch = take ? NULL : MT_NEW(MT_TAG_MISC, int64_t, n);
    int fits = 1;
    for (int i = 0; i < kept && fits; i++)
      fits = read_counts(mt_json_as_string(mt_json_at(window, steps - kept + i), ""),
                         take ? r->ring[l / P] + i * n : scratch, n);
    mt_free(scratch);
    if (!fits)
      return 0;
  }
  if (take && r->planning) {
    for (int i = 0; i < kept; i++)
      r->micro[i] = mt_json_as_integer(mt_json_at(micro, steps - kept + i), 1);
    r->nkept = kept;
    r->newest = kept ? kept - 1 : 0;
  }
  return 1;
}

int mt_relayout_restore(struct mt_relayout *r, const mt_json *json)
{
  int64_t misfit = !restore(r, json, 0); /* a window that does not fit is seen only by the rank that keeps it */
  mt_max_int(r->comm, &misfit, 1);
  return !misfit && restore(r, json, 1);
}
