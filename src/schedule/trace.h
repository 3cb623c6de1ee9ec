/* Lanes as a Chrome trace (opens in Perfetto and chrome://tracing): one process a list of tasks, one thread a lane. */
#ifndef MT_TRACE_H
#define MT_TRACE_H
#include "base/status.h"
#include "base/text.h"
#include "schedule/simulate.h"

struct mt_trace {
  struct mt_text_buffer text; /* owned; zero-initialised is empty */
  int nprocess;
};
/* Adds tasks that ran at span[n] under a name such as "fsmoe, predicted". Local. */
void mt_trace_add(struct mt_trace *trace, const char *name, const struct mt_tasks *tasks, const struct mt_span *span);
/* The file's text, the caller's to free; more may be added later. At least one list was added. Local. */
char *mt_trace_text(const struct mt_trace *trace);
/* Writes the file, over what was there; more may be added and written later. Local. MT_FAILED, said once, if it cannot
 * be written. */
enum mt_status mt_trace_write(const struct mt_trace *trace, const char *path);
void mt_trace_free(struct mt_trace *trace);

#endif
