#!/bin/sh
# Everything that a GPU is needed for, in under five minutes on one: not part of the test suite, since its machines have none.
#   tests/cuda-device.sh [BUILD]      BUILD: a folder where motley is built (default: build/, built here if it is not)
#   tests/cuda-device.sh --rehearse BUILD   the same steps on an emulated GPU, with small sizes: does the script work?
# Each step says what it found; the last line says what failed. Steps whose tools are not there are skipped, and said. The
# first steps need most, so what the time does not suffice for is the sanitizer's and the profiler's.
# MOTLEY_DEVICE_SECONDS bounds the whole (280).
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
device=cuda kernels=cuda
[ "${1-}" != --rehearse ] || { device=emulated kernels=; shift; }
build=${1-$top/build}
begin=$(date +%s) most=${MOTLEY_DEVICE_SECONDS-280} failed= skipped=
unset MOTLEY_DEVICE_SECONDS
PATH=$PATH:/usr/local/cuda/bin
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 srcdir=$top CK_FORK=no
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism-none}
say() { echo "== $(($(date +%s) - begin)) s: $*"; }
left() { echo $((most - $(date +%s) + begin)); }
# step NAME SECONDS COMMAND...: at most so long, and not at all where the time is up.
step() {
  name=$1 limit=$2
  shift 2
  [ "$(left)" -gt 5 ] || { skipped="$skipped $name(time)"; return; }
  [ "$limit" -lt "$(left)" ] || limit=$(left)
  say "$name"
  timeout -k 5 "$limit" "$@" || { echo "   FAILED with code $?: $*"; failed="$failed $name,"; }
}
there() { command -v "$1" >/dev/null || { skipped="$skipped $2 ($1 is not there),"; return 1; }; }

command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
if [ ! -x "$build/motley" ] || [ ! -x "$build/tests/test_cuda" ] || [ ! -x "$build/tests/compare_runs" ]; then
  say "building in $build"
  [ -x "$top/configure" ] || (cd "$top" && autoreconf -fi) >/dev/null 2>&1
  mkdir -p "$build" && cd "$build" || exit 1
  [ -e Makefile ] || "$top/configure" >configure.out 2>&1 || { tail -n 20 configure.out; exit 1; }
  make -j"$(nproc)" all tests/test_cuda tests/compare_runs >make.out 2>&1 || { tail -n 20 make.out; exit 1; }
fi
build=$(cd "$build" && pwd)
[ $device != cuda ] || [ -e "$build/motley-cuda.so" ] ||
  { echo "$build/motley-cuda.so is not there: configured without CUDA?"; exit 1; }
work=$(mktemp -d "${TMPDIR-/tmp}/motley-device-XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 99

step "which rank takes what" 30 "$build/motley" topo
# Every kernel in f32 and bf16 against the reference, twice with the same bits; here PTX, tensor cores and cuBLAS are real.
export MOTLEY_TEST_CUDA=$kernels
step "kernels" 100 "$build/tests/test_cuda"

head -c 30000 "$top/README.md" >train.txt
cat >small.ini <<END
[model]
family = mixtral
hidden_size = 128
num_hidden_layers = 3
num_attention_heads = 4
num_key_value_heads = 2
intermediate_size = 200
num_local_experts = 6
num_experts_per_tok = 2
vocab_size = 256
max_position_embeddings = 128
[data]
train = $work/train.txt
[train]
steps = 5
global_batch = 8
micro_batch = 4
[parallel]
layout = static
END
[ $device = cuda ] || sed -i 's/^hidden_size.*/hidden_size = 32/; s/^max_position.*/max_position_embeddings = 16/' small.ini
train() {
  "$build/motley" train small.ini --set log.dir="$1" --set parallel.device="$2" --set parallel.precision="$3" >"$1.out" 2>&1 ||
    { tail -n 5 "$1.out"; return 1; }
}
same() { "$build/tests/compare_runs" log "$1/log.jsonl" "$2/log.jsonl" 1 5 "$3"; }
training() {
  train cpu cpu auto && train f32 $device f32 && train again $device f32 && train bf16 $device bf16 || return 1
  same cpu f32 1e-5 && same f32 again 0 && same cpu bf16 2e-2
}
mixed() {
  mpirun -np 1 --bind-to none "$build/motley" train small.ini --set log.dir=both --set parallel.device=cpu : \
    -np 1 "$build/motley" train small.ini --set parallel.device=$device --set parallel.precision=f32 >both.out 2>&1 &&
    same cpu both 1e-5
}
# Two ranks on one GPU, their rows by either way: the same bits.
rows() {
  for way in staged direct; do
    mpirun -np 2 --bind-to none "$build/motley" train small.ini --set log.dir=$way --set parallel.device=$device \
      --set parallel.precision=f32 --set parallel.device_memory=$way >$way.out 2>&1 && continue
    grep -q "this MPI does not take" $way.out || return 1
    skipped="$skipped direct (this MPI does not take a GPU's memory),"
    way=staged
  done
  same cpu staged 1e-5 && same staged $way 0
}
say "training on a CPU, a GPU in f32 (twice) and in bf16, and on both together"
training || failed="$failed training,"
there mpirun mixed && { mixed || { tail -n 5 both.out; failed="$failed mixed,"; }; }
say "two ranks on one GPU"
there mpirun rows && { rows || { tail -n 5 staged.out direct.out; failed="$failed rows,"; }; }

# One layer of Mixtral 8x7B, bf16.
cat >layer.ini <<END
[model]
family = mixtral
hidden_size = 4096
num_hidden_layers = 1
num_attention_heads = 32
num_key_value_heads = 8
intermediate_size = 14336
num_local_experts = 8
num_experts_per_tok = 2
vocab_size = 32000
max_position_embeddings = 2048
[data]
train = none
format = uint16
seq_length = 2048
[train]
steps = 1000
global_batch = 4
micro_batch = 4
[parallel]
layout = static
device = $device
precision = bf16
[checkpoint]
resume = never
END
sizes=C=4096,L=1,H=32,KV=8,WIDTH=14336,T=2048,B=4
if [ $device != cuda ]; then
  sed -i 's/^hidden_size.*/hidden_size = 64/; s/^num_attention.*/num_attention_heads = 8/
    s/^num_key_value.*/num_key_value_heads = 2/; s/^intermediate.*/intermediate_size = 40/; s/^vocab_size.*/vocab_size = 300/
    s/2048/16/' layer.ini
  sizes=C=64,L=1,H=8,KV=2,WIDTH=40,T=16,B=4,V=300
fi
# The configuration that both begin with is known already.
bench() {
  step "bench $1, bf16, beside cuBLAS at the same shapes" "$2" sh -c '"$@" >bench.out 2>&1; code=$?
    sed "/effective configuration:$/d; /^  \[[a-z]*\]$/d; /^  [a-z0-9_]* = /d" bench.out; exit $code' - \
    "$build/motley" bench "$1" layer.ini
}
bench gemm 60
bench step 120
python=${PYTHON-python3} torch=cuda
[ $device = cuda ] || torch=cpu
if "$python" -c "import torch; torch.zeros(1, device='$torch')" 2>/dev/null; then
  step "the same layer in PyTorch" 60 "$python" "$top/tests/oracle/bench_step.py" --device $torch --bf16 --sizes $sizes
else
  skipped="$skipped peer (no PyTorch with CUDA),"
fi
if there compute-sanitizer sanitizer; then
  step "memcheck, kernels" 60 compute-sanitizer --tool memcheck --error-exitcode 1 "$build/tests/test_cuda"
  step "racecheck, kernels" 60 compute-sanitizer --tool racecheck --error-exitcode 1 "$build/tests/test_cuda"
fi
if there nsys profile; then
  step "time by kernel" 60 nsys profile -o profile --force-overwrite true "$build/motley" train small.ini \
    --set log.dir=profiled --set parallel.device=$device &&
    nsys stats --report cuda_gpu_kern_sum profile.nsys-rep 2>/dev/null | head -n 30
fi
say "done${skipped:+; skipped:${skipped%,}}"
[ -z "$failed" ] && echo "all passed" || { echo "failed:${failed%,}"; exit 1; }
