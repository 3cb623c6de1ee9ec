/* Text into numbers and back, whole files, and the nearest known word.
 *
 * The C library's strtol and strtod accept too much (leading blanks, trailing garbage, "nan", "0x1p3", silent
 * overflow); everything that a person typed passes through here instead. */
#ifndef MT_TEXT_H
#define MT_TEXT_H
#include <stdint.h>
#include "status.h"

/* 1 if text is a decimal integer of 64 bits, whole (optional sign, digits, nothing else); then *value is set.
 * Local. */
int mt_text_integer(const char *text, int64_t *value);
/* 1 if text is a finite decimal number, whole ("1", "-0.5", "1e-3"); then *value is set. What is smaller than
 * the smallest double becomes 0 or a denormal; what is larger is refused. Local. */
int mt_text_real(const char *text, double *value);
/* 1 if text is true, false, 1 or 0; then *value is set. Local. */
int mt_text_boolean(const char *text, int *value);
/* The shortest decimal text that reads back as the same double, into text[32]; returns text. Finite values
 * only. Local. */
char *mt_text_print_real(double value, char *text);

/* The integers >= 0 of a list, separated by commas, with blanks around them allowed, into value[i] for i < room. Returns how
 * many there are, -1 if text is no such list. Local. */
int mt_text_integers(const char *text, int64_t *value, int room);

/* A whole file of text, as *text (the caller frees with mt_free). Local. MT_USAGE if it is not there, MT_CORRUPT if it cannot be
 * read or is no text (it holds a control character but the blanks); then *fault (likewise) says "PATH:LINE: byte N: found ...",
 * to be said with what was expected, and *text is NULL. */
enum mt_status mt_text_read(const char *path, char **text, char **fault);

/* Edits (insert, delete, change, swap neighbours) from one word to the other; '-' equals '_', case does not
 * count. */
int mt_text_distance(const char *a, const char *b);
/* The one of n words that is nearest to `word`, or NULL if none is near enough to be meant. Borrowed from
 * words. Local. */
const char *mt_text_nearest(const char *word, const char *const *words, int n);

/* A string that grows; zero-initialised is empty. text is NULL while nothing was added; the caller frees it
 * with mt_free. Not for hot code. */
struct mt_text_buffer {
  char *text;
  int64_t length, capacity;
};
void mt_text_add(struct mt_text_buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
