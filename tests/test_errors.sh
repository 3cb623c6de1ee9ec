#!/bin/sh
# Mistakes and bad input of every kind, on 3 ranks and alone: the run ends by itself, with the documented code, after exactly
# one message that names the place, what was found and what was expected; checkpoints that were there stay as they are.
. "${srcdir-.}/tests/program.sh"

config mixtral "data.valid = $work/valid.txt" "train.steps = 4" "checkpoint.interval = 2" "generate.prompt = x" \
  "generate.length = 2" "parallel.slots = 2,2,1" >c.ini
run 0 3 train c.ini
earlier=$(cksum run/checkpoints/*)
# every message once: "[rank r/P host] motley: error: TEXT"
one_error() {
  says 1 "motley: error: $1"
  is "messages" "$(grep -c 'motley: ' err)" 1
  is "earlier checkpoints" "$(cksum run/checkpoints/*)" "$earlier"
}
# bad CODE RANKS TEXT ARGS...: on each of these numbers of ranks (0 = without mpirun)
bad() {
  bad_code=$1 bad_ranks=$2 bad_text=$3
  shift 3
  for n in $bad_ranks; do
    run "$bad_code" "$n" "$@"
    one_error "$bad_text"
  done
}
# set_bad CODE TEXT SETTING...: training on 3 ranks and alone, with these settings
set_bad() {
  set_code=$1 set_text=$2
  shift 2
  sets=
  for setting; do sets="$sets --set $setting"; done
  run "$set_code" 3 train c.ini $sets
  one_error "$set_text"
  run "$set_code" 0 train c.ini $sets --set parallel.slots=5
  one_error "$set_text"
}

say "command line and configuration"
bad 2 "0 3" 'unknown command "trian", did you mean train?' trian c.ini
bad 2 "0 3" 'unknown option --stes of train, did you mean --set?' train --stes=train.steps=4 c.ini
bad 2 "0 3" "train: expected CONFIG" train
bad 2 "0 3" 'train: one argument too many: "d.ini"' train c.ini d.ini
bad 2 "0 3" "nothing.ini: No such file or directory" train nothing.ini
bad 2 "0 3" "$work: .*" train "$work"
sed 's/^lr = .*/lear_rate = 1/' c.ini >d.ini
line=$(grep -n lear_rate d.ini | cut -d : -f 1)
bad 2 "0 3" "d.ini:$line: unknown key \"lear_rate\" in \[train\]" train d.ini
sed 's/^lr = .*/lr = fast/' c.ini >d.ini
bad 2 "0 3" "d.ini:$line: train.lr: found \"fast\", expected a" train d.ini
sed 's/^\[train\]/[trains]/' c.ini >d.ini
bad 2 "0 3" "d.ini:[0-9]*: unknown section \[trains\]; did you mean \[train\]?" train d.ini
printf '[model\nfamily = gpt2\n' >d.ini
bad 2 "0 3" "d.ini:[12]: " train d.ini
printf '[model]\nfamily = mixtral\nhid\000den\n' >d.ini
bad 2 "0 3" "d.ini:3: byte 28: found 0x00, which is no text, expected a configuration file" train d.ini
sed 's/^train = .*//' c.ini >d.ini
bad 2 "0 3" "d.ini: data.train is missing, expected" train d.ini
set_bad 2 "--set: train.steps: found \"-1\", expected" train.steps=-1
set_bad 2 "--set: parallel.exchange: found \"best\", expected" parallel.exchange=best
set_bad 2 "--set: model.num_attention_heads: found 5, expected a divisor of hidden_size (32)" model.num_attention_heads=5
set_bad 2 "--set: train.decay_steps: is not read .*; leave it out" train.decay_steps=3
set_bad 2 "--set: data.seq_length: found 99, expected at most model.max_position_embeddings (24)" data.seq_length=99

say "said although rank 0 is the slowest"
cat >slow <<'END'
#!/bin/sh
[ "${OMPI_COMM_WORLD_RANK-0}" != 0 ] || sleep 3
exec "$PROGRAM" "$@"
END
chmod +x slow
PROGRAM=$motley
export PROGRAM
motley=$work/slow
bad 2 3 "train: expected CONFIG" train
bad 2 3 'unknown command "trian"' trian
bad 2 3 "nothing.ini: No such file or directory" train nothing.ini
bad 2 3 "inspect: nothing: No such file or directory" inspect nothing
motley=$PROGRAM

say "environment"
for case in 'MOTLEY_TRAIN_STEPPS=3|environment MOTLEY_TRAIN_STEPPS: unknown name; did you mean MOTLEY_TRAIN_STEPS?' \
  'MOTLEY_TRAIN_STEPS=few|environment MOTLEY_TRAIN_STEPS: train.steps: found "few", expected' \
  'MOTLEY_NODES=2,2|MOTLEY_NODES "2,2": found 4 ranks in all, expected the job.s [13]' \
  'MOTLEY_NODES=two|MOTLEY_NODES "two": ' \
  'MOTLEY_TIMEOUT=soon|MOTLEY_TIMEOUT=soon: expected a number of seconds' \
  'MOTLEY_LOG=loud|environment MOTLEY_LOG: found "loud", expected'; do
  export "${case%%|*}"
  bad 2 "0 3" "${case#*|}" train c.ini
  variable=${case%%=*}
  unset "$variable"
done

say "ranks that are given other settings than rank 0"
bad 2 2 "--set train.lr=1: rank 0, whose settings hold for all, was not given this" train c.ini --set log.dir=z : -np 2 "$motley" \
  train c.ini --set log.dir=z --set train.lr=1

say "slots"
bad 2 3 "parallel.slots: found .*1.*, expected at least .*5" train c.ini --set parallel.slots=1
bad 2 3 "parallel.slots: found .*3,3.*, expected one number, or 3 numbers" train c.ini --set parallel.slots=3,3
bad 2 3 "--set: parallel.slots: found 3 slots in all, expected at least num_local_experts (5)" train c.ini --set parallel.slots=1,1,1
bad 2 3 "parallel.shares: found '1,2', expected 3 numbers (one per rank)" train c.ini --set parallel.shares=1,2
bad 2 3 "parallel.shard_sizes: found '1,2,3,4', expected 3 numbers (one per rank)" train c.ini --set parallel.shard_sizes=1,2,3,4
bad 2 3 "parallel.shares: found '0,0,0', expected 3 numbers (one per rank), not all zero" train c.ini --set parallel.shares=0,0,0
bad 2 "0 3" "--set: parallel.slots: found \"2,x,2\", expected" train c.ini --set parallel.slots=2,x,2

say "a GPU's precision without a GPU"
for precision in tf32 bf16; do
  set_bad 2 "parallel.precision: found $precision, which only GPUs compute in; expected auto or f32 with parallel.device = cpu" \
    parallel.device=cpu parallel.precision=$precision
done
for n in 0 3; do
  rm -rf f32
  CUDA_VISIBLE_DEVICES= run 0 $n train c.ini --set log.dir=f32 --set parallel.precision=bf16 --set checkpoint.resume=never \
    --set train.steps=1 --set parallel.slots=5
  says 1 "motley: warning: parallel.precision: found bf16, which only GPUs compute in, and no GPU; all compute in f32"
  is "messages" "$(grep -c 'motley: ' err)" 1
done
rm -rf f32
run 0 3 train c.ini --set log.dir=f32 --set parallel.device=cpu --set parallel.precision=f32 --set checkpoint.resume=never \
  --set train.steps=1
is "messages" "$(grep -c 'motley: ' err)" 0

say "data"
: >empty.txt
head -c 24 train.txt >short.txt
head -c 101 train.txt >odd.bin
set_bad 2 "data.train: .*nothing.txt.* No such file or directory" data.train=nothing.txt
set_bad 3 "data.train: .*empty.txt.* expected .* at least 25 tokens" data.train=empty.txt
set_bad 3 "data.train: .*short.txt.* expected .* at least 25 tokens" data.train=short.txt
set_bad 3 "data.train: .*$work.* folder" data.train=$work
set_bad 3 "data.train: .*odd.bin.* found 101 bytes, expected a multiple of 2" data.train=odd.bin data.format=uint16
# Ids beyond the vocabulary: 100 samples of 24, so that ten steps meet them all. What a file begins with is looked at before.
awk 'BEGIN { for (i = 0; i < 2401; i++) printf "%c%c", i % 250 + 1, 1 }' | LC_ALL=C tr '\001' '\000' >ids.bin
is "ids" "$(wc -c <ids.bin | tr -d ' ')" 4802
for at in 0 700 4200 4800; do
  cp ids.bin beyond.bin
  printf '\377\001' | dd of=beyond.bin bs=1 seek=$at conv=notrunc 2>/dev/null
  for n in 0 3; do
    rm -rf other
    slots=2,2,1
    [ $n -ne 0 ] || slots=5
    run 3 $n train c.ini --set data.train=beyond.bin --set data.format=uint16 --set "data.valid=" --set log.dir=other \
      --set parallel.slots=$slots --set checkpoint.interval=0 --set train.steps=10
    one_error "data.train: beyond.bin: byte $at: found token id 511, expected less than model.vocab_size = 256"
    if [ $at -lt 4096 ]; then
      is "lines of the log" "$(wc -l <other/log.jsonl)" 0
      continue
    fi
    # the steps before it are saved
    steps=$(grep -c '"event": "step"' other/log.jsonl)
    expected=
    [ "$steps" -eq 0 ] || expected=$(printf 'step-%08d.h5' "$steps")
    is "checkpoint of what was trained" "$(checkpoints other)" "$expected"
    is "the log's end" "$(tail -n 1 other/log.jsonl)" "{\"event\": \"stop\", \"step\": $steps, \"reason\": \"data\"}"
  done
done
# Text is not ids: all of it is beyond a small vocabulary, nothing beyond a large one.
set_bad 3 "data.train: valid.txt: byte 0: found token id [0-9]*, expected less than model.vocab_size = 256" data.train=valid.txt \
  data.format=uint16 data.valid=
set_bad 3 "data.valid: valid.txt: byte 0: found token id [0-9]*, expected less than model.vocab_size = 256" data.train=ids.bin \
  data.format=uint16 data.valid=valid.txt
run 0 3 train c.ini --set data.train=valid.txt --set data.format=uint16 --set data.valid= --set model.vocab_size=50257 \
  --set log.dir=other2 --set train.steps=1
says 1 "motley: warning: data.train: found a file that begins with characters only, expected ids of 2 bytes"
is "messages" "$(grep -c 'motley: ' err)" 1
rm -rf other2
rm -rf other
run 3 3 train c.ini --set data.train=ids.bin --set data.format=uint16 --set data.valid=beyond.bin --set train.valid_interval=2 \
  --set log.dir=other
one_error "data.valid: beyond.bin: byte 4800: found token id 511, expected less than model.vocab_size = 256"
is "checkpoint of what was trained" "$(checkpoints other)" "step-00000002.h5"

say "folders"
echo text >file
set_bad 2 "log.dir: cannot make the folder file: a file is in its place" log.dir=file
set_bad 2 "log.dir: cannot make the folder file.*: a file is in its place" log.dir=file/deeper
set_bad 1 "log.dir: cannot make the folder /proc/" log.dir=/proc/nothing
set_bad 2 "checkpoint file: file is a file; expected a folder" checkpoint.dir=file
set_bad 2 "checkpoint file/x: file is a file; expected a folder" checkpoint.dir=file/x checkpoint.resume=never
bad 2 "0 3" "checkpoint file: is a file; expected a folder" eval c.ini --set checkpoint.dir=file
bad 2 "0 3" "checkpoint file/checkpoints: is a file; expected a folder" eval c.ini --set log.dir=file
set_bad 1 "checkpoint /proc/nothing/x: the folder /proc/nothing cannot be made: " checkpoint.dir=/proc/nothing/x
if [ "$(id -u)" -ne 0 ]; then
  mkdir locked
  chmod 555 locked
  set_bad 1 "checkpoint locked: the folder cannot be written: Permission denied" checkpoint.dir=locked
  set_bad 1 "log.dir: cannot write locked/log.jsonl: Permission denied" log.dir=locked
  chmod 755 locked
fi

say "checkpoints"
newest=run/checkpoints/step-00000004.h5
cp $newest flipped.h5
flip flipped.h5 "$("$compare" offset $newest /params/model.embed_tokens.weight)"
head -c 2000 $newest >truncated.h5
: >empty.h5
for command in train eval generate; do
  bad 3 3 "checkpoint flipped.h5: damaged: dataset /params/model.embed_tokens.weight has checksum .*; expected" $command c.ini \
    --set checkpoint.resume=flipped.h5
done
set_bad 3 "checkpoint truncated.h5: damaged or truncated" checkpoint.resume=truncated.h5
set_bad 3 "checkpoint empty.h5: is empty" checkpoint.resume=empty.h5
set_bad 3 "checkpoint train.txt: is not an HDF5 file" checkpoint.resume=train.txt
set_bad 3 "checkpoint run/checkpoints: is a folder; expected a file" checkpoint.resume=run/checkpoints
set_bad 2 "checkpoint.resume: cannot open nothing.h5: No such file or directory; expected" checkpoint.resume=nothing.h5
foreign=${srcdir-.}/tests/vectors/gpt2.h5
case $foreign in /*) ;; *) foreign=$here/$foreign ;; esac
set_bad 3 "checkpoint $foreign: an HDF5 file of another program" checkpoint.resume=$foreign
bad 2 "3" "$newest: .*another model: model.hidden_size (checkpoint 32, now 64)" train c.ini --set model.hidden_size=64
bad 2 "3" "$newest: .*another model: model.num_local_experts (checkpoint 5, now 4)" eval c.ini --set model.num_local_experts=4
config gpt2 "data.valid = $work/valid.txt" "generate.prompt = x" >gpt2.ini
bad 2 "0 3" "$newest: .*another model: model.family (checkpoint mixtral, now gpt2)" generate gpt2.ini
bad 2 "0 3" "other2/checkpoints: found no complete checkpoint, expected one to read weights from" eval gpt2.ini --set log.dir=other2
bad 2 "0 3" "other2/checkpoints: found no complete checkpoint, expected one to read weights from" generate gpt2.ini \
  --set log.dir=other2
gone other2
bad 2 "0 3" "inspect: nothing: No such file or directory; expected a checkpoint" inspect nothing
bad 3 "0 3" "checkpoint flipped.h5: damaged" inspect flipped.h5
mkdir nothing.dir
bad 2 "0 3" "inspect: nothing.dir: found no file step-\*.h5; expected a checkpoint" inspect nothing.dir
bad 2 "0 3" "nothing.dir: found no complete checkpoint, expected one to read weights from" eval c.ini \
  --set checkpoint.dir=nothing.dir

say "prompts"
sed 's/^prompt = .*//' c.ini >d.ini
bad 2 "3" "d.ini: generate.prompt is missing, expected" generate d.ini
run 0 3 train c.ini --set data.train=ids.bin --set data.format=uint16 --set data.valid= --set log.dir=run16
for prompt in 1,x 256 -1 1,,2; do
  bad 2 3 "generate.prompt: found '.*', expected token ids from 0 to 255 separated by commas" generate c.ini \
    --set data.format=uint16 --set log.dir=run16 --set "generate.prompt=$prompt"
done

say "steps that are done: no error"
run 0 3 train c.ini
says 1 "nothing to do: train.steps is 4; raise it to train further"
is "messages" "$(grep -c 'motley: ' err)" 0
is "earlier checkpoints" "$(cksum run/checkpoints/*)" "$earlier"

say "a full disk"
if unshare -m true 2>/dev/null; then
  mkdir small
  room=$(($(wc -c <$newest) * 5 / 2 / 1024))
  cat >full.sh <<END
mount -t tmpfs -o size=${room}k none small || exit 77
cp -r run/checkpoints small && exec "\$@"
END
  # in_small CODE ARGS...: on 3 ranks, with a file system that has room for two checkpoints; then what it holds
  in_small() {
    small_code=$1
    shift
    timeout -k 5 60 unshare -m sh full.sh sh -c '"$@"; code=$?; ls -A small/checkpoints | tr "\n" " " >left
      cksum small/checkpoints/* >sums; exit $code' - "$mpirun" -np 3 --bind-to none "$motley" "$@" >out 2>err
    code=$?
    is "exit code" $code "$small_code"
  }
  in_small 1 train c.ini --set checkpoint.dir=small/checkpoints --set log.dir=logs --set train.steps=5
  if [ $code -eq 77 ]; then
    skipped="no mounts here: a full disk was not tried"
  else
    says 1 "motley: error: checkpoint small/checkpoints/step-00000005.h5: no room for [0-9]* bytes: No space left on device"
    is "messages" "$(grep -c 'motley: ' err)" 1
    is "left" "$(cat left)" "step-00000002.h5 step-00000004.h5 "
    is "sums" "$(cut -d ' ' -f 1,2 sums | tr '\n' ' ')" "$(echo "$earlier" | cut -d ' ' -f 1,2 | tr '\n' ' ')"
    is "the log" "$(tail -n 1 logs/log.jsonl)" '{"event": "stop", "step": 5, "reason": "checkpoint failed"}'
    # A periodic checkpoint that fails costs only itself; the log says so.
    in_small 1 train c.ini --set checkpoint.dir=small/checkpoints --set log.dir=logs2 --set train.steps=7
    says 1 "motley: error: checkpoint small/checkpoints/step-00000006.h5: no room"
    says 1 "motley: error: checkpoint small/checkpoints/step-00000007.h5: no room"
    is "steps" "$("$compare" steps logs2/log.jsonl updated | tr '\n' ' ')" "5 true 6 true 7 true "
    is "failed in the log" "$(grep -c '"event": "checkpoint", .*"complete": false' logs2/log.jsonl)" 2
    is "left" "$(cat left)" "step-00000002.h5 step-00000004.h5 "
    # A log without room is one warning; training goes on.
    cat >full.sh <<'END'
mount -t tmpfs -o size=4k none small || exit 77
exec "$@"
END
    in_small 0 train c.ini --set checkpoint.dir=elsewhere --set log.dir=small --set train.steps=30
    says 1 "motley: warning: small/log.jsonl: cannot write: .*; lines will be missing"
    is "messages" "$(grep -c 'motley: ' err)" 1
    is "checkpoints elsewhere" "$(ls elsewhere | tail -n 1)" "step-00000030.h5"
  fi
else
  skipped="no mounts here: a full disk was not tried"
fi

say "a trace that cannot be written is one warning, however many steps are traced"
mkdir -p traced/trace.json
run 0 0 train c.ini --set parallel.slots=5 --set checkpoint.resume=never --set checkpoint.dir=traced/checkpoints \
  --set log.dir=traced --set log.trace=2,3,4
says 1 "motley: warning: traced/trace.json: cannot write: Is a directory"
is "messages of the trace" "$(grep -c 'trace.json' err)" 1
is "the log" "$(grep -c '"event": "step"' traced/log.jsonl)" 4

finish
