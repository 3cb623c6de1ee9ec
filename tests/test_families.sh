#!/bin/sh
# Families and options of a model through the whole program: qwen, a sliding window, a capacity, a schedule with a stable phase,
# several sets to evaluate on, limits of sampling; trained, stopped, resumed on other ranks, evaluated, sampled.
. "${srcdir-.}/tests/program.sh"

say "training and going on"
head -c 1500 valid.txt >first.txt
tail -c 1500 valid.txt >second.txt
config qwen "model.sliding_window = 5" "moe.capacity_factor = 0.9" "train.schedule = wsd" "train.decay_ratio = 0.5" \
  "train.decay_steps = 12" "train.min_lr = 1e-4" "train.valid_interval = 6" \
  "data.valid = one: $work/first.txt, two: $work/second.txt, $work/first.txt" \
  "generate.prompt = The" "generate.length = 20" "generate.top_k = 1" >c.ini
run 0 3 train c.ini --set log.dir=whole
run 0 3 train c.ini --set log.dir=parts --set train.steps=6
run 0 3 train c.ini --set log.dir=parts
same log whole/log.jsonl parts/log.jsonl 1 12 0
same weights whole/checkpoints/step-00000012.h5 parts/checkpoints/step-00000012.h5 0
run 0 2 train c.ini --set log.dir=other --set train.steps=12
same log whole/log.jsonl other/log.jsonl 1 5 1e-5

say "the log"
step() { grep "\"event\": *\"step\", *\"step\": *$1," whole/log.jsonl; }
is "learning rate, stable" "$(step 6 | grep -c '"lr": *0.003,')" 1
is "learning rate, at the end" "$(step 12 | grep -c '"lr": *0.0001')" 1
is "steps with dropped picks" "$(grep -c '"dropped": *[1-9]' whole/log.jsonl)" 12
is "the same picks on other ranks" "$(step 1 | sed 's/.*"dropped": *\([0-9]*\).*/\1/')" \
  "$(grep '"event": *"step", *"step": *1,' other/log.jsonl | sed 's/.*"dropped": *\([0-9]*\).*/\1/')"
is "events of set one" "$(grep '"valid"' whole/log.jsonl | grep -c '"set": *"one"')" 2
is "events of set two" "$(grep '"valid"' whole/log.jsonl | grep -c '"set": *"two"')" 2
run 0 0 inspect whole/checkpoints/step-00000012.h5
says 6 "/params/model.layers.[01].self_attn.[qkv]_proj.bias"
says 2 "/params/model.layers.[01].mlp.experts.gate_proj.weight .*5.*40.*32"

say "evaluation"
run 0 2 eval c.ini --set log.dir=whole
says 1 "validation (one) loss .* (62 sequences"
says 1 "validation (two) loss .* (124 sequences"
cp out named
run 0 2 eval c.ini --set log.dir=whole --set data.valid=first.txt
says 1 "validation loss .* (62 sequences"
is "the same loss alone" "$(sed -n 's/.*validation loss//p' out | cut -d '(' -f 1)" \
  "$(sed -n 's/.*validation (one) loss//p' named | cut -d '(' -f 1)"
run 2 2 eval c.ini --set log.dir=whole --set "data.valid=a: first.txt, a: second.txt"
says 1 "motley: error: data.valid: found the set a twice, expected each name once"
run 2 2 eval c.ini --set log.dir=whole --set "data.valid=a: first.txt, b: absent.txt"
says 1 "motley: error: data.valid: b: absent.txt: cannot be opened"

say "sampling"
run 0 2 generate c.ini --set log.dir=whole
cp out likeliest
run 0 2 generate c.ini --set log.dir=whole --set generate.top_k=0 --set generate.top_p=1e-9
is "top-k 1 and a small top-p" "$(cat out)" "$(cat likeliest)"
grep -v "^top_k" c.ini >greedy.ini
run 0 2 generate greedy.ini --set log.dir=whole --set generate.temperature=0
is "top-k 1 and temperature 0" "$(cat out)" "$(cat likeliest)"
run 2 2 generate c.ini --set log.dir=whole --set generate.temperature=0
says 1 "generate.top_k: is not read with generate.temperature = 0"

say "a dense model has no experts and no loads"
config gpt2 "model.num_local_experts = 0" "model.num_experts_per_tok = -" "parallel.layout = -" "train.steps = 2" >dense.ini
run 0 2 train dense.ini --set log.dir=dense
says 1 "^ranks: 2, nodes: 1; [0-9]* parameters, 2 layers (dense)$"
says 2 "^step [12]/2  loss [0-9.]*  lr [^ ]*  norm [0-9.]*  [0-9]* tok/s"
says 0 "  load "

say "what differs is said"
run 0 2 train c.ini --set log.dir=parts --set train.steps=13 --set model.sliding_window=6 --set checkpoint.interval=0
says 1 "model.sliding_window (checkpoint 5, now 6)"
run 2 2 train c.ini --set log.dir=parts --set model.family=mixtral
says 1 "model.family (checkpoint qwen, now mixtral)"
finish
