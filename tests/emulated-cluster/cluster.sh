#!/bin/sh
# Several hosts on one Linux machine, to test what crosses a network: each host is a network namespace with one interface on
# a common switch, its rate both ways limited by token buckets, and a host name of its own, by which MPI tells hosts apart.
#
#   cluster.sh up N [RATE]        make hosts n1..nN at 10.99.0.1..N; RATE as tc writes it (1gbit, 500mbit)
#   cluster.sh rate HOST RATE     change one host's rate (a slow link)
#   cluster.sh run HOST COMMAND   run a command on a host
#   cluster.sh mpirun HOSTS ARGS  mpirun from n1 over HOSTS, as n1:2,n2:1,n3:4 (host:ranks); ARGS as for mpirun
#   cluster.sh agent HOST COMMAND what mpirun calls instead of ssh
#   cluster.sh down N             end what still runs on the hosts, remove them
#
# MOTLEY_TEST_CLUSTER (default motley) begins the names of the namespaces, so that several clusters can live side by side.
# MOTLEY_TEST_BURST (default 512kb) is what a bucket holds: so much of each transfer after a pause travels for nothing.
# Ranks that share cores are the faster the more the others wait, which no rank of a real cluster is, and their threads that
# communicate take the cores that compute: MOTLEY_SLOW=*:4 gives each a speed of its own (see README).
# Needs root and iproute2. nsenter is used, not "ip netns exec", which mounts another /sys.
set -eu
self=$(readlink -f "$0")
cluster=${MOTLEY_TEST_CLUSTER-motley}
burst=${MOTLEY_TEST_BURST-512kb}
on() {
  host=$1
  shift
  exec nsenter --net="/run/netns/$cluster-$host" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$host" "$@"
}
limit() {
  ip netns exec "$cluster-$1" tc qdisc replace dev "e${1#n}" root tbf rate "$2" burst "$burst" latency 20ms
  ip netns exec "$cluster-sw" tc qdisc replace dev "p${1#n}" root tbf rate "$2" burst "$burst" latency 20ms
}
case ${1-} in
up)
  ip netns add "$cluster-sw"
  ip -n "$cluster-sw" link add br0 type bridge
  ip -n "$cluster-sw" link set br0 up
  for i in $(seq 1 "$2"); do
    ip netns add "$cluster-n$i"
    ip link add "e$i" netns "$cluster-n$i" type veth peer name "p$i" netns "$cluster-sw"
    ip -n "$cluster-n$i" link set lo up
    ip -n "$cluster-n$i" addr add "10.99.0.$i/24" dev "e$i"
    ip -n "$cluster-n$i" link set "e$i" up
    ip -n "$cluster-sw" link set "p$i" master br0
    ip -n "$cluster-sw" link set "p$i" up
    [ -z "${3-}" ] || limit "n$i" "$3"
  done
  ;;
rate) limit "$2" "$3" ;;
run)
  shift
  on "$@"
  ;;
agent)
  shift
  host=$1
  shift
  exec nsenter --net="/run/netns/$cluster-$host" unshare --uts sh -c "hostname $host; cd '$PWD'; $*"
  ;;
mpirun)
  hosts=$2
  shift 2
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  on n1 "${MOTLEY_MPIRUN-mpirun}" --host "$hosts" --bind-to none --mca plm_rsh_agent "$self agent" \
    --mca btl_tcp_if_include 10.99.0.0/24 --mca oob_tcp_if_include 10.99.0.0/24 --mca mpi_yield_when_idle 1 "$@"
  ;;
down)
  for name in sw $(seq -f 'n%g' 1 "$2"); do
    [ -e "/run/netns/$cluster-$name" ] || continue
    for pid in $(ip netns pids "$cluster-$name"); do kill -9 "$pid" 2>/dev/null || true; done
    ip netns del "$cluster-$name" || true
  done
  ;;
*)
  sed -n '2,16s/^# \{0,1\}//p' "$0"
  exit 2
  ;;
esac
