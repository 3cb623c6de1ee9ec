#!/bin/sh
# Stopping a run from outside: USR1 and TERM at any moment give one complete checkpoint that goes on with the same bits;
# killed ranks lose no more than what came after the newest checkpoint, and leave nothing behind for long.
. "${srcdir-.}/tests/program.sh"
MOTLEY_NODES=1,3
export MOTLEY_NODES
seed=${SEED-$$}
echo "SEED=$seed"
# pause LOW HIGH: some seconds between, other ones each time.
pause() {
  seed=$((seed + 1))
  sleep "$(awk -v s="$seed" -v a="$1" -v b="$2" 'BEGIN { srand(s); rand(); printf "%.3f", a + (b - a) * rand() }')"
}

config mixtral "data.valid = $work/valid.txt" >c.ini
# The run that nothing stops; it is made as long as it has to be.
long=0
whole() {
  [ "$1" -le $long ] || { long=$1; run 0 4 train c.ini --set log.dir=whole --set train.steps=$long --set checkpoint.interval=1 --set checkpoint.keep=0; }
}
# stopped RUN REASON: the log's last line is a stop, its checkpoint the newest and whole; two steps more are right.
goes_on() {
  at=$(sed -n '$s/.*"event": "stop", "step": \([0-9]*\), "reason": "signal".*/\1/p' $1/log.jsonl)
  [ -n "$at" ] || { wrong "the log of $1 does not end with a stop by a signal"; tail -n 2 $1/log.jsonl; return; }
  newest=$(ls $1/checkpoints | tail -n 1)
  is "newest checkpoint" "$newest" "$(printf 'step-%08d.h5' "$at")"
  clean $1
  run 0 0 inspect $1/checkpoints/$newest
  end=$((at + 2))
  whole $end
  run 0 4 train c.ini --set log.dir=$1 --set train.steps=$end
  says 1 "after step $at (the same ranks and places: goes on bit for bit)"
  same log whole/log.jsonl $1/log.jsonl 1 $end 0
  same weights "$(printf 'whole/checkpoints/step-%08d.h5' $end)" "$(printf '%s/checkpoints/step-%08d.h5' $1 $end)" 0
}

say "USR1 while it starts, between steps, in validations, in checkpoints"
rm -rf s
start 4 train c.ini --set log.dir=s --set train.steps=100000
await "effective configuration" out
kill -USR1 "$launcher"
ended 75
is "steps done before it stopped" "$(grep -c '"event": "step"' s/log.jsonl)" 1
goes_on s
for what in train.valid_interval=0 train.valid_interval=1 checkpoint.interval=1; do
  rm -rf s
  start 4 train c.ini --set log.dir=s --set train.steps=100000 --set $what
  await '"step": 2,' s/log.jsonl
  pause 0 0.2
  kill -USR1 "$launcher"
  pause 0 0.1
  kill -USR1 "$launcher" 2>/dev/null # twice does no harm
  ended 75
  says 1 "stopped by signal 10 after step"
  goes_on s
done

say "many signals while the GEMM library computes"
config mixtral "data.valid = $work/valid.txt" >large.ini
rm -rf s
env -u MOTLEY_NODES "$motley" train large.ini --set log.dir=s --set model.hidden_size=256 --set model.intermediate_size=1024 \
  --set train.global_batch=48 --set train.micro_batch=48 --set train.steps=1000 >out 2>err &
job=$! started="one rank, signals every 2 ms"
await "starting from" out
for i in $(seq 1000); do
  kill -USR1 $job 2>/dev/null || break
  sleep 0.002
done
ended 75
run 0 0 inspect s/checkpoints

say "USR1 for one rank alone"
rm -rf s pids
mkdir pids
program=$motley
cat >wrapped <<'END'
#!/bin/sh
: >"$PIDS/$$"
exec "$PROGRAM" "$@"
END
chmod +x wrapped
PIDS=$work/pids PROGRAM=$motley
export PIDS PROGRAM
motley=$work/wrapped
start 4 train c.ini --set log.dir=s --set train.steps=100000
await '"step": 2,' s/log.jsonl
kill -USR1 "$(ls pids | tail -n 1)"
ended 75
motley=$program
goes_on s

say "TERM: the checkpoint is complete, although mpirun says 1"
rm -rf s
# mpirun waits so long before it passes TERM on, and again before it kills; meanwhile it reads no output, so that the ranks
# fill what takes it.
options="--mca odls_base_sigkill_timeout 4"
start 4 train c.ini --set log.dir=s --set train.steps=100000
await '"step": 3,' s/log.jsonl
pause 0 0.2
kill -TERM "$launcher"
wait $job
code=$?
case $code in 1 | 75 | 143) right ;; *) wrong "exit code $code after TERM" ;; esac
options=
# mpirun may end before its ranks do
await '"event": "stop"' s/log.jsonl
goes_on s
# without mpirun the code is the program's
rm -rf s
MOTLEY_NODES= "$motley" train c.ini --set log.dir=s --set train.steps=100000 >out 2>err &
job=$! started="train alone"
await '"step": 3,' s/log.jsonl
kill -TERM $job
ended 75

say "killed at random moments, one rank or all"
motley=$work/wrapped
rm -rf s
config mixtral "train.steps = 120" "checkpoint.interval = 1" "checkpoint.keep = 2" >c.ini
long=0
whole 120
for try in 1 2 3 4 5 6 7 8; do
  rm -f pids/*
  [ $((try % 2)) -ne 1 ] || rm -rf s # otherwise it goes on from where the last one was killed
  start 4 train c.ini --set log.dir=s
  [ $((try % 3)) -eq 0 ] || await '"event": "step"' s/log.jsonl
  pause 0.05 0.4
  victims=$(ls pids | awk -v all=$(((try / 2) % 2)) 'all || NR == 1')
  kill -KILL $victims 2>/dev/null
  wait $job
  code=$?
  case $code in
  0) echo "  (try $try: too late)" ;;
  1 | 75 | 3 | 2) wrong "exit code $code of a killed run" ;;
  *) right ;;
  esac
  # all ranks are gone before another begins
  for pid in $(ls pids); do
    tries=0
    while kill -0 "$pid" 2>/dev/null && [ $tries -lt 500 ]; do sleep 0.02; tries=$((tries + 1)); done
    kill -KILL "$pid" 2>/dev/null && wrong "a rank outlived its mpirun by 10 s"
  done
  if [ $((try % 2)) -eq 0 ]; then
    run 0 4 train c.ini --set log.dir=s
    clean s
    same log whole/log.jsonl s/log.jsonl 1 120 0
    same weights whole/checkpoints/step-00000120.h5 s/checkpoints/step-00000120.h5 0
    says 0 "is skipped"
    is "checkpoints" "$(checkpoints s)" "step-00000119.h5 step-00000120.h5"
  fi
done
motley=$program

finish
