# What the tests of the whole program have in common; sourced by them. Needs $builddir (where motley was built).
# Each test works in a temporary folder of its own, with texts that every Debian machine has (or else made-up ones).
set -u
motley=${MOTLEY-$(cd "${builddir-.}" && pwd)/motley}
compare=$(cd "${builddir-.}" && pwd)/tests/compare_runs
mpirun=${MOTLEY_MPIRUN-mpirun}
here=$PWD # where the test was started; relative names of sources are from here
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism-none}
export OMP_NUM_THREADS=1 ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}
unset MOTLEY_LOG MOTLEY_NODES MOTLEY_FAIL MOTLEY_SLOW
for needed in "$motley" "$compare"; do
  [ -x "$needed" ] || { echo "$needed: not built"; exit 99; }
done
work=$(mktemp -d "${TMPDIR-/tmp}/motley-program-XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
trap 'exit 99' HUP INT TERM
cd "$work" || exit 99
failed=0 passed=0 skipped=

say() { echo "== $*"; }
wrong() {
  echo "WRONG: $*"
  echo "  stdout:" && tail -n 12 out | sed 's/^/    /'
  echo "  stderr:" && head -n 20 err | sed 's/^/    /'
  failed=$((failed + 1))
}
right() { passed=$((passed + 1)); }

# Variables of these functions begin with _ (a shell has one set of names).
# run CODE RANKS ARGS...: the program on so many ranks (0 = without mpirun) must end by itself, with CODE.
run() {
  _want=$1 _ranks=$2
  shift 2
  if [ "$_ranks" -eq 0 ]; then
    timeout -k 5 60 "$motley" "$@" >out 2>err
  else
    timeout -k 5 60 "$mpirun" -np "$_ranks" --bind-to none "$motley" "$@" >out 2>err
  fi
  _code=$?
  if [ $_code -eq "$_want" ]; then right; else wrong "exit code $_code, expected $_want: $* on $_ranks ranks"; fi
}
# start RANKS ARGS...: the same in the background: $launcher is mpirun's process, which takes signals. Then ended CODE.
start() {
  _ranks=$1
  shift
  started="$* on $_ranks ranks"
  rm -f launcher
  timeout -k 5 90 sh -c 'echo $$ >launcher; exec "$@"' - "$mpirun" -np "$_ranks" --bind-to none ${options-} "$motley" "$@" \
    >out 2>err &
  job=$!
  until [ -s launcher ]; do sleep 0.01; done
  launcher=$(cat launcher)
}
ended() {
  wait $job
  _code=$?
  if [ $_code -eq "$1" ]; then right; else wrong "exit code $_code, expected $1: $started"; fi
}
# await TEXT FILE: until FILE holds TEXT, half a minute at most.
await() {
  _tries=0
  until grep -q -e "$1" "$2" 2>/dev/null; do
    _tries=$((_tries + 1))
    [ $_tries -le 1500 ] || { wrong "'$1' does not come in $2"; return 1; }
    sleep 0.02
  done
}
# says COUNT TEXT: so many lines of the last run's output hold TEXT (a basic regular expression).
says() {
  _found=$(cat out err | grep -c -e "$2")
  if [ "$_found" -eq "$1" ]; then right; else wrong "$_found lines with '$2', expected $1"; fi
}
# same LOG|WEIGHTS ARGS...: compare_runs must find them equal; differs: different.
same() {
  "$compare" "$@" >compared 2>&1
  _code=$?
  if [ $_code -eq 0 ]; then right; else wrong "compare $* (code $_code)"; sed 's/^/    /' compared; fi
  [ -z "${VERBOSE-}" ] || sed 's/^/   /' compared
}
differs() {
  "$compare" "$@" >compared 2>&1
  _code=$?
  if [ $_code -eq 1 ]; then right; else wrong "compare $*: expected a difference (code $_code)"; sed 's/^/    /' compared; fi
}
# as_one RANKS NODES ARGS...: five steps of c.ini on so many ranks and pretend nodes ("" = none) must equal run one's, to
# $tolerance (1e-5 where a test does not say).
tolerance=1e-5
as_one() {
  _at=$1 MOTLEY_NODES=$2
  export MOTLEY_NODES
  [ -n "$MOTLEY_NODES" ] || unset MOTLEY_NODES
  shift 2
  rm -rf cut
  run 0 "$_at" train c.ini --set log.dir=cut "$@"
  same log one/log.jsonl cut/log.jsonl 1 5 $tolerance
  same weights one/checkpoints/step-00000005.h5 cut/checkpoints/step-00000005.h5 $tolerance
  unset MOTLEY_NODES
}
# flip FILE OFFSET: changes one byte.
flip() {
  _byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
  printf "\\$(printf %o $(((_byte + 129) % 256)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
# is WHAT FOUND EXPECTED
is() {
  if [ "$2" = "$3" ]; then right; else wrong "$1: found '$2', expected '$3'"; fi
}
# there FILE..., gone FILE...
there() { for f in "$@"; do if [ -e "$f" ]; then right; else wrong "$f is not there"; fi; done; }
gone() { for f in "$@"; do if [ -e "$f" ]; then wrong "$f is there"; else right; fi; done; }
# the checkpoints of a run folder by name, in one line
checkpoints() { (cd "$1/checkpoints" 2>/dev/null && ls -A | tr '\n' ' ' | sed 's/ $//'); }
# clean RUN: no temporary file
clean() { is "temporary files in $1" "$(find "$1" -name '.step-*' 2>/dev/null)" ""; }
finish() {
  echo "$passed passed, $failed failed"
  [ $failed -eq 0 ] || exit 1
  [ -z "$skipped" ] || { echo "skipped: $skipped"; exit 77; }
  exit 0
}

# A text of some 30 kB, and another.
text() {
  if [ -r /usr/share/common-licenses/GPL-3 ]; then
    head -c "$2" "/usr/share/common-licenses/$1"
  else
    awk -v n="$2" -v word="$1" 'BEGIN { while (length(s) < n) s = s word " " i++ * i " lines of a text that is made up\n";
      printf "%s", substr(s, 1, n) }'
  fi
}
text GPL-3 30000 >train.txt
text Artistic 3000 >valid.txt

# config FAMILY [LINE...] >FILE: a small model; further lines, for example "train.steps = 3", override. Odd sizes on purpose.
config() {
  family=$1
  shift
  {
    echo "model.family = $family"
    echo "model.hidden_size = 32"
    echo "model.num_hidden_layers = 2"
    echo "model.num_attention_heads = 4"
    echo "model.intermediate_size = 40"
    echo "model.num_local_experts = 5"
    echo "model.num_experts_per_tok = 2"
    echo "model.vocab_size = 256"
    echo "model.max_position_embeddings = 24"
    [ "$family" = gpt2 ] || echo "model.num_key_value_heads = 2"
    echo "data.train = $work/train.txt"
    echo "train.steps = 12"
    echo "train.global_batch = 10"
    echo "train.micro_batch = 2"
    echo "train.lr = 3e-3"
    echo "train.warmup = 4"
    echo "checkpoint.interval = 0"
    echo "parallel.shares = even" # measured ones, as sizes by them, may differ between two runs
    echo "parallel.shard_sizes = even"
    echo "parallel.layout = static" # as may one that follows the load at measured speeds
    echo "parallel.sharding = full" # and what is chosen by them
    echo "schedule.degree = 1"
    for line in "$@"; do echo "$line"; done
  } | awk '{ split($1, name, "."); value = $0; sub(/^[^=]*= */, "", value)
      if (!(name[1] in seen)) { seen[name[1]] = ++n; section[n] = name[1] }
      if (!($1 in at)) { at[$1] = ++m; key[m] = name[2]; of[m] = name[1] }
      of_value[at[$1]] = value }
    END { if (of_value[at["model.num_local_experts"]] == 0) of_value[at["parallel.layout"]] = of_value[at["parallel.sharding"]] = of_value[at["schedule.degree"]] = "-"
      for (i = 1; i <= n; i++) { print "[" section[i] "]"
      for (j = 1; j <= m; j++) if (of[j] == section[i] && of_value[j] != "-") print key[j] " = " of_value[j] } }'
}
