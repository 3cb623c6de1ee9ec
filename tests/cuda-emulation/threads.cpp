/* A block's threads as fibers; see cuda_runtime.h.
 *
 * The idea: blocks run one after the other, their threads in turn, each until it waits; then the next. When nobody can
 * go on and not all have ended, the kernel's barriers do not match: that is reported, where a GPU would hang or go on
 * with rubbish. Warp-wide operations want all 32 lanes. A block that ends with threads at a barrier, or lanes of one
 * warp at different operations, is a fault too. */
#include <cuda_runtime.h>
#include "emulation.h"
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

emulated_block emulated_now;
dim3 emulated_thread_index;

/* ---- switching ---- */

#if defined __x86_64__ && !defined EMULATED_UCONTEXT
extern "C" void emulated_switch(void **from, void *to);
/* What the ABI wants kept is pushed; the rest is the stack. */
__asm__(".text\n.p2align 4\n.globl emulated_switch\n.hidden emulated_switch\n.type emulated_switch,@function\n"
        "emulated_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
        ".size emulated_switch,.-emulated_switch\n");
struct context {
  void *at;
  void start(char *stack, size_t bytes, void (*entry)())
  {
    void **top = (void **)(stack + bytes - 16);
    *--top = nullptr; /* entry's return address: the stack is where a call would leave it */
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++)
      *--top = nullptr;
    at = top;
  }
  void go(context &to)
  {
    emulated_switch(&at, to.at);
  }
};
#else
#include <ucontext.h>
struct context {
  ucontext_t at;
  void start(char *stack, size_t bytes, void (*entry)())
  {
    getcontext(&at);
    at.uc_stack.ss_sp = stack;
    at.uc_stack.ss_size = bytes;
    at.uc_link = nullptr;
    makecontext(&at, entry, 0);
  }
  void go(context &to)
  {
    swapcontext(&at, &to.at);
  }
};
#endif

/* ---- a block ---- */

enum { MOST_THREADS = 1024, STACK = 128 << 10, PAGE = 4096 };
enum state { READY, AT_BARRIER, AT_WARP, ENDED };

struct emulated_thread {
  context at;
  char *stack;
  dim3 index;
  int state;
};
struct warp {
  unsigned arrived;
  int phase;
  char lane[2][32][EMULATED_LANE_BYTES];
};

static emulated_thread thread[MOST_THREADS];
static warp warps[MOST_THREADS / 32];
static context scheduler;
static int current, nthread, live, waiting, votes, vote_result;
static const std::function<void()> *body;
static const char *kernel;

const char *emulated_where()
{
  static char text[200];
  if (!kernel)
    return emulated_running() ? emulated_running() : "the host";
  snprintf(text, sizeof text, "%s, block (%u, %u, %u), thread (%u, %u, %u)", kernel, emulated_now.index.x,
           emulated_now.index.y, emulated_now.index.z, emulated_thread_index.x, emulated_thread_index.y,
           emulated_thread_index.z);
  return text;
}

static void leave(int state)
{
  thread[current].state = state;
  thread[current].at.go(scheduler);
}

static void entry()
{
  (*body)();
  live--;
  leave(ENDED);
}

/* All threads of the block, ended ones included: a GPU may or may not count those, so no kernel may need it. */
void __syncthreads()
{
  if (++waiting < nthread) {
    leave(AT_BARRIER);
    return;
  }
  waiting = 0;
  for (int i = 0; i < nthread; i++)
    if (thread[i].state == AT_BARRIER)
      thread[i].state = READY;
}

int __syncthreads_or(int value)
{
  votes |= value != 0;
  if (waiting + 1 == nthread) {
    vote_result = votes;
    votes = 0;
  }
  __syncthreads();
  int result = vote_result;
  __syncthreads(); /* nobody votes again before all have read */
  return result;
}

int emulated_lane()
{
  return current & 31;
}

const char *emulated_warp_exchange(unsigned mask, const void *mine, int bytes, void (*last)(char *lanes))
{
  warp *w = &warps[current / 32];
  if (mask != 0xffffffffu)
    emulated_fault("%s: a warp-wide operation of lanes %x only", emulated_where(), mask);
  int phase = w->phase & 1, first = current & ~31;
  memcpy(w->lane[phase][current & 31], mine, (size_t)bytes);
  w->arrived |= 1u << (current & 31);
  if (w->arrived != mask) {
    leave(AT_WARP);
  } else {
    w->arrived = 0;
    w->phase++;
    if (last)
      last(w->lane[phase][0]);
    for (int i = first; i < first + 32; i++)
      if (thread[i].state == AT_WARP)
        thread[i].state = READY;
  }
  return w->lane[phase][0];
}

void __syncwarp(unsigned mask)
{
  char nothing = 0;
  emulated_warp_exchange(mask, &nothing, 1);
}

unsigned __ballot_sync(unsigned mask, int predicate)
{
  int value = predicate != 0;
  const char *all = emulated_warp_exchange(mask, &value, sizeof value);
  unsigned result = 0;
  for (int i = 0; i < 32; i++)
    result |= (unsigned)all[i * EMULATED_LANE_BYTES] << i;
  return result;
}

/* ---- shared memory ---- */

enum { SHARED_GUARD = 64 };
struct variable {
  const void *place;
  char *at;
  int64_t bytes;
};
static std::vector<variable> variables;
static char *shared_arena, *shared_next;
static int64_t dynamic_bytes, static_bytes;
enum { SHARED_ARENA = 1 << 20 };

static void guard_behind(char *end)
{
  emulated_poison(end, SHARED_GUARD);
  shared_next = end + SHARED_GUARD;
}

static void begin_shared(size_t dynamic)
{
  if (!shared_arena)
    shared_arena = (char *)emulated_pages(SHARED_ARENA);
  variables.clear();
  static_bytes = 0;
  dynamic_bytes = (int64_t)dynamic;
  emulated_poison(shared_arena, dynamic_bytes + SHARED_GUARD);
  shared_next = shared_arena + (dynamic_bytes + SHARED_GUARD + 63) / 64 * 64;
}

void *emulated_shared_dynamic()
{
  return shared_arena;
}

void *emulated_shared(const void *place, int64_t bytes)
{
  for (const variable &v : variables)
    if (v.place == place)
      return v.at;
  static_bytes += bytes;
  if (static_bytes > EMULATED_SHARED_DEFAULT || static_bytes + dynamic_bytes > EMULATED_SHARED_MOST)
    emulated_fault("%s: %lld bytes of static and %lld of dynamic shared memory; a GPU has %d and, both together, %d",
                   emulated_where(), (long long)static_bytes, (long long)dynamic_bytes, EMULATED_SHARED_DEFAULT,
                   EMULATED_SHARED_MOST);
  char *at = (char *)(((uintptr_t)shared_next + 15) & ~(uintptr_t)15);
  emulated_poison(at, bytes);
  variables.push_back({place, at, bytes});
  guard_behind(at + bytes);
  return at;
}

static void end_shared()
{
  if (!emulated_is_poison(shared_arena + dynamic_bytes, SHARED_GUARD))
    emulated_fault("%s: written behind its %lld bytes of dynamic shared memory", kernel, (long long)dynamic_bytes);
  for (const variable &v : variables)
    if (!emulated_is_poison(v.at + v.bytes, SHARED_GUARD))
      emulated_fault("%s: written behind an array of %lld bytes in shared memory", kernel, (long long)v.bytes);
}

/* ---- a grid ---- */

static uint64_t seed;
static uint64_t random_bits() /* SplitMix64 */
{
  uint64_t z = seed += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

/* n things in the device's order. */
static void put_in_order(std::vector<int> &order, int n)
{
  order.resize((size_t)n);
  for (int i = 0; i < n; i++)
    order[(size_t)i] = emulated_order() == 1 ? n - 1 - i : i;
  for (int i = n - 1; emulated_order() == 2 && i > 0; i--)
    std::swap(order[(size_t)i], order[random_bits() % (uint64_t)(i + 1)]);
}

static void run_block(const std::vector<int> &order, size_t shared)
{
  begin_shared(shared);
  live = nthread;
  waiting = votes = 0;
  for (int i = 0; i < nthread; i++) {
    emulated_thread *t = &thread[i];
    if (!t->stack)
      t->stack = (char *)emulated_pages(STACK);
    t->index = dim3((unsigned)i % emulated_now.block.x, (unsigned)i / emulated_now.block.x % emulated_now.block.y,
                    (unsigned)i / emulated_now.block.x / emulated_now.block.y);
    t->state = READY;
    t->at.start(t->stack, STACK, entry);
  }
  for (int w = 0; w < (nthread + 31) / 32; w++)
    warps[w].arrived = 0;
  while (live > 0) {
    int moved = 0;
    for (int i : order) {
      if (thread[i].state != READY)
        continue;
      moved = 1;
      current = i;
      emulated_thread_index = thread[i].index;
      scheduler.go(thread[i].at);
    }
    if (!moved) {
      int at_warp = 0;
      for (int i = 0; i < nthread; i++)
        at_warp += thread[i].state == AT_WARP;
      emulated_fault(
          "%s, block (%u, %u, %u): %d of %d threads wait at __syncthreads, %d at a warp-wide operation, %d have "
          "ended: a barrier that not all reach",
          kernel, emulated_now.index.x, emulated_now.index.y, emulated_now.index.z, waiting, nthread, at_warp,
          nthread - live);
    }
  }
  end_shared();
}

void emulated_run(const char *name, dim3 grid, dim3 block, size_t shared, const std::function<void()> &f)
{
  static std::vector<int> order, blocks;
  kernel = name;
  body = &f;
  nthread = (int)(block.x * block.y * block.z);
  seed = 1;
  put_in_order(order, nthread);
  emulated_now.grid = grid;
  emulated_now.block = block;
  put_in_order(blocks, (int)(grid.x * grid.y * grid.z));
  for (int b : blocks) {
    emulated_now.index = dim3((unsigned)b % grid.x, (unsigned)b / grid.x % grid.y, (unsigned)b / grid.x / grid.y);
    run_block(order, shared);
  }
  kernel = nullptr;
}
