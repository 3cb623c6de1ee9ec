/* When a step's plan is tried, weighed and chosen anew: rules alone, without clocks, ranks or plans' contents.
 *
 * The problem: a plan is chosen by predicted costs, and no prediction knows how busy cores and links are. The idea: trials.
 * A trial runs the plan in force a few steps one after the other and a few with communication beside computing; from these
 * costs are learnt, and a plan is chosen by them; if it is another one, it gets its round too. In the end what was measured
 * to be fastest stays, so that running one after the other is always among what is weighed. The first steps of a run are a
 * trial; that of `auto` begins with the sequential plan in one chunk, since before anything was measured predictions are off
 * by factors, and the others are chosen by what it teaches. Later, when the last MT_WATCHED steps have departed from their prediction, costs are learnt from them, and another
 * trial follows if by these another plan or way looks better.
 * The trap: bits. Order, timing and what overlaps never change them; the degree (chunks of sequences and tokens) does, in rounding. A run
 * that is resumed must go on as the one that was not stopped, so the degree may change in the first trial only as long as
 * nothing was saved, and else with a checkpoint: what is saved and what goes on have the new one. */
#ifndef MT_REPLAN_H
#define MT_REPLAN_H
#include "base/json.h"
#include "schedule/scheme.h"

/* How steps run. */
struct mt_course {
  struct mt_plan plan;
  enum mt_scheme scheme; /* whose plan it is */
  int beside;            /* 1: communication beside computing; 0: in list order on one thread */
};

enum {
  MT_ROUNDS = 4,        /* most plans of a trial */
  MT_ROUND_STEPS = 3,   /* of each way of running: the median counts */
  MT_WATCHED = 20,      /* steps whose measured over predicted time is looked at: its median */
  MT_DEPARTED = 150     /* thousandths by which it departs before costs are learnt anew */
};

/* What is to be done after a step. */
enum mt_turn {
  MT_TURN_NONE,   /* go on */
  MT_TURN_SWITCH, /* the next step runs as `beside` says */
  MT_TURN_ROUND,  /* a round is over: learn, choose, and tell mt_replan_next or mt_replan_done */
  MT_TURN_DEPARTED /* learn; if something looks better and mt_replan_rested, mt_replan_begin */
};

struct mt_replan {
  int lanes;      /* there is a thread for communication */
  int either;     /* running one after the other may stay */
  int fixed;      /* there is nothing to weigh: the first trial is to learn costs, and none follows */
  int trial;      /* 1 = under way */
  int warm;       /* 1: the first trial is over */
  int pinned;     /* 1: the degree may change with a checkpoint only */
  int learnt;     /* costs were learnt since the degree was chosen freely */
  int round, nth; /* of a trial; step of the round */
  int serial;     /* the plan under trial cannot overlap */
  int beside;     /* how the step under way or, after a turn, the next one runs */
  int ntimed[MT_ROUNDS][2];                  /* steps of each plan so far, by `beside` */
  double timed[MT_ROUNDS][2][MT_ROUND_STEPS]; /* what they took */
  double ratio[MT_WATCHED]; /* measured over predicted, of the last steps */
  int64_t nratio;           /* steps since costs were learnt */
  int64_t rested, wait;     /* steps since the last trial; how many there must be, doubled while nothing comes of it */
};

/* Begins a trial of the plan in force (serial: it cannot overlap); fresh: its first step allocates and counts not. */
void mt_replan_begin(struct mt_replan *replan, int serial, int fresh);
/* 1 if the step under way is one to learn from: not the first one of a plan. Pure. */
int mt_replan_counts(const struct mt_replan *replan);
/* Another trial may begin. Pure. */
int mt_replan_rested(const struct mt_replan *replan);
/* Median of measured over predicted time of the steps watched. Pure. */
double mt_replan_ratio(const struct mt_replan *replan);
/* A step took step_s, predicted were predicted_s (0 = unknown); equal on all ranks. O(1), but when enough were watched. */
enum mt_turn mt_replan_step(struct mt_replan *replan, double step_s, double predicted_s);
/* Another plan's round begins. */
void mt_replan_next(struct mt_replan *replan, int serial);
/* The round whose plan was fastest, of those in the mask `allowed`; *beside: run which way. Pure. */
int mt_replan_best(const struct mt_replan *replan, unsigned allowed, int *beside);
/* The trial is over. changed: something came of it. */
void mt_replan_done(struct mt_replan *replan, int beside, int changed);
/* Median of a round's steps run this way, 0 = there were none. Pure. */
double mt_replan_s(const struct mt_replan *replan, int round, int beside);

/* 1 if both cut tokens alike, so that bits are equal. Pure. */
int mt_course_same_bits(const struct mt_course *a, const struct mt_course *b);
/* As a checkpoint's state has it, and back: 0 if it is not understood. warm: the first trial is over. Local. */
mt_json *mt_course_json(const struct mt_course *course, int warm);
int mt_course_from_json(const mt_json *json, struct mt_course *course, int *warm);

#endif
