/* Shares; see shares.h. */
#include "experts/shares.h"
#include "base/memory.h"

struct mt_shares *mt_shares_new(const struct mt_cluster *cluster, int nexpert, int nslot)
{
  (void)nslot;
  struct mt_shares *shares = MT_ZNEW(MT_TAG_PLAN, struct mt_shares, 1);
  shares->nrank = cluster->nplace;
  shares->nexpert = nexpert;
  shares->first = MT_ZNEW(MT_TAG_PLAN, int32_t, (int64_t)cluster->nplace * nexpert + 1);
  return shares;
}

void mt_shares_free(struct mt_shares *shares)
{
  if (!shares)
    return;
  mt_free(shares->first);
  mt_free(shares->slot);
  mt_free(shares->rows);
  mt_free(shares);
}

/* The slots over which a source on node q deals expert e evenly: by_expert[*first .. *first + result). */
static int replicas(const struct mt_layout *layout, int e, int q, int *first)
{
  int bin = e * layout->nnode + q;
  int local = layout->expert_first[bin + 1] - layout->expert_first[bin];
  *first = layout->expert_first[local ? bin : e * layout->nnode];
  return local ? local : layout->expert_first[(e + 1) * layout->nnode] - *first;
}

static void lite(struct mt_shares *shares, const struct mt_cluster *cluster, const struct mt_layout *layout,
                 const int64_t *counts)
{
  const int P = shares->nrank, E = shares->nexpert;
  int64_t n = 0;
  for (int s = 0; s < P; s++)
    for (int e = 0; e < E; e++) {
      int64_t rows = counts[(int64_t)s * E + e];
      int first, nrep = rows ? replicas(layout, e, cluster->node_of[s], &first) : 0;
      shares->first[(int64_t)s * E + e] = (int32_t)n;
      n += rows < nrep ? rows : nrep;
    }
  MT_CHECK(n <= INT32_MAX, "%lld runs of shares, at most %d are possible", (long long)n, INT32_MAX);
  shares->first[(int64_t)P * E] = (int32_t)n;
  mt_grow(MT_TAG_PLAN, (void **)&shares->slot, &shares->slot_capacity, n, sizeof *shares->slot);
  mt_grow(MT_TAG_PLAN, (void **)&shares->rows, &shares->row_capacity, n, sizeof *shares->rows);
  for (int s = 0; s < P; s++)
    for (int e = 0; e < E; e++) {
      int64_t at = shares->first[(int64_t)s * E + e], rows = counts[(int64_t)s * E + e];
      int first, nrep = rows ? replicas(layout, e, cluster->node_of[s], &first) : 0;
      for (int i = 0; i < nrep && i < rows; i++, at++) {
        shares->slot[at] = layout->by_expert[first + i];
        shares->rows[at] = rows / nrep + (i < rows % nrep);
      }
    }
}

void mt_shares_deal(struct mt_shares *shares, enum mt_dispatch_kind kind, const struct mt_cluster *cluster,
                    const struct mt_work *work, const struct mt_layout *layout, const int64_t *counts)
{
  (void)kind, (void)work;
  lite(shares, cluster, layout, counts);
}
