/* Reading, printing and comparing configurations; see config.h.
 *
 * Sources are applied from the weakest to the strongest (file, environment, --set), each value checked where
 * it stands; then config.json fills what is still open, then defaults that depend on other options, and only
 * the whole is checked for combinations. Where each value came from is remembered, so that a message can name
 * the place. inih splits a file into sections and keys; it cuts long lines and names silently, so it is given
 * lines that cannot be cut and the values are taken from our own copy of the line. */
#include "config.h"
#include "config_table.h"
#include "log.h"
#include "memory.h"
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

extern char **environ;

/* ---- messages ---- */

void mt_reading_where(const struct mt_reading *reading, const struct mt_option *option,
                      struct mt_text_buffer *out)
{
  const struct mt_source *source = &reading->source[option - mt_options];
  switch (source->origin) {
  case MT_FROM_FILE:
    mt_text_add(out, "%s:%d: %s.%s", reading->path, source->line, option->section, option->key);
    break;
  case MT_FROM_ENVIRONMENT:
    mt_text_add(out, "environment %s: %s.%s", source->variable, option->section, option->key);
    break;
  case MT_FROM_SET:
    mt_text_add(out, "--set: %s.%s", option->section, option->key);
    break;
  case MT_FROM_JSON:
    mt_text_add(out, "%s: %s.%s", reading->config->model.config, option->section, option->key);
    break;
  default:
    mt_text_add(out, "%s: %s.%s (default)", reading->path ? reading->path : "configuration", option->section,
                option->key);
  }
}

enum mt_status mt_reading_refuse(const struct mt_reading *reading, const char *name, const char *format, ...)
{
  struct mt_text_buffer where = {0};
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  mt_reading_where(reading, mt_option_named(name), &where);
  mt_error("%s: %s", where.text, text);
  mt_free(where.text);
  return MT_USAGE;
}

enum mt_origin mt_reading_origin(const struct mt_reading *reading, const char *name)
{
  return reading->source[mt_option_named(name) - mt_options].origin;
}

/* ---- one value ---- */

enum mt_status mt_reading_unknown(const char *where, const char *section, const char *key)
{
  const char *words[256];
  int n = 0;
  if (!mt_section_find(section)) {
    for (int i = 0; i < mt_nsection; i++)
      words[n++] = mt_sections[i].name;
    const char *near = mt_text_nearest(section, words, n);
    mt_error("%s: unknown section [%s]%s%s%s, expected one of those that --help lists", where, section,
             near ? "; did you mean [" : "", near ? near : "", near ? "]?" : "");
    return MT_USAGE;
  }
  for (int i = 0; i < mt_noption; i++)
    if (!strcmp(mt_options[i].section, section)) {
      words[n++] = mt_options[i].key;
      for (int a = 0; a < 2 && mt_options[i].alias[a]; a++)
        words[n++] = mt_options[i].alias[a];
    }
  const char *near = mt_text_nearest(key, words, n);
  const char *other = NULL;
  for (int i = 0; i < mt_nsection && !other; i++)
    if (mt_option_find(mt_sections[i].name, key))
      other = mt_sections[i].name;
  if (other)
    mt_error("%s: unknown key \"%s\" in [%s]; %s is a key of [%s]", where, key, section, key, other);
  else if (near)
    mt_error("%s: unknown key \"%s\" in [%s]; did you mean \"%s\"?", where, key, section, near);
  else
    mt_error("%s: unknown key \"%s\" in [%s], expected one of those that --help lists", where, key, section);
  return MT_USAGE;
}

enum mt_status mt_reading_set(struct mt_reading *reading, const struct mt_option *option,
                              struct mt_source source, const char *value)
{
  struct mt_source *known = &reading->source[option - mt_options];
  mt_free(known->variable);
  *known = source;
  if (mt_option_set(option, reading->config, value))
    return MT_OK;
  struct mt_text_buffer text = {0};
  mt_reading_where(reading, option, &text);
  mt_text_add(&text, ": found \"%s\", expected ", value);
  mt_option_expected(option, &text);
  mt_error("%s", text.text);
  mt_free(text.text);
  return MT_USAGE;
}

/* ---- environment and command line ---- */

static void environment_name(const char *section, const char *key, char *name, size_t size)
{
  snprintf(name, size, "MOTLEY_%s_%s", section, key);
  for (char *p = name; *p; p++)
    *p = (char)toupper((unsigned char)*p);
}

/* Names that are not options: what tests pretend, and how much is said. */
static const char *const other_names[] = {"MOTLEY_NODES",   "MOTLEY_SLOW",    "MOTLEY_FAIL",  "MOTLEY_LOG",
                                          "MOTLEY_TIMEOUT", "MOTLEY_MPIRUN*", "MOTLEY_TEST_*"};
enum { NOTHER = sizeof other_names / sizeof *other_names };

static int is_other(const char *name)
{
  for (int i = 0; i < NOTHER; i++) {
    size_t n = strcspn(other_names[i], "*");
    if (!strncmp(name, other_names[i], n) && (other_names[i][n] == '*' || !name[n]))
      return 1;
  }
  return 0;
}

/* Goes through the names by which the environment may set options: 1 and the name of number i, 0 at the end.
 */
static int option_name(int i, const struct mt_option **option, char *name, size_t size)
{
  *option = &mt_options[i / 3];
  const char *key = i % 3 ? (*option)->alias[i % 3 - 1] : (*option)->key;
  *name = 0;
  if (key)
    environment_name((*option)->section, key, name, size);
  return key != NULL;
}

static enum mt_status unknown_environment(const char *name)
{
  char(*names)[96] = mt_alloc(MT_TAG_MISC, (3 * mt_noption) * (int64_t)sizeof *names);
  const char **words = MT_NEW(MT_TAG_MISC, const char *, 3 * mt_noption + NOTHER);
  const struct mt_option *option;
  int n = 0;
  for (int i = 0; i < 3 * mt_noption; i++)
    if (option_name(i, &option, names[i], sizeof *names))
      words[n++] = names[i];
  for (int i = 0; i < NOTHER; i++)
    if (!strchr(other_names[i], '*'))
      words[n++] = other_names[i];
  const char *near = mt_text_nearest(name, words, n);
  mt_error("environment %s: unknown name%s%s%s, expected MOTLEY_SECTION_KEY of an option that --help lists",
           name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
  mt_free(words);
  mt_free(names);
  return MT_USAGE;
}

static int is_level(const char *text)
{
  return !strcmp(text, "error") || !strcmp(text, "warn") || !strcmp(text, "info") || !strcmp(text, "debug");
}

static enum mt_status read_environment(struct mt_reading *reading)
{
  for (char **variable = environ; variable && *variable; variable++) {
    if (strncmp(*variable, "MOTLEY_", 7))
      continue;
    const char *equals = strchr(*variable, '=');
    char *name = mt_format("%.*s", (int)strcspn(*variable, "="), *variable), known[96];
    const struct mt_option *option = NULL, *other;
    for (int i = 0; i < 3 * mt_noption && !option; i++)
      if (option_name(i, &other, known, sizeof known) && !strcmp(known, name))
        option = other;
    enum mt_status status = MT_OK;
    if (option) {
      status = mt_reading_set(reading, option, (struct mt_source){MT_FROM_ENVIRONMENT, 0, name},
                              equals ? equals + 1 : "");
      name = NULL;
    } else if (!strcmp(name, "MOTLEY_LOG") && equals && !is_level(equals + 1)) {
      mt_error("environment MOTLEY_LOG: found \"%s\", expected one of error, warn, info, debug", equals + 1);
      status = MT_USAGE;
    } else if (!is_other(name)) {
      status = unknown_environment(name);
    }
    mt_free(name);
    if (status)
      return status;
  }
  return MT_OK;
}

static enum mt_status read_override(struct mt_reading *reading, const char *text)
{
  const char *equals = strchr(text, '='), *dot = strchr(text, '.');
  if (!equals || !dot || dot > equals || dot == text || dot + 1 == equals) {
    mt_error("--set %s: expected --set section.key=value", text);
    return MT_USAGE;
  }
  char *section = mt_format("%.*s", (int)(dot - text), text);
  char *key = mt_format("%.*s", (int)(equals - dot - 1), dot + 1);
  const struct mt_option *option = mt_option_find(section, key);
  enum mt_status status;
  if (option) {
    status = mt_reading_set(reading, option, (struct mt_source){.origin = MT_FROM_SET}, equals + 1);
  } else {
    char prefix[128];
    snprintf(prefix, sizeof prefix, "--set %s.%s", section, key);
    status = mt_reading_unknown(prefix, section, key);
  }
  mt_free(section);
  mt_free(key);
  return status;
}

enum mt_status mt_config_override(struct mt_config *config, const struct mt_override *override)
{
  struct mt_reading reading = {.config = config, .source = MT_ZNEW(MT_TAG_MISC, struct mt_source, mt_noption)};
  enum mt_status status = read_override(&reading, override->text);
  mt_free(reading.source);
  return status;
}

/* ---- the whole ---- */

static void reading_begin(struct mt_reading *reading, const char *path, unsigned command,
                          struct mt_config *config)
{
  memset(reading, 0, sizeof *reading);
  reading->config = config;
  reading->path = path;
  reading->command = command;
  reading->source = MT_ZNEW(MT_TAG_MISC, struct mt_source, mt_noption);
  mt_config_defaults(config);
}

static enum mt_status reading_end(struct mt_reading *reading, enum mt_status status)
{
  for (int i = 0; i < mt_noption; i++)
    mt_free(reading->source[i].variable);
  mt_free(reading->source);
  mt_free(reading->warning.text);
  if (status)
    mt_config_free(reading->config);
  return status;
}

static enum mt_status read_all(struct mt_reading *reading, const struct mt_override *overrides, int n)
{
  if (reading->path)
    MT_TRY(mt_config_read_file(reading));
  MT_TRY(read_environment(reading));
  for (int i = 0; i < n; i++)
    MT_TRY(read_override(reading, overrides[i].text));
  if (*reading->config->model.config)
    MT_TRY(mt_config_read_hf(reading));
  mt_config_derive(reading);
  return mt_config_check(reading);
}

enum mt_status mt_config_read(const char *path, const struct mt_override *overrides, int n,
                              unsigned command, struct mt_config *config)
{
  struct mt_reading reading;
  reading_begin(&reading, path, command, config);
  return reading_end(&reading, read_all(&reading, overrides, n));
}

enum mt_status mt_config_parse(const char *name, const char *text, struct mt_config *config, char **unknown)
{
  struct mt_reading reading;
  reading_begin(&reading, name, 0, config);
  reading.lenient = 1;
  enum mt_status status = mt_config_read_text(&reading, text);
  if (!status)
    mt_config_derive(&reading);
  if (unknown)
    *unknown = status ? NULL : mt_strdup(reading.warning.text);
  return reading_end(&reading, status);
}

/* Quoted where a plain value would not read back as it is. */
static const char BLANKS[] = " \t\r\f\v";

static void print_quoted(struct mt_text_buffer *out, const char *value)
{
  size_t n = strlen(value);
  int plain = *value != '"' && (!n || (!strchr(BLANKS, value[0]) && !strchr(BLANKS, value[n - 1])));
  for (const char *p = value; *p; p++)
    if ((unsigned char)*p < 32 || *p == ';' || *p == '#' || *p == 127)
      plain = 0;
  if (plain) {
    mt_text_add(out, "%s", value);
    return;
  }
  mt_text_add(out, "\"");
  for (const char *p = value; *p; p++)
    if (*p == '"' || *p == '\\')
      mt_text_add(out, "\\%c", *p);
    else if (*p == '\n')
      mt_text_add(out, "\\n");
    else if ((unsigned char)*p < 32 || *p == 127)
      mt_text_add(out, "\\x%02x", (unsigned)*p);
    else
      mt_text_add(out, "%c", *p);
  mt_text_add(out, "\"");
}

char *mt_config_print(const struct mt_config *config)
{
  return mt_config_print_sections(config, ~(unsigned)(MT_CMD_BENCH | MT_CMD_PLAN));
}

char *mt_config_print_sections(const struct mt_config *config, unsigned commands)
{
  struct mt_text_buffer out = {0};
  const char *section = "";
  for (int i = 0; i < mt_noption; i++) {
    const struct mt_option *option = &mt_options[i];
    if (mt_option_unread(option, config) || !(mt_section_find(option->section)->commands & commands))
      continue;
    if (strcmp(section, option->section))
      mt_text_add(&out, "%s[%s]\n", *section ? "\n" : "", option->section);
    section = option->section;
    struct mt_text_buffer value = {0};
    mt_option_print(option, config, &value);
    mt_text_add(&out, "%s = ", option->key);
    print_quoted(&out, value.text);
    mt_text_add(&out, "\n");
    mt_free(value.text);
  }
  return out.text;
}

/* The first option that differs, of those that mean at least so much; told = 1: of [model] and [moe] only. */
static char *difference(const struct mt_config *a, const struct mt_config *b, enum mt_meaning least, int told)
{
  int pooled = a->moe.aux_scope == MT_AUX_MICRO_BATCH || b->moe.aux_scope == MT_AUX_MICRO_BATCH;
  for (int i = 0; i < mt_noption; i++) {
    const struct mt_option *option = &mt_options[i];
    if (option->meaning < least || (told && strcmp(option->section, "model") && strcmp(option->section, "moe")) ||
        (mt_option_unread(option, a) && mt_option_unread(option, b)) ||
        (!pooled && option->offset == offsetof(struct mt_config, train.micro_batch)))
      continue;
    struct mt_text_buffer x = {0}, y = {0};
    mt_option_print(option, a, &x);
    mt_option_print(option, b, &y);
    char *found = strcmp(x.text, y.text) ? mt_format("%s.%s (checkpoint %s, now %s)", option->section,
                                                     option->key, x.text, y.text)
                                         : NULL;
    mt_free(x.text);
    mt_free(y.text);
    if (found)
      return found;
  }
  return NULL;
}

char *mt_config_difference(const struct mt_config *checkpoint, const struct mt_config *now)
{
  return difference(checkpoint, now, MT_MEANS_COURSE, 0);
}

char *mt_config_told_difference(const struct mt_config *checkpoint, const struct mt_config *now)
{
  return difference(checkpoint, now, MT_MEANS_COURSE, 1);
}

char *mt_config_model_difference(const struct mt_config *checkpoint, const struct mt_config *now)
{
  return difference(checkpoint, now, MT_MEANS_SHAPE, 0);
}
