/* No two tasks that may run at the same time touch the same memory, unless both only read: for any plan that a step can run, and
 * by dependencies alone, whatever the order of the list. ranks: 1
 *
 * What a task touches is told here once more, from experts/moe.c, model/block.c and train/step.c, as far as tasks of
 * communication touch it too: what computing alone uses is one thread's. The trap: memory that layers or chunks share. */
#include <string.h>
#include "base/memory.h"
#include "base/random.h"
#include "schedule/plan.h"
#include "test.h"

enum { CASES = 300, LAYERS = 5, MOST_TOUCHED = 8, STREAM = 77 };

enum memory {
  MY_COUNTS, COUNTS, /* of each batch chunk */
  EXCHANGE,          /* plans of it, of each layer and chunk */
  SEND, DSEND, BACK, /* rows: of each chunk; BACK of each layer */
  ARRIVED,           /* rows, of each chunk */
  SLOTS, SLOT_GRADIENTS, /* halves of the pools */
  EXPERTS, EXPERT_GRADIENTS, /* shards of experts, of each layer */
  SHARDS, /* of the shared parameters */
  GRADIENTS, REDUCED, WEIGHTS, /* shared parameters: parts of MT_WHOLE in the order in which they become ready */
  LAYOUTS, PLANNER, SUMS
};

struct touch {
  enum memory memory;
  int write;
  int64_t first, end;
  int layer; /* of rows: where a capacity drops picks, a chunk's rows lie elsewhere in its batch chunk in each layer; else -1 */
};

struct toucher {
  const struct mt_shape *shape;
  const struct mt_plan *plan;
  int n;
  struct touch touch[MOST_TOUCHED];
};

static void touch(struct toucher *t, enum memory memory, int write, int64_t first, int64_t n)
{
  ck_assert_int_lt(t->n, MOST_TOUCHED);
  t->touch[t->n++] = (struct touch){memory, write, first, first + n, -1};
}

static void touch_all(struct toucher *t, enum memory memory, int write)
{
  touch(t, memory, write, 0, INT32_MAX);
}

static void touch_rows(struct toucher *t, enum memory memory, int write, const struct mt_task *task)
{
  touch(t, memory, write, task->chunk, 1);
  t->touch[t->n - 1].layer = task->layer;
}

/* Its plan, and rows on one of the ways. */
static void touch_exchange(struct toucher *t, const struct mt_task *task, enum memory rows, int write, int write_arrived)
{
  touch(t, EXCHANGE, 0, task->layer * MT_MOST_CHUNKS + task->chunk, 1);
  touch_rows(t, rows, write, task);
  touch(t, ARRIVED, write_arrived, task->chunk, 1);
}

/* Parts of the shared gradients that are ready before layer l's. */
static int64_t parts_before(const struct mt_shape *shape, int l)
{
  int64_t sum = shape->head_gradient;
  for (int above = shape->nlayer - 1; above > l; above--)
    sum += shape->layer[above].gradient;
  return sum;
}

static void find_touched(struct toucher *t, const struct mt_task *task)
{
  const struct mt_shape *shape = t->shape;
  const int c = task->chunk, l = task->layer, a = c * t->plan->chunks / t->plan->degree[0];
  int half = 0;
  for (int below = 0; below < l; below++)
    half ^= !shape->layer[below].dense;
  t->n = 0;
  switch (task->kind) {
  case MT_TASK_BATCH: /* random layouts are drawn for each micro-step */
    touch_all(t, LAYOUTS, 1);
    touch_all(t, SUMS, 1);
    break;
  case MT_TASK_GATE:
    touch(t, MY_COUNTS, 1, c, 1);
    touch(t, WEIGHTS, 0, parts_before(shape, l), shape->layer[l].gradient);
    break;
  case MT_TASK_COUNTS:
    touch(t, MY_COUNTS, 0, c, 1);
    touch(t, COUNTS, 1, c, 1);
    break;
  case MT_TASK_PACK: /* what arrives may need more room */
    touch(t, COUNTS, 0, a, 1);
    touch(t, EXCHANGE, 1, l * MT_MOST_CHUNKS + c, 1);
    touch_rows(t, SEND, 1, task);
    touch(t, ARRIVED, 1, c, 1);
    touch_all(t, LAYOUTS, 0);
    touch_all(t, SUMS, 1);
    break;
  case MT_TASK_DISPATCH:
  case MT_TASK_COMBINE_BACK:
    touch_exchange(t, task, SEND, 0, 1);
    break;
  case MT_TASK_COMBINE:
    touch_exchange(t, task, BACK, 1, 0);
    break;
  case MT_TASK_DISPATCH_BACK:
    touch_exchange(t, task, DSEND, 1, 0);
    break;
  case MT_TASK_MERGE:
    touch_rows(t, BACK, 0, task);
    break;
  case MT_TASK_PACK_BACK:
    touch_rows(t, BACK, 0, task);
    touch_rows(t, SEND, 1, task);
    break;
  case MT_TASK_MERGE_BACK:
    touch_rows(t, DSEND, 0, task);
    break;
  case MT_TASK_UNSHARD_INTER:
    touch_all(t, LAYOUTS, 0);
    touch(t, EXPERTS, 0, l, 1);
    touch(t, SLOTS, 1, half, 1);
    break;
  case MT_TASK_UNSHARD_INTRA:
    touch(t, SLOTS, 1, half, 1);
    break;
  case MT_TASK_EXPERTS_BACK:
    touch(t, SLOT_GRADIENTS, 1, half, 1);
    /* fall through */
  case MT_TASK_EXPERTS:
    touch(t, SLOTS, 0, half, 1);
    touch(t, ARRIVED, 1, c, 1);
    break;
  case MT_TASK_RESHARD_INTRA:
    touch_all(t, LAYOUTS, 0);
    touch(t, SLOT_GRADIENTS, 1, half, 1);
    break;
  case MT_TASK_RESHARD_INTER:
    touch(t, SLOT_GRADIENTS, 1, half, 1);
    touch(t, EXPERT_GRADIENTS, 1, l, 1);
    break;
  case MT_TASK_HEAD:
    touch(t, GRADIENTS, 1, 0, shape->head_gradient);
    touch_all(t, WEIGHTS, 0);
    touch_all(t, SUMS, 1);
    break;
  case MT_TASK_GATE_BACK:
  case MT_TASK_MLP_BACK:
  case MT_TASK_ATTENTION_BACK:
    touch(t, GRADIENTS, 1, parts_before(shape, l), shape->layer[l].gradient);
    touch(t, WEIGHTS, 0, parts_before(shape, l), shape->layer[l].gradient);
    break;
  case MT_TASK_EMBED_BACK:
    touch(t, GRADIENTS, 1, parts_before(shape, -1), MT_WHOLE - parts_before(shape, -1));
    break;
  case MT_TASK_EMBED:
    touch(t, WEIGHTS, 0, parts_before(shape, -1), MT_WHOLE - parts_before(shape, -1));
    break;
  case MT_TASK_ATTENTION:
  case MT_TASK_MLP:
    touch(t, WEIGHTS, 0, parts_before(shape, l), shape->layer[l].gradient);
    break;
  case MT_TASK_PLAN: /* from here on a thread of its own reads layouts and writes plans, until they are told */
  case MT_TASK_TELL:
    touch_all(t, LAYOUTS, 0);
    touch_all(t, PLANNER, 1);
    break;
  case MT_TASK_ADOPT:
    touch_all(t, LAYOUTS, 1);
    touch_all(t, PLANNER, 0);
    break;
  case MT_TASK_REDUCE:
    touch(t, GRADIENTS, 1, task->from, task->part);
    touch(t, REDUCED, 1, task->from, task->part);
    break;
  case MT_TASK_NORM: /* of a layer's experts, or of what is shared, to the sum */
    if (l >= 0)
      touch(t, EXPERT_GRADIENTS, 0, l, 1);
    else
      touch_all(t, REDUCED, 0);
    touch_all(t, SUMS, 1);
    break;
  case MT_TASK_STATISTICS: /* and what is not finite */
    touch_all(t, SUMS, 0);
    touch_all(t, REDUCED, 0);
    touch_all(t, EXPERT_GRADIENTS, 0);
    break;
  case MT_TASK_UPDATE:
    if (l >= 0) {
      touch(t, EXPERTS, 1, l, 1);
      touch(t, EXPERT_GRADIENTS, 1, l, 1);
      break;
    }
    touch_all(t, REDUCED, 1);
    touch_all(t, SHARDS, 1);
    break;
  case MT_TASK_PUBLISH:
    touch_all(t, SHARDS, 0);
    touch(t, WEIGHTS, 1, task->from, task->part);
    break;
  default:
    ck_abort_msg("nobody has said what %s touches", mt_task_name(task->kind));
  }
}

static int meet(const struct mt_plan *plan, const struct touch *x, const struct touch *y)
{
  if (x->memory != y->memory || !(x->write || y->write))
    return 0;
  if (x->layer >= 0 && x->layer != y->layer)
    return x->memory != BACK &&
           x->first * plan->chunks / plan->degree[0] == y->first * plan->chunks / plan->degree[0];
  return x->first < y->end && y->first < x->end;
}

static int64_t draw(int64_t least, int64_t most)
{
  static uint64_t n;
  return least + (int64_t)(mt_random_bits(1, STREAM, n++) % (uint64_t)(most - least + 1));
}

/* Tasks before each: a row of bits. */
static uint64_t *new_before(const struct mt_tasks *tasks, int64_t words)
{
  uint64_t *before = MT_ZNEW(MT_TAG_MISC, uint64_t, tasks->n * words);
  for (int i = 0; i < tasks->n; i++)
    for (int d = 0; d < tasks->task[i].ndep; d++) {
      const int dep = tasks->task[i].dep[d];
      before[i * words + dep / 64] |= (uint64_t)1 << dep % 64;
      for (int64_t w = 0; w < words; w++)
        before[i * words + w] |= before[dep * words + w];
    }
  return before;
}

START_TEST(test_nothing_meets)
{
  int64_t pairs = 0;
  for (int i = 0; i < CASES; i++) {
    const int backward = draw(0, 9) > 0, chunks = 1 << draw(0, 3), degree = chunks * (int)draw(1, MT_MOST_CHUNKS / chunks);
    struct mt_shape_layer layer[LAYERS];
    struct mt_shape shape = {.nlayer = (int)draw(1, LAYERS), .nmicro = (int)draw(1, 3), .layer = layer, .sequences = 8,
                             .several = (int)draw(0, 1), .sharded = 1, .gated = (int)draw(0, 1),
                             .recompute = (int)draw(0, 1), .whole = 1, .backward = backward,
                             .follows = (int)draw(0, 1), .run = 1};
    const int most = MT_WHOLE / (shape.nlayer + 2);
    for (int l = 0; l < shape.nlayer; l++)
      layer[l] = (struct mt_shape_layer){draw(0, 3) == 0, (int)draw(0, most), most};
    shape.shared_update = most;
    shape.head_gradient = (int)draw(0, most);
    const struct mt_plan plan = {.chunks = chunks, .degree = {degree, degree}, .one_wire = 1,
                                 .tiled = (int)draw(0, 1), .prefetch = (int)draw(0, 1), .delay = (int)draw(0, 1),
                                 .gradient = (enum mt_gradient)draw(0, 2), .moe_window = (int)draw(0, MT_WHOLE),
                                 .dense_window = (int)draw(0, MT_WHOLE),
                                 .piece = draw(0, 1) ? (int)draw(MT_WHOLE / 50, MT_WHOLE) : 0};
    struct mt_tasks tasks = mt_plan_tasks(&shape, &plan);
    const int64_t words = (tasks.n + 63) / 64;
    uint64_t *before = new_before(&tasks, words);
    struct toucher *toucher = MT_NEW(MT_TAG_MISC, struct toucher, tasks.n);
    for (int t = 0; t < tasks.n; t++) {
      toucher[t] = (struct toucher){.shape = &shape, .plan = &plan};
      find_touched(&toucher[t], &tasks.task[t]);
      for (int u = 0; u < t; u++) {
        const struct mt_task *one = &tasks.task[u], *other = &tasks.task[t];
        if ((one->lane == MT_LANE_COMPUTE) == (other->lane == MT_LANE_COMPUTE) || before[t * words + u / 64] >> u % 64 & 1)
          continue;
        pairs++;
        for (int x = 0; x < toucher[u].n; x++)
          for (int y = 0; y < toucher[t].n; y++)
            ck_assert_msg(!meet(&plan, &toucher[u].touch[x], &toucher[t].touch[y]),
                          "plan %d: %s (micro-step %d, layer %d, chunk %d) and %s (%d, %d, %d) may meet in memory %d", i,
                          mt_task_name(one->kind), one->micro, one->layer, one->chunk, mt_task_name(other->kind),
                          other->micro, other->layer, other->chunk, (int)toucher[u].touch[x].memory);
      }
    }
    mt_free(toucher);
    mt_free(before);
    mt_tasks_free(&tasks);
  }
  ck_assert_int_gt(pairs, 1000 * CASES); /* much may overlap */
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("plan memory");
  TCase *tests = tcase_create("plan memory");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, test_nothing_meets);
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
