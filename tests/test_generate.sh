#!/bin/sh
# Generation and evaluation on any number of ranks: the likeliest tokens are the same everywhere, drawn ones depend on the
# seed alone; texts longer than the window; token ids; and eval says what the training's validation said.
. "${srcdir-.}/tests/program.sh"

# generated RANKS ARGS...: what is printed, in $text
generated() {
  _ranks=$1
  shift
  run 0 "$_ranks" generate c.ini "$@"
  text=$(cat out && echo .) # newlines at the end count
  is "messages" "$(grep -c 'motley: ' err)" 0
}

for family in mixtral gpt2; do
  say "$family"
  rm -rf run
  config $family "data.valid = $work/valid.txt" "train.steps = 40" "train.valid_interval = 20" "checkpoint.interval = 20" \
    "generate.prompt = The licence" "generate.length = 40" "train.lr = 0.01" >c.ini
  run 0 2 train c.ini

  say "$family: the likeliest token, on any ranks, nodes and slots; the window of 24 is outgrown"
  generated 0 --set generate.temperature=0
  first=$text
  is "its begin" "$(printf %.11s "$first")" "The licence"
  is "its length" "$(wc -c <out | tr -d ' ')" 52
  for ranks in 2 4; do
    generated $ranks --set generate.temperature=0
    is "on $ranks ranks" "$text" "$first"
  done
  MOTLEY_NODES=2,1,4
  export MOTLEY_NODES
  generated 7 --set generate.temperature=0 --set parallel.layout=random --set parallel.exchange=hierarchical
  is "on 7 ranks" "$text" "$first"
  unset MOTLEY_NODES

  say "$family: drawn tokens"
  generated 2 --set generate.seed=5
  drawn=$text
  generated 3 --set generate.seed=5
  is "the same seed" "$text" "$drawn"
  generated 2 --set generate.seed=6
  [ "$text" != "$drawn" ] && right || wrong "another seed draws the same"
  [ "$drawn" != "$first" ] && right || wrong "drawn at random, and the likeliest all the same"
  # nearly frozen: as the likeliest
  generated 2 --set generate.temperature=1e-6
  is "temperature 1e-6" "$text" "$first"

  say "$family: lengths"
  generated 2 --set generate.length=0
  is "nothing to add" "$text" "The licence
."
  generated 2 --set generate.length=1 --set generate.prompt=T --set generate.temperature=0
  is "one" "$(wc -c <out | tr -d ' ')" 3
  # A prompt beyond the window is shown whole, and its newest part counts.
  long="GNU General Public Licence, or so they say. This program is free software"
  generated 0 --set generate.temperature=0 --set generate.length=1 --set "generate.prompt=$long"
  is "a long prompt" "$(printf %.${#long}s "$text")" "$long"
  next=$text
  tail=$(printf %s "$long" | tail -c 24)
  generated 2 --set generate.temperature=0 --set generate.length=1 --set "generate.prompt=$tail"
  is "its newest part" "$text" "$tail${next#"$long"}"
  generated 2 --set generate.length=3 --set data.seq_length=1 --set generate.prompt=xy --set generate.temperature=0
  is "a window of one" "$(wc -c <out | tr -d ' ')" 6

  say "$family: evaluation"
  trained=$(sed -n 's/.*"event": "valid", "step": 40, .*"loss": \([0-9.]*\),.*/\1/p' run/log.jsonl | head -n 1)
  [ -n "$trained" ] && right || wrong "no validation of step 40 in the log"
  for ranks in 0 2 3 7; do
    run 0 $ranks eval c.ini
    is "eval on $ranks ranks" "$(sed -n 's/^step 40  .*loss \([0-9.]*\) .*/\1/p' out)" "$(printf %.4f "$trained")"
    says 1 "run/checkpoints/step-00000040.h5"
  done
  trained=$(sed -n 's/.*"event": "valid", "step": 20, .*"loss": \([0-9.]*\),.*/\1/p' run/log.jsonl | head -n 1)
  run 0 2 eval c.ini --set checkpoint.resume=run/checkpoints/step-00000020.h5
  is "eval of step 20" "$(sed -n 's/^step 20  .*loss \([0-9.]*\) .*/\1/p' out)" "$(printf %.4f "$trained")"
  # cut otherwise; fewer sequences than ranks
  run 0 3 eval c.ini --set train.global_batch=1 --set train.micro_batch=1
  head -c 60 valid.txt >two.txt
  run 0 1 eval c.ini --set data.valid=two.txt
  few=$(sed -n 's/^step 40  .*loss \([0-9.]*\) .*/\1/p' out)
  run 0 7 eval c.ini --set data.valid=two.txt
  is "two sequences on 7 ranks" "$(sed -n 's/^step 40  .*loss \([0-9.]*\) .*/\1/p' out)" "$few"
  [ -n "$few" ] && right || wrong "no loss of two sequences"
done

say "a model of one position: a token follows from the one before it alone"
for family in mixtral gpt2; do
  rm -rf run
  config $family "model.max_position_embeddings = 1" "train.steps = 10" "train.lr = 0.1" "generate.length = 40" "generate.prompt = b" >c.ini
  run 0 2 train c.ini
  generated 0
  after=$text
  for prompt in ab " b" "sob"; do
    generated 2 --set "generate.prompt=$prompt"
    is "after $prompt" "$text" "${prompt%b}$after"
  done
done

say "token ids"
rm -rf run
awk 'BEGIN { for (i = 0; i < 2000; i++) printf "%c%c", i % 7 + 2, 2 }' | LC_ALL=C tr '\002' '\001' >ids.bin
config mixtral "data.train = $work/ids.bin" "data.format = uint16" "model.vocab_size = 300" "train.steps = 60" "train.lr = 0.01" \
  "generate.prompt = 259,260" "generate.length = 8" "generate.temperature = 0" >c.ini
run 0 2 train c.ini
for ranks in 0 3; do
  generated $ranks
  is "ids learnt" "$text" "259,260,261,262,263,264,257,259,260,261
."
done

finish
