#!/bin/sh
# Trains under mpirun on the hosts of a host file, and goes on from the newest checkpoint when started again.
#
#   jobscripts/train.mpirun.sh CONFIG [motley options, for instance --set train.steps=2000]
#
#   HOSTFILE   lines "name slots=N", N the ranks that host shall run (hosts may differ); without it: this host
#   RANKS      ranks in all (default: all slots)
#   IFACES     network to use, as 10.1.0.0/16 or an interface's name; needed where hosts have more than one
#   MOTLEY     the program (default: motley in PATH); it must lie at the same path on all hosts, like the data and the run
#
# Exit code 75 means: stopped by a signal with a complete checkpoint; start again to go on. `kill -USR1` of mpirun asks for it.
set -eu
[ $# -ge 1 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2; }
config=$1
shift

# A rank computes with several threads: binding it to one core, mpirun's habit with few ranks, would make them share it.
set -- "${MOTLEY-motley}" train "$config" "$@"
[ -z "${IFACES-}" ] || set -- --mca btl_tcp_if_include "$IFACES" --mca oob_tcp_if_include "$IFACES" "$@"
[ -z "${RANKS-}" ] || set -- -np "$RANKS" "$@"
[ -z "${HOSTFILE-}" ] || set -- --hostfile "$HOSTFILE" "$@"

# A host that is cut off ends the job within seconds instead of minutes.
exec mpirun --bind-to none --mca oob_tcp_keepalive_time 5 --mca oob_tcp_keepalive_intvl 2 \
  --mca oob_tcp_keepalive_probes 3 "$@"
