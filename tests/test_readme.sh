#!/bin/sh
# What README shows works: the demo's configuration as it stands there, trained by the job script for mpirun, stopped by USR1,
# gone on with, evaluated, written on from, forecast and replayed; and what the job script refuses.
. "${srcdir-.}/tests/program.sh"
case ${srcdir-.} in /*) top=$srcdir ;; *) top=$here/${srcdir-.} ;; esac
script=$top/jobscripts/train.mpirun.sh
MOTLEY=$motley
export MOTLEY

sed -n '/^    ; A small Mixtral/,/^    dir = run/{s/^    //;p;}' "$top/README.md" >demo.ini
is "sections" "$(grep '^\[' demo.ini | tr '\n' ' ')" "[model] [data] [train] [checkpoint] [generate] [log] "

say "the job script, a signal, and the same command again"
RANKS=2 timeout -k 5 90 sh -c 'echo $$ >launcher; exec sh "$@"' - "$script" demo.ini >out 2>err &
job=$! started="the job script"
await '"step": 2,' run/log.jsonl
kill -USR1 "$(cat launcher)"
ended 75
says 1 "^stopped by signal 10 after step [0-9]*; run again to go on"
step=$(sed -n 's/^stopped by signal 10 after step \([0-9]*\);.*/\1/p' out)
RANKS=2 timeout -k 5 90 sh "$script" demo.ini --set train.steps=$((step + 1)) >out 2>err
is "exit code" $? 0
says 1 "^resuming run/checkpoints/.* after step $step (the same ranks and places: goes on bit for bit)"
run 0 2 eval demo.ini
run 0 1 generate demo.ini --set generate.length=5
is "the text begins" "$(head -c 11 out)" "The licence"
run 0 0 inspect run
run 0 0 train demo.ini --dry-run --ranks 4
run 0 0 simulate demo.ini --cluster 8,8,4
run 0 0 plan demo.ini --cluster 4,2 --set plan.steps=8 --set plan.warmup=2

say "what the job script refuses"
refused() {
  env "$1" sh "$script" demo.ini >out 2>err
  is "exit code of $1" $? 2
  says 1 "^train.mpirun.sh: $2"
}
refused HOSTFILE=nowhere 'HOSTFILE: found nowhere, which is no file that can be read, expected lines "name slots=N"'
refused HOSTFILE=run "HOSTFILE: found run, which is no file"
refused RANKS=two 'RANKS: found "two", expected a number of ranks'
refused RANKS=0 'RANKS: found "0"'
sh "$script" >out 2>err
is "exit code without CONFIG" $? 2
says 1 "jobscripts/train.mpirun.sh CONFIG"

finish
