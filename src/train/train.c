/* The training loop and evaluation: steps, validation, checkpoints, log, and the stop on a signal.
 *
 * The trap: a signal reaches ranks at different moments. The handler only sets a flag; ranks agree on it once a step, at the
 * step's end, so all save the same step and leave together. */
#include "train/train.h"
#include "base/json.h"
#include "base/log.h"
#include "io/runlog.h"
#include "train/data.h"
#include "train/session.h"
#include "train/step_plan.h"
#include "train/valid.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t stop_signal;
static int nowhere = -1; /* /dev/null, opened before it is needed in the handler */

/* A launcher that was told to end the job may read no output any more, and rank 0 may be stuck in writing a line, or be at
 * the next. Then standard output leads nowhere from now on: a write that was interrupted starts again there. */
static void on_signal(int number)
{
  int error = errno;
  struct pollfd out = {STDOUT_FILENO, POLLOUT, 0};
  stop_signal = number;
  if (nowhere >= 0 && poll(&out, 1, 0) == 0)
    dup2(nowhere, STDOUT_FILENO);
  errno = error;
}

/* USR1 is what Slurm scripts send before the time limit; TERM comes at the limit itself.
 *
 * The handler runs on a stack of its own: oneDNN's generated code uses the stack pointer as one more register, and a handler
 * that ran below it would overwrite whatever lies there (seen: a heap in ruins after a few signals). Signals for a process go
 * to its first thread as long as that does not block them, so it is the only one that needs such a stack. */
void mt_train_catch_signals(void)
{
  static char own[1 << 16];
  stack_t stack = {.ss_sp = own, .ss_size = sizeof own};
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
  MT_CHECK(sigaltstack(&stack, NULL) == 0, "no stack for signals: %s", strerror(errno));
  sigemptyset(&action.sa_mask);
  nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  sigaction(SIGUSR1, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
}

struct run {
  struct mt_session session;
  struct mt_comm *comm;
  const struct mt_config *config;
  struct mt_data train;
  struct mt_valid valid;
  struct mt_step *step;
  struct mt_runlog *log;
  double started;        /* time of the first step of this process */
  int64_t first_step;    /* last step before this process */
  int64_t saved;         /* last step that has a checkpoint */
  struct mt_trace trace; /* rank 0's */
  struct mt_course said; /* the plan that was said to be in force last */
};

static mt_json *event(const char *name)
{
  mt_json *json = mt_json_object();
  mt_json_set(json, "event", mt_json_string(name));
  return json;
}

static void log_start(struct run *run)
{
  const struct mt_session *session = &run->session;
  mt_json *json = event("start");
  mt_json_set(json, "from_step", mt_json_integer(session->progress.step));
  mt_json_set(json, "checkpoint", mt_json_string(session->from.path ? session->from.path : ""));
  mt_json_set(json, "same_places", mt_json_boolean(session->from.same));
  mt_json_set(json, "ranks", mt_json_integer(run->comm->size));
  mt_json_set(json, "nodes", mt_json_integer(run->comm->nnode));
  mt_json_set(json, "parameters", mt_json_integer(mt_params_total(&session->model->params)));
  mt_json_set(json, "steps", mt_json_integer(run->config->train.steps));
  mt_json_set(json, "micro_steps", mt_json_integer(run->step->batch.nmicro));
  mt_json *shares = mt_json_array();
  for (int r = 0; r < run->comm->size; r++)
    mt_json_push(shares, mt_json_integer(mt_part_count(&run->step->batch.share, r)));
  mt_json_set(json, "shares", shares);
  mt_json_set(json, "exchange", mt_json_string(session->model->moe ? mt_exchange_name(session->model->moe->exchange) : "none"));
  mt_runlog_write(run->log, json);
}

static void say_start(const struct run *run)
{
  const struct mt_session *session = &run->session;
  const struct mt_arch *arch = &session->model->arch;
  char experts[96] = "dense";
  if (arch->E > 0)
    snprintf(experts, sizeof experts, "%d MoE, %lld experts, %lld per token", session->model->params.nmoe, (long long)arch->E,
             (long long)arch->K);
  mt_info("ranks: %d, nodes: %d; %lld parameters, %lld layers (%s)", run->comm->size, run->comm->nnode,
          (long long)mt_params_total(&session->model->params), (long long)arch->L, experts);
  const struct mt_part *share = &run->step->batch.share;
  int64_t least = INT64_MAX, most = 0;
  for (int r = 0; r < share->nrank; r++) {
    int64_t n = mt_part_count(share, r);
    least = n < least ? n : least;
    most = n > most ? n : most;
  }
  mt_info("global batch %lld sequences of %lld tokens, %lld to %lld a rank, %lld micro-steps; %lld training samples",
          (long long)run->config->train.global_batch, (long long)run->config->data.seq_length, (long long)least, (long long)most,
          (long long)run->step->batch.nmicro, (long long)mt_tokens_samples(run->train.tokens));
  if (session->from.path)
    mt_info("resuming %s after step %lld (%s)", session->from.path, (long long)session->progress.step,
            session->from.same ? "the same ranks and places: goes on bit for bit"
                          : "other ranks, places or settings: goes on up to rounding");
  const struct mt_moe *moe = session->model->moe;
  const int P = run->comm->size;
  const char *why = moe ? mt_relayout_why_static(run->config, P, moe->fixed->slot_first[P]) : NULL;
  if (why && (P > 1 || run->config->parallel.layout != MT_LAYOUT_MOTLEY)) /* which is the default */
    mt_info("layouts: static: %s", why);
  if (session->layouts == MT_LAYOUTS_GO_ON)
    mt_info("layouts and the loads they follow: %s",
            session->from.same ? "as the checkpoint has them" : "those of the checkpoint, as a hint");
  else if (session->layouts == MT_LAYOUTS_ANEW)
    mt_info("layouts: static at first; the checkpoint has none for these ranks and slots");
  if (!session->from.path)
    mt_info("starting from initial weights, seed %lld", (long long)run->config->train.seed);
}

/* That a plan is in force from the next step on; the ones under trial for the log alone. */
static void log_schedule(struct run *run, const struct mt_schedule_report *report)
{
  const struct mt_step *step = run->step;
  const struct mt_course *course = &step->course;
  const int degree = course->plan.degree[0];
  if (!report)
    return;
  mt_json *json = event("schedule");
  mt_json_set(json, "step", mt_json_integer(run->session.progress.step));
  mt_json_set(json, "policy", mt_json_string(mt_scheme_name(course->scheme)));
  mt_json_set(json, "chunks", mt_json_integer(course->plan.chunks));
  mt_json_set(json, "degree", mt_json_integer(degree));
  mt_json_set(json, "beside", mt_json_boolean(course->beside));
  mt_json_set(json, "predicted_s", mt_json_real(step->predicted_s));
  if (report->before_s > 0)
    mt_json_set(json, "measured_s", mt_json_real(report->before_s));
  mt_json_set(json, "why", mt_json_string(report->why));
  mt_json_set(json, "trial", mt_json_boolean(!report->settled));
  if (run->comm->cluster->learnt.n)
    mt_json_set(json, "fit_error", mt_json_real(step->fit_error));
  mt_runlog_write(run->log, json);
  if (!report->settled || !memcmp(&run->said, course, sizeof *course))
    return;
  run->said = *course;
  char before[48] = "";
  if (report->before_s > 0)
    snprintf(before, sizeof before, ", measured so far %.3g s", report->before_s);
  mt_info("schedule: %s, chunks: %d of sequences, %d of tokens, %s; predicted %.3g s a step%s (%s)",
          mt_scheme_name(course->scheme), course->plan.chunks, degree,
          course->beside ? "communication beside computing" : "one after the other", step->predicted_s, before, report->why);
}

/* What is known of the cluster, for `motley simulate` and `motley plan`. A file that cannot be written costs nothing but
 * itself. */
static void write_cluster(const struct run *run)
{
  if (run->comm->rank != 0)
    return;
  mt_json *json = mt_cluster_to_json(run->comm->cluster);
  char *text = mt_json_print(json, 2), *line = mt_format("%s\n", text);
  mt_runlog_put(run->log, "cluster.json", line);
  mt_free(line);
  mt_free(text);
  mt_json_free(json);
}

/* Other data under the same names go unnoticed otherwise. One rank looks. */
static void mark_data(struct run *run)
{
  struct mt_tokens_mark now = {0}, was = run->session.progress.data;
  if (run->comm->rank == 0)
    now = mt_tokens_mark(run->train.tokens);
  mt_bcast(run->comm, &now, sizeof now, 0);
  run->session.progress.data = now;
  if (!was.files || !memcmp(&now, &was, sizeof now))
    return;
  run->session.from.same = 0;
  if (run->comm->rank == 0)
    mt_warn("data.train: found %lld files of %lld bytes, checksum %08llx, expected those that %s was trained on: %lld of %lld "
            "bytes, %08llx; positions in the data go on in the new ones", (long long)now.files, (long long)now.bytes,
            (long long)now.crc, run->session.from.path, (long long)was.files, (long long)was.bytes, (long long)was.crc);
}

/* 1 on rank 0 if log.trace names the step. */
static int is_traced(const struct run *run, int64_t step)
{
  for (const char *p = run->config->log.trace; p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
    if (strtoll(p, NULL, 10) == step)
      return run->comm->rank == 0;
  return 0;
}

/* A trace that cannot be written costs nothing but itself. */
static void write_trace(const struct run *run)
{
  char *text = mt_trace_text(&run->trace);
  mt_runlog_put(run->log, "trace.json", text);
  mt_free(text);
}

static void log_step(struct run *run, const struct mt_step_result *result)
{
  const struct mt_progress *progress = &run->session.progress;
  const int nmoe = run->session.model->params.nmoe, E = run->session.model->params.nexpert;
  double most = 1;
  mt_json *json = event("step"), *times = mt_json_object(), *load = mt_json_array();
  mt_json_set(json, "step", mt_json_integer(progress->step));
  mt_json_set(json, "tokens", mt_json_integer(progress->tokens));
  mt_json_set(json, "loss", mt_json_real(result->loss));
  mt_json_set(json, "ce_loss", mt_json_real(result->ce));
  mt_json_set(json, "aux_loss", mt_json_real(result->aux));
  mt_json_set(json, "z_loss", mt_json_real(result->z));
  mt_json_set(json, "lr", mt_json_real(result->lr));
  mt_json_set(json, "grad_norm", mt_json_real(result->grad_norm));
  mt_json_set(json, "updated", mt_json_boolean(result->updated));
  mt_json_set(json, "step_s", mt_json_real(result->step_s));
  mt_json_set(json, "tokens_per_s", mt_json_real((double)result->tokens / result->step_s));
  mt_json_set(times, "compute", mt_json_real(result->lane_s[MT_LANE_COMPUTE]));
  mt_json_set(times, "intra", mt_json_real(result->lane_s[MT_LANE_INTRA]));
  mt_json_set(times, "inter", mt_json_real(result->lane_s[MT_LANE_INTER]));
  mt_json_set(times, "wait", mt_json_real(result->wait_s));
  mt_json_set(times, "exposed", mt_json_real(result->exposed_s));
  mt_json_set(times, "predicted", mt_json_real(result->predicted_s));
  mt_json_set(times, "error", mt_json_real((result->step_s - result->predicted_s) / result->step_s));
  mt_json_set(json, "time", times);
  mt_json_set(json, "mem_bytes", mt_json_integer(result->mem_bytes));
  mt_json_set(json, "growths", mt_json_integer(result->growths));
  mt_json_set(json, "batch_hash", mt_json_integer(result->batch_hash));
  for (int l = 0; l < nmoe; l++) {
    mt_json_push(load, mt_json_real(result->load[l]));
    most = result->load[l] > most ? result->load[l] : most;
  }
  mt_json_set(json, "load", load);
  if (run->config->log.loads == MT_LOADS_FULL && nmoe) {
    mt_json *layers = mt_json_array();
    for (int l = 0; l < nmoe; l++)
      mt_json_push(layers, mt_json_integers(result->per_expert + (int64_t)l * E, E));
    mt_json_set(json, "tokens_per_expert", layers);
  }
  mt_json_set(json, "dropped", mt_json_integer(result->dropped));
  mt_runlog_write(run->log, json);

  char left[64] = "";
  if (isatty(STDOUT_FILENO)) {
    double per_step = (mt_time() - run->started) / (double)(progress->step - run->first_step);
    long seconds = (long)(per_step * (double)(run->config->train.steps - progress->step));
    snprintf(left, sizeof left, "  %3.0f%% %ld:%02ld:%02ld left", 100.0 * (double)progress->step / (double)run->config->train.steps,
             seconds / 3600, seconds / 60 % 60, seconds % 60);
  }
  char dropped[32] = "";
  if (nmoe && run->config->moe.capacity_factor > 0)
    snprintf(dropped, sizeof dropped, "  dropped %.1f%%",
             100.0 * (double)result->dropped / ((double)result->tokens * nmoe * (double)run->session.model->arch.K));
  char parts[48] = "", most_loaded[32] = "";
  if (nmoe) {
    snprintf(parts, sizeof parts, "  ce %.4f  aux %.3f", result->ce, result->aux);
    snprintf(most_loaded, sizeof most_loaded, "  load %.2f", most);
  }
  mt_info("step %*lld/%lld  loss %.4f%s  lr %.2e  norm %.3f  %.0f tok/s%s%s%s%s",
          (int)snprintf(NULL, 0, "%lld", (long long)run->config->train.steps), (long long)progress->step,
          (long long)run->config->train.steps, result->loss, parts, result->lr, result->grad_norm,
          (double)result->tokens / result->step_s, most_loaded, dropped, result->updated ? "" : "  NOT UPDATED", left);
}

/* What was adopted behind the step just logged. Predictions are of the MoE layers behind their gates, as is what was measured
 * in that step, under the layouts that now change. */
static void log_relayout(struct run *run, const struct mt_step_result *result)
{
  const struct mt_relayout_report *report = result->relayout;
  if (!report || !report->nlayer)
    return;
  mt_json *json = event("relayout"), *layers = mt_json_array(), *bytes = mt_json_object();
  for (int i = 0; i < report->nlayer; i++)
    mt_json_push(layers, mt_json_integer(report->layer[i]));
  mt_json_set(json, "step", mt_json_integer(run->session.progress.step));
  mt_json_set(json, "layers", layers);
  mt_json_set(json, "measured_s", mt_json_real(result->experts_s));
  mt_json_set(json, "predicted_before_s", mt_json_real(report->before_s));
  mt_json_set(json, "predicted_s", mt_json_real(report->after_s));
  mt_json_set(json, "planner_ms", mt_json_real(report->planner_ms));
  mt_json_set(json, "waited_ms", mt_json_real(report->waited_ms));
  mt_json_set(bytes, "node", mt_json_integer(report->bytes[MT_LEVEL_NODE]));
  mt_json_set(bytes, "net", mt_json_integer(report->bytes[MT_LEVEL_NET]));
  mt_json_set(json, "bytes", bytes);
  mt_runlog_write(run->log, json);
}

static enum mt_status save(struct run *run)
{
  if (run->saved == run->session.progress.step)
    return MT_OK;
  int64_t bytes = 0;
  double seconds;
  mt_step_before_save(run->step);
  const struct mt_schedule_report *report = run->step->result.schedule;
  char *schedule = mt_step_schedule(run->step);
  enum mt_status status = mt_state_save(run->comm, run->session.model, run->config, &run->session.progress, schedule, &bytes,
                                        &seconds);
  mt_free(schedule);
  mt_step_after_save(run->step, status == MT_OK);
  if (status == MT_OK)
    log_schedule(run, report);
  mt_json *json = event("checkpoint");
  mt_json_set(json, "step", mt_json_integer(run->session.progress.step));
  mt_json_set(json, "complete", mt_json_boolean(status == MT_OK));
  mt_json_set(json, "bytes", mt_json_integer(bytes));
  mt_json_set(json, "seconds", mt_json_real(seconds));
  mt_runlog_write(run->log, json);
  if (status != MT_OK)
    return status;
  run->saved = run->session.progress.step;
  mt_info("checkpoint of step %lld: %.1f MB in %.2f s", (long long)run->saved, (double)bytes / 1e6, seconds);
  return MT_OK;
}

static void log_stop(struct run *run, const char *reason)
{
  mt_json *json = event("stop");
  mt_json_set(json, "step", mt_json_integer(run->session.progress.step));
  mt_json_set(json, "reason", mt_json_string(reason));
  mt_runlog_write(run->log, json);
}

/* The end of a run that cannot go on, with `status`: what was trained since the last checkpoint is saved. */
static enum mt_status leave(struct run *run, const char *reason, enum mt_status status)
{
  if (run->session.progress.step > run->first_step)
    (void)save(run);
  log_stop(run, reason);
  return status;
}

/* So many steps in a row that were skipped are no accident any more: the weights themselves are spoilt, and going on would
 * only replace good checkpoints. */
enum { MOST_SKIPPED = 10 };

static enum mt_status loop(struct run *run)
{
  int skipped = 0;
  const struct mt_config *config = run->config;
  struct mt_progress *progress = &run->session.progress;
  run->started = mt_time();
  run->first_step = progress->step;
  run->saved = run->session.from.path ? progress->step : -1;
  run->step->updates = progress->updates;
  while (progress->step < config->train.steps) {
    run->step->trace = is_traced(run, progress->step + 1) ? &run->trace : NULL;
    const struct mt_step_result *result = mt_step_run(run->step, progress->step + 1, progress->sequence);
    if (result->source != MT_OK)
      return leave(run, "data", mt_data_say(run->comm, &run->train));
    if (!result->updated && config->train.nonfinite == MT_NONFINITE_ABORT) /* the step has said it */
      return leave(run, "nonfinite", MT_FAILED);
    skipped = result->updated ? 0 : skipped + 1;
    if (skipped == MOST_SKIPPED) {
      if (run->comm->rank == 0)
        mt_error("step %lld: found %d steps in a row that are not finite, expected an accident now and then; nothing is saved, "
                 "start from an older checkpoint, with a smaller train.lr or train.clip", (long long)progress->step + 1, skipped);
      log_stop(run, "nonfinite");
      return MT_FAILED;
    }
    progress->step++;
    progress->tokens += result->tokens;
    progress->sequence += config->train.global_batch;
    progress->updates = run->step->updates;
    log_step(run, result);
    if (run->step->trace)
      write_trace(run);
    log_relayout(run, result);
    if (result->schedule) {
      log_schedule(run, result->schedule);
      write_cluster(run);
    }
    int last = progress->step == config->train.steps;
    if (run->valid.n && config->train.valid_interval > 0 && (last || progress->step % config->train.valid_interval == 0)) {
      enum mt_status status = mt_valid_run(run->step, &run->valid, config, run->log, progress->step);
      if (status != MT_OK)
        return leave(run, "data", status);
    }
    int64_t stop = stop_signal;
    mt_max_int(run->comm, &stop, 1);
    if (stop && !last) {
      enum mt_status status = save(run);
      log_stop(run, status == MT_OK ? "signal" : "checkpoint failed");
      if (status == MT_OK)
        mt_info("stopped by signal %lld after step %lld; run again to go on", (long long)stop, (long long)progress->step);
      return status == MT_OK ? MT_STOPPED : status;
    }
    /* No checkpoint while steps are skipped one after the other: it might take a good one's place. A periodic one that fails costs nothing but itself: the run goes on and the next one may succeed. */
    if (!last && skipped < 2 && config->checkpoint.interval > 0 && progress->step % config->checkpoint.interval == 0)
      (void)save(run);
  }
  enum mt_status status = save(run);
  log_stop(run, status == MT_OK ? "done" : "checkpoint failed");
  return status;
}

/* A folder that cannot be written should not be found at the first checkpoint. */
static enum mt_status prepare(const struct run *run)
{
  char *dir = mt_state_dir(run->config);
  enum mt_status status = mt_checkpoint_prepare(run->comm, dir);
  mt_free(dir);
  return status;
}

enum mt_status mt_train_run(struct mt_comm *comm, const struct mt_config *config)
{
  struct run run = {.comm = comm, .config = config};
  enum mt_status status = MT_OK;
  if (comm->rank == 0)
    status = mt_runlog_open(config->log.dir, &run.log);
  status = mt_agree(comm, status);
  if (status == MT_OK)
    status = prepare(&run);
  if (status == MT_OK)
    status = mt_data_open(comm, config, "data.train", config->data.train, 1, &run.train);
  if (status == MT_OK && *config->data.valid)
    status = mt_valid_open(comm, config, &run.valid);
  if (status == MT_OK)
    status = mt_session_open(comm, config, 0, config->data.seq_length, 1, &run.session);
  if (status == MT_OK) {
    run.step = mt_step_new(comm, run.session.model, config, mt_data_source(&run.train));
    mark_data(&run);
    const struct mt_resume *from = &run.session.from;
    int resumed = from->path && from->same && mt_step_resume(run.step, from->schedule);
    log_start(&run);
    say_start(&run);
    const char *why = resumed      ? "as the checkpoint has it"
                      : from->path ? "planned anew; the checkpoint's costs as a hint"
                                   : "start";
    log_schedule(&run, &(struct mt_schedule_report){why, 1, 0});
    if (run.session.progress.step >= config->train.steps)
      mt_info("nothing to do: train.steps is %lld; raise it to train further", (long long)config->train.steps);
    else
      status = loop(&run);
    mt_step_free(run.step);
    mt_trace_free(&run.trace);
  }
  mt_session_close(&run.session);
  mt_data_close(&run.train);
  mt_valid_close(&run.valid);
  if (comm->rank == 0)
    mt_runlog_close(run.log);
  return status;
}

enum mt_status mt_eval_run(struct mt_comm *comm, const struct mt_config *config)
{
  struct mt_valid valid = {0};
  struct mt_session session = {0};
  enum mt_status status = mt_valid_open(comm, config, &valid);
  if (status == MT_OK)
    status = mt_session_open(comm, config, config->train.micro_batch, config->data.seq_length, 0, &session);
  if (status == MT_OK) {
    struct mt_step *step = mt_step_new(comm, session.model, config, mt_data_source(&valid.data[0]));
    mt_info("%s", session.from.path);
    status = mt_valid_run(step, &valid, config, NULL, session.progress.step);
    mt_step_free(step);
  }
  mt_session_close(&session);
  mt_valid_close(&valid);
  return status;
}
