#!/bin/sh
# jobscripts/train.sbatch on a real Slurm over three emulated hosts of 2, 1 and 1 CPUs: one job that is stopped before its
# time limit, requeued and preempted, and still trains with the bits of an uninterrupted mpirun; a heterogeneous job; ends
# that must stay ends; a node that is lost. About four minutes on an idle machine, mostly waiting for Slurm: MOTLEY_TEST_SLURM=1
# asks for it. Skipped without root, network namespaces, Slurm or munge (Debian: slurmctld slurmd slurm-client munge).
top=$(cd "${srcdir-.}" && pwd)
cluster=$top/tests/emulated-cluster/cluster.sh
slurm=$top/tests/emulated-cluster/slurm.sh
MOTLEY_TEST_CLUSTER=motley-slurm-$$
export MOTLEY_TEST_CLUSTER

skip() {
  echo "skipped: $*"
  exit 77
}
[ -n "${MOTLEY_TEST_SLURM-}" ] || skip "takes four minutes; MOTLEY_TEST_SLURM=1 runs it"
[ "$(id -u)" = 0 ] || skip "not root"
for needed in ip nsenter unshare slurmctld slurmd sbatch munged; do
  command -v $needed >/dev/null || skip "no $needed"
done
case $("${MOTLEY_MPIRUN-mpirun}" --version) in
*"Open MPI"*) ;;
*) skip "the launcher is not Open MPI's" ;;
esac

. "$top/tests/program.sh"
end() {
  sh "$slurm" down "$work/slurm" >/dev/null 2>&1
  sh "$cluster" down 3 >/dev/null 2>&1
  cd /
  rm -rf "$work"
}
trap end EXIT
sh "$cluster" up 3 >up 2>&1 || skip "cannot make hosts: $(cat up)"
sh "$slurm" up slurm 2 1 1 >up 2>&1 || skip "cannot start Slurm: $(cat up)"
on() { sh "$slurm" do "$work/slurm" "$@"; }

# What the jobs inherit
MOTLEY=$motley MPIRUN=$mpirun OMPI_MCA_mpi_yield_when_idle=1
export MOTLEY MPIRUN OMPI_MCA_mpi_yield_when_idle

# submit RUN SBATCH-OPTIONS...: a job with a configuration of its own, to be trained for ever at first; $job is its number.
submit() {
  run=$1
  shift
  config mixtral "train.steps = 100000" "checkpoint.interval = ${interval-0}" "parallel.measure = ${measure-auto}" \
    "log.dir = $work/$run" >"$run.ini"
  job=$(on sbatch --parsable --output="$work/%j.out" "$@" "$top/jobscripts/train.sbatch" "$run.ini" 2>err)
  case $job in
  [0-9]*) right ;;
  *) wrong "sbatch"; finish ;;
  esac
  : >"$job.out"
  ln -sf "$job.out" out
}
# wait_for WHAT COMMAND...: until the command succeeds; what does not come in 150 s ends the test.
wait_for() {
  what=$1 tries=0
  shift
  until "$@"; do
    tries=$((tries + 1))
    [ $tries -le 750 ] || {
      on squeue >err 2>&1
      tail -n 20 slurm/log/slurmctld.log >>err
      wrong "job $job: $what does not come"
      finish
    }
    sleep 0.2
  done
}
# field NAME: what Slurm says of the job (of its first component)
field() { on scontrol show job "$job" | sed -n "s/.*\<$1=\([^ ]*\).*/\1/p" | head -n 1; }
is_state() { [ "$(field JobState)" = "$1" ]; }
until_state() { wait_for "$1" is_state "$1"; }
# said N TEXT: so many lines of the job's output hold TEXT.
said() { is "lines with '$2' in the output of job $job" "$(grep -c -e "$2" "$job.out")" "$1"; }
# steps_of EVENT: the steps of all such events in the log; from: those at which it went on
steps_of() { sed -n 's/.*"event": "'"$1"'", "step": \([0-9]*\),.*/\1/p' "$run/log.jsonl" 2>/dev/null; }
from() { sed -n 's/.*"event": "start", "from_step": \([0-9]*\),.*/\1/p' "$run/log.jsonl" | tr '\n' ' '; }
last() { steps_of "$1" | tail -n 1; }
got_to() { last=$(last step) && [ "${last:-0}" -ge "$1" ]; }
has_stops() { [ "$(steps_of stop | wc -l)" -ge "$1" ]; }
# life N STEP: until the job runs for the N-th time after the first, and has logged that step or a later one
life() {
  wait_for "restart $1" grep -q "train.sbatch: job $job, restart $1," "$job.out"
  wait_for "step $2" got_to "$2"
}
# stopped N: until the log holds N stops; $at is the last one's step.
stopped() {
  wait_for "stop $1" has_stops "$1"
  at=$(last stop)
}
# steps N: how far the job's next run shall train
steps() { sed -i "s/^steps = .*/steps = $1/" "$run.ini"; }

say "one job: stopped by USR1 before its time limit, requeued by hand, preempted, and at its end"
submit main --ntasks=4 --time=1 --signal=B:USR1@20
main=$job
stopped 1
first=$at
until_state PENDING
said 1 "stopped by signal 10 after step $first;"
said 1 "train.sbatch: stopped with a checkpoint"
said 0 "DUE TO TIME LIMIT"
on scontrol update JobId="$job" TimeLimit=30

# Nobody needs the hosts now: a job that cannot run ends with the program's code, for good.
echo "[model]" >broken.ini
job=$(on sbatch --parsable --output="$work/%j.out" "$top/jobscripts/train.sbatch" broken.ini)
until_state FAILED
is "job without a usable configuration: restarts, exit code" "$(field Restarts) $(field ExitCode)" "0 2:0"
said 1 "train.sbatch: exit code 2"

job=$main
life 1 $((first + 5))
on scontrol requeue "$job"
stopped 2
second=$at
life 2 $((second + 5))
on sbatch --partition=urgent --nodes=3 --output=/dev/null --wrap 'sleep 1' >/dev/null
stopped 3
third=$at
steps $((third + 10))
until_state COMPLETED
whole=$((third + 10))
said 3 "stopped by signal"
said 4 "train.sbatch: job $job, restart"
is "restarts, exit code" "$(field Restarts) $(field ExitCode)" "3 0:0"
is "steps at which it went on" "$(from)" "0 $first $second $third "
is "resumed on the same ranks and places" \
  "$(grep -c '"from_step": [1-9].*"same_places": true, "ranks": 4, "nodes": 3' main/log.jsonl)" 3
is "steps, each once" "$(steps_of step | tr '\n' ' ')" "$(seq $whole | tr '\n' ' ')"

say "the same steps under mpirun, without a break"
config mixtral "train.steps = $whole" >whole.ini
sh "$cluster" mpirun n1:2,n2:1,n3:1 -np 4 "$motley" train whole.ini --set log.dir=whole >out 2>err || wrong "exit code $?"
same log whole/log.jsonl main/log.jsonl 1 $whole 0
same weights "$(printf whole/checkpoints/step-%08d.h5 $whole)" "$(printf main/checkpoints/step-%08d.h5 $whole)" 0

say "a heterogeneous job: 1 x 2 and 2 x 1 ranks, USR1 by hand"
measure=off # saves time
submit het --time=10 --nodes=1 --ntasks-per-node=2 : --nodes=2 --ntasks-per-node=1
life 0 5
on scancel --signal=USR1 --batch "$job"
stopped 1
steps $((at + 5))
until_state COMPLETED
is "restarts" "$(field Restarts)" 1
is "went on" \
  "$(sed -n 's/.*"event": "start", "from_step": \([0-9]*\),.*"nodes": \([0-9]*\),.*/\1 \2/p' het/log.jsonl | tr '\n' ' ')" \
  "0 3 $at 3 "
[ $((at + 5)) -gt $whole ] || same log whole/log.jsonl het/log.jsonl 1 $((at + 5)) 0

say "what scancel ends has a checkpoint and stays ended"
submit cancelled --ntasks=2 --time=10
life 0 3
on scancel "$job"
until_state CANCELLED
is "last stop has a checkpoint" "$(checkpoints cancelled)" "$(printf 'step-%08d.h5' "$(last stop)")"
is "restarts" "$(field Restarts)" 0

say "a node is lost"
interval=4
submit lost --ntasks=4 --time=10
life 0 6
ip netns exec "$MOTLEY_TEST_CLUSTER-n3" ip link set e3 down
until_state PENDING
at=$(last step)
steps $((at + 5))
ip netns exec "$MOTLEY_TEST_CLUSTER-n3" ip link set e3 up
until_state COMPLETED
said 1 "DUE TO NODE FAILURE"
is "restarts" "$(field Restarts)" 1
is "went on" "$(from)" "0 $((at / 4 * 4)) "
[ $((at + 5)) -gt $whole ] || same log whole/log.jsonl lost/log.jsonl 1 $((at + 5)) 0
finish
