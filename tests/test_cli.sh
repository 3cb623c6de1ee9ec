#!/bin/sh
# The command line: what is said, by whom, and with which exit code; alone and under mpirun.
. "${srcdir-.}/tests/program.sh"

fail() { wrong "$@"; }
# expect CODE WORDS COMMAND...: the exit code, and WORDS (if any) somewhere in what was said.
expect() {
  code=$1 words=$2
  shift 2
  timeout -k 5 120 "$@" >out 2>err
  found=$?
  if [ $found -ne "$code" ]; then
    fail "exit code $found, expected $code: $*"
  elif [ -n "$words" ] && ! cat out err | grep -qF -- "$words"; then
    fail "no \"$words\": $*"
  else
    passed=$((passed + 1))
  fi
}
# once: exactly one line of the last command's stderr is motley's.
once() {
  [ "$(grep -c 'motley: ' err)" -eq 1 ] || fail "not said once"
}
# quiet: nothing was said on stderr.
quiet() {
  [ ! -s err ] || fail "stderr is not empty"
}

# --- without MPI: an mpirun that is not there must not matter, nor a launcher's environment
machines=$(cd "$here" && cd "${srcdir-.}/tests/machines" && pwd)
version=$("$motley" --version | head -n 1)
case $version in "motley (motley) "[0-9]*) passed=$((passed + 1)) ;; *) fail "version: $version" ;; esac
expect 0 "Open MPI" "$motley" --version; quiet
for library in HDF5 hwloc oneDNN jansson; do grep -q "^$library [0-9.]*" out || fail "--version lacks $library"; done
expect 0 "motley train CONFIG" "$motley" --help; quiet
for command in train eval generate plan topo inspect; do
  expect 0 "usage: motley $command" "$motley" $command --help; quiet
done
expect 0 "global_batch" "$motley" train --help
grep -q '^\[generate\]' out && fail "train --help lists [generate]"
grep -q '^\[train\]' out || fail "train --help does not list [train]"
expect 0 "" env OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "$motley" --help
[ -s out ] && fail "rank 1 prints the help"
expect 2 "expected a command" "$motley"; once
expect 2 'unknown command "trian", did you mean train?' "$motley" trian; once
expect 2 'unknown command "frobnicate"; motley --help' "$motley" frobnicate; once
expect 2 "unknown option --jsn of topo, did you mean --json?" "$motley" topo --jsn; once
expect 2 "unknown option --json of train" "$motley" train --json x.ini; once
expect 2 "unknown option --verison, did you mean --version?" "$motley" --verison; once
expect 2 "--set needs an argument" "$motley" train x.ini --set; once
expect 2 "--json takes no argument" "$motley" topo --json=1; once
expect 2 "train: expected CONFIG" "$motley" train; once
expect 2 'one argument too many: "b"' "$motley" train a b; once
expect 2 'one argument too many: "a"' "$motley" topo a; once
# The other ranks of a launcher leave quietly: a code of theirs could end the job before rank 0 has spoken.
expect 0 "" env OMPI_COMM_WORLD_RANK=1 "$motley" trian; quiet
expect 2 "environment MOTLEY_TRIAN_LR" env MOTLEY_TRIAN_LR=1 "$motley" topo --cluster 2,1; once
expect 2 "" "$motley" inspect no-such-file; once
echo "no checkpoint" >foreign.h5
expect 3 "foreign.h5" "$motley" inspect foreign.h5
expect 1 "cannot write" sh -c "'$motley' --help >/dev/full"

# --- the cluster, described and discovered
expect 0 "" "$motley" topo --cluster 2,1,4 --json; quiet
cp out cluster.json
expect 0 "" "$motley" topo --cluster cluster.json --json; quiet
cmp -s out cluster.json || fail "the JSON form does not read back"
expect 0 "3 nodes, 7 ranks" "$motley" topo --cluster=2,1,4; quiet
expect 2 "--cluster 2,x: no such file" "$motley" topo --cluster 2,x; once
expect 2 "" "$motley" topo --cluster 2,0; once
expect 3 "foreign.h5:1" "$motley" topo --cluster foreign.h5; once
expect 0 "1 node, 1 rank" "$motley" topo
expect 0 "" "$mpirun" -np 3 --bind-to none env MOTLEY_NODES=1,2 "$motley" topo --json
[ "$(head -n 1 out)" = "{" ] && [ "$(tail -n 1 out)" = "}" ] || fail "not pure JSON"
cp out discovered.json
expect 0 "network card eno1 (PCI 0000:43:00.0, package 1)" env HWLOC_XMLFILE="$machines/gpus.xml" "$mpirun" -np 2 \
  --bind-to none "$motley" topo
[ "$(grep -c 'network card' out)" -eq 3 ] || fail "cards are not told of once a host"
expect 0 "3 ranks" "$motley" topo --cluster discovered.json
expect 2 "MOTLEY_NODES" env MOTLEY_NODES=1,1 "$mpirun" -np 3 --bind-to none "$motley" topo; once

# --- configuration under mpirun: said once, by rank 0, all end
cat >bad.ini <<'END'
[model]
family = mixtral
hidden_size = 64
num_hidden_layers = 2
num_attention_heads = 5
intermediate_size = 32
max_position_embeddings = 32
[data]
train = text
[train]
steps = 1
END
expect 2 "bad.ini:5: model.num_attention_heads: found 5, expected a divisor of hidden_size (64)" \
  "$mpirun" -np 3 --bind-to none "$motley" train bad.ini; once
expect 2 "no-such.ini: No such file or directory" "$mpirun" -np 3 --bind-to none "$motley" train no-such.ini; once
expect 2 "--set: train.lr" "$mpirun" -np 2 --bind-to none "$motley" train bad.ini --set=train.lr=x; once
expect 2 'unknown command "trian"' "$mpirun" -np 3 --bind-to none "$motley" trian; once
expect 2 "environment MOTLEY_TRAIN_STEPS: train.steps" env MOTLEY_TRAIN_STEPS=many "$motley" train bad.ini; once
expect 2 "they do not speak the same language" env SLURM_STEP_NUM_TASKS=4 "$motley" train bad.ini; once
expect 2 "" env SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 "$motley" train bad.ini; quiet

# --- memory before a run: no MPI, no data
sed -e 's/^num_attention_heads.*/num_attention_heads = 4/' -e 's/^train = .*/train = not-there/' bad.ini >dry.ini
expect 0 "in all" "$motley" train dry.ini --dry-run --ranks 3; quiet
expect 0 "memory of 3 of 3 nodes is not known" "$motley" train dry.ini --dry-run --cluster 2,1,4; quiet
expect 0 "not measured, so assumed: ranks that are equally fast" "$motley" train dry.ini --dry-run --cluster 2,1,4; quiet
expect 2 "--ranks: found \"many\"" "$motley" train dry.ini --dry-run --ranks many; once
expect 2 "--ranks goes with --dry-run only" "$motley" train dry.ini --ranks 2; once
"$motley" topo --json | sed 's/"mem_bytes": [0-9]*/"mem_bytes": 1000/' >tiny.json
expect 1 "1 of 1 nodes have too little memory" "$motley" train dry.ini --dry-run --cluster tiny.json; once

# --- many threads: the program starts itself again with passive waiting, unless the user chose
# (told by how long an idle thread spins, in the words of libgomp or LLVM's libomp).
passively() {
  expect 0 "" env OMP_DISPLAY_ENV=verbose "$@" "$motley" topo
  grep -Eq "GOMP_SPINCOUNT = '0'|KMP_BLOCKTIME *= *'?0'?(ms)?$" err
}
if [ -r /proc/self/exe ]; then
  passively OMP_NUM_THREADS=4096 || fail "4096 threads do not wait passively"
  passively OMP_NUM_THREADS=4096 OMP_WAIT_POLICY=active && fail "the user's OMP_WAIT_POLICY is overridden"
  passively OMP_NUM_THREADS=1 && fail "one thread waits passively"
fi

finish
