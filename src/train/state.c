/* A model's state as a checkpoint, and back; see state.h. The table of parameters and the cut over ranks say which ranges
 * of which dataset this rank holds; the file knows neither. */
#include "train/state.h"
#include "base/json.h"
#include "base/log.h"
#include "comm/measure.h"
#include "schedule/scheme.h"
#include "train/sharding.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

char *mt_state_dir(const struct mt_config *config)
{
  return *config->checkpoint.dir ? mt_strdup(config->checkpoint.dir) : mt_format("%s/checkpoints", config->log.dir);
}

enum { LAYOUT_DATASETS = 2 }; /* at most */

/* What a shard has of a parameter, and the group where the file has it. */
enum array { MASTER, MOMENT_M, MOMENT_V };
static const char *const group_of[] = {[MASTER] = "/params/", [MOMENT_M] = "/adam_m/", [MOMENT_V] = "/adam_v/"};

/* Datasets of one kind (weights or a moment): one a parameter row, in table order. */
struct build {
  struct mt_model *model;
  struct mt_dataset *dataset;
  enum array array;
  int counting;
};

static float *array_of(const struct build *build, const struct mt_shard *shard)
{
  return build->array == MASTER ? shard->master : build->array == MOMENT_M ? shard->m : shard->v;
}

static void add_range(void *self, const struct mt_param *row, int expert, int64_t first, struct mt_shard *shard, int64_t at,
                      int64_t n)
{
  struct build *build = self;
  struct mt_dataset *dataset = &build->dataset[row - build->model->params.param];
  if (!build->counting)
    dataset->range[dataset->nrange] = (struct mt_range){expert * row->count + first, n, array_of(build, shard) + at};
  dataset->nrange++;
}

static void add_datasets(struct mt_checkpoint *checkpoint, struct mt_model *model, enum array array)
{
  const char *group = group_of[array];
  const struct mt_params *params = &model->params;
  struct build build = {model, checkpoint->dataset + checkpoint->ndataset, array, 1};
  checkpoint->ndataset += params->n;
  for (int i = 0; i < params->n; i++) {
    const struct mt_param *row = &params->param[i];
    struct mt_dataset *dataset = &build.dataset[i];
    memset(dataset, 0, sizeof *dataset);
    int stacked = row->scope == MT_SCOPE_EXPERT;
    dataset->ndim = row->ndim + stacked;
    dataset->dim[0] = params->nexpert;
    memcpy(dataset->dim + stacked, row->dim, sizeof(int64_t) * (size_t)row->ndim);
    size_t length = strlen(group);
    MT_CHECK(length + strlen(row->name) < sizeof dataset->name, "the name %s%s is too long", group, row->name);
    memcpy(dataset->name, group, length);
    memcpy(dataset->name + length, row->name, strlen(row->name) + 1);
  }
  mt_model_pieces(model, add_range, &build);
  for (int i = 0; i < params->n; i++) {
    build.dataset[i].range = MT_NEW(MT_TAG_IO, struct mt_range, build.dataset[i].nrange);
    build.dataset[i].nrange = 0;
  }
  build.counting = 0;
  mt_model_pieces(model, add_range, &build);
}

static struct mt_checkpoint describe(struct mt_model *model, int training)
{
  struct mt_checkpoint checkpoint = {0};
  checkpoint.dataset = MT_NEW(MT_TAG_IO, struct mt_dataset, model->params.n * (training ? 3 : 1) + LAYOUT_DATASETS);
  add_datasets(&checkpoint, model, MASTER);
  if (training) {
    add_datasets(&checkpoint, model, MOMENT_M);
    add_datasets(&checkpoint, model, MOMENT_V);
  }
  return checkpoint;
}

static void describe_free(struct mt_checkpoint *checkpoint)
{
  for (int i = 0; i < checkpoint->ndataset; i++)
    mt_free(checkpoint->dataset[i].range);
  mt_free(checkpoint->dataset);
}

static char *print_free(mt_json *json)
{
  if (!json)
    return NULL;
  char *text = mt_json_print(json, 2);
  mt_json_free(json);
  return text;
}

/* Layouts that follow the load, with what they follow. */
static void add_layouts(struct mt_checkpoint *checkpoint, const struct mt_comm *comm, const struct mt_relayout_state *state)
{
  struct mt_dataset *expert = &checkpoint->dataset[checkpoint->ndataset++];
  *expert = (struct mt_dataset){.name = "/state/layout.experts", .element = MT_ELEMENT_I32, .ndim = 2,
                                .dim = {state->nlayer, state->nslot}, .nrange = comm->rank == 0,
                                .range = MT_NEW(MT_TAG_IO, struct mt_range, 1)};
  expert->range[0] = (struct mt_range){0, (int64_t)state->nlayer * state->nslot, state->expert};
  if (!state->nstep)
    return;
  struct mt_dataset *loads = &checkpoint->dataset[checkpoint->ndataset++];
  const int64_t E = state->ncount / comm->size, n = state->nstep * state->ncount;
  *loads = (struct mt_dataset){.name = "/state/layout.loads", .element = MT_ELEMENT_I64, .ndim = 4,
                               .dim = {state->nlayer, state->nstep, comm->size, E}, .nrange = state->nown,
                               .range = MT_NEW(MT_TAG_IO, struct mt_range, state->nown)};
  for (int i = 0; i < state->nown; i++)
    loads->range[i] = (struct mt_range){(comm->rank + (int64_t)i * comm->size) * n, n, state->loads + i * n};
}

static struct mt_relayout *relayout_of(const struct mt_model *model)
{
  return model->moe ? model->moe->relayout : NULL;
}

/* Where training stands, as text. */
static char *progress_text(const struct mt_comm *comm, const struct mt_model *model, const struct mt_progress *progress)
{
  mt_json *json = mt_json_object();
  mt_json_set(json, "step", mt_json_integer(progress->step));
  mt_json_set(json, "tokens", mt_json_integer(progress->tokens));
  mt_json_set(json, "sequence", mt_json_integer(progress->sequence));
  mt_json_set(json, "updates", mt_json_integer(progress->updates));
  mt_json_set(json, "ranks", mt_json_integer(comm->size));
  mt_json *data = mt_json_object();
  mt_json_set(data, "files", mt_json_integer(progress->data.files));
  mt_json_set(data, "bytes", mt_json_integer(progress->data.bytes));
  mt_json_set(data, "crc32c", mt_json_integer(progress->data.crc));
  mt_json_set(json, "data", data);
  mt_json_set(json, "sharding", mt_json_string(mt_sharding_name(model->config->parallel.sharding)));
  return print_free(json);
}

enum mt_status mt_state_save(struct mt_comm *comm, struct mt_model *model, const struct mt_config *config,
                             const struct mt_progress *progress, const char *schedule, int64_t *bytes, double *seconds)
{
  double start = mt_time();
  struct mt_checkpoint checkpoint = describe(model, 1);
  checkpoint.step = progress->step;
  checkpoint.tokens = progress->tokens;
  struct mt_relayout_state layouts = {0};
  mt_json *what_for = NULL;
  if (relayout_of(model)) {
    layouts = mt_relayout_save(relayout_of(model), &what_for);
    add_layouts(&checkpoint, comm, &layouts);
  }
  struct mt_text text[5] = {[3] = {"/state/layout", print_free(what_for ? what_for : mt_json_object())}};
  if (comm->rank == 0) { /* whose texts count */
    text[0] = (struct mt_text){"/config/ini", mt_config_print(config)};
    text[1] = (struct mt_text){"/state/progress", progress_text(comm, model, progress)};
    text[2] = (struct mt_text){"/state/cluster", print_free(mt_cluster_to_json(comm->cluster))};
    text[4] = (struct mt_text){"/state/schedule", mt_strdup(schedule)};
    checkpoint.ntext = 5;
  }
  checkpoint.text = text;
  char *dir = mt_state_dir(config);
  enum mt_status status = mt_checkpoint_save(comm, dir, (int)config->checkpoint.keep, &checkpoint, bytes);
  mt_free(dir);
  for (int i = 0; i < 5; i++)
    mt_free(text[i].text);
  describe_free(&checkpoint);
  mt_relayout_state_free(&layouts);
  *seconds = mt_time() - start;
  return status;
}

/* What rank 0 makes of a file's state, for all. */
struct told {
  struct mt_progress progress;
  int64_t same, sharding, status;
};

static int is_auto(const struct mt_config *config)
{
  return !strcmp(config->checkpoint.resume, "auto");
}

/* Ends the reading of a file that cannot be used: an error, or why the next older one's turn comes. */
static enum mt_status refuse(const struct mt_config *config, const char *path, const char *why)
{
  if (is_auto(config))
    mt_warn("checkpoint %s is skipped: %s", path, why);
  else
    mt_error("checkpoint %s: %s", path, why);
  return MT_CORRUPT;
}

/* What the file says besides weights; decided by rank 0 alone, since all have the same texts; in resume only remark changes.
 * MT_CORRUPT if it cannot be understood, MT_USAGE if it is of another model. */
static enum mt_status check_state(struct mt_comm *comm, const struct mt_config *config, int training,
                                  const struct mt_checkpoint *file, struct mt_resume *resume, struct told *told)
{
  const char *path = resume->path;
  const char *ini = mt_checkpoint_text(file, "/config/ini"), *text = mt_checkpoint_text(file, "/state/progress");
  if (!ini || !text)
    return refuse(config, path, ini ? "it has no /state/progress" : "it has no /config/ini");
  struct mt_config stored;
  mt_json *json;
  char *name = mt_format("%s:/config/ini", path), *unknown;
  enum mt_status status = mt_config_parse(name, ini, &stored, &unknown);
  mt_free(name);
  if (status != MT_OK)
    return refuse(config, path, "its /config/ini is not understood");
  struct mt_text_buffer remark = {0};
  if (unknown)
    mt_text_add(&remark, "; this version does not know its %s", unknown);
  mt_free(unknown);
  char *difference = mt_config_model_difference(&stored, config);
  if (difference) {
    mt_error("%s: the checkpoint holds another model: %s", path, difference);
    status = MT_USAGE;
  } else {
    difference = mt_config_difference(&stored, config);
    if (!difference && config->train.schedule != MT_SCHEDULE_CONSTANT && !config->train.decay_steps &&
        stored.train.steps != config->train.steps)
      difference = mt_format("train.steps (checkpoint %lld, now %lld), where the learning rate's decay ends",
                             (long long)stored.train.steps, (long long)config->train.steps);
    char *told_difference = training ? NULL : mt_config_told_difference(&stored, config);
    const char *matters = training ? difference : told_difference;
    if (matters)
      mt_text_add(&remark, "; made with other settings, the new ones hold from here: %s", matters);
    mt_free(told_difference);
  }
  resume->remark = remark.text;
  /* what is measured now and was not before may bring other shares and sizes */
  int cuts = !strcmp(stored.parallel.shares, config->parallel.shares) &&
             !strcmp(stored.parallel.shard_sizes, config->parallel.shard_sizes) &&
             ((strcmp(config->parallel.shares, "auto") && strcmp(config->parallel.shard_sizes, "auto")) ||
              stored.parallel.measure == config->parallel.measure);
  told->same = !difference && cuts && stored.train.micro_batch == config->train.micro_batch &&
               !strcmp(stored.parallel.slots, config->parallel.slots) &&
               stored.parallel.layout == config->parallel.layout && stored.parallel.wire == config->parallel.wire &&
               stored.parallel.dispatch == config->parallel.dispatch &&
               stored.parallel.relayout_interval == config->parallel.relayout_interval &&
               stored.parallel.relayout_window == config->parallel.relayout_window &&
               stored.parallel.sharding == config->parallel.sharding &&
               stored.schedule.degree == config->schedule.degree &&
               (!strcmp(stored.schedule.policy, config->schedule.policy) ||
                (config->schedule.degree && mt_scheme_moe_only(mt_scheme_named(stored.schedule.policy)) &&
                 mt_scheme_moe_only(mt_scheme_named(config->schedule.policy))));
  mt_free(difference);
  mt_config_free(&stored);
  if (status != MT_OK)
    return status;
  name = mt_format("%s:/state/progress", path);
  status = mt_json_parse(name, text, &json);
  mt_free(name);
  if (status != MT_OK)
    return refuse(config, path, "its /state/progress is not understood");
  told->progress = (struct mt_progress){file->step, file->tokens, mt_json_as_integer(mt_json_get(json, "sequence"), -1),
                                        mt_json_as_integer(mt_json_get(json, "updates"), -1), {0}};
  const mt_json *data = mt_json_get(json, "data");
  told->progress.data = (struct mt_tokens_mark){mt_json_as_integer(mt_json_get(data, "files"), 0),
                                                mt_json_as_integer(mt_json_get(data, "bytes"), 0),
                                                mt_json_as_integer(mt_json_get(data, "crc32c"), 0)};
  told->sharding = mt_sharding_named(mt_json_as_string(mt_json_get(json, "sharding"), ""));
  mt_json_free(json);
  if (told->progress.sequence < 0 || told->progress.updates < 0)
    return refuse(config, path, "its /state/progress lacks \"sequence\" or \"updates\"");
  int match = 0;
  text = mt_checkpoint_text(file, "/state/cluster");
  struct mt_cluster *cluster;
  if (text && mt_json_parse("/state/cluster", text, &json) == MT_OK) {
    if (mt_cluster_from_json("/state/cluster", json, &cluster) == MT_OK) {
      match = mt_cluster_same(cluster, comm->cluster);
      if (match && resume->settled)
        match = mt_measured_same(comm->cluster, cluster);
      else if (match)
        mt_measured_copy(comm->cluster, cluster);
      comm->cluster->learnt = cluster->learnt; /* factors are worth something elsewhere too */
      mt_cluster_free(cluster);
    }
    mt_json_free(json);
  }
  told->same = told->same && match;
  return MT_OK;
}

/* The file to look at next. */
static enum mt_status find_path(struct mt_comm *comm, const struct mt_config *config, struct mt_resume *resume)
{
  enum mt_status status = MT_OK;
  mt_free(resume->path);
  mt_free(resume->remark);
  resume->path = resume->remark = NULL;
  if (is_auto(config)) {
    char *dir = mt_state_dir(config);
    status = mt_checkpoint_newest(comm, dir, &resume->before, &resume->path);
    mt_free(dir);
    return status;
  }
  const char *path = config->checkpoint.resume;
  if (!strcmp(path, "never"))
    return MT_OK;
  if (comm->rank == 0 && access(path, F_OK) != 0) {
    mt_error("checkpoint.resume: cannot open %s: %s; expected auto, never or the path of a checkpoint", path,
             strerror(errno));
    status = MT_USAGE;
  }
  resume->path = mt_strdup(path);
  return mt_agree(comm, status);
}

/* Reads the state of the file that was found: rank 0 judges, all get it. */
static enum mt_status read_state(struct mt_comm *comm, const struct mt_config *config, int training, struct mt_resume *resume)
{
  struct mt_checkpoint file;
  MT_TRY(mt_checkpoint_read_state(comm, resume->path, is_auto(config) ? MT_SKIP_YES : MT_SKIP_NO, &file));
  struct told told = {0};
  if (comm->rank == 0)
    told.status = check_state(comm, config, training, &file, resume, &told);
  mt_bcast(comm, &told, sizeof told, 0);
  mt_measured_share(comm);
  mt_free(resume->layout);
  mt_free(resume->schedule);
  resume->layout = mt_strdup(mt_checkpoint_text(&file, "/state/layout"));
  resume->schedule = mt_strdup(mt_checkpoint_text(&file, "/state/schedule"));
  mt_checkpoint_free_texts(&file);
  resume->progress = told.progress;
  resume->same = (int)told.same;
  resume->sharding = (enum mt_sharding)told.sharding;
  return (enum mt_status)told.status;
}

enum mt_status mt_state_find(struct mt_comm *comm, const struct mt_config *config, int training, struct mt_resume *resume)
{
  enum mt_status status;
  resume->progress = (struct mt_progress){0};
  resume->same = 1;
  do {
    status = find_path(comm, config, resume);
    if (status != MT_OK || !resume->path)
      return status;
    status = read_state(comm, config, training, resume);
  } while (status == MT_CORRUPT && is_auto(config));
  return status;
}

enum mt_status mt_state_load(struct mt_comm *comm, struct mt_model *model, const struct mt_config *config,
                             struct mt_resume *resume, int training)
{
  struct mt_checkpoint checkpoint = describe(model, training);
  struct mt_relayout_state layouts = {0};
  struct mt_relayout *relayout = relayout_of(model);
  mt_json *what_for = NULL;
  resume->layouts = relayout && resume->layout && mt_json_parse("/state/layout", resume->layout, &what_for) == MT_OK &&
                    mt_relayout_expect(relayout, what_for, &layouts);
  mt_json_free(what_for);
  if (resume->layouts)
    add_layouts(&checkpoint, comm, &layouts);
  enum mt_status status = mt_checkpoint_load(comm, resume->path, is_auto(config) ? MT_SKIP_YES : MT_SKIP_NO, &checkpoint);
  describe_free(&checkpoint);
  if (status == MT_OK && resume->layouts)
    resume->layouts = mt_relayout_restore(relayout, &layouts);
  mt_relayout_state_free(&layouts);
  if (status == MT_OK && relayout && !resume->layouts)
    resume->same = 0;
  if (status == MT_OK && resume->remark)
    mt_warn("checkpoint %s: %s", resume->path, resume->remark + 2);
  return status;
}
