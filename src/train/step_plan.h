/* Which plan a training step follows: chosen by prediction, tried, learnt from, chosen again, saved and resumed. The rules are
 * in replan.h, what is learnt in schedule/observe.h; here is what is done to the step, by all ranks together. */
#ifndef MT_STEP_PLAN_H
#define MT_STEP_PLAN_H
#include "train/step.h"

/* A new step's plan and tasks. Collective. */
void mt_step_plan_begin(struct mt_step *step);
/* After each step: another plan, or another way to run it, may come into force for the next one; result.schedule says so.
 * Collective at planning points only. */
void mt_step_plan_turn(struct mt_step *step);
/* A course comes into force between steps, the same on all ranks. Local. */
void mt_step_follow(struct mt_step *step, const struct mt_course *course);
/* The plan in force, for a checkpoint's state, as text (the caller frees), and back, at a run's beginning: then it stays, with
 * its degree. 0: there is none, it is not understood, or schedule.policy was another. Local. */
char *mt_step_schedule(const struct mt_step *step);
int mt_step_resume(struct mt_step *step, const char *schedule);
/* Around the saving of a checkpoint: before it, the step is settled, and the plan may get another degree if costs have been learnt since it was chosen
 * (result.schedule says so); it goes back if nothing was saved. Collective. */
void mt_step_before_save(struct mt_step *step);
void mt_step_after_save(struct mt_step *step, int saved);

#endif
