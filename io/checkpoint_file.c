/* HDF5 files of checkpoints; see checkpoint_file.h. */
#include "config.h"
#include "checkpoint_file.h"
#include "checkpoint.h"
#include "checkpoint_piece.h"
#include "base/memory.h"
#include "base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <hdf5.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Large datasets begin on a page; metadata is gathered in blocks of META bytes instead of lying between the
 * data. */
enum { ALIGN_FROM = 1 << 16, ALIGN_TO = 4096, META = 1 << 14 };

/* ---- errors: HDF5's own words, innermost first, as part of ours ---- */

static void silence(void)
{
  H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

static herr_t take_first(unsigned n, const H5E_error2_t *error, void *text)
{
  if (n == 0 && error->desc)
    *(char **)text = mt_strdup(error->desc);
  return 0;
}

/* To be called right after the call that failed: the next one clears HDF5's stack of errors. */
static char *complaint(const char *what, const char *name)
{
  char *cause = NULL;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &cause);
  char *reason =
      mt_format("%s%s%s (HDF5: %s%s)", what, *name ? " " : "", name, cause ? cause : "no cause given",
                cause && strstr(cause, "lock file") ? "; HDF5_USE_FILE_LOCKING=FALSE may help" : "");
  mt_free(cause);
  return reason;
}

/* ---- attributes ---- */

static char *put_integer(hid_t object, const char *name, hid_t type, int64_t value)
{
  char *reason = NULL;
  hid_t space = H5Screate(H5S_SCALAR);
  hid_t attribute = H5Aexists(object, name) > 0
                        ? H5Aopen(object, name, H5P_DEFAULT)
                        : H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  if (attribute < 0 || H5Awrite(attribute, H5T_NATIVE_INT64, &value) < 0)
    reason = complaint("cannot write attribute", name);
  if (attribute >= 0)
    H5Aclose(attribute);
  H5Sclose(space);
  return reason;
}

static hid_t string_type(int64_t length)
{
  hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, (size_t)length);
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

static char *put_string(hid_t object, const char *name, const char *value)
{
  char *reason = NULL;
  hid_t space = H5Screate(H5S_SCALAR), type = string_type((int64_t)strlen(value));
  hid_t attribute = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  if (attribute < 0 || H5Awrite(attribute, type, value) < 0)
    reason = complaint("cannot write attribute", name);
  if (attribute >= 0)
    H5Aclose(attribute);
  H5Tclose(type);
  H5Sclose(space);
  return reason;
}

/* Opens an attribute that holds one value of a class; -1 if it is absent or holds anything else. */
static hid_t open_attribute(hid_t object, const char *name, H5T_class_t class, size_t *size)
{
  if (H5Aexists(object, name) <= 0)
    return -1;
  hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
  if (attribute < 0)
    return -1;
  hid_t space = H5Aget_space(attribute), type = H5Aget_type(attribute);
  int fits = space >= 0 && type >= 0 && H5Sget_simple_extent_npoints(space) == 1 &&
             H5Tget_class(type) == class && (class != H5T_STRING || H5Tis_variable_str(type) == 0);
  *size = fits ? H5Tget_size(type) : 0;
  if (space >= 0)
    H5Sclose(space);
  if (type >= 0)
    H5Tclose(type);
  if (fits)
    return attribute;
  H5Aclose(attribute);
  return -1;
}

static char *get_integer(hid_t object, const char *name, int64_t *value)
{
  size_t size;
  hid_t attribute = open_attribute(object, name, H5T_INTEGER, &size);
  if (attribute < 0)
    return mt_format("has no integer attribute \"%s\"", name);
  char *reason =
      H5Aread(attribute, H5T_NATIVE_INT64, value) < 0 ? complaint("cannot read attribute", name) : NULL;
  H5Aclose(attribute);
  return reason;
}

/* The string, or NULL; the caller frees. */
static char *get_string(hid_t object, const char *name)
{
  size_t size;
  hid_t attribute = open_attribute(object, name, H5T_STRING, &size);
  if (attribute < 0)
    return NULL;
  char *text = mt_zalloc(MT_TAG_IO, (int64_t)size + 1);
  hid_t type = H5Aget_type(attribute); /* as it is stored: no conversion of character sets */
  if (H5Aread(attribute, type, text) < 0) {
    mt_free(text);
    text = NULL;
  }
  H5Tclose(type);
  H5Aclose(attribute);
  return text;
}

/* ---- what datasets hold ---- */

int64_t mt_element_bytes(enum mt_element element)
{
  static const int bytes[] = {[MT_ELEMENT_F32] = 4, [MT_ELEMENT_I32] = 4, [MT_ELEMENT_I64] = 8, [MT_ELEMENT_TEXT] = 1};
  return bytes[element];
}

const char *mt_element_name(enum mt_element element)
{
  static const char *const names[] = {
      [MT_ELEMENT_F32] = "f32", [MT_ELEMENT_I32] = "i32", [MT_ELEMENT_I64] = "i64", [MT_ELEMENT_TEXT] = "text"};
  return names[element];
}

static hid_t number_type(enum mt_element element)
{
  return element == MT_ELEMENT_F32 ? H5T_NATIVE_FLOAT : element == MT_ELEMENT_I32 ? H5T_NATIVE_INT32 : H5T_NATIVE_INT64;
}

/* ---- writing ---- */

/* A memory file has no name but its descriptor's. */
static void memory_path(int fd, char path[40])
{
  char *text = mt_format("/proc/self/fd/%d", fd);
  strcpy(path, text);
  mt_free(text);
}

/* The stdio driver for memory files: the others look for the real path of a symbolic link, which a memory
 * file has not. */
static hid_t access_list(int memory)
{
  hid_t list = H5Pcreate(H5P_FILE_ACCESS);
  if (memory)
    H5Pset_fapl_stdio(list);
  H5Pset_libver_bounds(list, H5F_LIBVER_V110, H5F_LIBVER_V110);
  H5Pset_fclose_degree(list, H5F_CLOSE_STRONG);
  H5Pset_alignment(list, ALIGN_FROM, ALIGN_TO);
  H5Pset_meta_block_size(list, META);
  return list;
}

static char *make_dataset(hid_t group, struct mt_block *block)
{
  const char *name = strchr(block->name + 1, '/') + 1;
  const int text = block->element == MT_ELEMENT_TEXT;
  hid_t type = text ? string_type(block->bytes) : H5Tcopy(number_type(block->element)), space, list, dataset;
  hsize_t dim[4];
  for (int i = 0; i < block->ndim; i++)
    dim[i] = (hsize_t)block->dim[i];
  space = block->ndim == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(block->ndim, dim, NULL);
  list = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_obj_track_times(list, 0); /* equal states give equal bytes, whenever */
  H5Pset_layout(list, H5D_CONTIGUOUS);
  H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(list, H5D_FILL_TIME_NEVER);
  dataset = H5Dcreate2(group, name, type, space, H5P_DEFAULT, list, H5P_DEFAULT);
  char *reason = dataset < 0 ? complaint("cannot make dataset", block->name) : NULL;
  if (!reason)
    reason = put_integer(dataset, "crc32c", H5T_STD_U32LE, 0);
  if (!reason && block->bytes > 0) {
    haddr_t offset = H5Dget_offset(dataset);
    if (offset == HADDR_UNDEF)
      reason = complaint("no offset for dataset", block->name);
    else
      block->offset = (int64_t)offset;
  }
  if (dataset >= 0)
    H5Dclose(dataset);
  H5Pclose(list);
  H5Sclose(space);
  H5Tclose(type);
  return reason;
}

static char *make_datasets(hid_t file, int nblock, struct mt_block *block)
{
  char *reason = NULL, group_name[160] = "";
  hid_t group = -1, list = H5Pcreate(H5P_GROUP_CREATE);
  H5Pset_obj_track_times(list, 0);
  H5Pset_link_creation_order(list, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  for (int i = 0; i < nblock && !reason; i++) {
    const char *slash = block[i].name[0] == '/' ? strchr(block[i].name + 1, '/') : NULL;
    MT_CHECK(slash && slash[1] && !strchr(slash + 1, '/'),
             "a checkpoint dataset named \"%s\"; expected /GROUP/NAME", block[i].name);
    size_t length = (size_t)(slash - block[i].name);
    if (strlen(group_name) != length || strncmp(group_name, block[i].name, length) != 0) {
      if (group >= 0)
        H5Gclose(group);
      memcpy(group_name, block[i].name, length);
      group_name[length] = '\0';
      group = H5Lexists(file, group_name, H5P_DEFAULT) > 0
                  ? H5Gopen2(file, group_name, H5P_DEFAULT)
                  : H5Gcreate2(file, group_name, H5P_DEFAULT, list, H5P_DEFAULT);
      if (group < 0)
        reason = complaint("cannot make group", group_name);
    }
    if (!reason)
      reason = make_dataset(group, &block[i]);
  }
  if (group >= 0)
    H5Gclose(group);
  H5Pclose(list);
  return reason;
}

char *mt_checkpoint_file_make(int64_t step, int64_t tokens, int nblock, struct mt_block *block, int *fd,
                              int64_t *bytes)
{
  silence();
  *fd = memfd_create("checkpoint", MFD_CLOEXEC);
  if (*fd < 0)
    return mt_format("no memory file for the skeleton: %s", strerror(errno));
  char path[40], *reason = NULL;
  memory_path(*fd, path);
  hid_t access = access_list(1), create = H5Pcreate(H5P_FILE_CREATE);
  H5Pset_obj_track_times(create, 0);
  H5Pset_link_creation_order(create, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, create, access);
  if (file < 0)
    reason = complaint("cannot make the skeleton", "");
  if (!reason)
    reason = put_string(file, "format", "motley");
  if (!reason)
    reason = put_integer(file, "version", H5T_STD_I32LE, MT_CHECKPOINT_VERSION);
  if (!reason)
    reason = put_integer(file, "step", H5T_STD_I64LE, step);
  if (!reason)
    reason = put_integer(file, "tokens", H5T_STD_I64LE, tokens);
  if (!reason)
    reason = put_integer(file, "complete", H5T_STD_I32LE, 0);
  if (!reason)
    reason = make_datasets(file, nblock, block);
  if (file >= 0 && H5Fclose(file) < 0 && !reason)
    reason = complaint("cannot close the skeleton", "");
  H5Pclose(create);
  H5Pclose(access);
  struct stat is;
  if (!reason && fstat(*fd, &is) != 0)
    reason = mt_format("no size of the skeleton: %s", strerror(errno));
  *bytes = reason ? 0 : (int64_t)is.st_size;
  if (reason) {
    close(*fd);
    *fd = -1;
  }
  return reason;
}

char *mt_checkpoint_file_seal(int fd, int nblock, const struct mt_block *block)
{
  silence();
  char path[40], *reason = NULL;
  memory_path(fd, path);
  hid_t access = access_list(1), file = H5Fopen(path, H5F_ACC_RDWR, access);
  if (file < 0)
    reason = complaint("cannot open the skeleton", "");
  for (int i = 0; i < nblock && !reason; i++) {
    hid_t dataset = H5Dopen2(file, block[i].name, H5P_DEFAULT);
    reason = dataset < 0 ? complaint("cannot open dataset", block[i].name)
                         : put_integer(dataset, "crc32c", H5T_STD_U32LE, block[i].crc);
    if (dataset >= 0)
      H5Dclose(dataset);
  }
  if (!reason)
    reason = put_integer(file, "complete", H5T_STD_I32LE, 1);
  if (file >= 0 && H5Fclose(file) < 0 && !reason)
    reason = complaint("cannot close the skeleton", "");
  H5Pclose(access);
  return reason;
}

static int by_offset(const void *a, const void *b)
{
  const struct mt_block *x = *(const struct mt_block *const *)a, *y = *(const struct mt_block *const *)b;
  return x->offset != y->offset ? (x->offset > y->offset) - (x->offset < y->offset)
                                : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

char *mt_checkpoint_file_copy(int from, int to, int64_t bytes, int nblock, const struct mt_block *block)
{
  const struct mt_block **sorted = MT_NEW(MT_TAG_IO, const struct mt_block *, nblock);
  for (int i = 0; i < nblock; i++)
    sorted[i] = &block[i];
  qsort(sorted, (size_t)nblock, sizeof *sorted, by_offset);
  char *part = MT_NEW(MT_TAG_IO, char, META), *reason = NULL;
  int64_t at = 0;
  for (int i = 0; i <= nblock && !reason; i++) {
    if (i < nblock && sorted[i]->bytes == 0)
      continue;
    int64_t end = i < nblock ? sorted[i]->offset : bytes;
    while (at < end && !reason) {
      int64_t n = end - at < META ? end - at : META;
      int error = mt_read_at(from, part, n, at);
      if (!error)
        error = mt_write_at(to, part, n, at);
      if (error)
        reason = mt_format("cannot be written at byte %lld: %s", (long long)at, strerror(error));
      at += n;
    }
    if (i < nblock)
      at = sorted[i]->offset + sorted[i]->bytes;
  }
  mt_free(part);
  mt_free(sorted);
  return reason;
}

/* ---- reading ---- */

/* What a dataset holds, as a block: text or numbers, contiguous, inside the file. */
static char *read_block(hid_t dataset, int64_t file_bytes, struct mt_block *block)
{
  hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset), list = H5Dget_create_plist(dataset);
  char *reason = NULL;
  hsize_t dim[H5S_MAX_RANK];
  int text = H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0;
  int ndim = H5Sget_simple_extent_ndims(space);
  block->element = MT_ELEMENT_F32;
  while (block->element < MT_ELEMENT_TEXT && (text || H5Tequal(type, number_type(block->element)) <= 0))
    block->element++;
  if (!text && block->element == MT_ELEMENT_TEXT)
    reason = mt_format("dataset %s holds neither f32, i32, i64 nor a string of fixed length", block->name);
  else if (ndim < 0 || ndim > 4 || (text && ndim != 0) || H5Sget_simple_extent_dims(space, dim, NULL) < 0)
    reason =
        mt_format("dataset %s has %d dimensions; expected %s", block->name, ndim, text ? "none" : "0 to 4");
  else if (H5Pget_layout(list) != H5D_CONTIGUOUS || H5Pget_external_count(list) != 0)
    reason = mt_format("dataset %s is not contiguous", block->name);
  if (!reason) {
    block->ndim = ndim;
    block->bytes = (int64_t)H5Tget_size(type);
    for (int i = 0; i < ndim && !reason; i++) {
      block->dim[i] = (int64_t)dim[i];
      if (__builtin_mul_overflow(block->bytes, block->dim[i], &block->bytes) || block->dim[i] < 0)
        reason = mt_format("dataset %s is too large", block->name);
    }
  }
  if (!reason && block->bytes > 0) {
    haddr_t offset = H5Dget_offset(dataset);
    if (offset == HADDR_UNDEF)
      reason = mt_format("dataset %s has no data", block->name);
    else if (offset > (haddr_t)file_bytes || block->bytes > file_bytes - (int64_t)offset)
      reason = mt_format("truncated: dataset %s ends at byte %lld, the file at %lld", block->name,
                         (long long)offset + (long long)block->bytes, (long long)file_bytes);
    else
      block->offset = (int64_t)offset;
  }
  if (list >= 0)
    H5Pclose(list);
  if (space >= 0)
    H5Sclose(space);
  if (type >= 0)
    H5Tclose(type);
  if (!reason) {
    int64_t crc = 0;
    reason = get_integer(dataset, "crc32c", &crc);
    if (reason) {
      char *located = mt_format("dataset %s %s", block->name, reason);
      mt_free(reason);
      reason = located;
    }
    block->crc = (uint32_t)crc;
  }
  return reason;
}

/* A group's links by number, in the order of creation where that is known (else by name). */
struct links {
  hid_t group;
  H5_index_t order;
  hsize_t n;
};

static char *list_links(hid_t group, const char *name, struct links *links)
{
  H5G_info_t info;
  unsigned flags = 0;
  hid_t list = H5Gget_create_plist(group);
  if (list < 0 || H5Pget_link_creation_order(list, &flags) < 0 || H5Gget_info(group, &info) < 0)
    return complaint("cannot list group", name);
  H5Pclose(list);
  *links =
      (struct links){group, flags & H5P_CRT_ORDER_INDEXED ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME, info.nlinks};
  return NULL;
}

/* Opens link i: its name, appended to parent's, goes to name[160]. */
static char *open_link(const struct links *links, hsize_t i, const char *parent, char name[160],
                       hid_t *object)
{
  size_t length = strlen(parent);
  memcpy(name, parent, length);
  name[length++] = '/';
  ssize_t full = H5Lget_name_by_idx(links->group, ".", links->order, H5_ITER_INC, i, name + length,
                                    160 - length, H5P_DEFAULT);
  if (full < 0)
    return complaint("cannot list group", parent);
  if (full >= (ssize_t)(160 - length))
    return mt_format("group %s holds a name of %lld bytes; expected at most %lld", parent, (long long)full,
                     (long long)(159 - length));
  *object = H5Oopen_by_idx(links->group, ".", links->order, H5_ITER_INC, i, H5P_DEFAULT);
  return *object < 0 ? complaint("cannot open", name) : NULL;
}

static char *read_group(hid_t group, const char *name, struct mt_checkpoint_file *file)
{
  struct links links = {0};
  char *reason = list_links(group, name, &links);
  if (reason || links.n == 0)
    return reason;
  if (links.n > 1 << 24)
    return mt_format("group %s holds %llu datasets", name, (unsigned long long)links.n);
  int64_t nblock = file->nblock + (int64_t)links.n;
  struct mt_block *block = MT_ZNEW(MT_TAG_IO, struct mt_block, nblock);
  if (file->nblock > 0)
    memcpy(block, file->block, (size_t)file->nblock * sizeof *block);
  mt_free(file->block);
  file->block = block;
  for (hsize_t i = 0; i < links.n && !reason; i++) {
    hid_t object = -1;
    block = &file->block[file->nblock];
    reason = open_link(&links, i, name, block->name, &object);
    if (!reason && H5Iget_type(object) != H5I_DATASET)
      reason = mt_format("%s is not a dataset", block->name);
    if (!reason)
      reason = read_block(object, file->bytes, block);
    if (object >= 0)
      H5Oclose(object);
    if (!reason)
      file->nblock++;
  }
  return reason;
}

static char *read_groups(hid_t root, struct mt_checkpoint_file *file)
{
  struct links links = {0};
  char *reason = list_links(root, "/", &links);
  for (hsize_t i = 0; !reason && i < links.n; i++) {
    char name[160];
    hid_t object = -1;
    reason = open_link(&links, i, "", name, &object);
    if (!reason && H5Iget_type(object) != H5I_GROUP)
      reason = mt_format("%s is not a group", name);
    if (!reason)
      reason = read_group(object, name, file);
    if (object >= 0)
      H5Oclose(object);
  }
  return reason;
}

static char *read_root(hid_t file, struct mt_checkpoint_file *out)
{
  char *format = get_string(file, "format"), *reason = NULL;
  int64_t version = 0, complete = 0;
  if (!format)
    return mt_strdup("an HDF5 file of another program (no attribute \"format\")");
  if (strcmp(format, "motley") != 0)
    reason = mt_format("an HDF5 file of another program (format \"%.40s\"; expected \"motley\")", format);
  mt_free(format);
  if (!reason)
    reason = get_integer(file, "version", &version);
  if (!reason && (version < 1 || version > MT_CHECKPOINT_VERSION))
    reason = mt_format("version %lld of the format; this program reads versions 1 to %d", (long long)version,
                       MT_CHECKPOINT_VERSION);
  if (!reason)
    reason = get_integer(file, "complete", &complete);
  if (!reason && complete != 1)
    reason = mt_strdup("incomplete: it was not written to its end");
  if (!reason)
    reason = get_integer(file, "step", &out->step);
  if (!reason)
    reason = get_integer(file, "tokens", &out->tokens);
  return reason;
}

/* Cheap tests before HDF5 sees the file: a FIFO would block, and "not an HDF5 file" deserves better words. */
static char *look_at(const char *path, int64_t *bytes)
{
  struct stat is;
  if (stat(path, &is) != 0)
    return mt_format("cannot be read: %s", strerror(errno));
  if (!S_ISREG(is.st_mode))
    return mt_strdup(S_ISDIR(is.st_mode) ? "is a folder; expected a file" : "is not a regular file");
  *bytes = (int64_t)is.st_size;
  if (*bytes == 0)
    return mt_strdup("is empty");
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return mt_format("cannot be read: %s", strerror(errno));
  char start[8] = "";
  int error = *bytes < 8 ? 0 : mt_read_at(fd, start, 8, 0);
  close(fd);
  if (error)
    return mt_format("cannot be read: %s", strerror(error));
  return memcmp(start, "\211HDF\r\n\032\n", 8) == 0 ? NULL : mt_strdup("is not an HDF5 file");
}

char *mt_checkpoint_file_read(const char *path, struct mt_checkpoint_file *file)
{
  silence();
  *file = (struct mt_checkpoint_file){0};
  char *reason = look_at(path, &file->bytes);
  if (reason)
    return reason;
  hid_t access = access_list(0), id = H5Fopen(path, H5F_ACC_RDONLY, access), root = -1;
  if (id < 0)
    reason = complaint("damaged or truncated", "");
  else if ((root = H5Gopen2(id, "/", H5P_DEFAULT)) < 0)
    reason = complaint("damaged: no root group", "");
  if (!reason)
    reason = read_root(root, file);
  if (!reason)
    reason = read_groups(root, file);
  if (root >= 0)
    H5Gclose(root);
  if (id >= 0)
    H5Fclose(id);
  H5Pclose(access);
  if (reason)
    mt_checkpoint_file_free(file);
  return reason;
}

void mt_checkpoint_file_free(struct mt_checkpoint_file *file)
{
  mt_free(file->block);
  *file = (struct mt_checkpoint_file){0};
}

const struct mt_block *mt_checkpoint_file_find(const struct mt_checkpoint_file *file, const char *name,
                                               int *hint)
{
  for (int i = 0; i < file->nblock; i++) {
    int at = (*hint + i) % file->nblock;
    if (strcmp(file->block[at].name, name) == 0) {
      *hint = at + 1;
      return &file->block[at];
    }
  }
  return NULL;
}

char *mt_checkpoint_shape(int ndim, const int64_t *dim, char text[100])
{
  size_t n = 0;
  text[n++] = '(';
  for (int i = 0; i < ndim; i++) {
    char *one = mt_format("%s%lld", i ? ", " : "", (long long)dim[i]);
    if (n + strlen(one) < 98) {
      strcpy(text + n, one);
      n += strlen(one);
    }
    mt_free(one);
  }
  strcpy(text + n, ndim == 1 ? ",)" : ")");
  return text;
}

char *mt_checkpoint_library(void)
{
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return mt_format("HDF5 %u.%u.%u", major, minor, release);
}
