#!/bin/sh
# Everything that a GPU is needed for, in under five minutes on one: not part of the test suite, since its machines have none.
#   tests/cuda-device.sh [BUILD]   BUILD: a folder where motley is built (default: build/, built here if it is not)
# Each step says what it found; the last line says what failed. Steps whose tools are not there are skipped, and said.
# MOTLEY_DEVICE_SECONDS bounds the whole (280).
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
build=${1-$top/build}
begin=$(date +%s) most=${MOTLEY_DEVICE_SECONDS-280} failed= skipped=
PATH=$PATH:/usr/local/cuda/bin
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 srcdir=$top CK_FORK=no
say() { echo "== $(($(date +%s) - begin)) s: $*"; }
left() { echo $((most - $(date +%s) + begin)); }
# step NAME SECONDS COMMAND...: at most so long, and not at all where the time is up.
step() {
  name=$1 limit=$2
  shift 2
  [ "$(left)" -gt 5 ] || { skipped="$skipped $name(time)"; return; }
  [ "$limit" -lt "$(left)" ] || limit=$(left)
  say "$name"
  timeout -k 5 "$limit" "$@" || { echo "   FAILED with code $?: $*"; failed="$failed $name"; }
}
there() { command -v "$1" >/dev/null || { skipped="$skipped $2($1 is not there)"; return 1; }; }

command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
if [ ! -x "$build/motley" ] || [ ! -x "$build/tests/test_cuda" ]; then
  say "building in $build"
  [ -x "$top/configure" ] || (cd "$top" && autoreconf -fi) >/dev/null 2>&1
  mkdir -p "$build" && cd "$build" && "$top/configure" >configure.out 2>&1 && make -j"$(nproc)" >make.out 2>&1 &&
    make -j"$(nproc)" tests/test_cuda tests/compare_runs >>make.out 2>&1 || { tail -n 20 configure.out make.out; exit 1; }
fi
[ -e "$build/motley-cuda.so" ] || { echo "$build/motley-cuda.so is not there: configured without CUDA?"; exit 1; }
work=$(mktemp -d "${TMPDIR-/tmp}/motley-device-XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 99

step "which rank takes what" 30 "$build/motley" topo
# Every kernel in f32 and bf16 against the reference, twice with the same bits; here PTX, tensor cores and cuBLAS are real.
MOTLEY_TEST_CUDA=cuda
export MOTLEY_TEST_CUDA
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
train() { "$build/motley" train small.ini --set log.dir="$1" --set parallel.device="$2" --set parallel.precision="$3" >"$1.out" 2>&1 || { tail -n 5 "$1.out"; return 1; }; }
same() { "$build/tests/compare_runs" log "$1/log.jsonl" "$2/log.jsonl" 1 5 "$3"; }
training() {
  train cpu cpu auto && train f32 cuda f32 && train again cuda f32 && train bf16 cuda bf16 || return 1
  same cpu f32 1e-5 && same f32 again 0 && same cpu bf16 2e-2
}
mixed() {
  mpirun -np 1 --bind-to none "$build/motley" train small.ini --set log.dir=both --set parallel.device=cpu : \
    -np 1 "$build/motley" train small.ini --set parallel.device=cuda --set parallel.precision=f32 >both.out 2>&1 &&
    same cpu both 1e-5
}
say "training on a CPU, a GPU in f32 (twice) and in bf16, and on both together"
training || failed="$failed training"
there mpirun mixed && { mixed || { tail -n 5 both.out; failed="$failed mixed"; }; }

if there compute-sanitizer sanitizer; then
  for tool in memcheck racecheck; do
    CK_RUN_CASE=devices step "$tool, devices and routing" 40 compute-sanitizer --tool $tool --error-exitcode 1 "$build/tests/test_cuda"
  done
fi

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
device = cuda
precision = bf16
[checkpoint]
resume = never
END
step "bench step, bf16, beside cuBLAS at the same shapes" 120 "$build/motley" bench step layer.ini
if python3 -c 'import torch; torch.zeros(1, device="cuda")' 2>/dev/null; then
  step "the same layer in PyTorch" 60 python3 "$top/tests/oracle/bench_step.py" --device cuda --bf16 \
    --sizes C=4096,L=1,H=32,KV=8,WIDTH=14336,T=2048,B=4
else
  skipped="$skipped peer(no PyTorch with CUDA)"
fi
if there nsys profile; then
  step "time by kernel" 60 nsys profile -o profile --force-overwrite true "$build/motley" train small.ini --set log.dir=profiled \
    --set parallel.device=cuda >/dev/null && nsys stats --report cuda_gpu_kern_sum profile.nsys-rep 2>/dev/null | head -n 30
fi
say "done${skipped:+; skipped:$skipped}"
[ -z "$failed" ] && echo "all passed" || { echo "failed:$failed"; exit 1; }
