#!/bin/sh
# The same training however it is cut: ranks, nodes, micro-batches, slots, layouts, exchange, sharding change rounding only.
# Five steps from equal weights: loss and gradient norm to 1e-5 at each step, the same batches, weights to 1e-5 afterwards.
. "${srcdir-.}/tests/program.sh"

for family in mixtral gpt2 qwen; do
  say "$family"
  # lr such that weights move; more experts than some rank counts, fewer than others
  set -- "train.steps = 5"
  [ $family != qwen ] || set -- "$@" "model.sliding_window = 7" "moe.capacity_factor = 1.1"
  config $family "$@" "train.lr = 1e-3" "train.warmup = 0" "moe.z_loss = 0.01" "model.router_aux_loss_coef = 0.02" \
    >c.ini
  rm -rf one
  run 0 1 train c.ini --set log.dir=one
  if [ $family = mixtral ]; then
    as_one 0 "" --set train.micro_batch=1
    as_one 1 "" --set train.micro_batch=10
    as_one 2 "" --set train.micro_batch=3
    as_one 3 2,1 --set parallel.layout=random
    as_one 4 1,3 --set train.micro_batch=1 --set parallel.exchange=pairwise
    as_one 4 1,3 --set parallel.slots=0,5,2,1 --set parallel.layout=random
    as_one 7 2,1,4 --set parallel.exchange=hierarchical
    as_one 3 2,1 --set parallel.shares=1,0,5 --set parallel.shard_sizes=0,7,1
    as_one 4 1,3 --set parallel.shares=7,1,1,1 --set train.micro_batch=3 --set parallel.layout=random
    as_one 7 2,1,4 --set train.micro_batch=3 --set parallel.slots=3 --set parallel.exchange=pairwise
  elif [ $family = qwen ]; then
    as_one 3 2,1 --set parallel.layout=random --set train.micro_batch=1
    as_one 4 1,3 --set parallel.sharding=owner --set train.recompute=true
    as_one 7 2,1,4 --set parallel.slots=3 --set train.micro_batch=3
  else
    as_one 2 1,1 --set parallel.slots=5
    as_one 3 "" --set train.micro_batch=3
    as_one 4 1,3 --set parallel.layout=random --set parallel.slots=2
    as_one 7 2,1,4 --set parallel.layout=random --set train.micro_batch=1
    as_one 7 2,1,4 --set parallel.sharding=owner
    as_one 4 1,3 --set parallel.sharding=node --set parallel.layout=random --set parallel.shard_sizes=0,3,0,1
  fi
done

say "every sharding, rows of either type, every family"
# One rank is the measure of its wire type: bf16 is applied to every row, wherever it goes, so only values beside a
# rounding boundary differ.
for family in mixtral gpt2 qwen; do
  [ $family != qwen ] || set -- "model.sliding_window = 7" "moe.capacity_factor = 1.1"
  [ $family = qwen ] || set --
  config $family "$@" "train.steps = 5" "train.lr = 1e-3" "train.warmup = 0" "moe.z_loss = 0.01" \
    "model.router_aux_loss_coef = 0.02" >c.ini
  for wire in f32 bf16; do
    rm -rf one
    run 0 1 train c.ini --set log.dir=one --set parallel.wire=$wire
    tolerance=1e-5
    [ $wire = f32 ] || tolerance=2e-2
    for sharding in full node owner; do
      as_one 4 1,3 --set parallel.wire=$wire --set parallel.sharding=$sharding
      as_one 7 2,1,4 --set parallel.wire=$wire --set parallel.sharding=$sharding --set parallel.layout=random --set parallel.slots=2
    done
  done
done
tolerance=1e-5
run 0 1 train c.ini --set log.dir=two
differs weights one/checkpoints/step-00000005.h5 two/checkpoints/step-00000005.h5 1e-5

say "layouts that follow the load, under skewed routing that moves on"
# follows RANKS NODES ARGS...: the same, and layouts really changed
follows() {
  as_one "$@"
  is "relayouts of $*" "$(grep -c '"event": "relayout"' cut/log.jsonl | awk '{ print ($1 > 0) }')" 1
}
config mixtral "train.steps = 5" "train.lr = 1e-3" "train.warmup = 0" "moe.router = zipf" "moe.skew = 1.5" "moe.drift = 2" >c.ini
rm -rf one
run 0 1 train c.ini --set log.dir=one --set parallel.layout=motley
is "relayouts on one rank" "$(grep -c relayout one/log.jsonl)" 0
follows 2 1,1 --set parallel.layout=motley
follows 3 2,1 --set parallel.layout=laer --set parallel.relayout_window=1 --set train.micro_batch=1
follows 4 1,3 --set parallel.layout=motley --set parallel.slots=0,5,2,1
follows 4 1,3 --set parallel.layout=eplb --set parallel.slots=2 --set parallel.sharding=node --set parallel.dispatch=lite
follows 7 2,1,4 --set parallel.layout=flexmoe --set parallel.slots=3 --set train.recompute=true
follows 7 2,1,4 --set parallel.layout=motley --set parallel.slots=2 --set parallel.sharding=owner --set parallel.exchange=pairwise
follows 7 2,1,4 --set parallel.layout=motley --set parallel.relayout_interval=2 --set parallel.dispatch=lite --set moe.capacity_factor=100
MOTLEY_NODES=1,3 run 0 4 train c.ini --set log.dir=blind --set parallel.measure=off --set parallel.layout=motley --set parallel.slots=2
MOTLEY_NODES=1,3 run 0 4 train c.ini --set log.dir=seen --set parallel.measure=off --set parallel.layout=motley --set parallel.slots=2 \
  --set data.valid="$work/valid.txt" --set train.valid_interval=1
same log blind/log.jsonl seen/log.jsonl 1 5 0 # validation leaves no trace in the windows
same weights blind/checkpoints/step-00000005.h5 seen/checkpoints/step-00000005.h5 0
as_one 4 1,3 --set parallel.layout=motley --set parallel.sharding=owner
is "relayouts without a slot to spare" "$(grep -c relayout cut/log.jsonl)" 0

say "the same bits, whatever the exchange and the schedule, at one degree"
MOTLEY_NODES=2,1,4
export MOTLEY_NODES
config mixtral "train.steps = 5" "schedule.degree = 2" >c.ini
for exchange in pairwise hierarchical auto; do run 0 7 train c.ini --set log.dir=$exchange --set parallel.exchange=$exchange; done
for policy in sequential laer mast; do
  run 0 7 train c.ini --set log.dir=$policy --set schedule.policy=$policy
  same log pairwise/log.jsonl $policy/log.jsonl 1 5 0
  same weights pairwise/checkpoints/step-00000005.h5 $policy/checkpoints/step-00000005.h5 0
done
for exchange in hierarchical auto; do
  same log pairwise/log.jsonl $exchange/log.jsonl 1 5 0
  same weights pairwise/checkpoints/step-00000005.h5 $exchange/checkpoints/step-00000005.h5 0
done
unset MOTLEY_NODES

say "more ranks than sequences and experts; no balance loss per sequence, but per micro-batch, is not the same"
config gpt2 "train.steps = 3" "train.global_batch = 3" "train.micro_batch = 1" "model.num_local_experts = 2" \
  "model.num_experts_per_tok = 1" "model.router_aux_loss_coef = 0.02" >c.ini
run 0 1 train c.ini --set log.dir=few
run 0 7 train c.ini --set log.dir=many
same log few/log.jsonl many/log.jsonl 1 3 1e-5
run 0 1 train c.ini --set log.dir=pooled --set moe.aux_scope=micro_batch --set train.micro_batch=3
differs log few/log.jsonl pooled/log.jsonl 1 3 1e-5
# micro_batch pools all ranks' tokens of a micro-step: one micro-step of three sequences on one rank or on three
run 0 3 train c.ini --set log.dir=pooled3 --set moe.aux_scope=micro_batch
same log pooled/log.jsonl pooled3/log.jsonl 1 3 1e-5

finish
