#!/bin/sh
# motley simulate: made-up clusters without MPI, the table of schedules, the trace, and what is refused.
. "${srcdir-.}/tests/program.sh"

cat >model.ini <<'END'
[model]
family = mixtral
hidden_size = 1024
num_hidden_layers = 4
num_attention_heads = 16
intermediate_size = 3584
num_local_experts = 8
vocab_size = 32000
max_position_embeddings = 1024
[train]
global_batch = 64
END
cat >two.json <<'END'
{"format": "motley-cluster", "version": 1,
 "links": {"self": {"alpha_ns": 0, "beta_ps": 50, "gap_ns": 0}, "node": {"alpha_ns": 2000, "beta_ps": 200, "gap_ns": 500},
           "net": {"alpha_ns": 20000, "beta_ps": 800, "gap_ns": 2000}},
 "nodes": [{"host": "a", "node_cores": 8, "ranks": [{"cores": 4, "speed": 400000}, {"cores": 4, "speed": 400000}]},
           {"host": "b", "node_cores": 4, "ranks": [{"cores": 4, "speed": 200000}]}]}
END
step() { awk -v p="$1" '$1 == p {print $5}' out; } # the step's time; "1 x 2,2" is three words

say "the table on three unlike ranks"
run 0 0 simulate model.ini --cluster two.json --trace trace.json
grep -q '3 ranks, 2 nodes: 4 layers' out && right || wrong "no description of the step"
[ "$(awk '$1 == "sequential" {print $6}' out)" = 1.000 ] && right || wrong "sequential is not 1.000 of itself"
for policy in sequential tutel pipemoe tutel-gar lina coconet fsmoe mast laer; do
  awk -v a="$(step auto)" -v b="$(step $policy)" 'BEGIN {exit !(a > 0 && b > 0 && a <= b)}' && right || wrong "auto is not at least as good as $policy"
done
awk '$1 ~ /^(sequential|tutel|pipemoe|lina|coconet|fsmoe|mast|laer|auto)$/ && $5 + 0 < $7 * 0.999 {bad = 1} END {exit bad}' out &&
  right || wrong "a time below its bound"
grep -q 'not measured' out && wrong "says that measured numbers are assumed" || right

say "the trace"
[ "$(head -c 1 trace.json)" = "{" ] && [ "$(tail -n 1 trace.json)" = "]}" ] && right || wrong "the trace is no JSON object"
for name in 'sequential, predicted' 'auto, predicted' compute intra inter experts 'combine back'; do
  grep -q "\"name\":\"$name\"" trace.json && right || wrong "no \"$name\" in the trace"
done
run 1 0 simulate model.ini --cluster two.json --trace /nowhere/trace.json
grep -q '/nowhere/trace.json: cannot be written' err && right || wrong "an unwritable trace is not said"

say "thousands of devices"
sizes=8
i=1
while [ $i -lt 256 ]; do sizes=$sizes,8 i=$((i + 1)); done
run 0 0 simulate model.ini --cluster $sizes --set train.global_batch=2048
grep -q '2048 ranks, 256 nodes' out && grep -q 'not measured, so assumed: .*GFLOP.*links' out && right || wrong "no large cluster"
run 0 0 simulate model.ini --ranks 3 --set model.num_local_experts=0
grep -q 'auto is' out && right || wrong "no table of a dense model"

say "mistakes"
run 2 0 simulate
grep -q 'expected CONFIG' err && right || wrong "no configuration is not said"
run 2 0 simulate --grid laer
grep -q 'found "laer", expected fsmoe or mast' err && right || wrong "an unknown grid is not said"
run 2 0 simulate model.ini --grid mast
run 2 0 simulate model.ini --cluster 2,1 --ranks 3
run 2 0 simulate model.ini --cluster 2,1 --set parallel.slots=1
grep -q 'parallel.slots' err && right || wrong "too few slots are not said"
run 2 0 simulate model.ini --cluster nowhere.json
run 0 0 simulate --grid mast
grep -q 'our reconstruction' out && grep -q '^  coconet' out && right || wrong "no grid"
finish
