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
# `kill -USR1` of this script (which becomes mpirun) asks for a checkpoint and the end: exit code 75, start again to go on. What
# mpirun says of an aborted job then is its word for any code but 0. TERM and Ctrl-C leave a second for that, USR1 all it takes.
set -eu
say() { echo "train.mpirun.sh: $*" >&2; }
[ $# -ge 1 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2; }
if [ -n "${HOSTFILE-}" ] && { [ ! -r "$HOSTFILE" ] || [ -d "$HOSTFILE" ]; }; then
  say "HOSTFILE: found $HOSTFILE, which is no file that can be read, expected lines \"name slots=N\""
  exit 2
fi
case ${RANKS-1} in
*[!0-9]* | 0) say "RANKS: found \"$RANKS\", expected a number of ranks"; exit 2 ;;
esac
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
