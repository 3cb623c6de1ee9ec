#!/bin/sh
# Three hosts on this machine, 2 + 1 + 4 ranks, 500 mbit each: the exchange between them (emulated_exchange.c), and a short
# training with either algorithm, whose losses must be the same to the last digit. Skipped without root, network
# namespaces or traffic control.
set -u
here=$(cd "$(dirname "$0")" && pwd)
cluster=$here/emulated-cluster/cluster.sh
builddir=${builddir-$PWD}
rate=500
MOTLEY_TEST_CLUSTER=motley-$$
export MOTLEY_TEST_CLUSTER

skip() {
  echo "skipped: $*"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "not root"
command -v ip >/dev/null && command -v tc >/dev/null || skip "no ip or tc (Debian: iproute2)"
command -v nsenter >/dev/null && command -v unshare >/dev/null || skip "no nsenter or unshare (Debian: util-linux)"
case $("${MOTLEY_MPIRUN-mpirun}" --version) in
*"Open MPI"*) ;;
*) skip "the launcher is not Open MPI's" ;;
esac

dir=$(mktemp -d /tmp/motley-hosts-XXXXXX) || exit 99
TMPDIR=$dir
export TMPDIR
clean() {
  sh "$cluster" down 3 >/dev/null 2>&1
  rm -rf "$dir"
}
trap clean EXIT
trap 'exit 99' HUP INT TERM
sh "$cluster" up 3 ${rate}mbit >"$dir/up" 2>&1 || skip "cannot make hosts: $(cat "$dir/up")"

fail() {
  echo "$*"
  exit 1
}
on_hosts() { sh "$cluster" mpirun n1:2,n2:1,n3:4 -np 7 "$@"; }

echo "== exchange"
on_hosts "$builddir/tests/emulated_exchange" $rate || fail "exchange: exit code $?"

echo "== training"
i=0
while [ $i -lt 400 ]; do
  i=$((i + 1))
  echo "line $i of a text that is long enough for a few samples, and not the same everywhere: $((i * i * 7919 % 1000))"
done >"$dir/text"
cat >"$dir/config.ini" <<INI
[model]
family = mixtral
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
intermediate_size = 48
num_local_experts = 8
num_experts_per_tok = 2
vocab_size = 256
max_position_embeddings = 64
[data]
train = $dir/text
seq_length = 64
[train]
steps = 6
global_batch = 16
micro_batch = 1
lr = 0.003
[parallel]
shares = even
shard_sizes = even
layout = static
sharding = full
[schedule]
degree = 1
[checkpoint]
resume = never
INI
for exchange in pairwise hierarchical; do
  on_hosts "$builddir/motley" train "$dir/config.ini" --set parallel.exchange=$exchange --set log.dir="$dir/$exchange" \
    >"$dir/$exchange.out" 2>&1 || { cat "$dir/$exchange.out"; fail "$exchange: exit code $?"; }
  # Everything of a step but times.
  sed -n '/"event": *"step"/s/.*"step": *\([0-9]*\).*/\1/p' "$dir/$exchange/log.jsonl" >"$dir/$exchange.steps"
  for key in loss aux_loss grad_norm batch_hash; do
    sed -n '/"event": *"step"/s/.*"'$key'": *\([^,}]*\).*/'$key' \1/p' "$dir/$exchange/log.jsonl"
  done >"$dir/$exchange.values"
  grep '"event": *"start"' "$dir/$exchange/log.jsonl" | grep -q "\"exchange\": *\"$exchange\"" ||
    fail "$exchange: the log names another exchange: $(head -n 1 "$dir/$exchange/log.jsonl")"
  [ "$(wc -l <"$dir/$exchange.steps")" = 6 ] || fail "$exchange: not 6 steps in the log: $(cat "$dir/$exchange/log.jsonl")"
  [ "$(wc -l <"$dir/$exchange.values")" = 24 ] || fail "$exchange: values are missing: $(cat "$dir/$exchange.values")"
done
cmp "$dir/pairwise.values" "$dir/hierarchical.values" ||
  fail "the losses differ: $(diff "$dir/pairwise.values" "$dir/hierarchical.values")"
echo "6 steps over three hosts, pairwise and hierarchical: the same losses, gradient norms and batches"
grep '^loss' "$dir/hierarchical.values" | tail -n 1
exit 0
