/* The test vectors are whole and consistent, seen through their reader: what a model is compared with must
 * itself add up. ranks: 1 */
#include "test.h"
#include "vectors.h"
#include <math.h>
#include <string.h>

static const char *const files[] = {"mixtral", "mixtral-odd", "gpt2", "gpt2-odd", "qwen-odd", "mixtral-drop"};
enum { NFILE = sizeof files / sizeof *files };

/* The value of "key = value" in INI text; fails where it is missing. */
static double value_of(const char *text, const char *key)
{
  char *line = mt_format("\n%s = ", key);
  const char *found = strstr(text, line);
  ck_assert_msg(found, "no %s in %s", key, text);
  double value = strtod(found + strlen(line), NULL);
  mt_free(line);
  return value;
}

/* The token mean of the cross entropy of the stored logits is the stored one, and the losses are its sum with
 * the others. */
START_TEST(test_loss)
{
  struct vectors *vectors = vectors_open(files[_i]);
  char *config = vectors_text(vectors, "config");
  struct vectors_shape tokens_shape, shape;
  int32_t *tokens = vectors_int32(vectors, "tokens", &tokens_shape);
  double *logits = vectors_double(vectors, "logits", &shape);
  ck_assert_int_eq(tokens_shape.n, 2);
  ck_assert_int_eq(shape.n, 3);
  int64_t nseq = shape.dim[0], npos = shape.dim[1], nvocab = shape.dim[2];
  ck_assert_int_eq(tokens_shape.dim[0], nseq);
  ck_assert_int_eq(tokens_shape.dim[1], npos + 1);
  ck_assert_int_eq(npos, (int64_t)value_of(config, "seq_length"));
  ck_assert_int_eq(nvocab, (int64_t)value_of(config, "vocab_size"));
  double sum = 0;
  for (int64_t i = 0; i < nseq * npos; i++) {
    const double *row = logits + i * nvocab;
    int32_t target = tokens[i / npos * (npos + 1) + i % npos + 1];
    ck_assert(target >= 0 && target < nvocab);
    double total = 0;
    for (int64_t v = 0; v < nvocab; v++)
      total += exp(row[v]);
    sum += log(total) - row[target];
  }
  double ce = vectors_scalar(vectors, "ce");
  ck_assert_double_eq_tol(sum / (double)(nseq * npos), ce, 1e-12);
  static const char *const scopes[] = {"sequence", "micro_batch"};
  for (int s = 0; s < 2; s++) {
    double part[3];
    static const char *const names[] = {"aux", "z", "loss"};
    for (int i = 0; i < 3; i++) {
      char *path = mt_format("%s/%s", scopes[s], names[i]);
      part[i] = vectors_scalar(vectors, path);
      mt_free(path);
    }
    double loss =
        ce + value_of(config, "router_aux_loss_coef") * part[0] + value_of(config, "z_loss") * part[1];
    ck_assert_double_eq_tol(loss, part[2], 1e-12);
  }
  ck_assert_double_gt(vectors_scalar(vectors, "margin"), 1e-3);
  mt_free(logits);
  mt_free(tokens);
  mt_free(config);
  vectors_close(vectors);
}
END_TEST

/* Every parameter has a gradient of its shape in both scopes, finite and not zero, and no other is there. */
START_TEST(test_gradients)
{
  struct vectors *vectors = vectors_open(files[_i]);
  static const char *const groups[] = {"sequence/grads", "micro_batch/grads"};
  int64_t count = vectors_count(vectors, "params");
  ck_assert_int_gt(count, 10);
  for (int g = 0; g < 2; g++) {
    ck_assert_int_eq(vectors_count(vectors, groups[g]), count);
    for (int64_t i = 0; i < count; i++) {
      struct vectors_shape of_param, of_grad;
      char *name = vectors_name(vectors, "params", i);
      char *from = mt_format("params/%s", name), *to = mt_format("%s/%s", groups[g], name);
      float *param = vectors_float(vectors, from, &of_param);
      double *grad = vectors_double(vectors, to, &of_grad);
      ck_assert_int_eq(of_param.n, of_grad.n);
      for (int d = 0; d < of_param.n; d++)
        ck_assert_int_eq(of_param.dim[d], of_grad.dim[d]);
      double norm = 0;
      for (int64_t k = 0; k < of_grad.size; k++)
        norm += grad[k] * grad[k];
      ck_assert_msg(isfinite(norm) && norm > 1e-8, "%s: squared norm %g", name, norm);
      mt_free(grad);
      mt_free(param);
      mt_free(to);
      mt_free(from);
      mt_free(name);
    }
  }
  ck_assert(!vectors_has(vectors, "params/nothing"));
  ck_assert(!vectors_has(vectors, "nothing/at/all"));
  vectors_close(vectors);
}
END_TEST

/* The curves clip in some steps and not in all, and fall; otherwise they would not test what they are for. */
START_TEST(test_curve)
{
  struct vectors *vectors = vectors_open(files[_i]);
  char *config = vectors_text(vectors, "curve/config");
  int64_t steps = (int64_t)value_of(config, "steps"), clipped = 0;
  double clip = value_of(config, "clip");
  struct vectors_shape shape;
  double *loss = vectors_double(vectors, "curve/loss", &shape);
  ck_assert_int_eq(shape.size, steps);
  double *norm = vectors_double(vectors, "curve/grad_norm", &shape);
  ck_assert_int_eq(shape.size, steps);
  double *lr = vectors_double(vectors, "curve/lr", &shape);
  ck_assert_int_eq(shape.size, steps);
  for (int64_t i = 0; i < steps; i++)
    clipped += norm[i] > clip;
  ck_assert_int_gt(clipped, 5);
  ck_assert_int_lt(clipped, steps - 5);
  ck_assert_double_lt(loss[steps - 1], 0.7 * loss[0]);
  ck_assert_double_eq_tol(lr[0] * value_of(config, "warmup"), value_of(config, "lr"), 1e-12);
  ck_assert_double_eq_tol(lr[steps - 1], value_of(config, "min_lr"), 1e-12);
  mt_free(lr);
  mt_free(norm);
  mt_free(loss);
  int32_t *tokens = vectors_int32(vectors, "curve/tokens", &shape);
  ck_assert_int_eq(shape.n, 3);
  ck_assert_int_eq(shape.dim[1], (int64_t)value_of(config, "global_batch"));
  mt_free(tokens);
  mt_free(config);
  vectors_close(vectors);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("vectors");
  TCase *tests = tcase_create("vectors");
  tcase_add_loop_test(tests, test_loss, 0, NFILE);
  tcase_add_loop_test(tests, test_gradients, 0, NFILE);
  tcase_add_loop_test(tests, test_curve, 0, 1); /* mixtral */
  tcase_add_loop_test(tests, test_curve, 2, 3); /* gpt2 */
  suite_add_tcase(suite, tests);
  return mt_test_run(suite);
}
