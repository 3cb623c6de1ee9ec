/* Compares what two runs of the program left behind, for the tests that are scripts:
 *
 *   compare_runs log A.jsonl B.jsonl FROM TO TOLERANCE      step lines FROM to TO
 *   compare_runs weights A.h5 B.h5 TOLERANCE                /params, /adam_m and /adam_v of two checkpoints
 *   compare_runs steps A.jsonl KEY                          one line a step, "step value", the void ones left
 * out compare_runs offset A.h5 DATASET                        byte of the file where the dataset's data begin
 *
 * Step lines must have the same batch_hash, lr, tokens and updated, and loss and grad_norm within the
 * tolerance (relative; 0 = the same bits). Step lines above a later start's from_step are void. Tensors are
 * compared norm-wise: the norm of the difference over the norm of A (0 = the same bytes). The trap: a bias
 * whose gradient is analytically zero (GPT-2's keys) gets noise that Adam blows up to the size of a step; so
 * a vector counts against the norm of its layer's weights too. Exit codes: 0 equal, 1 different (what differs
 * most is said), 99 not to be compared. */
#include <hdf5.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/json.h"
#include "base/memory.h"

static _Noreturn void give_up(const char *what, const char *name)
{
  fprintf(stderr, "compare_runs: %s %s\n", what, name);
  exit(99);
}

/* ---- logs ---- */

struct log {
  int64_t n;      /* lines of steps 1..n fit */
  mt_json **step; /* [n + 1], by number; NULL = no such step */
};

static struct log read_log(const char *path)
{
  struct log log = {0};
  FILE *file = fopen(path, "r");
  char *line = NULL;
  size_t size = 0;
  if (!file)
    give_up("cannot read", path);
  for (ssize_t length; (length = getline(&line, &size, file)) > 0;) {
    mt_json *json;
    if (mt_json_parse(path, line, &json) != MT_OK)
      continue; /* cut off when a run was killed: one line is lost */
    const char *event = mt_json_as_string(mt_json_get(json, "event"), "");
    int64_t step = mt_json_as_integer(mt_json_get(json, "step"), -1);
    if (!strcmp(event, "start")) {
      int64_t from = mt_json_as_integer(mt_json_get(json, "from_step"), -1);
      if (from < 0)
        give_up("a start without from_step:", line);
      for (int64_t i = from + 1; i <= log.n; i++) {
        mt_json_free(log.step[i]);
        log.step[i] = NULL;
      }
    } else if (!strcmp(event, "step")) {
      if (step < 1 || step > 1 << 20)
        give_up("a step without a number:", line);
      if (step > log.n) {
        log.step = realloc(log.step, sizeof *log.step * (size_t)(step + 1));
        for (int64_t i = log.n; i <= step; i++)
          if (i == 0 || i > log.n)
            log.step[i] = NULL;
        log.n = step;
      }
      if (log.step[step])
        give_up("a step twice without a start between:", line);
      log.step[step] = json;
      continue;
    }
    mt_json_free(json);
  }
  free(line);
  fclose(file);
  return log;
}

static double distance(double a, double b)
{
  if (a == b || (isnan(a) && isnan(b)))
    return 0;
  double d = fabs(a - b) / fmax(fabs(a), fabs(b));
  return isfinite(d) ? d : HUGE_VAL;
}

static int compare_logs(const char *a_path, const char *b_path, int64_t from, int64_t to, double tolerance)
{
  static const char *const exact[] = {"batch_hash", "lr", "tokens", "updated"}, *const near[] = {"loss",
                                                                                                 "grad_norm"};
  struct log a = read_log(a_path), b = read_log(b_path);
  int differ = 0;
  double most = 0;
  for (int64_t s = from; s <= to; s++) {
    mt_json *x = s <= a.n ? a.step[s] : NULL, *y = s <= b.n ? b.step[s] : NULL;
    if (!x || !y) {
      printf("no step %lld in %s\n", (long long)s, x ? b_path : a_path);
      return 1;
    }
    for (int i = 0; i < 4; i++) {
      char *p = mt_json_print(mt_json_get(x, exact[i]), 0), *q = mt_json_print(mt_json_get(y, exact[i]), 0);
      if (!mt_json_get(x, exact[i]) || strcmp(p, q)) {
        printf("step %lld: %s %s and %s\n", (long long)s, exact[i], p, q);
        differ = 1;
      }
      mt_free(p);
      mt_free(q);
    }
    for (int i = 0; i < 2; i++) {
      double p = mt_json_as_real(mt_json_get(x, near[i]), NAN),
             q = mt_json_as_real(mt_json_get(y, near[i]), NAN);
      double d = distance(p, q);
      most = d > most ? d : most;
      if (d > tolerance) {
        printf("step %lld: %s %.17g and %.17g, relative difference %.2g\n", (long long)s, near[i], p, q, d);
        differ = 1;
      }
    }
  }
  printf("log: steps %lld to %lld differ by at most %.2g\n", (long long)from, (long long)to, most);
  return differ;
}

static int print_steps(const char *path, const char *key)
{
  struct log log = read_log(path);
  for (int64_t s = 1; s <= log.n; s++)
    if (log.step[s]) {
      char *text = mt_json_print(mt_json_get(log.step[s], key), 0);
      printf("%lld %s\n", (long long)s, text);
      mt_free(text);
    }
  return 0;
}

/* ---- checkpoints ---- */

static float *read_set(hid_t file, const char *path, const char *group, const char *name, int64_t *n,
                       int *ndim)
{
  char full[320];
  snprintf(full, sizeof full, "%s/%s", group, name);
  hid_t set = H5Dopen2(file, full, H5P_DEFAULT);
  if (set < 0)
    return NULL;
  hid_t space = H5Dget_space(set);
  *n = (int64_t)H5Sget_simple_extent_npoints(space);
  *ndim = H5Sget_simple_extent_ndims(space);
  float *data = malloc((size_t)(*n > 0 ? *n : 1) * sizeof *data);
  if (H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
    give_up("cannot read a dataset of", path);
  H5Sclose(space);
  H5Dclose(set);
  return data;
}

/* "transformer.h.3." of "transformer.h.3.attn.c_attn.bias": as far as the first number's dot, else nothing.
 */
static size_t layer_length(const char *name)
{
  const char *digit = strpbrk(name, "0123456789");
  return digit && digit > name && digit[-1] == '.' ? (size_t)(strchr(digit, '.') - name) + 1 : 0;
}

/* Norm of all tensors of the layer that `name` is in (of the tensor alone outside of layers). */
static double layer_norm(hid_t file, const char *path, const char *group, const char *name)
{
  size_t length = layer_length(name);
  double sum = 0;
  hid_t g = H5Gopen2(file, group, H5P_DEFAULT);
  H5G_info_t info;
  H5Gget_info(g, &info);
  for (hsize_t i = 0; i < info.nlinks; i++) {
    char other[256];
    H5Lget_name_by_idx(g, ".", H5_INDEX_NAME, H5_ITER_INC, i, other, sizeof other, H5P_DEFAULT);
    if (length ? strncmp(other, name, length) : strcmp(other, name))
      continue;
    int64_t n;
    int ndim;
    float *x = read_set(file, path, group, other, &n, &ndim);
    for (int64_t k = 0; k < n; k++)
      sum += (double)x[k] * x[k];
    free(x);
  }
  H5Gclose(g);
  return sqrt(sum);
}

static int compare_weights(const char *a_path, const char *b_path, double tolerance)
{
  static const char *const groups[] = {"/params", "/adam_m", "/adam_v"};
  hid_t a = H5Fopen(a_path, H5F_ACC_RDONLY, H5P_DEFAULT), b = H5Fopen(b_path, H5F_ACC_RDONLY, H5P_DEFAULT);
  if (a < 0 || b < 0)
    give_up("cannot open", a < 0 ? a_path : b_path);
  int differ = 0;
  int64_t sets = 0;
  for (int g = 0; g < 3; g++) {
    /* moments follow from gradients, which are compared; at a tolerance only the weights count */
    if (g > 0 && tolerance > 0)
      break;
    hid_t group = H5Gopen2(a, groups[g], H5P_DEFAULT), other = H5Gopen2(b, groups[g], H5P_DEFAULT);
    H5G_info_t info, other_info;
    if (group < 0 || other < 0 || H5Gget_info(group, &info) < 0 || H5Gget_info(other, &other_info) < 0)
      give_up("no group", groups[g]);
    if (info.nlinks != other_info.nlinks || info.nlinks == 0)
      give_up("other numbers of datasets, or none, in", groups[g]);
    double most = 0;
    char worst[256] = "";
    for (hsize_t i = 0; i < info.nlinks; i++) {
      char name[256];
      int64_t n, m;
      int ndim, other_ndim;
      H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof name, H5P_DEFAULT);
      float *x = read_set(a, a_path, groups[g], name, &n, &ndim),
            *y = read_set(b, b_path, groups[g], name, &m, &other_ndim);
      if (!x || !y || n != m || ndim != other_ndim)
        give_up("not the same shape:", name);
      double square = 0, norm = 0;
      for (int64_t k = 0; k < n; k++) {
        square += ((double)x[k] - y[k]) * ((double)x[k] - y[k]);
        norm += (double)x[k] * x[k];
      }
      square = sqrt(square);
      norm = sqrt(norm);
      if (strstr(name, "bias") && tolerance > 0)
        norm = layer_norm(a, a_path, groups[g], name);
      double d = memcmp(x, y, sizeof *x * (size_t)n) == 0 ? 0
                 : norm > 0 && square > 0                 ? square / norm
                                                          : HUGE_VAL;
      if (!(d <= tolerance)) {
        printf("%s/%s: norm-wise difference %.2g\n", groups[g], name, d);
        differ = 1;
      }
      if (d >= most) {
        most = d;
        snprintf(worst, sizeof worst, "%s", name);
      }
      sets++;
      free(x);
      free(y);
    }
    printf("%s: at most %.2g (%s)\n", groups[g], most, worst);
    H5Gclose(group);
    H5Gclose(other);
  }
  H5Fclose(a);
  H5Fclose(b);
  return sets ? differ : 99;
}

static int print_offset(const char *path, const char *name)
{
  hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT),
        set = file < 0 ? -1 : H5Dopen2(file, name, H5P_DEFAULT);
  if (set < 0)
    give_up("cannot open", file < 0 ? path : name);
  printf("%lld\n", (long long)H5Dget_offset(set));
  H5Dclose(set);
  H5Fclose(file);
  return 0;
}

int main(int argc, char **argv)
{
  H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
  if (argc == 7 && !strcmp(argv[1], "log"))
    return compare_logs(argv[2], argv[3], atoll(argv[4]), atoll(argv[5]), atof(argv[6]));
  if (argc == 5 && !strcmp(argv[1], "weights"))
    return compare_weights(argv[2], argv[3], atof(argv[4]));
  if (argc == 4 && !strcmp(argv[1], "steps"))
    return print_steps(argv[2], argv[3]);
  if (argc == 4 && !strcmp(argv[1], "offset"))
    return print_offset(argv[2], argv[3]);
  fprintf(stderr, "usage: see the head of compare_runs.c\n");
  return 99;
}
