#!/bin/sh
# Resuming: on the same ranks with the bits of the uninterrupted run, on others up to rounding; and what a resume must not
# do: replay learning rates or positions, take a damaged checkpoint, or silently start anew.
. "${srcdir-.}/tests/program.sh"

MOTLEY_NODES=1,3
export MOTLEY_NODES

# signalled RUN ARGS...: starts on 4 ranks, sends USR1 to mpirun once some steps are done; must end with 75.
signalled() {
  dir=$1
  shift
  timeout -k 5 60 "$mpirun" -np 4 --bind-to none "$motley" "$@" >out 2>err &
  job=$!
  tries=0
  until grep -q '"step": 3,' "$dir/log.jsonl" 2>/dev/null || [ $tries -gt 400 ]; do
    sleep 0.02
    tries=$((tries + 1))
  done
  pkill -USR1 -P $job
  wait $job
  is "exit code after USR1" $? 75
}

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
  signalled signal train c.ini --set log.dir=signal --set train.steps=100000
  at=$(sed -n 's/.*"event": "stop", "step": \([0-9]*\), "reason": "signal".*/\1/p' signal/log.jsonl)
  is "checkpoints after the signal" "$(checkpoints signal)" "$(printf 'step-%08d.h5' "$at")"
  run 0 0 inspect signal/checkpoints
  end=$((at + 10))
  run 0 4 train c.ini --set log.dir=whole --set train.steps=$end
  run 0 4 train c.ini --set log.dir=signal --set train.steps=$end
  says 1 "(the same ranks and places: goes on bit for bit)"
  same log whole/log.jsonl signal/log.jsonl 1 $end 0
  end=$(printf 'checkpoints/step-%08d.h5' $end)
  same weights whole/$end signal/$end 0
done
unset MOTLEY_NODES

finish
