/* Evaluation on sets of data; see valid.h. */
#include "train/valid.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include <ctype.h>
#include <math.h>
#include <string.h>

/* Characters of "NAME:" at the start of an item, 0 if there is none. */
static int64_t name_length(const char *item)
{
  int64_t n = 0;
  while (isalnum((unsigned char)item[n]) || item[n] == '-' || item[n] == '_')
    n++;
  return n > 0 && item[n] == ':' ? n + 1 : 0;
}

static void begin_set(struct mt_valid *valid, const char *name, int64_t length)
{
  valid->name[valid->n] = mt_format("%.*s", (int)length, name);
  valid->paths[valid->n++] = NULL;
}

/* An item joins the last set's files. */
static void add_files(struct mt_valid *valid, const char *item, int64_t length)
{
  char *before = valid->paths[valid->n - 1];
  valid->paths[valid->n - 1] =
      mt_format("%s%s%.*s", before ? before : "", before ? "," : "", (int)length, item);
  mt_free(before);
}

enum mt_status mt_valid_split(const char *list, struct mt_valid *valid, char **fault)
{
  int64_t most = 1;
  for (const char *c = list; *c; c++)
    most += *c == ',';
  *valid =
      (struct mt_valid){.name = MT_ZNEW(MT_TAG_IO, char *, most), .paths = MT_ZNEW(MT_TAG_IO, char *, most)};
  for (const char *item = list; item;) {
    const char *comma = strchr(item, ',');
    while (isspace((unsigned char)*item))
      item++;
    int64_t name = name_length(item), length = comma ? comma - item : (int64_t)strlen(item);
    if (name) {
      begin_set(valid, item, name - 1);
      valid->named = 1;
    } else if (!valid->n) {
      begin_set(valid, "valid", 5);
    }
    add_files(valid, item + name, length - name);
    item = comma ? comma + 1 : NULL;
  }
  for (int i = 0; i < valid->n; i++)
    for (int j = 0; j < i; j++)
      if (!strcmp(valid->name[i], valid->name[j])) {
        *fault = mt_format("data.valid: found the set %s twice, expected each name once", valid->name[i]);
        return MT_USAGE;
      }
  return MT_OK;
}

enum mt_status mt_valid_open(struct mt_comm *comm, const struct mt_config *config, struct mt_valid *valid)
{
  char *fault = NULL;
  enum mt_status status = mt_valid_split(config->data.valid, valid, &fault); /* alike on all ranks */
  if (status != MT_OK && comm->rank == 0)
    mt_error("%s", fault);
  mt_free(fault);
  valid->data = MT_ZNEW(MT_TAG_IO, struct mt_data, valid->n);
  for (int i = 0; i < valid->n && status == MT_OK; i++) {
    char *key = valid->named ? mt_format("data.valid: %s", valid->name[i]) : mt_strdup("data.valid");
    status = mt_data_open(comm, config, key, valid->paths[i], 0, &valid->data[i]);
    mt_free(key);
  }
  if (status != MT_OK)
    mt_valid_close(valid);
  return status;
}

void mt_valid_close(struct mt_valid *valid)
{
  for (int i = 0; i < valid->n; i++) {
    if (valid->data)
      mt_data_close(&valid->data[i]);
    mt_free(valid->name[i]);
    mt_free(valid->paths[i]);
  }
  mt_free(valid->name);
  mt_free(valid->paths);
  mt_free(valid->data);
  *valid = (struct mt_valid){0};
}

static enum mt_status run_set(struct mt_step *step, struct mt_data *data, const char *name, int named,
                              const struct mt_config *config, struct mt_runlog *log, int64_t number)
{
  double loss, start = mt_time();
  int64_t n = mt_tokens_samples(data->tokens);
  if (mt_step_evaluate(step, mt_data_source(data), n, &loss) != MT_OK)
    return mt_data_say(step->comm, data);
  double seconds = mt_time() - start;
  int bytes = config->data.format == MT_FORMAT_BYTES;
  mt_json *json = mt_json_object();
  mt_json_set(json, "event", mt_json_string("valid"));
  mt_json_set(json, "step", mt_json_integer(number));
  mt_json_set(json, "set", mt_json_string(name));
  mt_json_set(json, "loss", mt_json_real(loss));
  mt_json_set(json, "perplexity", mt_json_real(exp(loss)));
  if (bytes)
    mt_json_set(json, "bits_per_byte", mt_json_real(loss / M_LN2));
  mt_json_set(json, "sequences", mt_json_integer(n));
  mt_json_set(json, "seconds", mt_json_real(seconds));
  mt_runlog_write(log, json);
  mt_info("step %lld  validation%s%s%s loss %.4f  %s %.*f  (%lld sequences, %.1f s)", (long long)number,
          named ? " (" : "", named ? name : "", named ? ")" : "", loss,
          bytes ? "bits per byte" : "perplexity", bytes ? 4 : 3, bytes ? loss / M_LN2 : exp(loss),
          (long long)n, seconds);
  return MT_OK;
}

enum mt_status mt_valid_run(struct mt_step *step, struct mt_valid *valid, const struct mt_config *config,
                            struct mt_runlog *log, int64_t number)
{
  for (int i = 0; i < valid->n; i++)
    MT_TRY(run_set(step, &valid->data[i], valid->name[i], valid->named, config, log, number));
  return MT_OK;
}
