/* Tests of kernels: one description of a call (ops_case) is run on any device and compared.
 *
 * An op is one struct ops_test: a function that makes its cases, one that calls the kernel and, for a
 * gradient, the forward pass it belongs to. A backend is one struct ops_backend. All the rest is done here
 * for every op, case and backend: guards around all buffers, inputs that must not change, poisoned outputs,
 * gaps that must stay as they are, buffers aligned to their element only, a workspace of exactly the promised
 * size, the comparison with ref, equal bits for any number of threads, and on ref finite differences. The
 * trap: buffers may be a GPU's. Only ops->copy touches them, except in finite differences, which only ref
 * runs. */
#ifndef MT_OPS_HARNESS_H
#define MT_OPS_HARNESS_H
#include "ops.h"

enum { OPS_MAX_BUFFER = 12, OPS_MAX_DEVICES = 4 };

enum ops_type { OPS_F32, OPS_BF16, OPS_CTYPE /* becomes one of the two before */, OPS_F64, OPS_I32 };

enum ops_role {
  OPS_IN,      /* must not change */
  OPS_SAVED,   /* written by forward, input of run */
  OPS_OUT,     /* overwritten: poisoned before, all of it written */
  OPS_SPARSE,  /* overwritten in parts: poisoned before, where ref leaves the poison others must too */
  OPS_ADD,     /* added to; elements that hold the poison are gaps, which nobody may write */
  OPS_INPLACE, /* both input and output */
};

struct ops_buffer {
  const char *name;
  enum ops_type type;
  enum ops_role role;
  int ctype; /* 1: it was declared OPS_CTYPE */
  int host;  /* 1: a host array for the kernel */
  int64_t n; /* elements; -1: the kernel gets NULL */
  int of;    /* -1, or: of an input, the SAVED buffer whose gradient it is; of an output, the input's */
  double
      floor;   /* a root mean square below which errors are taken relative to this: for results that cancel */
  void *start; /* [n] contents before the call, host, owned */
  void *result; /* [n] contents after the latest call, host, owned */
  void *device; /* during a call: the kernel's argument */
  void *block;  /* during a call: the allocation around it */
};

struct ops_case {
  const char *op;
  int index;           /* of the case */
  char label[128];     /* the shape, for messages */
  enum mt_dtype ctype; /* the type of OPS_CTYPE buffers */
  int rough;    /* 1: the function has no slope that differences could find here (ties, values of +-80) */
  int roundings; /* > 1: so many roundings to bf16 lie between inputs and a result in bf16, for a reason given
                    where it is set */
  double slack; /* the bound is (1 + slack) times the op's, for a reason given where it is set */
  int nbuffer;
  struct ops_buffer buffer[OPS_MAX_BUFFER];
  const void *shape; /* the op's own, static */
  int flag[4];       /* the op's own */
  int64_t first[16]; /* the op's own host array */
};

struct ops_test {
  const char *name;
  /* Describes case `index` with ops_add and its like; returns 0 if there is no such case. */
  int (*make)(struct ops_case *, int index);
  /* Bytes of workspace, or NULL. */
  int64_t (*work)(const struct ops_case *, const struct mt_device *);
  /* For a gradient: the forward pass, inputs to SAVED; finite differences are then taken on ref. */
  void (*forward)(const struct ops_case *, struct mt_device *);
  void (*run)(const struct ops_case *, struct mt_device *);
  /* Terms of the loss beside sum(SAVED * its gradient), or NULL. Reads device pointers. */
  double (*loss)(const struct ops_case *);
  /* Further conditions on result, or NULL; returns NULL or what is wrong. */
  const char *(*check)(const struct ops_case *);
  double bound; /* norm-wise error relative to ref; 0: the same bits */
};

/* Devices from which the same bits are expected: end with threads = 0. */
struct ops_backend {
  struct {
    const char *name;
    int threads;
  } device[OPS_MAX_DEVICES];
  int64_t most; /* elements of a case that all of them run, 0 = any; larger ones are the first one's */
};

/* Adds buffer number `id` (must be the next) with n >= 0 elements, standard normal values (OPS_I32: zeros).
 */
struct ops_buffer *ops_add(struct ops_case *, int id, const char *name, enum ops_type type,
                           enum ops_role role, int64_t n);
/* The same as the gradient of buffer `of`. */
struct ops_buffer *ops_add_of(struct ops_case *, int id, const char *name, enum ops_type type,
                              enum ops_role role, int64_t n, int of);
/* A buffer that is not there: the kernel gets NULL. */
void ops_none(struct ops_case *, int id, const char *name);
/* Values: x = mean + deviation * normal; integers below a limit; the poison, which marks gaps. */
void ops_fill(struct ops_buffer *, double mean, double deviation);
void ops_fill_below(struct ops_buffer *, int64_t limit);
void ops_poison(struct ops_buffer *, int64_t index);
/* Contents before and after the call. */
double ops_get(const struct ops_buffer *, const void *contents, int64_t index);
void ops_set(struct ops_buffer *, int64_t index, double value);
void ops_copy(struct ops_buffer *to, const struct ops_buffer *from);
void ops_label(struct ops_case *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The kernel's argument for a buffer. */
static inline void *ops_at(const struct ops_case *c, int id)
{
  return c->buffer[id].device;
}
/* Random: uniform 64 bits of a sequence that starts anew with every case. */
uint64_t ops_bits(void);
double ops_uniform(void); /* [0, 1) */

/* All cases of an op on ref (finite differences, guards, properties), on ref with ctype bf16 against itself
 * with f32 (the oracle of backends that compute in bf16), or on a backend against ref. A failure ends the
 * Check test with op, backend, shape and worst element. ops_on_backend returns 0 if the backend is not there.
 */
void ops_on_ref(const struct ops_test *);
void ops_on_ref_bf16(const struct ops_test *);
int ops_on_backend(const struct ops_test *, const struct ops_backend *);

#endif
