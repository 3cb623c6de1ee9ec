/* Traces; see trace.h. Times of the format are microseconds. */
#include "schedule/trace.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/log.h"
#include "base/memory.h"

static void begin(struct mt_trace *trace)
{
  mt_text_add(&trace->text, "%s", trace->text.text ? ",\n" : "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
}

void mt_trace_add(struct mt_trace *trace, const char *name, const struct mt_tasks *tasks, const struct mt_span *span)
{
  const int process = trace->nprocess++;
  begin(trace);
  mt_text_add(&trace->text, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"%s\"}}", process,
              name);
  for (int lane = 0; lane < MT_NLANE; lane++) {
    begin(trace);
    mt_text_add(&trace->text,
                "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", process,
                lane, mt_lane_name((enum mt_lane)lane));
  }
  for (int i = 0; i < tasks->n; i++) {
    const struct mt_task *task = &tasks->task[i];
    if (span[i].end_ns <= span[i].start_ns)
      continue;
    begin(trace);
    mt_text_add(&trace->text,
                "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
                "\"args\":{\"micro\":%d,\"layer\":%d,\"chunk\":%d}}",
                mt_task_name(task->kind), process, (int)task->lane, 1e-3 * (double)span[i].start_ns,
                1e-3 * (double)(span[i].end_ns - span[i].start_ns), task->micro, task->layer, task->chunk);
  }
}

char *mt_trace_text(const struct mt_trace *trace)
{
  return mt_format("%s\n]}\n", trace->text.text);
}

enum mt_status mt_trace_write(const struct mt_trace *trace, const char *path)
{
  char *text = mt_trace_text(trace);
  FILE *file = fopen(path, "w");
  int failed = !file || fputs(text, file) < 0;
  int number = errno;
  if (file && fclose(file) && !failed) {
    failed = 1;
    number = errno;
  }
  if (failed)
    mt_error("%s: cannot be written: %s", path, strerror(number));
  mt_free(text);
  return failed ? MT_FAILED : MT_OK;
}

void mt_trace_free(struct mt_trace *trace)
{
  mt_free(trace->text.text);
  *trace = (struct mt_trace){0};
}
