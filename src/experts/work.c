/* What rows and experts cost; see work.h. */
#include "experts/work.h"
#include <stddef.h>
#include "base/memory.h"
#include "base/text.h"
#include "comm/way.h"

enum { USUAL_MFLOPS = 50000 };

struct mt_work mt_work_of(int64_t C, int64_t F, int gated, int wire_bytes, int recompute, enum mt_sharding sharding)
{
  const int64_t length = C * F * (gated ? 3 : 2);
  return (struct mt_work){.row_flops = 2 * length * (recompute ? 4 : 3),
                          .row_bytes = C * wire_bytes,
                          .row_trips = 4,
                          .expert_bytes = 4 * length,
                          .expert_trips = 3,
                          .sharding = sharding};
}

struct mt_work mt_work_of_layer(const struct mt_work *work, int l, int n)
{
  enum { POOL = 2 };
  struct mt_work one = *work;
  one.expert_trips -= l >= n - POOL;
  return one;
}

void mt_work_row_ps(const struct mt_work *work, const struct mt_cluster *cluster, int64_t *ps)
{
  int known = 1;
  for (int p = 0; p < cluster->nplace; p++)
    known &= cluster->place[p].speed > 0;
  for (int p = 0; p < cluster->nplace; p++) {
    __int128 time = (__int128)work->row_flops * 1000000 / (known ? cluster->place[p].speed : USUAL_MFLOPS);
    ps[p] = time < 1 ? 1 : time > INT32_MAX * 1000000LL ? INT32_MAX * 1000000LL : (int64_t)time;
  }
}

char *mt_work_assumed(const struct mt_cluster *cluster)
{
  static const char *const where[MT_NLEVEL] = {"", "within nodes", "between nodes"};
  const int used[MT_NLEVEL] = {0, cluster->nplace > cluster->nnode, cluster->nnode > 1};
  struct mt_text_buffer text = {0};
  int known = 1;
  for (int p = 0; p < cluster->nplace; p++)
    known &= cluster->place[p].speed > 0;
  if (!known)
    mt_text_add(&text, "ranks that are equally fast (%d GFLOP/s)", USUAL_MFLOPS / 1000);
  for (int level = 0; level < MT_NLEVEL; level++)
    if (used[level] && !cluster->link[level].beta_ps)
      mt_text_add(&text, "%s%.2g GB/s %s", text.text ? ", " : "", 1e3 / (double)mt_link_usual(cluster, (enum mt_level)level).beta_ps,
                  where[level]);
  char *line = text.text ? mt_format("not measured, so assumed: %s", text.text) : NULL;
  mt_free(text.text);
  return line;
}

int64_t mt_work_link_ps(const struct mt_work *work, const struct mt_cluster *cluster, enum mt_level level)
{
  if (work->keep && level == MT_LEVEL_NET)
    return (int64_t)1 << 32;
  return work->row_bytes * work->row_trips * mt_link_usual(cluster, level).beta_ps;
}
