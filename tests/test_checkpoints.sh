#!/bin/sh
# Which checkpoint a run takes and which it keeps: checkpoint.keep, checkpoint.resume, and damaged ones, which are passed over
# for the newest whole one, or end the run if there is none; it never starts anew without being told to.
. "${srcdir-.}/tests/program.sh"

say "checkpoint.keep"
config gpt2 "checkpoint.interval = 2" "train.steps = 9" >c.ini
run 0 2 train c.ini --set log.dir=keep2 --set checkpoint.keep=2
is "keep = 2" "$(checkpoints keep2)" "step-00000008.h5 step-00000009.h5"
run 0 2 train c.ini --set log.dir=keep0 --set checkpoint.keep=0
is "keep = 0" "$(checkpoints keep0)" "step-00000002.h5 step-00000004.h5 step-00000006.h5 step-00000008.h5 step-00000009.h5"
run 0 2 train c.ini --set log.dir=keep2 --set checkpoint.keep=1 --set train.steps=10
is "keep = 1" "$(checkpoints keep2)" "step-00000010.h5"

say "checkpoint.resume"
run 0 2 train c.ini --set log.dir=keep2 --set checkpoint.resume=never --set train.steps=3
says 1 "starting from initial weights, seed 1"
says 1 "warning: keep2/checkpoints holds a checkpoint of step 10, and this run starts after step 0"
same log keep0/log.jsonl keep2/log.jsonl 1 3 0
is "steps that count" "$("$compare" steps keep2/log.jsonl lr | tail -n 1 | cut -d ' ' -f 1)" 3
run 0 2 train c.ini --set log.dir=path --set checkpoint.resume=keep0/checkpoints/step-00000004.h5
says 1 "resuming keep0/checkpoints/step-00000004.h5 after step 4"
says 0 "warning:"
same log keep0/log.jsonl path/log.jsonl 5 9 0
same weights keep0/checkpoints/step-00000009.h5 path/checkpoints/step-00000009.h5 0
run 2 2 train c.ini --set log.dir=path --set checkpoint.resume=nowhere.h5
says 1 "motley: error: checkpoint.resume: cannot open nowhere.h5: No such file or directory; expected auto, never or the path"
run 2 2 eval c.ini --set log.dir=keep0 --set checkpoint.resume=never --set data.valid=valid.txt
says 1 "motley: error: checkpoint.resume: found never, expected auto or the path"

say "damaged checkpoints: the newest whole one is taken, the others are named"
config gpt2 "data.valid = $work/valid.txt" "generate.prompt = x" "generate.length = 3" >c.ini
dir=keep0/checkpoints
cp -r keep0 whole0
flip $dir/step-00000009.h5 "$("$compare" offset $dir/step-00000009.h5 /adam_m/transformer.h.1.moe.experts.c_fc.weight)"
size=$(wc -c <$dir/step-00000008.h5)
head -c $((size - 1000)) whole0/checkpoints/step-00000008.h5 >$dir/step-00000008.h5
flip $dir/step-00000006.h5 700 # in what HDF5 keeps
flip $dir/step-00000004.h5 "$("$compare" offset $dir/step-00000004.h5 /state/progress)"
run 0 3 train c.ini --set log.dir=keep0 --set train.steps=3
says 1 "warning: checkpoint $dir/step-00000009.h5 is skipped: damaged: dataset /adam_m/transformer.h.1.moe.experts.c_fc.weight has"
says 1 "warning: checkpoint $dir/step-00000008.h5 is skipped: damaged or truncated (HDF5: truncated file"
says 1 "warning: checkpoint $dir/step-00000006.h5 is skipped: "
says 1 "warning: checkpoint $dir/step-00000004.h5 is skipped: damaged: text /state/progress has"
says 4 "warning:"
says 0 "error:"
says 0 "LOCKING"
says 1 "resuming $dir/step-00000002.h5 after step 2"
same log whole0/log.jsonl keep0/log.jsonl 1 3 1e-5
clean keep0
# None of the damaged ones took the place of a good one.
is "kept" "$(checkpoints keep0)" "step-00000002.h5 step-00000003.h5 step-00000004.h5 step-00000006.h5 step-00000008.h5 step-00000009.h5"
rm $dir/step-00000003.h5
# Only the one that is taken is remarked on.
run 0 1 train c.ini --set log.dir=keep0 --set train.steps=3 --set train.lr=1e-3
says 4 "warning: checkpoint .* is skipped"
says 1 "warning: checkpoint $dir/step-00000002.h5: made with other settings, the new ones hold from here: train.lr"
says 1 "made with other settings"
run 3 0 inspect $dir
says 4 ": BAD: "
says 1 "error: checkpoints $dir: 4 of 6 checkpoints cannot be used"
# What an evaluation does not read, it does not mind.
rm $dir/step-00000002.h5 $dir/step-00000003.h5
run 0 2 eval c.ini --set log.dir=keep0
says 1 "^$dir/step-00000009.h5"
flip $dir/step-00000009.h5 "$("$compare" offset $dir/step-00000009.h5 /params/transformer.wte.weight)"
cp -r keep0 before
for command in train eval generate; do
  run 3 2 $command c.ini --set log.dir=keep0
  says 4 "warning: checkpoint .* is skipped"
  says 1 "error: checkpoint $dir: found 4 damaged or foreign files, expected a usable step-\*.h5 among them; checkpoint.resume = never"
  says 1 "error:"
done
if diff -r before/checkpoints keep0/checkpoints; then right; else wrong "damaged checkpoints were touched"; fi
run 3 2 train c.ini --set checkpoint.resume=$dir/step-00000009.h5
says 1 "error: checkpoint $dir/step-00000009.h5: damaged: dataset /params/transformer.wte.weight has .* (and 1 more datasets)"
says 1 "error:"
run 0 2 train c.ini --set log.dir=keep0 --set checkpoint.resume=never --set train.steps=2
says 1 "starting from initial weights"

finish
