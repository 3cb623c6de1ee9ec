#!/bin/sh
# motley plan: loads made up and from files of both kinds, the table, the JSON form, and what is refused.
. "${srcdir-.}/tests/program.sh"
case ${srcdir-.} in /*) sources=${srcdir-.} ;; *) sources=$here/${srcdir-.} ;; esac

cat >model.ini <<'END'
[model]
family = mixtral
hidden_size = 256
num_hidden_layers = 3
num_attention_heads = 4
intermediate_size = 512
num_local_experts = 8
vocab_size = 256
max_position_embeddings = 256
[parallel]
slots = 2
END
# value POLICY DISPATCH COLUMN: of the table
value() { awk -v p="$1" -v d="$2" -v c="$3" '$1 == p && $2 == d {print $c}' out; }
# less A B: A <= B
less() { awk -v a="$1" -v b="$2" 'BEGIN {exit !(a != "" && b != "" && a <= b)}' && right || wrong "'$1' is not at most '$2'"; }

say "made-up loads that drift, on unlike nodes"
run 0 0 plan model.ini --cluster 4,3,1 --set moe.router=zipf --set moe.drift=4
says 1 '^not measured, so assumed: ranks that are equally fast (50 GFLOP/s), 3.3 GB/s within nodes, 1 GB/s between nodes$'
for policy in static flexmoe eplb laer motley; do
  for dispatch in lite solved; do
    [ -n "$(value $policy $dispatch 3)" ] && right || wrong "no line of $policy $dispatch"
  done
  less "$(value $policy solved 4)" "$(value $policy lite 4)" # the slowest device
done
less "$(value motley solved 3)" "$(value laer lite 3)"
cp out first
run 0 0 plan model.ini --cluster 4,3,1 --set moe.router=zipf --set moe.drift=4
awk '{$NF = ""} 1' first >a && awk '{$NF = ""} 1' out >b # all but the planner's time
cmp -s a b && right || wrong "two runs differ"

say "replay of devices' tokens"
run 0 0 plan model.ini --cluster 4,4 --loads "$sources/tests/loads/devices.csv" --set parallel.relayout_window=1
says 1 '^recorded'
less "$(value motley solved 7)" 1.05
less "$(value motley solved 8)" 1.15
less "$(value motley solved 7)" "$(value laer solved 7)"
less "$(value laer solved 7)" "$(value laer lite 7)"
less "$(value laer lite 7)" "$(awk '$1 == "recorded" {print $2}' out)"
run 0 0 plan model.ini --cluster 4,4 --loads "$sources/tests/loads/devices.csv" --set plan.keep=true --set plan.policy=laer
is "rows that leave a node that keeps them" "$(value laer solved 11)" 0

say "rows of ranks and experts, as JSON"
{
  echo step,layer,rank,expert,rows
  for step in 0 1 2; do for rank in 0 1 2; do for expert in 0 1 2 3 4 5 6 7; do
    echo "$step,0,$rank,$expert,$((100 * (expert == 3) + step + rank))"
  done; done; done
} >rows.csv
run 0 0 plan model.ini --cluster 2,1 --loads rows.csv --set parallel.slots=4,2,3 --set plan.policy=motley --set plan.dispatch=solved --json
grep -q '"policy": "motley"' out && grep -q '"max_over_mean"' out && right || wrong "no figures"
is "slots in the JSON form" "$(tr -d ' \n' <out | sed 's/.*"ranks":\[//; s/\]\].*/]/' | tr -dc '0-7[' | sed 's/\[//')" \
  "$(tr -d ' \n' <out | sed 's/.*"ranks":\[//; s/\]\].*/]/' | tr -dc '0-7[' | sed 's/\[//' | grep -E '^[0-7]{4}\[[0-7]{2}\[[0-7]{3}$')"

say "mistakes"
run 2 0 plan
grep -q 'expected CONFIG' err && right || wrong "no configuration is not said"
run 2 0 plan model.ini --cluster 2,1 --set parallel.slots=2
grep -q 'parallel.slots' err && right || wrong "too few slots are not said"
run 2 0 plan model.ini --cluster 4,4 --set model.num_local_experts=0 --set parallel.slots=-
run 2 0 plan model.ini --cluster 4,4 --set plan.policy=best
grep -q 'plan.policy' err && right || wrong "an unknown policy is not said"
run 2 0 plan model.ini --cluster 4,4 --loads nowhere.csv
grep -q 'nowhere.csv: ' err && right || wrong "a missing file is not said"
echo "step,rank" >bad.csv
run 3 0 plan model.ini --cluster 4,4 --loads bad.csv
grep -q 'bad.csv:1: found "step,rank", expected "step,layer,rank,expert,rows"' err && right || wrong "an unknown header is not said"
printf 'step,layer,rank,expert,rows\n0,0,0,0,5\n0,0,8,0,5\n' >bad.csv
run 3 0 plan model.ini --cluster 4,4 --loads bad.csv
grep -q 'bad.csv:3: rank: found "8", expected an integer from 0 to 7' err && right || wrong "a rank too many is not said"
printf 'step,layer,rank,expert,rows\n0,0,0,0\n' >bad.csv
run 3 0 plan model.ini --cluster 4,4 --loads bad.csv
grep -q 'bad.csv:2: ' err && right || wrong "a short line is not said"
printf 'step,layer,rank,expert,rows\n' >bad.csv
run 3 0 plan model.ini --cluster 4,4 --loads bad.csv
is "messages" "$(grep -c 'motley: ' err)" 1
finish
