/* Who drives which device; see devices.h.
 *
 * The trap: looking for GPUs loads CUDA's libraries, which takes time and memory. With "auto" that is done only where
 * the NVIDIA driver has left its device file. */
#include "comm/devices.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/comm_mpi.h"
#include "cuda/cuda.h"
#include "topology/discover.h"
#include "topology/gpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __has_include
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#endif

/* Long enough for a network's and a bus's full rate, short enough that the first and the last one of a message, which nothing
 * overlaps, do not count. */
int64_t mt_exchange_chunk = (int64_t)1 << 20;

struct found {
  struct mt_gpu_rank rank;
  int32_t status;
  int32_t emulated;
  int32_t no_driver; /* so that no GPU was looked for */
  char trouble[400]; /* what is wrong, "" if nothing is */
};

/* What this rank sees, with where it is. */
static void look(const struct mt_place *place, const char *wish, const char *kind, struct found *found)
{
  struct mt_gpu_rank *rank = &found->rank;
  struct mt_cuda_info info[MT_GPU_MOST];
  char why[200] = "";
  const int automatic = !strcmp(wish, "auto");
  rank->package = place->package;
  rank->numa = place->numa;
  rank->wish = MT_GPU_NONE;
  if (!strcmp(wish, "cpu"))
    return;
  if (automatic && access("/dev/nvidiactl", F_OK)) {
    found->no_driver = 1;
    return;
  }
  int n = mt_device_cuda_list(kind, info, MT_GPU_MOST, why, sizeof why);
  rank->ngpu = n < MT_GPU_MOST ? n : MT_GPU_MOST;
  rank->wish = automatic ? MT_GPU_FREE : MT_GPU_ANY;
  const char *colon = strchr(wish, ':');
  if (colon) {
    rank->wish = MT_GPU_NAMED;
    rank->named = atoi(colon + 1);
  }
  for (int i = 0; i < rank->ngpu; i++) {
    struct mt_gpu *gpu = &rank->gpu[i];
    _Static_assert(sizeof gpu->name == sizeof info->name, "names are copied whole");
    memcpy(gpu->name, info[i].name, sizeof gpu->name);
    memcpy(gpu->uuid, info[i].uuid, sizeof gpu->uuid);
    gpu->domain = info[i].domain;
    gpu->bus = info[i].bus;
    gpu->slot = info[i].slot;
    gpu->package = gpu->numa = -1;
    gpu->mem_bytes = info[i].mem_bytes;
  }
  if (!strcmp(kind, "cuda"))
    mt_discover_gpus(rank->gpu, rank->ngpu);
  if (automatic && !n)
    snprintf(found->trouble, sizeof found->trouble, "%s has NVIDIA's driver, but no GPU that can be used: %s",
             place->host, why);
  else if (!n)
    snprintf(found->trouble, sizeof found->trouble, "parallel.device = %s on %s: %s", wish, place->host, why);
  else if (rank->wish == MT_GPU_NAMED && rank->named >= n)
    snprintf(found->trouble, sizeof found->trouble,
             "parallel.device = %s on %s: found %d devices, expected a number below that", wish, place->host, n);
  if (!automatic && *found->trouble)
    found->status = MT_USAGE;
}

/* Says the first rank's error, or without one each host's warning. Returns the status that all agree on. */
static enum mt_status say_trouble(const struct mt_comm *comm, const struct found *all)
{
  for (int r = 0; r < comm->size; r++)
    if (all[r].status) {
      if (comm->rank == 0)
        mt_error("%s", all[r].trouble);
      return (enum mt_status)all[r].status;
    }
  for (int r = 0; r < comm->size && comm->rank == 0; r++) {
    int said = 0;
    for (int q = 0; q < r; q++)
      said |= !strcmp(all[q].trouble, all[r].trouble);
    if (*all[r].trouble && !said)
      mt_warn("%s", all[r].trouble);
  }
  return MT_OK;
}

/* Whose cores are near, where there is a choice. */
static void put_near(struct mt_text_buffer *text, const struct mt_place *host, int package, int numa)
{
  if (host->packages > 1 && package >= 0)
    mt_text_add(text, ", package %d", package);
  if (host->numas > 1 && numa >= 0)
    mt_text_add(text, ", NUMA domain %d", numa);
}

static void put_gpu(struct mt_text_buffer *text, const struct mt_place *host, const struct mt_gpu *gpu)
{
  mt_text_add(text, "%s, %.1f GiB", gpu->name, (double)gpu->mem_bytes / (1 << 30));
  if (gpu->bus >= 0)
    mt_text_add(text, ", PCI %04x:%02x:%02x", gpu->domain, gpu->bus, gpu->slot);
  put_near(text, host, gpu->package, gpu->numa);
}

static void put_rank(struct mt_text_buffer *text, int r, const struct mt_place *place, const struct mt_gpu_rank *rank,
                     const struct mt_gpu_choice *choice)
{
  static const char *const near[] = {"in its NUMA domain", "in its package", ""};
  const struct mt_gpu *gpu = &rank->gpu[choice->device];
  mt_text_add(text, "rank %d: GPU %d (", r, choice->device);
  put_gpu(text, place, gpu);
  mt_text_add(text, ")");
  if (rank->wish == MT_GPU_NAMED)
    mt_text_add(text, ", as it was told");
  else if (*near[choice->near])
    mt_text_add(text, ", %s", near[choice->near]);
  else if (gpu->numa < 0 || rank->numa < 0)
    mt_text_add(text, ", the first that was free");
  else
    mt_text_add(text, ", none nearer was free");
  if (choice->sharers > 1)
    mt_text_add(text, ", shared by %d ranks", choice->sharers);
  mt_text_add(text, "\n");
}

/* The GPUs of a host's ranks [n] that nobody took; each is told of once. */
static void put_idle(struct mt_text_buffer *text, const struct mt_place *host, const struct found *const *found, int n,
                     const struct mt_gpu_choice *choice)
{
  for (int r = 0; r < n; r++)
    for (int d = 0; d < found[r]->rank.ngpu; d++) {
      const struct mt_gpu *gpu = &found[r]->rank.gpu[d];
      int known = 0;
      for (int q = 0; q < n; q++) {
        const struct mt_gpu_rank *other = &found[q]->rank;
        known |= choice[q].device >= 0 && !memcmp(other->gpu[choice[q].device].uuid, gpu->uuid, sizeof gpu->uuid);
        for (int k = 0; k < other->ngpu && (q < r || (q == r && k < d)); k++)
          known |= !memcmp(other->gpu[k].uuid, gpu->uuid, sizeof gpu->uuid);
      }
      if (known)
        continue;
      mt_text_add(text, "%s: no rank for GPU %d (", host->host, d);
      put_gpu(text, host, gpu);
      mt_text_add(text, ")\n");
    }
}

/* Why there is no GPU at all, where nobody was told to do without. */
static void put_none(struct mt_text_buffer *text, const struct mt_place *place, const struct found *all, int n)
{
  int hosts = 0, last = 0;
  for (int r = 0; r < n; r++)
    if (all[r].no_driver && (!hosts || strcmp(place[r].host, place[last].host))) {
      hosts++;
      last = r;
    }
  if (hosts)
    mt_text_add(text, "no GPU: %s%s no NVIDIA driver\n", place[last].host, hosts > 1 ? " and others have" : " has");
}

/* The real host's name: pretend nodes share one. */
static int same_host(const struct mt_place *a, const struct mt_place *b)
{
  size_t n = strcspn(a->host, "#");
  return n == strcspn(b->host, "#") && !memcmp(a->host, b->host, n);
}

enum mt_status mt_devices_choose(struct mt_comm *comm, const char *wish, char *name, size_t size, char **report)
{
  struct mt_place *place = comm->cluster->place;
  const int P = comm->size;
  const char *kind = strncmp(wish, "emulated", strlen("emulated")) ? "cuda" : "emulated";
  struct found *mine = MT_ZNEW(MT_TAG_COMM, struct found, 1), *all = MT_NEW(MT_TAG_COMM, struct found, P);
  const struct found **host = MT_NEW(MT_TAG_COMM, const struct found *, P);
  struct mt_gpu_rank *rank = MT_NEW(MT_TAG_COMM, struct mt_gpu_rank, P);
  struct mt_gpu_choice *choice = MT_NEW(MT_TAG_COMM, struct mt_gpu_choice, P);
  int *at = MT_NEW(MT_TAG_COMM, int, P);
  look(&place[comm->rank], wish, kind, mine);
  mine->emulated = !strcmp(kind, "emulated");
  struct mt_text_buffer text = {0};
  mt_allgather(comm, mine, all, sizeof *mine);
  enum mt_status status = say_trouble(comm, all);
  for (int first = 0; first < P && !status; first++) {
    int n = 0, known = 0;
    for (int r = 0; r < first; r++)
      known |= same_host(&place[r], &place[first]);
    for (int r = first; r < P && !known; r++)
      if (same_host(&place[r], &place[first])) {
        host[n] = &all[r];
        rank[n] = all[r].rank;
        at[n++] = r;
      }
    mt_gpu_choose(rank, n, choice);
    for (int i = 0; i < n; i++) {
      struct mt_place *p = &place[at[i]];
      p->kind = choice[i].device < 0 ? MT_DEVICE_CPU : MT_DEVICE_CUDA;
      p->device = choice[i].device;
      if (choice[i].device < 0)
        continue;
      if (!host[i]->emulated) /* an emulated one's memory is the host's */
        p->mem_bytes = rank[i].gpu[choice[i].device].mem_bytes / choice[i].sharers;
      put_rank(&text, at[i], p, &rank[i], &choice[i]);
      if (choice[i].sharers > 1 && !host[i]->emulated && comm->rank == 0)
        mt_warn("rank %d shares GPU %d of %s with %d others: start fewer ranks there", at[i], choice[i].device, p->host,
                choice[i].sharers - 1);
    }
    put_idle(&text, &place[first], host, n, choice);
  }
  if (!text.text)
    put_none(&text, place, all, P);
  if (!status && place[comm->rank].kind == MT_DEVICE_CUDA)
    snprintf(name, size, "%s:%d", kind, place[comm->rank].device);
  else
    snprintf(name, size, "cpu");
  if (report)
    *report = comm->rank == 0 && !status ? mt_strdup(text.text) : NULL; /* NULL gives NULL */
  mt_free(text.text);
  mt_free(at);
  mt_free(choice);
  mt_free(rank);
  mt_free(host);
  mt_free(all);
  mt_free(mine);
  return status;
}

/* What MPI says of itself, here and now: how it was built, and what it found. */
static int mpi_takes_device_memory(void)
{
#ifdef MPIX_CUDA_AWARE_SUPPORT
  return MPIX_Query_cuda_support() == 1;
#else
  return 0;
#endif
}

enum mt_status mt_devices_reach(struct mt_comm *comm, const struct mt_device *device, enum mt_device_memory wish, int say,
                                enum mt_reach *reach, int64_t *chunk)
{
  const int apart = device->host != device;
  int64_t any[2] = {apart, apart && !mpi_takes_device_memory()};
  mt_max_int(comm, any, 2);
  if (wish != MT_DEVICE_MEMORY_AUTO && !any[0] && comm->rank == 0)
    mt_warn("parallel.device_memory: found %s, which is about rows of GPUs, and no rank has one",
            wish == MT_DEVICE_MEMORY_DIRECT ? "direct" : "staged");
  if (wish == MT_DEVICE_MEMORY_DIRECT && any[1]) {
    if (comm->rank == 0)
      mt_error("parallel.device_memory: found direct, expected auto or staged: this MPI does not take a GPU's memory "
               "(MPIX_Query_cuda_support)");
    return MT_USAGE;
  }
  const int staged = any[0] && (wish == MT_DEVICE_MEMORY_STAGED || any[1]);
  *reach = !apart ? MT_REACH_HOST : staged ? MT_REACH_STAGED : MT_REACH_DIRECT;
  *chunk = staged ? mt_exchange_chunk : INT64_MAX;
  if (any[0] && say && comm->rank == 0 && staged)
    mt_info("rows of GPUs: through pinned memory in chunks of %lld KiB, %s", (long long)(*chunk >> 10),
            any[1] ? "as this MPI does not take a GPU's memory" : "as parallel.device_memory says");
  else if (any[0] && say && comm->rank == 0)
    mt_info("rows of GPUs: MPI takes them from and to their memory");
  return MT_OK;
}

char *mt_devices_nics(struct mt_comm *comm)
{
  enum { MOST = 16 };
  const struct mt_place *place = comm->cluster->place;
  struct mt_nic none = {.bus = -1}, *mine = MT_NEW(MT_TAG_COMM, struct mt_nic, MOST),
                *all = MT_NEW(MT_TAG_COMM, struct mt_nic, (int64_t)MOST *comm->size);
  struct mt_text_buffer text = {0};
  for (int i = mt_discover_nics(mine, MOST); i < MOST; i++)
    mine[i] = none;
  mt_allgather(comm, mine, all, (int64_t)sizeof *mine * MOST);
  for (int r = 0; r < comm->size && comm->rank == 0; r++) {
    int known = 0;
    for (int q = 0; q < r; q++)
      known |= same_host(&place[q], &place[r]);
    for (int i = 0; i < MOST && !known; i++) {
      const struct mt_nic *nic = &all[r * MOST + i];
      if (nic->bus < 0)
        break;
      mt_text_add(&text, "%.*s: network card %s%s(PCI %04x:%02x:%02x.%x", (int)strcspn(place[r].host, "#"), place[r].host,
                  nic->name, *nic->name ? " " : "", nic->domain, nic->bus, nic->slot, nic->function);
      if (nic->mb_per_s > 0)
        mt_text_add(&text, ", %.3g GB/s", 1e-3 * nic->mb_per_s);
      put_near(&text, &place[r], nic->package, nic->numa);
      mt_text_add(&text, ")\n");
    }
  }
  mt_free(all);
  mt_free(mine);
  return text.text;
}
