#!/bin/sh
# The run folder: one job at a time, a place that was named, checkpoints that hold what their names say; and a run whose
# weights are spoilt does not replace good checkpoints.
. "${srcdir-.}/tests/program.sh"
config mixtral "train.steps = 4" "checkpoint.interval = 1" "checkpoint.keep = 0" >c.ini

say "a folder without a name"
run 2 0 train c.ini --set log.dir=
says 1 "log.dir: found nothing, expected a folder"

say "a configuration that is a pipe"
mkfifo pipe.ini
run 2 2 train pipe.ini
says 1 "pipe.ini: found no regular file, expected a configuration file"

say "two jobs in one folder"
start 2 train c.ini --set log.dir=two --set train.steps=100000 --set checkpoint.interval=0
await '"step": 2,' two/log.jsonl
mkdir other
(cd other && timeout -k 5 60 "$mpirun" -np 2 --bind-to none "$motley" train ../c.ini --set log.dir=../two >../second.out 2>../second.err)
is "exit code of the second" $? 2
is "its message" "$(grep -c 'log.dir: found another job at work in ../two' second.err)" 1
kill -USR1 "$launcher"
ended 75

say "a checkpoint under another name"
run 0 2 train c.ini --set log.dir=named
mv named/checkpoints/step-00000002.h5 named/checkpoints/step-00000099.h5
run 0 2 train c.ini --set log.dir=named --set train.steps=5
says 1 "step-00000099.h5 is skipped: its name says step 99, it holds step 2"
says 1 "step-00000004.h5 after step 4"

say "weights that are spoilt"
run 0 2 train c.ini --set log.dir=spoilt
run 1 2 train c.ini --set log.dir=spoilt --set train.steps=100 --set train.lr=1e38 --set train.warmup=0 --set train.clip=0
says 1 "found 10 steps in a row that are not finite"
run 0 0 inspect spoilt/checkpoints

finish
