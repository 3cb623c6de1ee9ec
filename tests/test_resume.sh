#!/bin/sh
# Resuming: on the same ranks with the bits of the uninterrupted run, on others up to rounding, without learning rates,
# warm-up or positions played again.
. "${srcdir-.}/tests/program.sh"

MOTLEY_NODES=1,3
export MOTLEY_NODES

say "the same ranks: stopped and resumed, by the end of steps and by a signal"
for case in "mixtral sequence static" "mixtral micro_batch random" "gpt2 sequence random" "gpt2 micro_batch static"; do
  set -- $case
  say "$case"
  config $1 "moe.aux_scope = $2" "parallel.layout = $3" "moe.z_loss = 0.01" >c.ini
  rm -rf whole halves other signal
  run 0 4 train c.ini --set log.dir=whole
  run 0 4 train c.ini --set log.dir=halves --set train.steps=6
  says 1 "starting from initial weights"
  run 0 4 train c.ini --set log.dir=halves
  says 1 "resuming halves/checkpoints/step-00000006.h5 after step 6 (the same ranks and places: goes on bit for bit)"
  is "start events" "$(sed -n 's/.*"event": "start", "from_step": \([0-9]*\).*/\1/p' halves/log.jsonl | tr '\n' ' ')" "0 6 "
  same log whole/log.jsonl halves/log.jsonl 1 12 0
  same weights whole/checkpoints/step-00000012.h5 halves/checkpoints/step-00000012.h5 0
  run 0 4 train c.ini --set log.dir=other --set train.seed=2
  differs log whole/log.jsonl other/log.jsonl 7 12 1e-3
  differs weights whole/checkpoints/step-00000012.h5 other/checkpoints/step-00000012.h5 1e-3
  # A signal stops it anywhere; then to 10 steps further, both ways.
  start 4 train c.ini --set log.dir=signal --set train.steps=100000
  await '"step": 3,' signal/log.jsonl
  kill -USR1 "$launcher"
  ended 75
  at=$(sed -n 's/.*"event": "stop", "step": \([0-9]*\), "reason": "signal".*/\1/p' signal/log.jsonl)
  is "checkpoints after the signal" "$(checkpoints signal)" "$(printf 'step-%08d.h5' "$at")"
  run 0 0 inspect signal
  end=$((at + 10))
  run 0 4 train c.ini --set log.dir=whole --set train.steps=$end
  run 0 4 train c.ini --set log.dir=signal --set train.steps=$end
  says 1 "(the same ranks and places: goes on bit for bit)"
  same log whole/log.jsonl signal/log.jsonl 1 $end 0
  end=$(printf 'checkpoints/step-%08d.h5' $end)
  same weights whole/$end signal/$end 0
done
say "every sharding, rows of either type: bit for bit, and from one to another"
for case in "mixtral full bf16" "mixtral node f32" "gpt2 node bf16" "gpt2 owner f32" "qwen owner bf16" "qwen full f32"; do
  set -- $case
  say "$case"
  config $1 "parallel.sharding = $2" "parallel.wire = $3" "train.steps = 6" >c.ini
  rm -rf whole halves other
  run 0 4 train c.ini --set log.dir=whole
  run 0 4 train c.ini --set log.dir=halves --set train.steps=3
  cp -r halves other
  run 0 4 train c.ini --set log.dir=halves
  says 1 "(the same ranks and places: goes on bit for bit)"
  same log whole/log.jsonl halves/log.jsonl 1 6 0
  same weights whole/checkpoints/step-00000006.h5 halves/checkpoints/step-00000006.h5 0
  tolerance=1e-5
  [ $3 = f32 ] || tolerance=2e-2
  for sharding in full node owner; do
    [ $sharding != $2 ] || continue
    rm -rf moved
    cp -r other moved
    run 0 4 train c.ini --set log.dir=moved --set parallel.sharding=$sharding
    says 1 "(other ranks, places or settings: goes on up to rounding)"
    same log whole/log.jsonl moved/log.jsonl 4 6 $tolerance
  done
done
rm -rf whole halves other moved

say "other ranks"
for family in mixtral gpt2; do
  config $family "train.steps = 6" >c.ini
  rm -rf whole
  run 0 4 train c.ini --set log.dir=first
  run 0 4 train c.ini --set log.dir=whole --set train.steps=11
  for ranks in 1 2 3 6 8; do
    rm -rf other
    mkdir -p other
    cp -r first/checkpoints other
    MOTLEY_NODES= run 0 $ranks train c.ini --set log.dir=other --set train.steps=11
    says 1 "resuming other/checkpoints/step-00000006.h5 after step 6 (other ranks, places or settings: goes on up to rounding)"
    is "ranks in the log" "$(grep -c "\"from_step\": 6, .*\"same_places\": false, \"ranks\": $ranks," other/log.jsonl)" 1
    same log whole/log.jsonl other/log.jsonl 7 11 1e-5
    is "tokens" "$("$compare" steps other/log.jsonl tokens | tail -n 1)" "11 $((11 * 10 * 24))"
  done
  rm -rf first
done
unset MOTLEY_NODES

say "shares by speed: measured once, then kept; other ones round differently"
config mixtral "parallel.shares = auto" "checkpoint.interval = 6" >c.ini
MOTLEY_SLOW=1:8
export MOTLEY_SLOW
run 0 3 train c.ini --set log.dir=slow
says 1 "^measured: "
is "shares" "$(sed -n 's/.*"shares": \[\([0-9, ]*\)\].*/\1/p' slow/log.jsonl | tr -d , |
  awk '{ print ($1 > $2 && $3 > $2 && $1 + $2 + $3 == 10) }')" 1
mkdir -p kept/checkpoints
cp slow/checkpoints/step-00000006.h5 kept/checkpoints
run 0 3 train c.ini --set log.dir=kept
says 1 "goes on bit for bit"
same log slow/log.jsonl kept/log.jsonl 7 12 0
same weights slow/checkpoints/step-00000012.h5 kept/checkpoints/step-00000012.h5 0
rm -f kept/checkpoints/step-00000012.h5
run 0 3 train c.ini --set log.dir=kept --set parallel.shares=even
says 1 "goes on up to rounding"
same log slow/log.jsonl kept/log.jsonl 7 12 1e-5
rm -f kept/checkpoints/step-00000012.h5
run 0 3 train c.ini --set log.dir=kept --set parallel.shard_sizes=3,0,1
says 1 "goes on up to rounding"
same log slow/log.jsonl kept/log.jsonl 7 12 1e-5
say "an older checkpoint that was measured otherwise (here: not): the model has its size by then"
run 0 3 train c.ini --set log.dir=older --set train.steps=5 --set parallel.measure=off
cp slow/checkpoints/step-00000012.h5 older/checkpoints
flip older/checkpoints/step-00000012.h5 "$("$compare" offset older/checkpoints/step-00000012.h5 /params/lm_head.weight)"
run 0 3 train c.ini --set log.dir=older
says 1 "step-00000012.h5 is skipped: damaged: "
says 1 "resuming older/checkpoints/step-00000005.h5 after step 5 (other ranks, places or settings: goes on up to rounding)"
same log slow/log.jsonl older/log.jsonl 6 12 1e-5
unset MOTLEY_SLOW
run 0 2 train c.ini --set log.dir=alike --set train.steps=1
says 0 "^measured: " # ranks alike: nothing to measure for shares
is "shares" "$(sed -n 's/.*"shares": \(\[[^]]*\]\).*/\1/p' alike/log.jsonl)" "[5, 5]"

say "everything by what is measured: sharding, shares, layouts and the loads that they follow go on where they were"
MOTLEY_NODES=1,3 MOTLEY_SLOW=1:4
export MOTLEY_NODES MOTLEY_SLOW
set -- "parallel.shares = -" "parallel.layout = -" "parallel.sharding = -" "parallel.shard_sizes = -" "schedule.degree = -"
for slots in 3 0,5,2,1; do
  config mixtral "$@" "parallel.slots = $slots" "checkpoint.interval = 4" "train.valid_interval = 3" "data.valid = $work/valid.txt" >c.ini
  rm -rf auto kept
  run 0 4 train c.ini --set log.dir=auto
  says 1 "^measured: .*; took "
  says 1 "^sharding: [a-z]*; predicted seconds of the experts"
  mkdir -p kept/checkpoints
  cp auto/checkpoints/step-00000004.h5 kept/checkpoints
  run 0 4 train c.ini --set log.dir=kept
  says 1 "after step 4 (the same ranks and places: goes on bit for bit)"
  says 1 "^measured: .*; as "
  says 0 "^sharding: "
  says 1 "^layouts and the loads they follow: as the checkpoint has them$"
  same log auto/log.jsonl kept/log.jsonl 5 12 0
  same weights auto/checkpoints/step-00000012.h5 kept/checkpoints/step-00000012.h5 0
done
say "the schedule: tried by the clock, its degree too, and what is in force goes on"
config mixtral "schedule.degree = 0" "checkpoint.interval = 9" "train.steps = 14" >c.ini
for policy in auto pipemoe; do
  rm -rf auto kept
  run 0 4 train c.ini --set log.dir=auto --set schedule.policy=$policy
  says 1 "^schedule: .* (start)$"
  # trials before the checkpoint may change the degree; behind it only the next one, of step 14, may bring another
  is "degrees from the checkpoint on" "$(grep '"event": "schedule"' auto/log.jsonl | sed 's/.*"step": \([0-9]*\),.*"degree": \([0-9]*\),.*/\1 \2/' |
    awk '$1 > 9 && $1 < 14 && $2 != last { changed++ } { last = $2 } END { print changed + 0 }')" 0
  is "the cluster as measured" "$(grep -c '"thousandths"' auto/cluster.json | awk '{ print ($1 > 20) }')" 1
  mkdir -p kept/checkpoints
  cp auto/checkpoints/step-00000009.h5 kept/checkpoints
  run 0 4 train c.ini --set log.dir=kept --set schedule.policy=$policy
  says 1 "after step 9 (the same ranks and places: goes on bit for bit)"
  says 1 "^schedule: .* (as the checkpoint has it)$"
  same log auto/log.jsonl kept/log.jsonl 10 14 0
  same weights auto/checkpoints/step-00000014.h5 kept/checkpoints/step-00000014.h5 0
done
rm -rf kept
mkdir -p kept/checkpoints
cp auto/checkpoints/step-00000009.h5 kept/checkpoints
MOTLEY_NODES= run 0 3 train c.ini --set log.dir=kept --set schedule.policy=pipemoe
says 1 "^schedule: .* (planned anew; the checkpoint's costs as a hint)$"
same log auto/log.jsonl kept/log.jsonl 10 14 1e-5
run 0 0 simulate c.ini --cluster auto/cluster.json --set schedule.policy=auto
says 1 "^costs as training measured them: factors of [0-9]* kinds of tasks$"

say "layouts in full shards follow, whatever the start chose"
config mixtral "$@" "parallel.sharding = full" "parallel.slots = 3" "checkpoint.interval = 4" >c.ini
rm -rf auto kept
run 0 4 train c.ini --set log.dir=auto
is "relayouts" "$(grep -c '"event": "relayout"' auto/log.jsonl | awk '{ print ($1 > 0) }')" 1
for ranks in 4 3; do
  rm -rf kept
  mkdir -p kept/checkpoints
  cp auto/checkpoints/step-00000004.h5 kept/checkpoints
  if [ $ranks = 4 ]; then
    run 0 4 train c.ini --set log.dir=kept --set train.lr=1e-3 --set train.steps=5
    says 1 "^layouts and the loads they follow: those of the checkpoint, as a hint$"
    rm -rf kept
    mkdir -p kept/checkpoints
    cp auto/checkpoints/step-00000004.h5 kept/checkpoints
    run 0 4 train c.ini --set log.dir=kept
    says 1 "^layouts and the loads they follow: as the checkpoint has them$"
    grep '"event": "relayout"' auto/log.jsonl | sed 's/, "measured_s.*//' | awk -F'"step": ' '$2 + 0 > 4' >was
    grep '"event": "relayout"' kept/log.jsonl | sed 's/, "measured_s.*//' >now
    is "relayouts after the resume" "$(cat now)" "$(cat was)"
    same weights auto/checkpoints/step-00000012.h5 kept/checkpoints/step-00000012.h5 0
  else
    MOTLEY_NODES= run 0 3 train c.ini --set log.dir=kept --set train.steps=9
    says 1 "^layouts: static at first; the checkpoint has none for these ranks and slots$"
    same log auto/log.jsonl kept/log.jsonl 5 9 1e-5
  fi
done
unset MOTLEY_NODES MOTLEY_SLOW

say "what was decided once is not decided again: cosine to a fixed step, positions over epochs, stopped during warm-up"
# 99 samples, 10 a step: the second epoch begins within step 10.
config mixtral "data.train = $work/short.txt" "train.schedule = cosine" "train.decay_steps = 11" "train.min_lr = 1e-4" >c.ini
head -c $((99 * 24 + 1)) train.txt >short.txt
run 0 2 train c.ini --set log.dir=long
for steps in 2 3 9 12; do run 0 2 train c.ini --set log.dir=short --set train.steps=$steps; done
same log long/log.jsonl short/log.jsonl 1 12 0
same weights long/checkpoints/step-00000012.h5 short/checkpoints/step-00000012.h5 0
is "learning rates" "$("$compare" steps long/log.jsonl lr | awk '{ printf "%s%.5f", (NR > 1 ? " " : ""), $2 }')" \
  "0.00075 0.00150 0.00225 0.00300 0.00286 0.00245 0.00187 0.00123 0.00065 0.00024 0.00010 0.00010"
is "hashes all differ" "$("$compare" steps long/log.jsonl batch_hash | cut -d ' ' -f 2 | sort -u | wc -l | tr -d ' ')" 12
say "data changed under the same names are noticed, once"
cp short.txt was.txt
tr e a <was.txt >short.txt
run 0 2 train c.ini --set log.dir=short --set train.steps=13
says 1 "warning: data.train: found 1 files of 2377 bytes, checksum [0-9a-f]*, expected those that short/.* was trained on: 1 of 2377"
says 0 "bit for bit"
run 0 2 train c.ini --set log.dir=short --set train.steps=14
says 0 "warning:"
says 1 "bit for bit"
cp was.txt short.txt
rm short/checkpoints/step-00000013.h5 short/checkpoints/step-00000014.h5
say "what changes the course, or the bits, is said"
run 0 2 train c.ini --set log.dir=short --set train.steps=13 --set train.micro_batch=3
says 1 "after step 12 (other ranks, places or settings: goes on up to rounding)"
says 0 "warning:"
run 0 2 train c.ini --set log.dir=short --set train.steps=14 --set train.lr=1e-3
says 1 "warning: checkpoint .*: made with other settings, the new ones hold from here: train.lr (checkpoint 0.003, now 0.001)"
run 0 2 train c.ini --set log.dir=moving --set train.decay_steps=0 --set train.steps=5
run 0 2 train c.ini --set log.dir=moving --set train.decay_steps=0 --set train.steps=6
says 1 "warning: .* train.steps (checkpoint 5, now 6), where the learning rate's decay ends"
says 0 "bit for bit"
rm -rf short
run 0 2 train c.ini --set log.dir=short
run 0 2 train c.ini --set log.dir=short
says 1 "nothing to do: train.steps is 12; raise it to train further"
is "no new step" "$(grep -c '"event": "step"' short/log.jsonl)" 12

finish
