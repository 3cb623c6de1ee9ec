#!/bin/sh
# A number that is not finite (made by MOTLEY_FAIL=nan:N in the embedding of each rank's N-th micro-step): said once with its
# place; the update is skipped and training goes on, also after a resume, or it ends with nothing lost.
. "${srcdir-.}/tests/program.sh"

for case in "mixtral 4 1,3" "gpt2 1 1" "mixtral 7 2,1,4"; do
  set -- $case
  family=$1 ranks=$2
  say "$family on $2 ranks"
  rm -rf whole poisoned halves gone early
  MOTLEY_NODES=$3
  export MOTLEY_NODES
  config $family "train.steps = 8" "checkpoint.interval = 1" "checkpoint.keep = 0" "train.micro_batch = 10" >c.ini
  run 0 "$ranks" train c.ini --set log.dir=whole

  # skip: step 3 is step 2 once more
  MOTLEY_FAIL=nan:3
  export MOTLEY_FAIL
  run 0 "$ranks" train c.ini --set log.dir=poisoned
  says 1 "motley: warning: step 3, micro-step 0: found NaN or Inf in embedding on rank 0, expected finite numbers; the step's update is skipped"
  says 1 "NaN or Inf"
  says 1 "NOT UPDATED"
  is "updated" "$("$compare" steps poisoned/log.jsonl updated | tr '\n' ' ')" \
    "1 true 2 true 3 false 4 true 5 true 6 true 7 true 8 true "
  is "loss" "$("$compare" steps poisoned/log.jsonl loss | grep -c null)" 1
  same log whole/log.jsonl poisoned/log.jsonl 1 2 0
  same weights poisoned/checkpoints/step-00000002.h5 poisoned/checkpoints/step-00000003.h5 0
  differs weights poisoned/checkpoints/step-00000003.h5 poisoned/checkpoints/step-00000004.h5 1e-6
  run 0 0 inspect poisoned/checkpoints/step-00000008.h5
  # The count of updates, which AdamW's bias correction reads, is not the count of steps; it goes on from the checkpoint.
  grep -q '"updates": 7' poisoned/checkpoints/step-00000008.h5 && grep -q '"step": 8' poisoned/checkpoints/step-00000008.h5 ||
    wrong "updates in the checkpoint"
  run 0 "$ranks" train c.ini --set log.dir=halves --set train.steps=4
  says 1 "NOT UPDATED"
  unset MOTLEY_FAIL
  run 0 "$ranks" train c.ini --set log.dir=halves
  same log poisoned/log.jsonl halves/log.jsonl 1 8 0
  same weights poisoned/checkpoints/step-00000008.h5 halves/checkpoints/step-00000008.h5 0

  # abort
  MOTLEY_FAIL=nan:3
  export MOTLEY_FAIL
  run 1 "$ranks" train c.ini --set log.dir=gone --set train.nonfinite=abort
  says 1 "motley: error: step 3, micro-step 0: found NaN or Inf in embedding on rank 0, expected finite numbers; train.nonfinite = abort"
  says 1 "error:"
  says 0 "warning:"
  is "checkpoints" "$(checkpoints gone)" "step-00000001.h5 step-00000002.h5"
  is "the log's end" "$(tail -n 1 gone/log.jsonl)" '{"event": "stop", "step": 2, "reason": "nonfinite"}'
  # what had no checkpoint yet gets one
  run 1 "$ranks" train c.ini --set log.dir=early --set train.nonfinite=abort --set checkpoint.interval=0
  is "checkpoints" "$(checkpoints early)" "step-00000002.h5"
  clean early
  rm -rf first
  MOTLEY_FAIL=nan:1
  run 1 "$ranks" train c.ini --set log.dir=first --set train.nonfinite=abort
  is "checkpoints" "$(checkpoints first)" ""
  unset MOTLEY_FAIL
  for run in gone early; do
    run 0 "$ranks" train c.ini --set log.dir=$run --set train.nonfinite=abort
    same log whole/log.jsonl $run/log.jsonl 1 8 0
    same weights whole/checkpoints/step-00000008.h5 $run/checkpoints/step-00000008.h5 0
  done
done
unset MOTLEY_NODES

say "on one rank alone, in its second micro-step with tokens"
cat >wrapped <<'END'
#!/bin/sh
[ "${OMPI_COMM_WORLD_RANK-2}" != 2 ] || { MOTLEY_FAIL=nan:2; export MOTLEY_FAIL; }
exec "$PROGRAM" "$@"
END
chmod +x wrapped
PROGRAM=$motley
export PROGRAM
config mixtral "train.steps = 3" "train.micro_batch = 1" >c.ini
motley=$work/wrapped
run 0 4 train c.ini --set log.dir=one
says 1 "rank 2/4 .* motley: warning: step 1, micro-step [12]: found NaN or Inf in embedding on rank 2, expected"
says 1 "NaN or Inf"
is "updated" "$("$compare" steps one/log.jsonl updated | tr '\n' ' ')" "1 false 2 true 3 true "

finish
