#!/bin/sh
# A real Slurm over the hosts that cluster.sh made: slurmctld on n1, a slurmd on each host, a munged of their own.
#
#   slurm.sh up DIR CPUS...      start it; host i claims that many CPUs, so that jobs can be made uneven; DIR (short, private)
#                                gets configuration, state and logs
#   slurm.sh do DIR COMMAND...   run sbatch, squeue, scontrol ... against it, from n1
#   slurm.sh kill DIR HOST       end a host's slurmd and what it started, as if the host went down
#   slurm.sh down DIR            stop it
#
# Needs Debian's slurmctld, slurmd, slurm-client and munge. mpirun in a batch script finds the hosts through Slurm;
# "srun --mpi=pmix" of Debian 12 does not start here.
set -eu
self=$(readlink -f "$0")
cluster=$(dirname "$self")/cluster.sh
on() { sh "$cluster" run "$@"; }
case ${1-} in
up)
  mkdir -p "$2/state" "$2/log"
  dir=$(readlink -f "$2")
  shift 2
  # How soon things happen: a job waits for its old credential to expire before it starts again; a node that does not
  # answer is given up; a heterogeneous job waits for the backfill scheduler; ended jobs stay visible.
  cat >"$dir/slurm.conf" <<CONF
ClusterName=emulated
SlurmctldHost=n1(10.99.0.1)
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket,cred_expire=10
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=2
ReturnToService=2
KillWait=30
SlurmdTimeout=15
MinJobAge=3600
JobRequeue=1
MpiDefault=none
CONF
  n=0
  for cpus in "$@"; do
    n=$((n + 1))
    echo "NodeName=n$n NodeAddr=10.99.0.$n CPUs=$cpus RealMemory=1000 State=UNKNOWN" >>"$dir/slurm.conf"
    mkdir -p "$dir/spool-n$n"
  done
  # A job in "urgent" throws one in "debug" out.
  cat >>"$dir/slurm.conf" <<CONF
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=debug Nodes=n[1-$n] Default=YES GraceTime=30
PartitionName=urgent Nodes=n[1-$n] PriorityTier=2
CONF
  head -c 1024 /dev/urandom >"$dir/munge.key"
  chmod 400 "$dir/munge.key"
  munged --force --num-threads=2 --socket="$dir/munge.socket" --key-file="$dir/munge.key" --seed-file="$dir/munge.seed" \
    --pid-file="$dir/munged.pid" --log-file="$dir/log/munged.log" 2>"$dir/log/munged.err"
  on n1 slurmctld -f "$dir/slurm.conf"
  for i in $(seq 1 $n); do on "n$i" slurmd -N "n$i" -f "$dir/slurm.conf"; done
  for _ in $(seq 1 60); do
    idle=$(sh "$self" do "$dir" sinfo -h -t idle -o %D 2>/dev/null || true)
    [ "$idle" != $n ] || exit 0
    sleep 1
  done
  echo "slurm.sh: the $n hosts did not become idle" >&2
  tail -n 5 "$dir"/log/* >&2
  exit 1
  ;;
do)
  SLURM_CONF=$(readlink -f "$2")/slurm.conf
  export SLURM_CONF
  shift 2
  on n1 "$@"
  ;;
kill)
  kill -9 "$(cat "$2/slurmd-$3.pid")"
  for pid in $(ip netns pids "${MOTLEY_TEST_CLUSTER-motley}-$3"); do kill -9 "$pid" 2>/dev/null || true; done
  ;;
down)
  for file in "$2"/slurmd-*.pid "$2/slurmctld.pid" "$2/munged.pid"; do
    pid=$(cat "$file" 2>/dev/null) || continue
    kill "$pid" 2>/dev/null || continue
    for _ in $(seq 1 50); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    ! kill -9 "$pid" 2>/dev/null || true
  done
  ;;
*)
  sed -n '2,12s/^# \{0,1\}//p' "$0"
  exit 2
  ;;
esac
