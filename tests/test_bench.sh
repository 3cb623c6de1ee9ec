#!/bin/sh
# motley bench through the program: every benchmark runs on a small model and prints the lines that scripts read, and bad
# usage ends with 2. What bench exchange prints is test_measure_program.sh's matter.
. "${srcdir-.}/tests/program.sh"

say "bench --help names them"
run 0 0 bench --help
for what in attention exchange gemm relayout step unshard; do
  says 1 "^  $what  *[a-z].*, beside "
done

says 1 "^  planner  *[a-z]"

# of a table: the lines that begin with NAME must have COUNT, and numbers above 0 to the end from word FIRST on
table() {
  is "lines of $1" "$(grep -c "^ *$1 " out)" "$2"
  is "numbers of $1" "$(sed -n "s/^ *$1 //p" out |
    awk -v first="$3" '{ for (i = first; i <= NF; i++) if ($i !~ /^[0-9.]+$/ || $i <= 0) bad++ } END { print bad + 0 }')" 0
}

config mixtral >c.ini
say "bench gemm"
run 0 1 bench gemm c.ini --set bench.seconds=0
for product in "q, k, v" "attention output" "experts in" "experts out" head; do
  for part in forward dx dw; do
    table "$product  *$part" 1 1
  done
done
table "router  *forward" 1 1
table "router  *dx, dw" 1 1
says 1 "^micro-batch: [0-9.]* s  [0-9.]* GFLOP/s; sgemm [0-9.]* s  [0-9.]* GFLOP/s; ratio [0-9.]*$"
say "the least that there is shows in figures, not in zeros"
config gpt2 "model.hidden_size = 2" "model.num_attention_heads = 1" "model.intermediate_size = 1" "model.num_local_experts = 2" \
  "model.max_position_embeddings = 1" "train.micro_batch = 1" "train.global_batch = 1" "data.seq_length = 1" >least.ini
run 0 1 bench gemm least.ini --set bench.seconds=0
for product in "q, k, v" "attention output" "experts in" "experts out"; do
  for part in forward dx dw; do
    table "$product  *$part" 1 1
  done
done
is "figures of the micro-batch" "$(sed -n 's/^micro-batch: //p' out | tr ' ' '\n' | awk '/^[0-9.]+$/ && $1 > 0' | wc -l | tr -d ' ')" 5
run 0 1 bench step least.ini
is "zeros of a step" "$(grep -c '^step 0.0* s\|^sgemm .* 0.0* s\|: step 0.0* s' out)" 0
rm -rf run

say "of a dense model, on two ranks"
config gpt2 "model.num_local_experts = 0" "model.num_experts_per_tok = -" \
  "parallel.layout = -" "parallel.shard_sizes = -" >dense.ini
run 0 2 bench gemm dense.ini --set bench.seconds=0
table "mlp in  *forward" 1 1
says 0 "^experts"

# by_kernel NAME...: the table of a step's kernels has these, with calls, seconds and shares, and its shares sum up to all
by_kernel() {
  for name in "$@"; do
    is "lines of kernel $name" "$(grep -c "^  $name  *[1-9][0-9]* calls  *[0-9.]* s  *[0-9.]* %$" out)" 1
  done
  is "shares" "$(awk '/ by kernel/ { on = 1 } on && $NF == "%" { sum += $(NF - 1) } END { print (sum > 98 && sum < 102) }' out)" 1
}
say "bench step"
config mixtral "train.global_batch = 4" "data.train = none" "data.format = uint16" >step.ini
run 0 2 bench step step.ini
says 7 "^  [1-7] of 7: step [0-9.]* s, [0-9]* tokens/s$"
says 1 "^sgemm at the same shapes [0-9.]* s  [0-9.]* GFLOP/s$"
says 1 "^ratio [0-9.]*  without the head [0-9.]* "
says 1 "^a step by kernel, each waited for (cpu-"
by_kernel linear linear_dx linear_dw attention attention_back adamw
if [ -e "$(dirname "$compare")/motley-cuda-emulated.so" ]; then
  say "bench gemm and step on an emulated GPU, in both types"
  for precision in f32 bf16; do
    set -- --set parallel.device=emulated --set parallel.precision=$precision
    run 0 1 bench gemm c.ini --set bench.seconds=0 "$@"
    table "experts in  *dw" 1 1
    table "router  *dx, dw" 1 1
    says 1 "^micro-batch: [0-9.]* s  [0-9.]* GFLOP/s; cuBLAS [0-9.]* s  [0-9.]* GFLOP/s; ratio [0-9.]*$"
    run 0 1 bench step step.ini "$@"
    says 1 "^cuBLAS at the same shapes [0-9.]* s  [0-9.]* GFLOP/s$"
    by_kernel linear linear_dx linear_dw attention attention_back gather combine cross_entropy
  done
else
  skipped="an emulated GPU (no C++ compiler)"
fi

say "bench attention, a window and another length"
run 0 1 bench attention c.ini --set bench.seconds=0
says 1 "^attention of 2 sequences of 24 positions, 4 heads, 2 of keys and values, width 8, window 0; "
says 1 "^sgemm of [0-9]* x [0-9]* x [0-9]* [0-9.]* GFLOP/s, triad [0-9.]* GB/s; "
for pass in forward backward; do
  says 1 "^$pass  *[0-9. ]* \(FLOP\|memory\)  *[0-9.]*$"
done
whole=$(awk '$1 == "forward" { print $2 }' out)
run 0 1 bench attention c.ini --set bench.seconds=0 --set model.sliding_window=5 --set data.seq_length=20
says 1 "^attention of 2 sequences of 20 positions, .* window 5; "
is "FLOP under a window are fewer" "$(awk -v whole="$whole" '$1 == "forward" { print ($2 < whole) }' out)" 1

say "bench unshard: what travels follows from the sharding and the slots"
MOTLEY_NODES=2,1 run 0 3 bench unshard c.ini --set bench.seconds=0 --set parallel.slots=5,1,2
says 1 "^a layer of 5 experts of 15.0 KiB on 8 slots: a node sends or gets "
table unshard 1 1
table reshard 1 1
is "bytes between nodes, both ways" "$(awk '$1 == "unshard" { a = $3 } $1 == "reshard" { print (a == $3 && a > 0) }' out)" 1
MOTLEY_NODES=2,1 run 0 3 bench unshard c.ini --set bench.seconds=0 --set parallel.sharding=owner
says 1 "on 5 slots, which are the shards themselves: a node sends or gets 0.0 KiB at most"
is "messages" "$(awk '$1 == "unshard" || $1 == "reshard" { n += $2 + $3 + $4 + $5 } END { print n }' out)" 0
run 0 1 bench unshard c.ini --set bench.seconds=0 --set parallel.layout=random
says 1 "^  unshard  *0  *0.0  *0  *0.0 "

say "bench step leaves nothing behind"
run 0 2 bench step c.ini
says 1 "^ratio [0-9.]*  without the head [0-9.]* "
gone run

say "bench planner: no configuration, one rank computes"
run 0 2 bench planner
is "sizes" "$(grep -c '^ *[0-9]* *[0-9]* *32  ' out)" 11

say "bench relayout: all contenders, in turns, on the loads of a file"
{
  echo step,layer,rank,expert,rows
  for rank in 0 1; do echo "0,0,$rank,0,40"; echo "0,0,$rank,1,60"; echo "0,0,$rank,4,9"; echo "1,0,$rank,3,7"; done
} >loads.csv
config mixtral "train.steps = 2" "model.num_hidden_layers = 1" "parallel.layout = -" "parallel.slots = 3" \
  "parallel.measure = off" "moe.router = replay" "moe.loads = loads.csv" >turns.ini
MOTLEY_NODES=2,1 MOTLEY_SLOW=1:3 run 0 3 bench relayout turns.ini
says 1 "^2 steps of each in turns, on 3 ranks, 2 nodes; batch shares: [0-9]* to [0-9]* sequences; seconds$"
sed -n '/^of the experts:/,$p' out >parts
sed -i '/^of the experts:/,$d' out
for layout in "static, full" "static, node" "static, owner" "laer, full, lite" "motley, full"; do
  table "$layout" 1 1
done
table bound 1 1
cp parts out
for layout in "static, full" "static, node" "static, owner" "laer, full, lite" "motley, full"; do
  says 1 "^$layout  *\([0-9]*\.[0-9]* *\)\{6\}$"
done
is "weights that travel" "$(awk '/^laer, full/ { print ($8 > 0 && $9 > 0) } /^static, owner/ { print ($7 == 0) }' parts | tr '\n' ' ')" "1 1 "
says 1 "^motley, full runs at [0-9.]* of the best static's speed and at [0-9.]* of the bound's$"
run 2 0 bench relayout turns.ini --set moe.loads=
says 1 "moe.router: found replay and no moe.loads, expected a file of loads there$"
run 2 2 bench relayout turns.ini --set moe.loads=none.csv
says 1 "none.csv: No such file or directory, expected loads as CSV$"
echo 0,0,0,9,1 >>loads.csv
run 3 2 bench relayout turns.ini
says 1 'loads.csv:10: expert: found "9", expected an integer from 0 to 4$'
run 2 2 bench relayout dense.ini --set train.steps=2
says 1 "bench relayout: found a model without experts"

say "bad usage"
run 2 2 bench unshard dense.ini
says 1 "bench unshard: found a model without experts"
for what in attention gemm relayout step unshard; do
  run 2 0 bench $what
  says 1 "bench: expected WHAT CONFIG"
done
run 2 0 bench gemms c.ini
says 1 "did you mean gemm?"
run 2 1 bench gemm c.ini --set bench.seconds=-1
says 1 "bench.seconds: found"
run 2 1 bench attention c.ini --set bench.second=1
says 1 "bench.second"
run 2 1 bench gemm none.ini
says 1 "none.ini"
finish
