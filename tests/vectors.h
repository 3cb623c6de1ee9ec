/* Reading the test vectors of tests/vectors (HDF5; layout in its README.md).
 *
 * Idea: a test asks for a dataset by path and gets it in the type it computes in, with the shape to check against.
 * Everything that is not as asked (file or dataset missing, a string where numbers are wanted) fails the running Check
 * test with the file and path. Local: every rank may open and read for itself. */
#ifndef MT_TEST_VECTORS_H
#define MT_TEST_VECTORS_H
#include <stdint.h>

enum { VECTORS_MAX_DIM = 4 };

struct vectors; /* an open file */

/* The shape of a dataset; a scalar has n = 0 and size 1. */
struct vectors_shape {
  int n;
  int64_t dim[VECTORS_MAX_DIM];
  int64_t size; /* product */
};

/* Opens tests/vectors/<name>.h5 below $srcdir (or below the current folder where srcdir is not set), for
 * example "mixtral". The caller closes. */
struct vectors *vectors_open(const char *name);
void vectors_close(struct vectors *vectors);

/* 1 if the dataset or group `path` (for example "params/model.norm.weight") is there, else 0. */
int vectors_has(struct vectors *vectors, const char *path);
/* Reads a dataset whole, row-major, converted to the type; *shape is filled unless NULL. The caller frees
 * with mt_free. */
float *vectors_float(struct vectors *vectors, const char *path, struct vectors_shape *shape);
double *vectors_double(struct vectors *vectors, const char *path, struct vectors_shape *shape);
int32_t *vectors_int32(struct vectors *vectors, const char *path, struct vectors_shape *shape);
/* A dataset of one element. */
double vectors_scalar(struct vectors *vectors, const char *path);
/* A string dataset. The caller frees with mt_free. */
char *vectors_text(struct vectors *vectors, const char *path);

/* How many links a group ("params", "sequence/grads") has, and the name of the i-th in alphabetical order
 * (without the group; the caller frees with mt_free). */
int64_t vectors_count(struct vectors *vectors, const char *group);
char *vectors_name(struct vectors *vectors, const char *group, int64_t i);

#endif
