/* JSON: a thin face of jansson, so that only base/json.c includes it.
 *
 * An mt_json is a value. Who makes it frees it (mt_json_free frees the whole tree); a value given to a parent with
 * mt_json_set or mt_json_push belongs to the parent; what mt_json_get and mt_json_at return is borrowed. */
#ifndef MT_JSON_H
#define MT_JSON_H
#include <stdint.h>
#include "status.h"

struct json_t;
typedef struct json_t mt_json;

mt_json *mt_json_object(void);
mt_json *mt_json_array(void);
mt_json *mt_json_integer(int64_t value);
mt_json *mt_json_real(double value); /* NaN and infinities become null: JSON has no words for them */
mt_json *mt_json_string(const char *text);
mt_json *mt_json_boolean(int value);
mt_json *mt_json_integers(const int64_t *values, int64_t n);
void mt_json_free(mt_json *value);

void mt_json_set(mt_json *object, const char *key, mt_json *value); /* keeps insertion order; takes value */
void mt_json_push(mt_json *array, mt_json *value);                  /* takes value */

mt_json *mt_json_get(const mt_json *object, const char *key); /* NULL if absent or not an object */
int64_t mt_json_size(const mt_json *array);                   /* 0 if not an array or object */
mt_json *mt_json_at(const mt_json *array, int64_t index);
const char *mt_json_key_at(const mt_json *object, int64_t index, mt_json **value); /* insertion order */
int mt_json_is_null(const mt_json *value);                                         /* also true for NULL */
int mt_json_is_string(const mt_json *value);
int mt_json_is_number(const mt_json *value);
int mt_json_is_integer(const mt_json *value);
int mt_json_is_boolean(const mt_json *value);
int mt_json_is_array(const mt_json *value);
int mt_json_is_object(const mt_json *value);
int64_t mt_json_as_integer(const mt_json *value, int64_t fallback); /* fallback if absent or of another type */
double mt_json_as_real(const mt_json *value, double fallback);      /* integers count */
const char *mt_json_as_string(const mt_json *value, const char *fallback); /* borrowed from value */
int mt_json_as_boolean(const mt_json *value, int fallback);

/* Text of a value. indent 0: one line. The caller frees with mt_free. */
char *mt_json_print(const mt_json *value, int indent);
/* Parses text; `name` is used in the error ("name:line:column: cause"), printed once. NULL *value on failure.
 * Refuses duplicate keys. */
enum mt_status mt_json_parse(const char *name, const char *text, mt_json **value);
/* Reads and parses a file. MT_USAGE: it is not there; MT_CORRUPT: it cannot be read or understood. Said. */
enum mt_status mt_json_read(const char *path, mt_json **value);
/* "jansson 2.14", or "jansson 2.14 (compiled with 2.13)", for --version. The caller frees with mt_free. */
char *mt_json_library(void);

#endif
