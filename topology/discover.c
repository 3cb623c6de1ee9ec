/* Where this process runs; see discover.h.
 *
 * The idea: count cores, not hardware threads, since two threads of a core share its arithmetic; and count
 * what the job may use (hwloc leaves out what the control group forbids), not what is soldered in. The traps:
 * a core belongs to several NUMA nodes where memory is of several kinds (on-package memory, CXL), so a core's
 * domain is the smallest one around it; OpenMP may have bound the first thread to one core already, when the
 * library was loaded, so its places count as allowed too; and a topology read from a file knows no binding.
 */
#include "config.h"
#include "topology/discover.h"
#include "topology/cgroup.h"
#include "base/launcher.h"
#include "base/log.h"
#include "base/memory.h"
#include <hwloc.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Printable ASCII only, since the text goes into JSON and tables. */
static void copy_text(char *to, size_t size, const char *from)
{
  size_t n = 0;
  for (; from && *from && n + 1 < size; from++)
    to[n++] = *from >= ' ' && *from <= '~' ? *from : '?';
  while (n > 0 && to[n - 1] == ' ')
    n--;
  to[n] = 0;
}

/* Processors of the affinity mask, however many the kernel knows; 0 if it cannot be read. */
static int affinity_count(void)
{
  for (int n = 1024; n <= 1 << 20; n *= 4) {
    cpu_set_t *set = CPU_ALLOC(n);
    size_t size = CPU_ALLOC_SIZE(n);
    int count = set && sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (count > 0)
      return count;
  }
  return 0;
}

/* Processors that this process may run on, in `mine`. */
static void allowed_set(hwloc_topology_t topology, hwloc_bitmap_t mine)
{
  hwloc_const_bitmap_t all = hwloc_topology_get_allowed_cpuset(topology);
  if (hwloc_topology_is_thissystem(topology) && hwloc_get_cpubind(topology, mine, HWLOC_CPUBIND_PROCESS) == 0) {
#ifdef _OPENMP
    int nplace = omp_get_num_places();
    for (int i = 0; i < nplace; i++) {
      int n = omp_get_place_num_procs(i);
      int *id = MT_ZNEW(MT_TAG_MISC, int, n);
      omp_get_place_proc_ids(i, id);
      for (int k = 0; k < n; k++)
        if (id[k] >= 0)
          hwloc_bitmap_set(mine, (unsigned)id[k]);
      mt_free(id);
    }
#endif
    hwloc_bitmap_and(mine, mine, all);
    if (!hwloc_bitmap_iszero(mine))
      return;
  }
  hwloc_bitmap_copy(mine, all);
}

/* The logical index of the smallest NUMA node around a core, the first of equals; -1 if none. */
static int core_domain(hwloc_topology_t topology, hwloc_obj_t core)
{
  int best = -1, weight = 0;
  for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node));) {
    int size = hwloc_bitmap_weight(node->cpuset);
    if (hwloc_bitmap_isincluded(core->cpuset, node->cpuset) && (best < 0 || size < weight)) {
      best = (int)node->logical_index;
      weight = size;
    }
  }
  return best;
}

/* Accumulates "all in one, and which": -2 = nothing yet, -1 = several. */
static int join(int one, int other)
{
  return one == -2 || one == other ? other : -1;
}

static void count_domains(hwloc_topology_t topology, hwloc_const_bitmap_t mine, struct mt_place *place)
{
  /* Domains that hold cores are numbered in hwloc's order; those of memory alone are left out. */
  int nnuma = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
  int *number = MT_ZNEW(MT_TAG_MISC, int, nnuma > 0 ? nnuma : 0);
  for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core));) {
    int domain = core_domain(topology, core);
    if (domain >= 0)
      number[domain] = 1;
  }
  int numas = 0;
  for (int i = 0; i < nnuma; i++)
    number[i] = number[i] ? numas++ : -1;

  int package = -2, numa = -2;
  const char *model = NULL;
  for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core));) {
    place->node_cores++;
    if (!hwloc_bitmap_intersects(core->cpuset, mine))
      continue;
    place->cores++;
    int domain = core_domain(topology, core);
    numa = join(numa, domain >= 0 ? number[domain] : -1);
    hwloc_obj_t parent = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, core);
    package = join(package, parent ? (int)parent->logical_index : -1);
    if (!model && parent)
      model = hwloc_obj_get_info_by_name(parent, "CPUModel");
  }
  mt_free(number);
  place->packages = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE);
  place->numas = numas;
  if (place->packages <= 0)
    place->packages = 1, package = 0;
  if (place->numas <= 0)
    place->numas = 1, numa = 0;
  place->package = package;
  place->numa = numa;
  if (!model)
    model = hwloc_obj_get_info_by_name(hwloc_get_root_obj(topology), "CPUModel");
  copy_text(place->model, sizeof place->model, model);
}

/* Everything hwloc knows; NULL, or the reason why it is not enough. *here = 1 if it describes this machine.
 */
static const char *describe(struct mt_place *place, int *here)
{
  *here = 1;
  place->cores = place->node_cores = 0;
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0)
    return "hwloc does not start";
  const char *problem = NULL;
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  /* Without groups a NUMA node inside a package would be widened to the package. */
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_GROUP, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(topology) != 0) {
    problem = "hwloc cannot read it";
  } else {
    *here = hwloc_topology_is_thissystem(topology);
    place->mem_bytes = (int64_t)hwloc_get_root_obj(topology)->total_memory;
    hwloc_bitmap_t mine = hwloc_bitmap_alloc();
    if (mine) {
      allowed_set(topology, mine);
      count_domains(topology, mine, place);
    }
    hwloc_bitmap_free(mine);
    if (place->cores < 1) {
      problem = "hwloc finds no cores";
      if (!*here)
        place->node_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    }
  }
  hwloc_topology_destroy(topology);
  return problem;
}

/* ---- what hangs on the bus ---- */

enum { DISPLAY = 0x03, NETWORK = 0x02, INFINIBAND = 0x0c06, NVIDIA = 0x10de };

/* A topology with the cards of the bus, or with `names` also what the system calls them; NULL if there is none. */
static hwloc_topology_t open_bus(int names)
{
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0)
    return NULL;
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_GROUP, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (names)
    hwloc_topology_set_type_filter(topology, HWLOC_OBJ_OS_DEVICE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(topology) == 0)
    return topology;
  hwloc_topology_destroy(topology);
  return NULL;
}

/* Sets package and numa to those of the cores near a card; 0 if none are. */
static int locate(hwloc_topology_t topology, hwloc_obj_t card, int32_t *package, int32_t *numa)
{
  hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology, card);
  struct mt_place place;
  memset(&place, 0, sizeof place);
  if (near && near->cpuset)
    count_domains(topology, near->cpuset, &place);
  if (place.cores < 1)
    return 0;
  *package = place.package;
  *numa = place.numa;
  return 1;
}

void mt_discover_gpus(struct mt_gpu *gpu, int n)
{
  hwloc_topology_t topology = n > 0 ? open_bus(0) : NULL;
  if (!topology)
    return;
  for (hwloc_obj_t pci = NULL; (pci = hwloc_get_next_pcidev(topology, pci));) {
    const struct hwloc_pcidev_attr_s *at = &pci->attr->pcidev;
    if (at->class_id >> 8 != DISPLAY || at->vendor_id != NVIDIA)
      continue;
    for (int i = 0; i < n; i++)
      if (gpu[i].domain == (int)at->domain && gpu[i].bus == at->bus && gpu[i].slot == at->dev)
        locate(topology, pci, &gpu[i].package, &gpu[i].numa);
  }
  hwloc_topology_destroy(topology);
}

int mt_discover_nics(struct mt_nic *nic, int most)
{
  hwloc_topology_t topology = open_bus(1);
  int n = 0;
  for (hwloc_obj_t pci = NULL; topology && n < most && (pci = hwloc_get_next_pcidev(topology, pci));) {
    const struct hwloc_pcidev_attr_s *at = &pci->attr->pcidev;
    if (at->class_id >> 8 != NETWORK && at->class_id != INFINIBAND)
      continue;
    struct mt_nic *it = &nic[n++];
    *it = (struct mt_nic){.domain = (int32_t)at->domain, .bus = at->bus, .slot = at->dev, .function = at->func,
                          .package = -1, .numa = -1};
    it->mb_per_s = (int32_t)(at->linkspeed * 1000 + 0.5f);
    locate(topology, pci, &it->package, &it->numa);
    for (hwloc_obj_t os = pci->io_first_child; os; os = os->next_sibling) {
      size_t used = strlen(it->name), separator = used ? 2 : 0;
      if (os->type != HWLOC_OBJ_OS_DEVICE || !os->name || used + separator + strlen(os->name) >= sizeof it->name ||
          (os->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK && os->attr->osdev.type != HWLOC_OBJ_OSDEV_OPENFABRICS))
        continue;
      memcpy(it->name + used, ", ", separator);
      copy_text(it->name + used + separator, sizeof it->name - used - separator, os->name);
    }
  }
  if (topology)
    hwloc_topology_destroy(topology);
  return n;
}

/* Says which descriptions cannot be used, and forgets them: some versions of hwloc pass over them without a word,
 * others fail. Returns how many there were. */
static int forget_wishes(void)
{
  static const char *const variable[] = {"HWLOC_XMLFILE", "HWLOC_SYNTHETIC"};
  int n = 0;
  for (size_t i = 0; i < sizeof variable / sizeof *variable; i++) {
    const char *value = getenv(variable[i]);
    if (!value || !*value)
      continue;
    n++;
    if (mt_launcher_local_rank() <= 0) /* one warning a node is enough */
      mt_warn("%s=%s cannot be used; taking the topology of this machine", variable[i], value);
    unsetenv(variable[i]);
  }
  return n;
}

void mt_discover(struct mt_place *place)
{
  memset(place, 0, sizeof *place);
  char host[256] = "";
  if (gethostname(host, sizeof host - 1) != 0 || !*host)
    strcpy(host, "localhost");
  copy_text(place->host, sizeof place->host, host);
  place->kind = MT_DEVICE_CPU;
  place->device = -1;
  place->threads = 1;

  /* hwloc's own complaints are ours to make, in one line. */
  setenv("HWLOC_HIDE_ERRORS", "2", 0);
  int here;
  const char *problem = describe(place, &here);
  if (here && (problem || !getenv("HWLOC_THISSYSTEM")) && forget_wishes() > 0 && problem)
    problem = describe(place, &here);
  if (problem) {
    int count = here ? affinity_count() : place->node_cores;
    long online = here ? sysconf(_SC_NPROCESSORS_ONLN) : count;
    place->cores = count > 0 ? count : online > 0 ? (int32_t)online : 1;
    place->node_cores = online > place->cores ? (int32_t)online : place->cores;
    place->packages = place->numas = 1;
    place->package = place->numa = -1;
    place->flat = 1;
    if (mt_launcher_local_rank() <= 0) /* one warning a node is enough */
      mt_warn("topology of %s: %s; taking it as flat: one package, one NUMA domain, %d of %d processors", place->host,
              problem, place->cores, place->node_cores);
  }
  if (!here)
    return;
  /* The kernel's total: the sum over NUMA nodes misses memory that was added while running. */
  long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0)
    place->mem_bytes = (int64_t)pages * page;
  int64_t limit = mt_cgroup_memory("");
  if (limit > 0 && limit < place->mem_bytes)
    place->mem_bytes = limit;
  limit = mt_cgroup_cores("");
  if (limit > 0 && limit < place->node_cores)
    place->node_cores = (int32_t)limit;
  if (place->cores > place->node_cores)
    place->cores = place->node_cores;
}

char *mt_discover_library(void)
{
  unsigned api = hwloc_get_api_version();
  return mt_format("hwloc %s (interface %u.%u.%u)", HWLOC_VERSION, api >> 16, api >> 8 & 255, api & 255);
}
