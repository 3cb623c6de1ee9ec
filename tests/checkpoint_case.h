/* Made-up checkpoints for tests: what a dataset holds is a function of (dataset, element, step), who holds
 * which part of it is a function of a seed, so any number of ranks can save and any other can load and
 * compare. */
#ifndef MT_CHECKPOINT_CASE_H
#define MT_CHECKPOINT_CASE_H
#include <stdio.h>
#include <string.h>
#include "base/memory.h"
#include "base/random.h"
#include "comm/comm.h"
#include "io/checkpoint.h"

/* Any bits, NaNs included: a checkpoint must not look at them. */
static inline uint32_t case_bits(int dataset, int64_t element, int64_t step)
{
  return (uint32_t)mt_random_bits((uint64_t)step, MT_STREAM_TEST,
                                  (uint64_t)dataset << 32 | (uint64_t)element);
}

static const uint32_t CASE_SENTINEL = 0x5eed5eed;

static inline int64_t case_elements(const struct mt_dataset *dataset)
{
  int64_t n = 1;
  for (int i = 0; i < dataset->ndim; i++)
    n *= dataset->dim[i];
  return n;
}

/* Cuts a dataset's elements into up to 2 P + 1 ranges, some of them empty, and gives each to any rank; the
 * ranges of a rank are not sorted. Each range has a sentinel before and behind it. */
static inline void case_cut(struct mt_comm *comm, struct mt_dataset *dataset, int number, uint64_t seed)
{
  int64_t n = case_elements(dataset), at = 0;
  int pieces =
      1 + (int)(mt_random_bits(seed, MT_STREAM_TEST, (uint64_t)number) % (2 * (uint64_t)comm->size + 1));
  dataset->range = MT_ZNEW(MT_TAG_MISC, struct mt_range, pieces);
  dataset->nrange = 0;
  for (int i = 0; i < pieces; i++) {
    uint64_t bits = mt_random_bits(seed + 1, MT_STREAM_TEST, (uint64_t)number * 1000 + (uint64_t)i);
    int64_t count = i == pieces - 1 ? n - at : (int64_t)(bits % (uint64_t)((n - at) / 2 + 1));
    if ((int)(bits >> 40) % comm->size == comm->rank) {
      uint32_t *data = MT_NEW(MT_TAG_MISC, uint32_t, count + 2);
      memset(data, 0, (size_t)(count + 2) * sizeof *data);
      data[0] = data[count + 1] = CASE_SENTINEL;
      int k = dataset->nrange++;
      for (; k > 0 && bits >> 60 & 1; k--)
        dataset->range[k] = dataset->range[k - 1];
      dataset->range[k] = (struct mt_range){at, count, (float *)(data + 1)};
    }
    at += count;
  }
}

static inline void case_fill(struct mt_checkpoint *checkpoint)
{
  for (int i = 0; i < checkpoint->ndataset; i++)
    for (int k = 0; k < checkpoint->dataset[i].nrange; k++)
      for (int64_t e = 0; e < checkpoint->dataset[i].range[k].count; e++)
        ((uint32_t *)checkpoint->dataset[i].range[k].data)[e] =
            case_bits(i, checkpoint->dataset[i].range[k].first + e, checkpoint->step);
}

static inline void case_free(struct mt_checkpoint *checkpoint)
{
  for (int i = 0; i < checkpoint->ndataset; i++) {
    struct mt_dataset *dataset = &checkpoint->dataset[i];
    for (int k = 0; k < dataset->nrange; k++)
      mt_free((uint32_t *)dataset->range[k].data - 1);
    mt_free(dataset->range);
  }
  mt_free(checkpoint->dataset);
  mt_checkpoint_free_texts(checkpoint);
}

/* A text of any length with line ends, quotes and letters beyond ASCII in it. */
static inline char *case_text(int64_t bytes, int64_t step)
{
  char *text = MT_NEW(MT_TAG_MISC, char, bytes + 1);
  static const char line[] = "[model]\nname = \"caf\303\251\" ; step\n";
  for (int64_t i = 0; i < bytes; i++)
    text[i] = line[(i + (step > 0 ? step : 0)) % (int64_t)(sizeof line - 1)];
  if (bytes > 0 && text[bytes - 1] == '\303')
    text[bytes - 1] = '.'; /* no half letter at the end */
  text[bytes] = '\0';
  return text;
}

/* ndataset datasets, the shapes of the first few being special, the others (rows, 3); and 3 texts on rank 0.
 */
static inline struct mt_checkpoint case_new(struct mt_comm *comm, int64_t step, uint64_t seed, int ndataset,
                                            int64_t rows)
{
  static const struct {
    const char *name;
    int ndim;
    int64_t dim[4];
  } special[] = {{"/params/model.embed_tokens.weight", 2, {13, 7}},
                 {"/params/model.layers.0.block_sparse_moe.experts.w1.weight", 3, {3, 5, 2}},
                 {"/params/model.norm.weight", 1, {1}},
                 {"/params/nothing", 2, {0, 4}},
                 {"/params/scalar", 0, {0}},
                 {"/params/four", 4, {2, 3, 1, 5}},
                 {"/adam_m/model.embed_tokens.weight", 2, {13, 7}},
                 {"/adam_v/model.embed_tokens.weight", 2, {13, 7}}};
  struct mt_checkpoint c = {.step = step, .tokens = step * 1000, .ndataset = ndataset};
  c.dataset = MT_ZNEW(MT_TAG_MISC, struct mt_dataset, ndataset);
  for (int i = 0; i < ndataset; i++) {
    if (i < 8) {
      snprintf(c.dataset[i].name, sizeof c.dataset[i].name, "%s", special[i].name);
      c.dataset[i].ndim = special[i].ndim;
      memcpy(c.dataset[i].dim, special[i].dim, sizeof special[i].dim);
    } else {
      snprintf(c.dataset[i].name, sizeof c.dataset[i].name, "/params/model.layers.%d.weight", i);
      c.dataset[i].ndim = 2;
      c.dataset[i].dim[0] = rows;
      c.dataset[i].dim[1] = 3;
    }
    case_cut(comm, &c.dataset[i], i, seed);
  }
  if (comm->rank == 0) {
    c.ntext = 3;
    c.text = MT_ZNEW(MT_TAG_MISC, struct mt_text, 3);
    snprintf(c.text[0].name, sizeof c.text[0].name, "/config/ini");
    snprintf(c.text[1].name, sizeof c.text[1].name, "/state/train.json");
    snprintf(c.text[2].name, sizeof c.text[2].name, "/state/empty");
    c.text[0].text = case_text(100, step);
    c.text[1].text = case_text(ndataset > 8 ? 70001 : 50, step);
    c.text[2].text = case_text(0, step);
  }
  return c;
}

/* 1 if what this rank loaded into `checkpoint` (made with any seed) is what step holds, and no sentinel was
 * touched. */
static inline int case_equal(const struct mt_checkpoint *checkpoint, int64_t step)
{
  for (int i = 0; i < checkpoint->ndataset; i++)
    for (int k = 0; k < checkpoint->dataset[i].nrange; k++) {
      const struct mt_range *range = &checkpoint->dataset[i].range[k];
      const uint32_t *data = (const uint32_t *)range->data;
      if (data[-1] != CASE_SENTINEL || data[range->count] != CASE_SENTINEL)
        return 0;
      for (int64_t e = 0; e < range->count; e++)
        if (data[e] != case_bits(i, range->first + e, step))
          return 0;
    }
  return 1;
}

/* 1 if the state read is that of case_new(step, ndataset). */
static inline int case_state_equal(const struct mt_checkpoint *state, int64_t step, int ndataset)
{
  char *ini = case_text(100, step), *json = case_text(ndataset > 8 ? 70001 : 50, step);
  const char *a = mt_checkpoint_text(state, "/config/ini"),
             *b = mt_checkpoint_text(state, "/state/train.json"),
             *c = mt_checkpoint_text(state, "/state/empty");
  int equal = state->step == step && state->tokens == step * 1000 && state->ntext == 3 && a && b && c &&
              strcmp(a, ini) == 0 && strcmp(b, json) == 0 && c[0] == '\0' &&
              !mt_checkpoint_text(state, "/state/x");
  mt_free(ini);
  mt_free(json);
  return equal;
}

#endif
