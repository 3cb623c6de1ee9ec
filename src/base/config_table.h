/* Inside of the configuration: the table of options and what is known while one is read. For config*.c only.
 */
#ifndef MT_CONFIG_TABLE_H
#define MT_CONFIG_TABLE_H
#include "config.h"
#include "text.h"
#include <stddef.h>

enum mt_option_type {
  MT_OPTION_TEXT,
  MT_OPTION_INTEGER,
  MT_OPTION_REAL,
  MT_OPTION_BOOLEAN,
  MT_OPTION_CHOICE, /* one of `choices`, kept as its number */
  MT_OPTION_WORD,   /* one of `choices`, kept as text */
  MT_OPTION_PAIR,   /* two reals "a,b" in consecutive doubles */
  MT_OPTION_COUNTS, /* integers "a" or "a,b,c" (or nothing), kept as text; with `choices`, one of these words instead */
};

/* Settings that must hold for an option to be read. */
enum mt_need {
  MT_NEED_NOTHING,
  MT_NEED_ROTARY, /* any family but gpt2 */
  MT_NEED_GPT2,
  MT_NEED_EXPERTS,     /* num_local_experts > 0 */
  MT_NEED_ZIPF,        /* moe.router is zipf */
  MT_NEED_REPLAY,      /* it is replay */
  MT_NEED_FOLLOWING,   /* parallel.layout follows the load */
  MT_NEED_DECAY,       /* train.schedule is not constant */
  MT_NEED_WSD,         /* it is wsd */
  MT_NEED_VALID,       /* data.valid is given */
  MT_NEED_DOCUMENT,    /* data.document is not none */
  MT_NEED_TEMPERATURE, /* generate.temperature > 0 */
};

/* What a difference between two configurations means. */
enum mt_meaning {
  MT_MEANS_NOTHING, /* another speed or another place */
  MT_MEANS_COURSE,  /* another course of training */
  MT_MEANS_SHAPE,   /* other parameters */
};

enum { MT_OPEN_LOW = 1, MT_OPEN_HIGH = 2 };

struct mt_option {
  const char *section, *key;
  const char *alias[2];
  enum mt_option_type type;
  size_t offset;        /* in struct mt_config */
  double low, high;     /* of numbers; high = HUGE_VAL: no bound */
  int open;             /* the bounds themselves are not allowed */
  const char *choices;  /* "a|b|c" in the order of the enum */
  const char *fallback; /* default as text; NULL: required, or derived from others in config_check.c */
  const char *derived;  /* for --help: what a derived default is */
  unsigned required;    /* commands that cannot do without it */
  enum mt_need need;
  enum mt_meaning meaning;
  const char *help;
};
extern const struct mt_option mt_options[];
extern const int mt_noption;

struct mt_section {
  const char *name;
  unsigned commands; /* that read it */
  const char *help;
};
extern const struct mt_section mt_sections[];
extern const int mt_nsection;

/* The option called key or by alias in section, or NULL. */
const struct mt_option *mt_option_find(const char *section, const char *key);
/* Likewise by "section.key"; the table must have it. */
const struct mt_option *mt_option_named(const char *name);
const struct mt_section *mt_section_find(const char *name);
/* Sets the option from text; 0 if text is not a value of its type and range (nothing is changed). */
int mt_option_set(const struct mt_option *option, struct mt_config *config, const char *text);
/* Appends the option's value as text (not quoted). */
void mt_option_print(const struct mt_option *option, const struct mt_config *config,
                     struct mt_text_buffer *out);
/* What a value must be: "an integer from 1 to 10". */
void mt_option_expected(const struct mt_option *option, struct mt_text_buffer *out);
/* NULL if the settings read the option, else why not: "with model.family = gpt2". */
const char *mt_option_unread(const struct mt_option *option, const struct mt_config *config);
/* Defaults of all options that have one; the others are zero or "". */
void mt_config_defaults(struct mt_config *config);

enum mt_origin {
  MT_FROM_DEFAULT,
  MT_FROM_DERIVED,
  MT_FROM_JSON, /* config.json */
  MT_FROM_FILE,
  MT_FROM_ENVIRONMENT,
  MT_FROM_SET,
};

struct mt_source {
  enum mt_origin origin;
  int line;       /* of the file */
  char *variable; /* name of the environment's variable, owned */
};

struct mt_reading {
  struct mt_config *config;
  struct mt_source *source; /* [mt_noption], owned */
  const char *path;         /* of the file, for messages; NULL = none */
  unsigned command;
  int lenient;                   /* keys that the table does not have are passed over */
  struct mt_text_buffer warning; /* keys of config.json that change nothing here; keys passed over */
};

/* Appends where the option's value came from: "run.ini:12: ", "environment MOTLEY_X: ", ... */
void mt_reading_where(const struct mt_reading *reading, const struct mt_option *option,
                      struct mt_text_buffer *out);
/* Says "WHERE section.key: found VALUE, expected ..." and returns MT_USAGE. */
enum mt_status mt_reading_refuse(const struct mt_reading *reading, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Sets the option from the text that source gave, or says what is wrong with it. */
enum mt_status mt_reading_set(struct mt_reading *reading, const struct mt_option *option,
                              struct mt_source source, const char *value);
/* Says that section has no such key and which one may have been meant; `where` is "run.ini:3" or "--set a.b".
 * MT_USAGE. */
enum mt_status mt_reading_unknown(const char *where, const char *section, const char *key);
/* Where the value of "section.key" came from. */
enum mt_origin mt_reading_origin(const struct mt_reading *reading, const char *name);

/* Reads INI text, or the file reading->path. (config_file.c) */
enum mt_status mt_config_read_text(struct mt_reading *reading, const char *text);
enum mt_status mt_config_read_file(struct mt_reading *reading);
/* Fills from model.config what file, environment and command line left open. (config_hf.c) */
enum mt_status mt_config_read_hf(struct mt_reading *reading);
/* Fills the defaults that depend on other options. (config_check.c) */
void mt_config_derive(struct mt_reading *reading);
/* Refuses options that are not read, asks for those that are required, checks combinations. (config_check.c)
 */
enum mt_status mt_config_check(struct mt_reading *reading);

#endif
