#!/bin/sh
# Data through the program, on 3 ranks: the same tokens in every format and cut into shards train on the same batches; what is
# wrong with a file is said once, with its place, and ends all ranks with the documented code.
. "${srcdir-.}/tests/program.sh"

fail() { wrong "$@"; }
pass() { right; }

cat >run.ini <<'END'
[model]
family = mixtral
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 8
num_local_experts = 2
vocab_size = 256
[data]
seq_length = 10
[train]
steps = 3
global_batch = 7
[checkpoint]
resume = never
interval = 0
END
# train RANKS SETTING...: trains into the folder run.
train() {
  ranks=$1
  shift
  rm -rf run
  for setting; do set -- "$@" --set "$setting"; shift; done
  timeout -k 5 120 "$mpirun" -np "$ranks" --bind-to none "$motley" train run.ini "$@" >out 2>err </dev/null
}
# refused CODE WORDS SETTING...: that exit code, and one line of motley's that holds the words.
refused() {
  code=$1 words=$2
  shift 2
  train 3 "$@"
  found=$?
  if [ $found -ne "$code" ]; then
    fail "exit code $found, expected $code: $*"
  elif [ "$(grep -c 'motley: ' err)" -ne 1 ]; then
    fail "not said once: $*"
  elif ! grep 'motley: error: ' err | grep -qF -- "$words"; then
    fail "no \"$words\": $*"
  else
    pass
  fi
}

bytes() { # WIDTH ID...: little-endian
  width=$1
  shift
  for id; do
    i=0
    while [ $i -lt "$width" ]; do
      printf "\\$(printf %03o $((id % 256)))"
      id=$((id / 256)) i=$((i + 1))
    done
  done
}
header() { # MAGIC VERSION COUNT
  bytes 4 "$1" "$2" "$3"
  head -c 1012 /dev/zero
}

# --- one stream of 111 tokens (11 samples), and its cut into shards that repeat the token at the border
ids=
i=0
while [ $i -lt 111 ]; do ids="$ids $((1 + i * 97 % 251))" i=$((i + 1)); done
part() { # FIRST COUNT
  echo $ids | cut -d ' ' -f "$(($1 + 1))-$(($1 + $2))"
}
bytes 1 $ids >tokens.bytes
bytes 2 $ids >tokens.uint16
bytes 4 $ids >tokens.uint32
{ header 20240520 1 111; bytes 2 $ids; } >gpt2.llmc
{ header 20240801 7 111; bytes 4 $ids; } >llama.llmc
[ "$(wc -c <gpt2.llmc)" -eq 1246 ] && [ "$(wc -c <llama.llmc)" -eq 1468 ] || exit 99
for shard in '0 0 41' '1 40 31' '2 70 41'; do
  set -- $shard
  bytes 2 $(part "$2" "$3") >"shard-$1.u16"
  { header 20240520 1 "$3"; bytes 2 $(part "$2" "$3"); } >"shard-$1.llmc"
done

hashes() { sed -n 's/.*"batch_hash": *\([0-9]*\).*/\1/p' run/log.jsonl; }
losses() { sed -n 's/.*"event": *"step".*"loss": *\([-0-9.e]*\).*/\1/p' run/log.jsonl; }
train 3 data.train=tokens.bytes data.format=bytes || fail "bytes are not trained on"
want=$(hashes) loss=$(losses)
[ "$(echo "$want" | sort -u | wc -l)" -eq 3 ] || fail "not three different batches"
[ "$(echo "$loss" | wc -l)" -eq 3 ] || fail "not three losses"
alike() { # RANKS SETTING...
  if ! train "$@"; then
    fail "not trained on: $*"
  elif [ "$(hashes)" != "$want" ]; then
    fail "other batches: $*"
  elif [ "$1" -eq 3 ] && [ "$(losses)" != "$loss" ]; then
    fail "other losses: $*"
  else
    pass
  fi
}
alike 1 data.train=tokens.bytes data.format=bytes
alike 3 data.train=tokens.uint16 data.format=uint16
alike 3 data.train=tokens.uint32 data.format=uint32
alike 3 data.train=gpt2.llmc data.format=llmc
alike 3 data.train=llama.llmc data.format=llmc
alike 3 'data.train=shard-*.u16' data.format=uint16
alike 3 'data.train=shard-[01].llmc, shard-2.llmc' data.format=llmc
alike 2 'data.train=shard-?.llmc' data.format=llmc
if train 3 data.train=tokens.uint16 && grep -q 'warning: data.train: found 5 zeros in the first 11 bytes' err &&
  [ "$(grep -c 'motley: ' err)" -eq 1 ]; then pass; else fail "ids read as bytes are not noticed"; fi

: >empty
if train 3 'data.train=tokens.bytes, empty' && grep -q 'warning: data.train: empty: found too few tokens for a sample' err &&
  [ "$(grep -c 'motley: ' err)" -eq 1 ] && [ "$(hashes)" = "$want" ]; then pass; else fail "an empty file is not noticed"; fi

# --- documents: another course of training, the same on any number of ranks up to rounding
train 3 data.train=tokens.bytes data.document=start data.document_id=98 || fail "documents are not trained on"
grep -q '^  document_id = 98' out || fail "the effective configuration lacks document_id"
[ "$(hashes)" = "$want" ] || fail "documents change the batches"
[ "$(losses)" != "$loss" ] || fail "documents change nothing"
three=$(losses)
train 1 data.train=tokens.bytes data.document=start data.document_id=98
echo "$three $(losses)" | awk '{ for (i = 1; i <= NF; i++) x[n++] = $i }
  END { for (i = 0; i < n / 2; i++) { d = x[i] - x[i + n / 2]; if (d * d > 1e-8 || n != 6) bad = 1 } exit bad }' ||
  fail "1 and 3 ranks differ: $three, $(losses)"

# --- what is wrong is said once
head -c 1200 gpt2.llmc >truncated.llmc
head -c 1000 gpt2.llmc >headless.llmc
{ header 20240522 1 111; bytes 2 $ids; } >eval.llmc
{ header 20240520 2 111; bytes 2 $ids; } >version.llmc
{ header 20240801 7 112; bytes 4 $ids; } >more.llmc
{ header 20240520 1 110; bytes 2 $ids; } >less.llmc
{ header 20240520 1 4294967291; bytes 2 $ids; } >negative.llmc
{ bytes 2 $ids; printf x; } >odd.uint16
bytes 2 300 $ids >beyond-first.uint16
bytes 2 $(part 0 40) 256 $(part 41 70) >beyond.uint16
i=0
while [ $i -lt 111 ]; do echo 999; i=$((i + 1)); done >all
bytes 2 $(cat all) >all.uint16
bytes 4 $(part 0 40) 4294967295 $(part 41 70) >beyond.uint32
{ header 20240520 1 111; bytes 2 $(part 0 40) 50256 $(part 41 70); } >beyond.llmc
mkdir folder.llmc
while IFS='|' read -r file format words; do
  refused 3 "data.train: $file: $words" "data.train=$file" "data.format=$format"
done <<'END'
truncated.llmc|llmc|found 1200 bytes, expected 1246
headless.llmc|llmc|found 1000 bytes, expected at least 1024
eval.llmc|llmc|byte 0: found 20240522, llm.c's evaluation data, expected 20240520 or 20240801
version.llmc|llmc|byte 4: found version 2, expected 1
more.llmc|llmc|found 1468 bytes, expected 1472
less.llmc|llmc|found 1246 bytes, expected 1244
negative.llmc|llmc|byte 8: found -5 tokens
tokens.uint16|llmc|byte 0: found 6422529, expected 20240520 or 20240801
gpt2.llmc|bytes|byte 0: found llm.c's header
odd.uint16|uint16|found 223 bytes, expected a multiple of 2
odd.uint16|uint32|found 223 bytes, expected a multiple of 4
folder.llmc|llmc|is a folder
beyond.uint16|uint16|byte 80: found token id 256, expected less than model.vocab_size = 256
beyond.uint32|uint32|byte 160: found token id 4294967295, expected less than
beyond.llmc|llmc|byte 1104: found token id 50256, expected less than
END
refused 3 ": found token id 999, expected less than" data.train=all.uint16 data.format=uint16 # every rank meets some
refused 3 "data.valid: beyond-first.uint16: byte 0: found token id 300" data.train=tokens.uint16 data.valid=beyond-first.uint16 \
  data.format=uint16 train.valid_interval=1
refused 3 "data.train: version.llmc: byte 4" 'data.train=gpt2.llmc, vers*.llmc' data.format=llmc
refused 3 "data.train: llama.llmc: found ids of 4 bytes, expected 2 as in gpt2.llmc" 'data.train=gpt2.llmc,llama.llmc' \
  data.format=llmc
refused 2 "data.train: *.none: no file matches this pattern" 'data.train=*.none'
refused 2 "data.train: absent: cannot be opened" data.train=absent
refused 2 "data.document_id: found 256, expected less than model.vocab_size (256)" data.train=tokens.bytes data.document=end \
  data.document_id=256

# --- evaluation and generation read the same options
sed 's/^resume.*/resume = auto/' run.ini >more.ini
if timeout -k 5 120 "$mpirun" -np 2 --bind-to none "$motley" train more.ini --set 'data.train=shard-?.llmc' \
  --set data.format=llmc --set data.document=end --set data.document_id=98 --set log.dir=kept >out 2>err &&
  timeout -k 5 120 "$mpirun" -np 3 --bind-to none "$motley" eval more.ini --set 'data.valid=shard-*.llmc' \
    --set data.format=llmc --set data.document=end --set data.document_id=98 --set log.dir=kept >out 2>err &&
  grep -q '11 sequences' out &&
  timeout -k 5 120 "$mpirun" -np 3 --bind-to none "$motley" generate more.ini --set generate.prompt=98,3,98,4 \
    --set generate.length=3 --set data.format=llmc --set data.document=end --set data.document_id=98 --set log.dir=kept \
    >out 2>err &&
  grep -Eq '^98,3,98,4(,[0-9]+){3}$' out; then pass; else fail "train, eval, generate with llm.c's shards and documents"; fi

finish
