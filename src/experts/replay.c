/* A series of loads; see replay.h. */
#include "experts/replay.h"
#include <string.h>
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/part.h"

enum { MOST_STEPS = 1 << 20, MOST_LAYERS = 1 << 16, MOST_RANKS = 1 << 20, SAMPLE = 1 << 20 };
enum column { STEP, LAYER, RANK, EXPERT, ROWS, NCOLUMN };

static const struct kind {
  const char *header;
  int ncolumn;
  enum column column[NCOLUMN];
} kinds[] = {{"step,layer,rank,expert,rows", 5, {STEP, LAYER, RANK, EXPERT, ROWS}},
             {"rank,layer,iter,token_num", 4, {RANK, LAYER, STEP, ROWS}}};
static const char *const column_name[NCOLUMN] = {"step", "layer", "rank", "expert", "rows"};

struct reading {
  const char *path;
  char *text, *line; /* the line at hand */
  int number;
  const struct kind *kind;
  int64_t limit[NCOLUMN];
};

static void rewind_lines(struct reading *r)
{
  r->line = r->text + strlen(kinds[r->kind - kinds].header);
  r->line += *r->line != 0;
  r->number = 1;
}

/* The next line's values into value[NCOLUMN]; 0 at the end. */
static enum mt_status next_line(struct reading *r, int64_t *value, int *any)
{
  *any = 0;
  if (!*r->line)
    return MT_OK;
  char *line = r->line, *end = line + strcspn(line, "\n");
  r->line = end + (*end != 0);
  r->number++;
  value[EXPERT] = 0;
  for (int i = 0; i < r->kind->ncolumn; i++) {
    enum column c = r->kind->column[i];
    int n = (int)strcspn(line, i + 1 < r->kind->ncolumn ? ",\n" : "\r\n");
    char field[24] = "";
    memcpy(field, line, n < (int)sizeof field ? (size_t)n : 0);
    if (!mt_text_integer(field, &value[c]) || value[c] < 0 || value[c] >= r->limit[c]) {
      mt_error("%s:%d: %s: found \"%.*s\", expected an integer from 0 to %lld", r->path, r->number, column_name[c], n,
               line, (long long)r->limit[c] - 1);
      return MT_CORRUPT;
    }
    line += n;
    if (i + 1 < r->kind->ncolumn ? *line != ',' : line != end && *line != '\r') {
      mt_error("%s:%d: found %d values, expected %d (%s)", r->path, r->number, i + 1, r->kind->ncolumn,
               r->kind->header);
      return MT_CORRUPT;
    }
    line++;
  }
  *any = 1;
  return MT_OK;
}

/* Rows of a device, to the experts of its class and the ranks of its node. */
static void spread(const struct mt_cluster *cluster, int rank, int group, int layer, int64_t rows, struct mt_replay *replay,
                   int64_t *counts)
{
  const int n = replay->E / group, class = rank % group;
  const int *node = cluster ? cluster->node_first + cluster->node_of[rank] : (const int[]){0, replay->P};
  const int low = node[0], size = node[1] - low;
  for (int k = 0; k < n; k++) {
    int64_t part = k + 1 < n ? rows * 7 / 10 : rows, first;
    int e = class + group * (layer % 2 ? n - 1 - k : k);
    for (int i = 0; i < size; i++)
      counts[(int64_t)(low + i) * replay->E + e] += mt_part_range(part, size, i, &first);
    rows -= part;
  }
}

static enum mt_status read_lines(struct reading *r, const struct mt_cluster *cluster, int group,
                                 struct mt_replay *replay)
{
  int64_t value[NCOLUMN], most_step = -1, most_layer = -1, most_rank = -1;
  int any;
  for (rewind_lines(r);;) {
    MT_TRY(next_line(r, value, &any));
    if (!any)
      break;
    most_step = value[STEP] > most_step ? value[STEP] : most_step;
    most_layer = value[LAYER] > most_layer ? value[LAYER] : most_layer;
    most_rank = value[RANK] > most_rank ? value[RANK] : most_rank;
  }
  replay->P = cluster ? cluster->nplace : (int)most_rank + 1;
  if (most_step < 0 || (most_step + 1) * (most_layer + 1) > ((int64_t)1 << 31) / (replay->P * (int64_t)replay->E)) {
    mt_error("%s: found %lld steps of %lld layers, expected at least one line and at most 2^31 counts in all", r->path,
             (long long)most_step + 1, (long long)most_layer + 1);
    return MT_CORRUPT;
  }
  replay->nstep = (int)most_step + 1;
  replay->nlayer = (int)most_layer + 1;
  const int64_t n = (int64_t)replay->nstep * replay->nlayer * replay->P * replay->E;
  replay->counts = MT_ZNEW(MT_TAG_PLAN, int64_t, n);
  if (group)
    replay->device = MT_ZNEW(MT_TAG_PLAN, int64_t, n / replay->E);
  for (rewind_lines(r);;) {
    MT_TRY(next_line(r, value, &any));
    if (!any)
      return MT_OK;
    int64_t *counts = mt_replay_at(replay, (int)value[STEP], (int)value[LAYER]);
    int rank = (int)value[RANK];
    if (group)
      replay->device[(value[STEP] * replay->nlayer + value[LAYER]) * replay->P + rank] += value[ROWS];
    if (group)
      spread(cluster, rank, group, (int)value[LAYER], value[ROWS], replay, counts);
    else
      counts[(int64_t)rank * replay->E + value[EXPERT]] += value[ROWS];
  }
}

enum mt_status mt_replay_read(const char *path, const struct mt_cluster *cluster, int E, int slots,
                              struct mt_replay *replay)
{
  struct reading r = {.path = path};
  char *fault;
  *replay = (struct mt_replay){.E = E};
  enum mt_status status = mt_text_read(path, &r.text, &fault);
  if (status) {
    mt_error("%s, expected loads as CSV", fault);
    mt_free(fault);
    return status;
  }
  const int length = (int)strcspn(r.text, "\r\n");
  for (int i = 0; i < 2; i++)
    if ((int)strlen(kinds[i].header) == length && !strncmp(r.text, kinds[i].header, (size_t)length))
      r.kind = &kinds[i];
  const int by_device = r.kind == &kinds[1], group = by_device && slots ? E / slots : 0;
  status = MT_CORRUPT;
  if (!r.kind)
    mt_error("%s:1: found \"%.*s\", expected \"%s\" or \"%s\"", path, length < 80 ? length : 80, r.text,
             kinds[0].header, kinds[1].header);
  else if (by_device && (!slots || E % slots))
    mt_error("%s: loads of devices need equal parallel.slots on all ranks that divide the %d experts", path, E);
  else {
    const int64_t limit[NCOLUMN] = {MOST_STEPS, MOST_LAYERS, cluster ? cluster->nplace : MOST_RANKS, E, (int64_t)1 << 40};
    memcpy(r.limit, limit, sizeof limit);
    status = read_lines(&r, cluster, group, replay);
  }
  mt_free(r.text);
  if (status)
    mt_replay_free(replay);
  return status;
}

void mt_replay_make(struct mt_forced *forced, int P, int64_t tokens, int nstep, int nlayer, struct mt_replay *replay)
{
  const int E = forced->E, K = forced->K;
  *replay = (struct mt_replay){.nstep = nstep, .nlayer = nlayer, .P = P, .E = E};
  replay->counts = MT_ZNEW(MT_TAG_PLAN, int64_t, (int64_t)nstep * nlayer * P * E);
  int64_t n = SAMPLE / ((int64_t)P * K) + 1;
  n = n < tokens ? n : tokens;
  int32_t *expert = MT_NEW(MT_TAG_PLAN, int32_t, n * K);
  for (int t = 0; t < nstep; t++)
    for (int l = 0; l < nlayer; l++)
      for (int p = 0; p < P; p++) {
        int64_t *counts = mt_replay_at(replay, t, l) + (int64_t)p * E;
        mt_forced_picks(forced, t, l, tokens * P, tokens * p, n, expert);
        for (int64_t i = 0; i < n * K; i++)
          counts[expert[i]]++;
        for (int e = 0; e < E; e++)
          counts[e] = counts[e] * tokens / (n > 0 ? n : 1);
      }
  mt_free(expert);
}

void mt_replay_free(struct mt_replay *replay)
{
  mt_free(replay->counts);
  mt_free(replay->device);
  *replay = (struct mt_replay){0};
}
