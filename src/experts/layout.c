/* Layouts; see layout.h. */
#include "experts/layout.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include <stdlib.h>

enum mt_status mt_layout_slots(const char *text, int nexpert, int nrank, int *slots)
{
  if (!*text) {
    for (int r = 0; r < nrank; r++)
      slots[r] = nexpert >= nrank ? (int)((int64_t)(r + 1) * nexpert / nrank - (int64_t)r * nexpert / nrank) : nexpert > 0;
    return MT_OK;
  }
  int64_t *found = MT_NEW(MT_TAG_PLAN, int64_t, nrank), sum = 0;
  int n = mt_text_integers(text, found, nrank), bad = n < 0;
  for (int r = 0; r < nrank && r < n; r++) {
    bad |= found[r] > 1 << 20;
    slots[r] = (int)found[r];
  }
  mt_free(found);
  if (bad || (n != 1 && n != nrank)) {
    mt_error("parallel.slots: found '%s', expected one number, or %d numbers (one per rank) separated by commas", text, nrank);
    return MT_USAGE;
  }
  for (int r = 1; r < nrank && n == 1; r++)
    slots[r] = slots[0];
  for (int r = 0; r < nrank; r++)
    sum += slots[r];
  if (sum < nexpert) {
    mt_error("parallel.slots: found %lld slots in all ('%s' on %d ranks), expected at least one per expert (%d)",
             (long long)sum, text, nrank, nexpert);
    return MT_USAGE;
  }
  return MT_OK;
}

void mt_layout_static(int *slot_expert, int nexpert, int nslot)
{
  for (int i = 0; i < nslot; i++)
    slot_expert[i] = (int)((int64_t)i * nexpert / nslot);
}

struct mt_layout *mt_layout_new(const struct mt_cluster *cluster, int nexpert, const int *slots)
{
  struct mt_layout *layout = MT_ZNEW(MT_TAG_PLAN, struct mt_layout, 1);
  layout->nexpert = nexpert;
  layout->nrank = cluster->nplace;
  layout->nnode = cluster->nnode;
  layout->slot_first = MT_NEW(MT_TAG_PLAN, int, layout->nrank + 1);
  layout->slot_first[0] = 0;
  for (int r = 0; r < layout->nrank; r++)
    layout->slot_first[r + 1] = layout->slot_first[r] + slots[r];
  int n = layout->slot_first[layout->nrank];
  layout->slot_expert = MT_NEW(MT_TAG_PLAN, int, n);
  layout->slot_rank = MT_NEW(MT_TAG_PLAN, int, n);
  layout->by_expert = MT_NEW(MT_TAG_PLAN, int, n);
  layout->expert_first = MT_NEW(MT_TAG_PLAN, int, nexpert * layout->nnode + 1);
  mt_layout_static(layout->slot_expert, nexpert, n);
  mt_layout_index(layout, cluster, 1);
  return layout;
}

struct mt_layout *mt_layout_everywhere(const struct mt_cluster *cluster, int n)
{
  int *slots = MT_NEW(MT_TAG_PLAN, int, cluster->nplace);
  for (int r = 0; r < cluster->nplace; r++)
    slots[r] = n;
  struct mt_layout *layout = mt_layout_new(cluster, n, slots);
  for (int s = 0; s < cluster->nplace * n; s++)
    layout->slot_expert[s] = s % n;
  mt_layout_index(layout, cluster, 1);
  mt_free(slots);
  return layout;
}

void mt_layout_free(struct mt_layout *layout)
{
  if (!layout)
    return;
  mt_free(layout->slot_first);
  mt_free(layout->slot_expert);
  mt_free(layout->slot_rank);
  mt_free(layout->by_expert);
  mt_free(layout->expert_first);
  mt_free(layout);
}

void mt_layout_index(struct mt_layout *layout, const struct mt_cluster *cluster, int64_t revision)
{
  int nbin = layout->nexpert * layout->nnode;
  int *first = layout->expert_first;
  for (int b = 0; b <= nbin; b++)
    first[b] = 0;
  for (int r = 0; r < layout->nrank; r++)
    for (int s = layout->slot_first[r]; s < layout->slot_first[r + 1]; s++) {
      layout->slot_rank[s] = r;
      first[layout->slot_expert[s] * layout->nnode + cluster->node_of[r] + 1]++;
    }
  for (int b = 0; b < nbin; b++)
    first[b + 1] += first[b];
  /* A counting sort by (expert, node): slots ascend within a bin because they ascend with the rank. */
  for (int s = 0; s < layout->slot_first[layout->nrank]; s++) {
    int bin = layout->slot_expert[s] * layout->nnode + cluster->node_of[layout->slot_rank[s]];
    layout->by_expert[first[bin]++] = s;
  }
  for (int b = nbin; b > 0; b--)
    first[b] = first[b - 1];
  first[0] = 0;
  for (int e = 0; e < layout->nexpert; e++)
    MT_CHECK(first[e * layout->nnode] < first[(e + 1) * layout->nnode], "a layout without expert %d", e);
  layout->revision = revision;
}

void mt_layout_random(struct mt_layout *layout, const struct mt_cluster *cluster, uint64_t seed, uint64_t key)
{
  int n = layout->slot_first[layout->nrank];
  /* the permuted slot i holds expert i while there are experts left, then a random one */
  for (int i = 0; i < n; i++) {
    int slot = (int)mt_random_permute(seed, key, (uint64_t)n, (uint64_t)i);
    layout->slot_expert[slot] =
        i < layout->nexpert ? i
                            : (int)(mt_random_bits(seed, MT_STREAM_TEST + key * 16, (uint64_t)i) % (uint64_t)layout->nexpert);
  }
  mt_layout_index(layout, cluster, (int64_t)key + 2);
}
