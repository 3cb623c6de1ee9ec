/* JSON; see json.h.
 *
 * Parsing and the values are jansson's. Printing is our own: jansson prints a real with a fixed number of
 * digits, and a person reads 0.001 more easily than 0.001000000000000000021. */
#include "json.h"
#include "log.h"
#include "memory.h"
#include "text.h"
#include <jansson.h>
#include <math.h>
#include <string.h>

static mt_json *made(mt_json *value)
{
  MT_CHECK(value, "out of memory for JSON");
  return value;
}

mt_json *mt_json_object(void)
{
  return made(json_object());
}

mt_json *mt_json_array(void)
{
  return made(json_array());
}

mt_json *mt_json_integer(int64_t value)
{
  return made(json_integer(value));
}

mt_json *mt_json_real(double value)
{
  return made(isfinite(value) ? json_real(value) : json_null());
}

/* The length of the UTF-8 character at p, 0 if there is none. Strict enough for jansson; see RFC 3629. */
static int utf8_length(const unsigned char *p)
{
  if (p[0] < 0x80)
    return p[0] != 0;
  int n = p[0] >= 0xc2 && p[0] <= 0xdf ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4 : 0;
  for (int i = 1; i < n; i++)
    if ((p[i] & 0xc0) != 0x80)
      return 0;
  if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
      (p[0] == 0xf4 && p[1] > 0x8f))
    return 0;
  return n;
}

/* JSON holds characters, while a path or generated text may hold any bytes: those that are no UTF-8 become
 * '?'. */
mt_json *mt_json_string(const char *text)
{
  mt_json *value = json_string(text);
  if (value)
    return value;
  char *clean = mt_strdup(text);
  for (unsigned char *p = (unsigned char *)clean; *p;) {
    int n = utf8_length(p);
    if (n == 0)
      *p = '?';
    p += n ? n : 1;
  }
  value = json_string(clean);
  mt_free(clean);
  return made(value);
}

mt_json *mt_json_boolean(int value)
{
  return made(json_boolean(value));
}

mt_json *mt_json_integers(const int64_t *values, int64_t n)
{
  mt_json *array = mt_json_array();
  for (int64_t i = 0; i < n; i++)
    mt_json_push(array, mt_json_integer(values[i]));
  return array;
}

void mt_json_free(mt_json *value)
{
  json_decref(value);
}

void mt_json_set(mt_json *object, const char *key, mt_json *value)
{
  MT_CHECK(!json_object_set_new(object, key, value), "JSON: cannot set \"%s\"", key);
}

void mt_json_push(mt_json *array, mt_json *value)
{
  MT_CHECK(!json_array_append_new(array, value), "JSON: cannot append to an array");
}

mt_json *mt_json_get(const mt_json *object, const char *key)
{
  return json_object_get(object, key);
}

int64_t mt_json_size(const mt_json *array)
{
  return (int64_t)(json_is_object(array) ? json_object_size(array) : json_array_size(array));
}

mt_json *mt_json_at(const mt_json *array, int64_t index)
{
  return index < 0 ? NULL : json_array_get(array, (size_t)index);
}

const char *mt_json_key_at(const mt_json *object, int64_t index, mt_json **value)
{
  mt_json *walked = (mt_json *)object; /* jansson's iterator takes no const, but changes nothing */
  void *iter = json_object_iter(walked);
  while (iter && index-- > 0)
    iter = json_object_iter_next(walked, iter);
  if (value)
    *value = iter ? json_object_iter_value(iter) : NULL;
  return iter ? json_object_iter_key(iter) : NULL;
}

int mt_json_is_null(const mt_json *value)
{
  return !value || json_is_null(value);
}

int mt_json_is_string(const mt_json *value)
{
  return json_is_string(value);
}

int mt_json_is_number(const mt_json *value)
{
  return json_is_number(value);
}

int mt_json_is_integer(const mt_json *value)
{
  return json_is_integer(value);
}

int mt_json_is_boolean(const mt_json *value)
{
  return json_is_boolean(value);
}

int mt_json_is_array(const mt_json *value)
{
  return json_is_array(value);
}

int mt_json_is_object(const mt_json *value)
{
  return json_is_object(value);
}

int64_t mt_json_as_integer(const mt_json *value, int64_t fallback)
{
  return json_is_integer(value) ? json_integer_value(value) : fallback;
}

double mt_json_as_real(const mt_json *value, double fallback)
{
  return json_is_number(value) ? json_number_value(value) : fallback;
}

const char *mt_json_as_string(const mt_json *value, const char *fallback)
{
  return json_is_string(value) ? json_string_value(value) : fallback;
}

int mt_json_as_boolean(const mt_json *value, int fallback)
{
  return json_is_boolean(value) ? json_is_true(value) : fallback;
}

static void print_string(struct mt_text_buffer *out, const char *text)
{
  mt_text_add(out, "\"");
  for (const char *p = text; *p;) {
    size_t plain = 0;
    while ((unsigned char)p[plain] >= 32 && p[plain] != '"' && p[plain] != '\\')
      plain++;
    mt_text_add(out, "%.*s", (int)plain, p);
    p += plain;
    if (!*p)
      break;
    if (*p == '"' || *p == '\\')
      mt_text_add(out, "\\%c", *p);
    else if (*p == '\n')
      mt_text_add(out, "\\n");
    else if (*p == '\t')
      mt_text_add(out, "\\t");
    else
      mt_text_add(out, "\\u%04x", (unsigned)*p);
    p++;
  }
  mt_text_add(out, "\"");
}

static void new_line(struct mt_text_buffer *out, int indent, int depth)
{
  if (indent)
    mt_text_add(out, "\n%*s", indent * depth, "");
}

static void print_value(struct mt_text_buffer *out, const mt_json *value, int indent, int depth)
{
  switch (json_typeof(value)) {
  case JSON_OBJECT: {
    mt_json *object = (mt_json *)value;
    void *iter = json_object_iter(object);
    mt_text_add(out, "{");
    for (int i = 0; iter; iter = json_object_iter_next(object, iter), i++) {
      mt_text_add(out, "%s", i ? indent ? "," : ", " : "");
      new_line(out, indent, depth + 1);
      print_string(out, json_object_iter_key(iter));
      mt_text_add(out, ": ");
      print_value(out, json_object_iter_value(iter), indent, depth + 1);
    }
    if (json_object_size(object))
      new_line(out, indent, depth);
    mt_text_add(out, "}");
    break;
  }
  case JSON_ARRAY: { /* arrays of plain values stay on one line */
    size_t n = json_array_size(value);
    int nested = n && (json_is_object(json_array_get(value, 0)) || json_is_array(json_array_get(value, 0)));
    mt_text_add(out, "[");
    for (size_t i = 0; i < n; i++) {
      mt_text_add(out, "%s", i ? nested && indent ? "," : ", " : "");
      if (nested)
        new_line(out, indent, depth + 1);
      print_value(out, json_array_get(value, i), indent, depth + 1);
    }
    if (nested)
      new_line(out, indent, depth);
    mt_text_add(out, "]");
    break;
  }
  case JSON_STRING:
    print_string(out, json_string_value(value));
    break;
  case JSON_INTEGER:
    mt_text_add(out, "%lld", (long long)json_integer_value(value));
    break;
  case JSON_REAL: {
    char text[32];
    mt_text_print_real(json_real_value(value), text);
    /* A real stays a real when it is read again. */
    mt_text_add(out, "%s%s", text, strpbrk(text, ".e") ? "" : ".0");
    break;
  }
  case JSON_TRUE:
    mt_text_add(out, "true");
    break;
  case JSON_FALSE:
    mt_text_add(out, "false");
    break;
  default:
    mt_text_add(out, "null");
  }
}

char *mt_json_print(const mt_json *value, int indent)
{
  struct mt_text_buffer out = {0};
  if (value)
    print_value(&out, value, indent, 0);
  else
    mt_text_add(&out, "null");
  return out.text;
}

enum mt_status mt_json_parse(const char *name, const char *text, mt_json **value)
{
  json_error_t error;
  *value = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
  if (*value)
    return MT_OK;
  mt_error("%s:%d:%d: not JSON: %s", name, error.line, error.column, error.text);
  return MT_CORRUPT;
}

enum mt_status mt_json_read(const char *path, mt_json **value)
{
  char *text, *fault;
  *value = NULL;
  enum mt_status status = mt_text_read(path, &text, &fault);
  if (status)
    mt_error("%s, expected JSON", fault);
  else
    status = mt_json_parse(path, text, value);
  mt_free(fault);
  mt_free(text);
  return status;
}

char *mt_json_library(void)
{
#if JANSSON_VERSION_HEX >= 0x020d00
  const char *now = jansson_version_str();
  if (strcmp(now, JANSSON_VERSION))
    return mt_format("jansson %s (compiled with %s)", now, JANSSON_VERSION);
#endif
  return mt_format("jansson %s", JANSSON_VERSION);
}
