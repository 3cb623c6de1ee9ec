/* The CPU backend: a device whose kernels are oneDNN's sgemm inside our own OpenMP loops, and vectorised
 * loops for the rest.
 *
 * The idea: one set of sources, compiled once per instruction set (build.h); each build fills the table of
 * kernels, and open chooses among the builds by what the processor says, never by what the compiling machine
 * was. So one executable runs on unlike nodes. The trap: results must not depend on the number of threads.
 * Work is cut into pieces by shapes alone; a piece is one thread's, and no sum crosses pieces except in a
 * fixed order. */
#ifndef MT_CPU_H
#define MT_CPU_H
#include "ops.h"

/* Opens a CPU device (ctype f32) that computes with `threads` >= 1 threads, under one of the names below.
 * Local. The caller closes it with device->ops->close(device). MT_USAGE, said once, if there is no build of
 * that name or this processor cannot run it. cpu        the best build that this processor runs, or the one
 * that MOTLEY_TEST_CPU names (plain, v3, v4) cpu-plain  for every processor of the architecture cpu-v3
 * x86-64-v3: AVX2 and FMA cpu-v4     x86-64-v4: AVX-512 (F, BW, CD, DQ, VL) device->name is always one of the
 * latter three. Builds give different bits: they add in other orders, and v3 and v4 contract a product and a
 * sum to one rounding. */
enum mt_status mt_device_cpu_open(const char *name, int threads, struct mt_device **device);

/* Build number i (from 0, best last): its device's name, or NULL where there are no more; *runs says whether
 * this processor can run it. Local. */
const char *mt_device_cpu_build(int i, int *runs);

/* Fills the entries that this backend has and leaves the others (those of the reference) alone. Local. One
 * such function per build; the plain one runs on every processor of the architecture. */
void mt_cpu_kernels_plain(struct mt_kernels *kernels);
void mt_cpu_kernels_v3(struct mt_kernels *kernels);
void mt_cpu_kernels_v4(struct mt_kernels *kernels);

#endif
