/* What the environment of the launcher (Open MPI, PMIx, PMI, Slurm) says of this process, before MPI is up. The nearest
 * launcher's word counts: mpirun may run inside a Slurm step of several tasks. Local, all of it. */
#ifndef MT_LAUNCHER_H
#define MT_LAUNCHER_H
#include <stdint.h>

/* This process's number; 0 without a launcher. Messages about the command line come from 0 alone. */
int mt_launcher_rank(void);
/* Processes of the job, and the variable that says so; 0 without a launcher. MPI adds variables of its own when it starts, so
 * ask before. */
int64_t mt_launcher_size(const char **variable);
/* This process's number on its host, -1 if nobody says; and processes of the job on this host, 0 if nobody says. */
int mt_launcher_local_rank(void);
int64_t mt_launcher_local_size(void);

#endif
