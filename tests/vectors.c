/* Reading test vectors; see vectors.h. */
#include "vectors.h"
#include <check.h>
#include <hdf5.h>
#include <stdlib.h>
#include "base/memory.h"

struct vectors {
  hid_t file;
  char *path; /* owned */
};

struct vectors *vectors_open(const char *name)
{
  const char *srcdir = getenv("srcdir");
  struct vectors *vectors = MT_NEW(MT_TAG_MISC, struct vectors, 1);
  vectors->path = mt_format("%s/tests/vectors/%s.h5", srcdir ? srcdir : ".", name);
  vectors->file = H5Fopen(vectors->path, H5F_ACC_RDONLY, H5P_DEFAULT);
  ck_assert_msg(vectors->file >= 0, "%s: cannot be opened", vectors->path);
  return vectors;
}

void vectors_close(struct vectors *vectors)
{
  ck_assert_msg(H5Fclose(vectors->file) >= 0, "%s: cannot be closed", vectors->path);
  mt_free(vectors->path);
  mt_free(vectors);
}

/* H5Lexists wants every group on the way to exist, so each prefix is asked for in turn. */
int vectors_has(struct vectors *vectors, const char *path)
{
  for (int64_t i = 1;; i++) {
    if (path[i] == '/' || path[i] == '\0') {
      char *prefix = mt_format("%.*s", (int)i, path);
      int there = H5Lexists(vectors->file, prefix, H5P_DEFAULT) > 0;
      mt_free(prefix);
      if (!there || path[i] == '\0')
        return there;
    }
  }
}

static hid_t open_dataset(struct vectors *vectors, const char *path)
{
  ck_assert_msg(vectors_has(vectors, path), "%s: no %s", vectors->path, path);
  hid_t set = H5Dopen2(vectors->file, path, H5P_DEFAULT);
  ck_assert_msg(set >= 0, "%s: %s is not a dataset", vectors->path, path);
  return set;
}

static void *read_array(struct vectors *vectors, const char *path, struct vectors_shape *shape, hid_t type,
                        int64_t bytes)
{
  hid_t set = open_dataset(vectors, path), space = H5Dget_space(set), stored = H5Dget_type(set);
  H5T_class_t class = H5Tget_class(stored);
  ck_assert_msg(class == H5T_FLOAT || class == H5T_INTEGER, "%s: %s holds no numbers", vectors->path, path);
  int n = H5Sget_simple_extent_ndims(space);
  ck_assert_msg(n >= 0 && n <= VECTORS_MAX_DIM, "%s: %s has %d dimensions", vectors->path, path, n);
  hsize_t dim[VECTORS_MAX_DIM];
  H5Sget_simple_extent_dims(space, dim, NULL);
  struct vectors_shape found = {.n = n, .size = 1};
  for (int i = 0; i < n; i++) {
    found.dim[i] = (int64_t)dim[i];
    found.size *= found.dim[i];
  }
  void *data = mt_alloc(MT_TAG_MISC, found.size * bytes);
  ck_assert_msg(H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0, "%s: %s cannot be read",
                vectors->path, path);
  H5Tclose(stored);
  H5Sclose(space);
  H5Dclose(set);
  if (shape)
    *shape = found;
  return data;
}

float *vectors_float(struct vectors *vectors, const char *path, struct vectors_shape *shape)
{
  return read_array(vectors, path, shape, H5T_NATIVE_FLOAT, sizeof(float));
}

double *vectors_double(struct vectors *vectors, const char *path, struct vectors_shape *shape)
{
  return read_array(vectors, path, shape, H5T_NATIVE_DOUBLE, sizeof(double));
}

int32_t *vectors_int32(struct vectors *vectors, const char *path, struct vectors_shape *shape)
{
  return read_array(vectors, path, shape, H5T_NATIVE_INT32, sizeof(int32_t));
}

double vectors_scalar(struct vectors *vectors, const char *path)
{
  struct vectors_shape shape;
  double *value = vectors_double(vectors, path, &shape);
  ck_assert_msg(shape.size == 1, "%s: %s holds %lld numbers, not one", vectors->path, path,
                (long long)shape.size);
  double result = *value;
  mt_free(value);
  return result;
}

char *vectors_text(struct vectors *vectors, const char *path)
{
  hid_t set = open_dataset(vectors, path), type = H5Dget_type(set);
  ck_assert_msg(H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0,
                "%s: %s is not a string of fixed length", vectors->path, path);
  size_t length = H5Tget_size(type);
  char *text = mt_zalloc(MT_TAG_MISC, (int64_t)length + 1);
  ck_assert_msg(H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text) >= 0, "%s: %s cannot be read",
                vectors->path, path);
  H5Tclose(type);
  H5Dclose(set);
  return text;
}

int64_t vectors_count(struct vectors *vectors, const char *group)
{
  H5G_info_t info;
  ck_assert_msg(vectors_has(vectors, group) &&
                    H5Gget_info_by_name(vectors->file, group, &info, H5P_DEFAULT) >= 0,
                "%s: no group %s", vectors->path, group);
  return (int64_t)info.nlinks;
}

char *vectors_name(struct vectors *vectors, const char *group, int64_t i)
{
  ck_assert_msg(i >= 0 && i < vectors_count(vectors, group), "%s: %s has no link %lld", vectors->path, group,
                (long long)i);
  ssize_t length =
      H5Lget_name_by_idx(vectors->file, group, H5_INDEX_NAME, H5_ITER_INC, (hsize_t)i, NULL, 0, H5P_DEFAULT);
  ck_assert_msg(length > 0, "%s: %s: link %lld has no name", vectors->path, group, (long long)i);
  char *name = mt_alloc(MT_TAG_MISC, (int64_t)length + 1);
  H5Lget_name_by_idx(vectors->file, group, H5_INDEX_NAME, H5_ITER_INC, (hsize_t)i, name, (size_t)length + 1,
                     H5P_DEFAULT);
  return name;
}
