/* Which rank takes which GPU; see gpu.h. */
#include "topology/gpu.h"
#include <string.h>

static int same(const struct mt_gpu *a, const struct mt_gpu *b)
{
  return !memcmp(a->uuid, b->uuid, sizeof a->uuid);
}

static enum mt_gpu_near nearness(const struct mt_gpu_rank *rank, const struct mt_gpu *gpu)
{
  if (rank->numa >= 0 && rank->numa == gpu->numa)
    return MT_GPU_SAME_NUMA;
  if (rank->package >= 0 && rank->package == gpu->package)
    return MT_GPU_SAME_PACKAGE;
  return MT_GPU_SOMEWHERE;
}

/* Ranks that drive the GPU. */
static int users(const struct mt_gpu_rank *rank, int n, const struct mt_gpu_choice *choice, const struct mt_gpu *gpu)
{
  int count = 0;
  for (int r = 0; r < n; r++)
    count += choice[r].device >= 0 && same(&rank[r].gpu[choice[r].device], gpu);
  return count;
}

static void take(const struct mt_gpu_rank *rank, struct mt_gpu_choice *choice, int device)
{
  choice->device = device;
  choice->near = nearness(rank, &rank->gpu[device]);
}

void mt_gpu_choose(const struct mt_gpu_rank *rank, int n, struct mt_gpu_choice *choice)
{
  for (int r = 0; r < n; r++) {
    choice[r] = (struct mt_gpu_choice){-1, MT_GPU_SOMEWHERE, 0};
    if (rank[r].wish == MT_GPU_NAMED && rank[r].named < rank[r].ngpu)
      take(&rank[r], &choice[r], rank[r].named);
  }
  for (int near = MT_GPU_SAME_NUMA; near <= MT_GPU_SOMEWHERE; near++)
    for (int r = 0; r < n; r++)
      for (int d = 0; d < rank[r].ngpu && choice[r].device < 0; d++)
        if ((rank[r].wish == MT_GPU_FREE || rank[r].wish == MT_GPU_ANY) &&
            (int)nearness(&rank[r], &rank[r].gpu[d]) <= near && !users(rank, n, choice, &rank[r].gpu[d]))
          take(&rank[r], &choice[r], d);
  /* Sharing: the GPU with the fewest users, of equals the nearest, of equals the first. */
  for (int r = 0; r < n; r++) {
    if (rank[r].wish != MT_GPU_ANY || choice[r].device >= 0)
      continue;
    int best = -1, best_users = 0, best_near = 0;
    for (int d = 0; d < rank[r].ngpu; d++) {
      int u = users(rank, n, choice, &rank[r].gpu[d]), near = nearness(&rank[r], &rank[r].gpu[d]);
      if (best < 0 || u < best_users || (u == best_users && near < best_near)) {
        best = d;
        best_users = u;
        best_near = near;
      }
    }
    if (best >= 0)
      take(&rank[r], &choice[r], best);
  }
  for (int r = 0; r < n; r++)
    if (choice[r].device >= 0)
      choice[r].sharers = users(rank, n, choice, &rank[r].gpu[choice[r].device]);
}
