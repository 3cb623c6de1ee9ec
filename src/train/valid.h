/* Evaluation on one or several sets of data.
 *
 * data.valid is a list of files like data.train; NAME: before a file begins a set of that name, to which the
 * files after it belong: "a.txt, b.txt" is one set, "wiki: a.txt, b.txt, code: src-*.txt" are two. Files
 * before the first name are the set "valid". A name is letters, digits, - and _; a file whose name looks like
 * that is written ./x:y. */
#ifndef MT_VALID_H
#define MT_VALID_H
#include "io/runlog.h"
#include "train/data.h"

struct mt_valid {
  int n;
  char **name;          /* [n], owned */
  char **paths;         /* [n] comma-separated files, owned */
  struct mt_data *data; /* [n], owned */
  int named;            /* 1: somebody gave names, so they are shown */
};

/* Splits the list into sets (data stays NULL). MT_USAGE with *fault (the caller frees) if a name comes twice.
 * Local. The caller frees with mt_valid_close, after a failure too. */
enum mt_status mt_valid_split(const char *list, struct mt_valid *valid, char **fault);
/* Opens the sets of data.valid on all ranks. A failure is said once and leaves nothing open. Collective,
 * agreed. */
enum mt_status mt_valid_open(struct mt_comm *comm, const struct mt_config *config, struct mt_valid *valid);
void mt_valid_close(struct mt_valid *valid);
/* The mean loss of each whole set under the model of `step`, for text also in bits per byte, which compares
 * with a compressor: a line and an event "valid" of `number` each. log NULL: no events. Collective, agreed.
 */
enum mt_status mt_valid_run(struct mt_step *step, struct mt_valid *valid, const struct mt_config *config,
                            struct mt_runlog *log, int64_t number);

#endif
