#!/bin/sh
# The program on emulated GPUs, alone and beside CPU ranks in one job: rounding only, against one CPU rank.
. "${srcdir-.}/tests/program.sh"
[ -e "$(dirname "$compare")/motley-cuda-emulated.so" ] || { echo "skipped: no emulation of CUDA (no C++ compiler)"; exit 77; }

gpu=parallel.device=emulated

for family in mixtral gpt2; do
  say "$family"
  config $family "train.steps = 5" "train.lr = 1e-3" "train.warmup = 0" "moe.z_loss = 0.01" \
    "model.router_aux_loss_coef = 0.02" >c.ini
  rm -rf one
  run 0 1 train c.ini --set log.dir=one
  as_one 1 '' --set $gpu
  as_one 3 2,1 --set $gpu --set parallel.exchange=hierarchical
  says 1 "rows of GPUs: \(through pinned memory in chunks of 1024 KiB, as this MPI\|MPI takes them\)"
  for rank in 0 1 2; do says 1 "rank $rank: GPU $rank (emulated GPU $rank, 1.0 GiB, PCI 0000:0$((rank + 1)):00), the first"; done
  # behind a colon ranks have other arguments, and so other devices
  as_one 1 1,2 : -np 2 "$motley" train c.ini --set $gpu:1
  says 2 'rank [12]: GPU 1 (.*), as it was told, shared by 2 ranks'
  says 1 'kernels, by ranks: .*cpu-[a-z0-9]* on 1'
  says 1 'kernels, by ranks: .*emulated on 2'
  as_one 2 3,1 --set $gpu --set parallel.layout=random : -np 2 "$motley" train c.ini
  says 1 'kernels, by ranks: .*cpu-[a-z0-9]* on 2'
  says 1 'kernels, by ranks: .*emulated on 2'
done

say "layouts and shares that follow measured speeds, tokens in chunks, on unlike devices and unequal nodes"
config mixtral "train.steps = 5" "train.lr = 1e-3" "train.warmup = 0" "parallel.shares = auto" "parallel.layout = motley" \
  "schedule.policy = tutel" "schedule.degree = 3" >c.ini
rm -rf one
run 0 1 train c.ini --set log.dir=one
as_one 2 1,2 : -np 1 "$motley" train c.ini --set $gpu
as_one 1 2,1 --set schedule.policy=auto --set schedule.degree=0 : -np 2 "$motley" train c.ini --set $gpu
as_one 3 2,1,2 --set parallel.slots=2,1,2,1,3 : -np 2 "$motley" train c.ini --set $gpu
is "layouts changed" "$(grep -c '"event": *"relayout"' cut/log.jsonl | awk '{ print ($1 > 0) }')" 1
says 1 'kernels, by ranks: .*cpu-[a-z0-9]* on 3, emulated on 2'

say "bf16 on some ranks rounds weights on all"
tolerance=5e-2
rm -rf cut
run 0 1 train c.ini --set log.dir=cut : -np 1 "$motley" train c.ini --set $gpu --set parallel.precision=bf16
same log one/log.jsonl cut/log.jsonl 1 5 $tolerance
differs log one/log.jsonl cut/log.jsonl 1 5 1e-5
says 1 'emulated-bf16 on 1'

say "from one device to another: go on, evaluate, generate"
config mixtral "train.steps = 6" "data.valid = $work/valid.txt" >c.ini
run 0 2 train c.ini --set log.dir=cpu
run 0 2 train c.ini --set log.dir=gpu --set $gpu --set train.steps=3
run 0 1 train c.ini --set log.dir=gpu : -np 1 "$motley" train c.ini --set $gpu:1
same log cpu/log.jsonl gpu/log.jsonl 1 6 1e-4
run 0 1 generate c.ini --set log.dir=gpu --set generate.prompt=The --set generate.length=30 --set generate.temperature=0
cp out plain
run 0 1 generate c.ini --set log.dir=gpu --set generate.prompt=The --set generate.length=30 --set generate.temperature=0 \
  --set $gpu
is "generated text" "$(cat out)" "$(cat plain)"
run 0 2 eval c.ini --set log.dir=gpu --set $gpu:2

# The program beside no module, beside one whose libraries are not there, and beside a whole one without a driver: in all
# cases it trains on CPUs, and says why where a GPU was asked for.
say "no library of CUDA, no driver"
is "CUDA libraries that motley is linked with" "$(ldd "$motley" | grep -c -i -e cuda -e cublas)" 0
built=$(dirname "$motley")
mkdir none gone && cp "$motley" none/ && cp "$motley" gone/
without=none
if [ -e "$built/motley-cuda.so" ]; then
  LC_ALL=C sed 's/libcublas\.so/libcublax.so/g; s/libcudart\.so/libcudarx.so/g' "$built/motley-cuda.so" >gone/motley-cuda.so
  without="none gone"
fi
motley_built=$motley
# no_gpu WHERE WHY: the program in that folder
no_gpu() {
  motley=$work/$1/motley
  run 0 0 --version
  run 0 0 train --help
  run 0 0 topo
  run 0 2 train c.ini --set log.dir=auto-$1 --set train.steps=1
  says 1 "kernels, by ranks: cpu-[a-z0-9]* on 2"
  says 1 "no GPU: .* has no NVIDIA driver"
  run 2 2 train c.ini --set log.dir=refused --set parallel.device=cuda
  says 1 "error: parallel.device = cuda on [^ ]*: $2"
  says 0 "kernels, by ranks"
  motley=$motley_built
}
if [ ! -e /dev/nvidiactl ]; then
  for folder in $without; do
    case $folder in
    none) no_gpu none "motley-cuda.so is not installed" ;;
    gone) no_gpu gone "libcu[a-z]*x\.so\.[0-9]*: cannot open shared object file" ;;
    esac
  done
  if [ -e "$built/motley-cuda.so" ] && ldd "$built/motley-cuda.so" | grep -q "libcublas.*=> /"; then
    ln -s "$built" whole && no_gpu whole "no NVIDIA driver is installed"
  fi
fi
motley=$work/none/motley
run 2 1 train c.ini --set log.dir=refused --set parallel.device=emulated
says 1 'motley-cuda-emulated.so is not installed; make check TESTS= in the build folder builds it$'
motley=$motley_built
# A driver's file is there, but what would use it is not: a warning, and CPUs.
if unshare -m true 2>/dev/null; then
  mkdir over
  for folder in $without; do
    unshare -m sh -c 'mount -t tmpfs none over && mkdir over/upper over/work &&
      mount -t overlay overlay -o lowerdir=/dev,upperdir=over/upper,workdir=over/work /dev && : >/dev/nvidiactl || exit 99
      exec timeout 60 "$@"' - "$work/$folder/motley" train c.ini --set log.dir="driver-$folder" --set train.steps=1 >out 2>err
    code=$?
    [ $code -ne 99 ] || break
    is "exit code with a driver's file, $folder" $code 0
    says 1 "warning: .* has NVIDIA's driver, but no GPU that can be used: .*\(not installed\|cannot open\)"
    says 1 "kernels, by ranks: cpu-[a-z0-9]* on 1"
  done
fi

say "the way of a GPU's rows"
config mixtral "train.steps = 2" >c.ini
run 0 3 train c.ini --set log.dir=staged --set parallel.device_memory=staged : -np 1 "$motley" train c.ini --set $gpu
says 1 "rows of GPUs: through pinned memory in chunks of 1024 KiB, "
run 0 2 train c.ini --set log.dir=cpus --set parallel.device_memory=staged
says 1 "warning: parallel.device_memory: found staged, which is about rows of GPUs, and no rank has one"
if ! ompi_info --parsable 2>/dev/null | grep -q "mpi_built_with_cuda_support:value:true"; then
  run 2 2 train c.ini --set log.dir=none --set parallel.device_memory=direct --set $gpu
  says 1 "error: parallel.device_memory: found direct, expected auto or staged: this MPI does not take a GPU's memory"
fi

say "mistakes"
run 2 1 train c.ini --set log.dir=none --set parallel.device=emulated:7
says 1 'found 3 devices'
run 2 1 train c.ini --set log.dir=none : -np 2 "$motley" train c.ini --set parallel.device=emulated:7
says 1 'found 3 devices'
run 2 2 train c.ini --set log.dir=none : -np 1 "$motley" train c.ini --set parallel.device=emulated:x
says 1 'expected one of auto, cpu'
run 2 1 train c.ini --set log.dir=none --set parallel.device=cpu:1
says 1 'expected one of auto, cpu'
finish
