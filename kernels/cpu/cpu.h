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

/* Opens a CPU device (ctype f32) that computes with `threads` >= 1 threads. Local. The caller closes it with
 * device->ops->close(device). Always MT_OK: exhausted memory ends the job. */
enum mt_status mt_device_cpu_open(int threads, struct mt_device **device);

/* Fills the entries that this backend has and leaves the others (those of the reference) alone. Local. One
 * such function per build; the plain one runs on every processor of the architecture. */
void mt_cpu_kernels_plain(struct mt_kernels *kernels);

#endif
