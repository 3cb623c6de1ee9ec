/* GPUs of one host as plain data, and which of its ranks takes which.
 *
 * The problem: hosts hold no GPU, one or many, more or fewer than ranks; launchers may show each rank a GPU of its own
 * or all of them to all; a GPU hangs on one package, and a rank that is bound to another pays for each byte. The idea:
 * ranks show each other what they see; GPUs are told apart by their UUID, which also tells parts of one GPU apart; then
 * one pure function deals them out, nearest first. The trap: "device 0" is another GPU for each rank where the launcher
 * hides the others, so numbers mean nothing beyond a rank. */
#ifndef MT_GPU_H
#define MT_GPU_H
#include <stdint.h>

enum { MT_GPU_MOST = 16 }; /* that a rank can tell of */

/* Fixed size: ranks exchange it as bytes. */
struct mt_gpu {
  char name[64];
  uint8_t uuid[16];
  int32_t domain, bus, slot; /* PCI address, -1 = unknown */
  int32_t package, numa;     /* whose cores are near it, numbered as in struct mt_place; -1 = several or unknown */
  int64_t mem_bytes;
};

enum mt_gpu_wish {
  MT_GPU_NONE,  /* a CPU rank */
  MT_GPU_FREE,  /* a GPU of its own, if one is left */
  MT_GPU_ANY,   /* a GPU, shared if need be */
  MT_GPU_NAMED, /* this one: `named` */
};

/* What a rank sees and wants. */
struct mt_gpu_rank {
  int32_t wish, named;   /* enum mt_gpu_wish; number among gpu[] */
  int32_t package, numa; /* of its cores; -1 = several or unknown */
  int32_t ngpu;          /* that it can use, at most MT_GPU_MOST, in its own numbering */
  struct mt_gpu gpu[MT_GPU_MOST];
};

/* How near the GPU is to the rank's cores. */
enum mt_gpu_near { MT_GPU_SAME_NUMA, MT_GPU_SAME_PACKAGE, MT_GPU_SOMEWHERE };

struct mt_gpu_choice {
  int32_t device;  /* number among the rank's gpu[], -1 = the rank is a CPU rank */
  int32_t near;    /* enum mt_gpu_near */
  int32_t sharers; /* ranks that drive this GPU, 1 = alone */
};

/* Deals GPUs out to the n ranks of a host, in order: first those that are named; then, for three degrees of nearness,
 * each rank without one takes the first free GPU so near that it sees; ranks that will share go round what they see.
 * choice[n]. Pure. */
void mt_gpu_choose(const struct mt_gpu_rank *rank, int n, struct mt_gpu_choice *choice);

#endif
