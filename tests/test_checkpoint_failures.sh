#!/bin/sh
# Checkpoints when things go wrong: writers that are killed, disks that are full, folders that cannot be written, places
# made to fail; and readers with other ranks, and other programs (h5ls, h5dump, h5py). Each run must end by itself, with
# the documented code and one message, and leave the older checkpoint and no temporary file.
# Mounts need root; without it those parts are skipped, and the test says 77 if nothing else failed.
set -u
driver=${builddir-.}/tests/checkpoint_driver
[ -x "$driver" ] || { echo "$driver: not built"; exit 99; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_btl_vader_single_copy_mechanism=none ASAN_OPTIONS=detect_leaks=0
unset MOTLEY_FAIL MOTLEY_TEST_RANK
work=$(mktemp -d "${TMPDIR-/tmp}/motley-failures-XXXXXX") || exit 99
# Mounts of the second pass live in its own name space and end with it.
trap 'rm -rf "$work"' EXIT
trap 'exit 99' HUP INT TERM
failed=0 skipped=0

say() { echo "== $*"; }
wrong() { echo "WRONG: $*"; failed=$((failed + 1)); }

# run RANKS CODE ARGS...: the driver must end with CODE; its output stays in $work/out.
run() {
  ranks=$1 code=$2
  shift 2
  timeout -k 5 60 "${MOTLEY_MPIRUN-mpirun}" -np "$ranks" --bind-to none "$driver" "$@" >"$work/out" 2>&1
  got=$?
  [ $got -eq "$code" ] || { wrong "$* on $ranks ranks: exit code $got, expected $code"; cat "$work/out"; }
}
# says COUNT TEXT: so many lines of the last output hold TEXT.
says() {
  found=$(grep -c -e "$2" "$work/out")
  [ "$found" -eq "$1" ] || { wrong "$found lines with '$2', expected $1"; cat "$work/out"; }
}
# clean DIR: no temporary file.
clean() {
  left=$(find "$1" -name '.step-*')
  [ -z "$left" ] || wrong "left behind: $left"
}

say "other ranks read it"
dir=$work/plain
run 4 0 save "$dir" 10 0 17
for ranks in 1 2 3 7; do
  run $ranks 0 load "$dir" 17
  says 1 "loaded step 10"
done
run 2 3 load "$dir" 18
says 1 "error: .*dataset /params/.* has shape (17, 3); expected (18, 3)"

say "inspect"
run 1 0 inspect "$dir/step-00000010.h5"
says 23 " ok$"
says 1 "step 10, 10000 tokens"
run 1 0 inspect "$dir"
LC_ALL=C sed 's/\[model\]/[wrong]/' "$dir/step-00000010.h5" >"$work/bad.h5" # in two of the texts
run 1 3 inspect "$work/bad.h5"
says 2 " WRONG$"
says 1 "error: .*damaged: dataset /config/ini: checksum .* (and 1 more datasets)"
run 1 2 inspect "$work/nothing"
says 1 "error: "
run 1 3 inspect "$0"
says 1 "error: .*is not an HDF5 file"

if command -v h5ls >/dev/null && command -v h5dump >/dev/null; then
  say "h5ls, h5dump"
  h5ls -r "$dir/step-00000010.h5" >"$work/out" 2>&1 || wrong "h5ls"
  says 1 "^/params/model.layers.0.block_sparse_moe.experts.w1.weight Dataset {3, 5, 2}"
  says 1 "^/state/train.json  *Dataset {SCALAR}"
  h5dump -a /complete -a /format -a /params/model.norm.weight/crc32c "$dir/step-00000010.h5" >"$work/out" 2>&1 ||
    wrong "h5dump"
  says 1 '"motley"'
  h5dump -d /config/ini "$dir/step-00000010.h5" >"$work/out" 2>&1 || wrong "h5dump"
  says 3 "name = "
  h5dump "$dir/step-00000010.h5" >"$work/out" 2>&1 || wrong "h5dump of everything"
fi
if python3 -c 'import h5py' 2>/dev/null; then
  say "h5py"
  python3 - "$dir/step-00000010.h5" >"$work/out" 2>&1 <<'END' || { wrong "h5py"; cat "$work/out"; }
import h5py, sys
f = h5py.File(sys.argv[1], "r")
assert f.attrs["format"] in (b"motley", "motley") and f.attrs["step"] == 10 and f.attrs["complete"] == 1
d = f["params/model.layers.0.block_sparse_moe.experts.w1.weight"]
assert d.shape == (3, 5, 2) and d.dtype == "float32" and d[:].size == 30 and d.attrs["crc32c"] > 0
assert "[model]\nname = \"caf\u00e9\"" in f["config/ini"].asstr()[()] and f["state/empty"].asstr()[()] == ""
END
fi

say "places that fail"
dir=$work/points
run 3 0 save "$dir" 1 1 17
for point in create write finish; do
  MOTLEY_FAIL=checkpoint.$point:1
  export MOTLEY_FAIL
  run 3 1 save "$dir" 2 1 17
  says 1 "error: checkpoint .*step-00000002.h5"
  clean "$dir"
  [ ! -e "$dir/step-00000002.h5" ] || wrong "a checkpoint that failed"
  if [ $point = write ]; then # one rank alone
    MOTLEY_TEST_RANK=2
    export MOTLEY_TEST_RANK
    run 3 1 save "$dir" 2 1 17
    says 1 "rank 2/3.*error: checkpoint .*step-00000002.h5"
    unset MOTLEY_TEST_RANK
    clean "$dir"
  fi
  unset MOTLEY_FAIL
done
run 2 0 load "$dir" 17
says 1 "loaded step 1$"

say "a folder that cannot be made"
run 3 1 save /proc/nothing/there 1 1 17
says 1 "error: "
echo x >"$work/file"
run 3 1 save "$work/file" 1 1 17
says 1 "error: .*is a file; expected a folder"
run 3 2 load "$work/file" 17
says 1 "error: .*is a file; expected a folder"

if command -v flock >/dev/null; then
  say "a second writer"
  dir=$work/two
  mkdir "$dir"
  : >"$dir/.step-00000005.h5.tmp"
  flock -x "$dir/.step-00000005.h5.tmp" sleep 60 &
  holder=$!
  sleep 0.3
  run 2 1 save "$dir" 5 1 17
  says 1 "error: .*another job is writing it"
  run 2 0 save "$dir" 6 1 17
  [ -e "$dir/.step-00000005.h5.tmp" ] || wrong "the temporary file of a living writer was removed"
  pkill -P $holder 2>/dev/null
  kill $holder 2>/dev/null
  wait $holder 2>/dev/null
  run 2 0 save "$dir" 7 1 17
  clean "$dir"
fi

say "killed while writing"
dir=$work/storm
for pause in 0.4 0.55 0.7; do
  rm -rf "$dir"
  "${MOTLEY_MPIRUN-mpirun}" -np 3 --bind-to none "$driver" storm "$dir" 30000 >"$work/storm.out" 2>&1 &
  launcher=$!
  tries=0
  while [ $tries -lt 200 ] && ! grep -q saved "$work/storm.out"; do
    sleep 0.2
    tries=$((tries + 1))
  done
  sleep $pause
  pkill -KILL -P $launcher
  wait $launcher 2>/dev/null
  last=$(sed -n 's/^saved step \([0-9]*\)$/\1/p' "$work/storm.out" | tail -n 1)
  [ -n "$last" ] || { wrong "the storm saved nothing"; cat "$work/storm.out"; break; }
  run 2 0 load "$dir" 30000
  # What was said to be saved is there; the writer may have got one further than it could say.
  grep -q "loaded step $last\$\|loaded step $((last + 1))\$" "$work/out" ||
    { wrong "step $last was saved"; cat "$work/out"; }
  says 0 "skipped"
done
run 2 0 save "$dir" 1000 1 30000
clean "$dir"

# ---- what needs mounts ----
if unshare -m true 2>/dev/null; then
  cat >"$work/mounts.sh" <<'END'
mkdir "$1/small" "$1/source" "$1/readonly" || exit 99
mount -t tmpfs -o size=3m none "$1/small" || exit 77
mount --bind "$1/source" "$1/readonly" && mount -o remount,ro,bind "$1/readonly" || exit 77
shift
exec "$@"
END
  # The rest of this script inside a name space of its own.
  mounted() { unshare -m sh "$work/mounts.sh" "$work" "$@"; }
  # in_mounts RANKS CODE REPORT ARGS...: one step after another in fresh mounts.
  cat >"$work/full.sh" <<'END'
set -u
driver=$1 dir=$2/small/run ro=$2/readonly/run mpirun=${MOTLEY_MPIRUN-mpirun}
step() {
  want=$1
  shift
  timeout -k 5 60 "$mpirun" -np 4 --bind-to none "$driver" "$@"
  got=$?
  [ $got -eq "$want" ] || echo "WRONG: $*: exit code $got, expected $want"
}
echo "-- fits"; step 0 save "$dir" 1 1 500
echo "-- no room to reserve"; step 1 save "$dir" 2 1 50000
echo "-- no room to write"; MOTLEY_FAIL=checkpoint.reserve:1; export MOTLEY_FAIL; step 1 save "$dir" 3 1 50000
echo "-- no room for the metadata"; dd if=/dev/zero of="$dir/ballast" bs=4096 2>/dev/null; step 1 save "$dir" 4 1 500
unset MOTLEY_FAIL; rm "$dir/ballast"
echo "-- still there"; step 0 load "$dir" 500
echo "-- again"; step 0 save "$dir" 5 1 500
echo "-- read-only"; step 1 save "$ro" 1 1 17
ls -A "$dir"
END
  say "a full disk, a read-only folder"
  mounted sh "$work/full.sh" "$driver" "$work" >"$work/out" 2>&1
  case $? in
  0)
    grep -v "^ \|^$\|^---\|mpirun\|Primary\|a non-zero\|thus caus" "$work/out"
    says 0 "WRONG"
    says 3 "No space left on device"
    says 1 "error: .*Read-only file system"
    says 4 "error: "
    says 1 "loaded step 1$"
    says 0 "^\.step"
    says 1 "^step-00000005.h5$"
    ;;
  77) skipped=1 ;;
  *) wrong "mounts"; cat "$work/out" ;;
  esac
else
  skipped=1
fi

[ $failed -eq 0 ] || { echo "$failed wrong"; exit 1; }
[ $skipped -eq 0 ] || { echo "no mounts here: full disk and read-only folder were not tried"; exit 77; }
echo "all right"
