/* RUN/log.jsonl: one JSON object a line, appended. Rank 0 only; on other ranks the log is NULL and every call does nothing. */
#ifndef MT_RUNLOG_H
#define MT_RUNLOG_H
#include "base/json.h"

struct mt_runlog;

/* Opens (creates) dir/log.jsonl for appending, making the folder (and its parents) if needed; if the last line has no
 * newline, one is written first. Local. MT_FAILED with path and cause if it cannot be written; MT_USAGE if a file is where
 * the folder should be, or if another process has the log open (two jobs in one folder would undo each other's
 * work; the lock ends with the process). */
enum mt_status mt_runlog_open(const char *dir, struct mt_runlog **log);
void mt_runlog_close(struct mt_runlog *log);
/* Writes one line in one write: takes (and frees) the object, whose first key is "event". A write that fails is one
 * warning for the run; training goes on. Local. */
void mt_runlog_write(struct mt_runlog *log, mt_json *object);
/* Writes a file of this name beside the log, anew. What cannot be written shares that warning. Local. */
void mt_runlog_put(struct mt_runlog *log, const char *name, const char *text);

#endif
