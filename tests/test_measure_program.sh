#!/bin/sh
# What is measured and decided by it, through the program: topo --measure, bench exchange, and training that measures once,
# keeps the numbers in its checkpoint and takes them from there in the same places.
. "${srcdir-.}/tests/program.sh"

say "topo --measure"
MOTLEY_NODES=2,1 run 0 3 topo --measure
says 1 "^link in a rank: "
says 1 "^link in a node: "
says 1 "^link between nodes: "
run 0 2 topo --measure --json
says 2 '"speed": [1-9]'
says 3 '"gap_ns": '
run 0 2 topo --json
says 2 '"speed": 0'
MOTLEY_SLOW=1:5 run 0 2 topo --measure --json
is "a slow rank" "$(sed -n 's/.*"speed": \([0-9]*\).*/\1/p' out | tr '\n' ' ' | awk '{ print ($1 > 2 * $2) }')" 1

say "bench exchange"
MOTLEY_NODES=2,1,1 run 0 4 bench exchange --set bench.width=64,100 --set bench.rows=0,7 --set bench.seconds=0
says 12 " rows of [0-9]* bytes a rank; "
for algorithm in MPI_Alltoallv pairwise "1 bridge, 1 piece" "4 pieces, spread" "bridges by cost" auto; do
  says 12 "^  $algorithm  *[0-9]"
done
run 0 1 bench exchange --set bench.rows=3 --set bench.skew=node --set bench.seconds=0
says 2 "^node: 3 rows of "
run 2 2 bench exchange --set bench.skew=sideways
says 1 "expected one of all, uniform, zipf, node"
run 2 2 bench exchange --set bench.rows=-1
says 1 "bench.rows: found"
config mixtral >bench.ini
run 0 2 bench exchange bench.ini --set bench.skew=uniform --set bench.seconds=0
says 1 "uniform: 96 rows of 128 bytes a rank; " # 2 sequences of 24 tokens to 2 experts each, 32 floats

say "training measures where something is decided by it"
config mixtral "train.steps = 2" "log.dir = $work/run" >c.ini
MOTLEY_NODES=2,1 run 0 3 train c.ini
says 1 "^measured: .*; took "
says 1 "^exchange: 2 node pairs directly\|^exchange: [0-2] node pairs directly, [0-2] over bridges"
say "in the same places the checkpoint's numbers are taken, in others not"
MOTLEY_NODES=2,1 run 0 3 train c.ini --set train.steps=3
says 1 "^measured: .*; as $work/run/checkpoints/step-00000002.h5 has it"
says 1 "goes on bit for bit"
MOTLEY_NODES=1,2 run 0 3 train c.ini --set train.steps=4
says 1 "^measured: .*; took "
for set in parallel.measure=off parallel.exchange=pairwise; do
  MOTLEY_NODES=2,1 run 0 3 train c.ini --set checkpoint.resume=never --set log.dir="$work/$set" --set $set
  says 0 "^measured: "
done
run 0 2 train c.ini --set checkpoint.resume=never --set log.dir="$work/one"
says 0 "^measured: "
run 0 2 train c.ini --set checkpoint.resume=never --set log.dir="$work/on" --set parallel.measure=on
says 1 "^measured: .*; took "
finish
