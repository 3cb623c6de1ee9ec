/* Status codes and checks.
 *
 * The problem: in a program of many ranks an error that one rank notices must end, or not end, all of them.
 * The idea: two kinds of failure and no third. A bug or an exhausted machine ends the job at once with one line
 * (MT_CHECK, mt_die). What a user can cause (configuration, data, checkpoint) is a status that travels up and, in
 * collective code, is agreed (mt_agree in comm/comm.h) before anyone branches on it.
 * The trap: who decides that something is an error prints it, once; everybody else only passes the status up. */
#ifndef MT_STATUS_H
#define MT_STATUS_H

/* The values are the program's exit codes, so that a status can be returned from main as it is. Larger is worse
 * among the first four, so the maximum over ranks is the agreed verdict. */
enum mt_status {
  MT_OK = 0,       /* done */
  MT_FAILED = 1,   /* failed: a resource, an interrupted operation, a numerical abort */
  MT_USAGE = 2,    /* usage or configuration */
  MT_CORRUPT = 3,  /* unreadable or corrupt input or checkpoint */
  MT_STOPPED = 75, /* stopped by signal or time limit with a complete checkpoint */
  MT_SKIPPED = 77, /* tests only */
};

/* Ends the job: one line (rank, host, cause) on stderr, then the hook, then exit(1). Local; never returns. */
_Noreturn void mt_die(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The function that ends all ranks (MPI_Abort), set once by comm; without one, mt_die exits alone. */
void mt_die_hook(void (*hook)(int code));

/* Always on: a violated condition is a bug or an exhausted machine. The message says what was found. */
#define MT_CHECK(condition, ...)                                                                                       \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      mt_die(__FILE__, __LINE__, __VA_ARGS__);                                                                         \
  } while (0)

/* Debug builds only (--enable-debug): may be expensive, must not change anything. */
#ifdef MT_DEBUG
#define MT_ASSERT(condition) MT_CHECK(condition, "assertion failed: %s", #condition)
#else
#define MT_ASSERT(condition) ((void)sizeof(condition))
#endif

/* Passes a status up. */
#define MT_TRY(call)                                                                                                   \
  do {                                                                                                                 \
    enum mt_status mt_try_ = (call);                                                                                   \
    if (mt_try_ != MT_OK)                                                                                              \
      return mt_try_;                                                                                                  \
  } while (0)

/* True at the n-th pass of the named point if MOTLEY_FAIL=point:n is set; tests use it to make a place fail.
 * Local. Costs one comparison when the variable is not set. */
int mt_fail_point(const char *point);

#endif
