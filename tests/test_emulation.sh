#!/bin/sh
# The emulation of CUDA must report what breaks CUDA's rules, and nothing else: each case of cuda_faults ends with the code
# and the words that are expected of it.
set -u
faults=$(cd "${builddir-.}" && pwd)/tests/cuda_faults
[ -x "$faults" ] || { echo "skipped: $faults is not there (no C++ compiler)"; exit 77; }
failed=0 passed=0
# expect CODE CASE TEXT: the case ends so, with one line that holds TEXT (none where it is empty).
expect() {
  said=$(timeout 60 "$faults" "$2" 2>&1)
  code=$?
  lines=$(printf '%s' "$said" | grep -c '')
  case $said in
  *"$3"*) [ $code -eq "$1" ] && [ "$lines" -eq "$([ -n "$3" ] && echo 1 || echo 0)" ] && { passed=$((passed + 1)); return; } ;;
  esac
  echo "$2: code $code, expected $1 with '$3': $said"
  failed=$((failed + 1))
}
expect 0 rotate_right ''
expect 0 warps_right ''
expect 0 wait_right ''
expect 2 no_barrier 'differ'
expect 2 warp_race 'differ'
expect 1 early 'a barrier that not all reach'
expect 1 half_warp 'a barrier that not all reach'
expect 1 host_reads 'the host touched device memory'
expect 1 host_writes 'the host touched device memory'
expect 1 host_pointer 'no memory of the GPU'
expect 1 behind 'not allocated'
expect 1 just_behind 'wrote behind 1028 bytes'
expect 1 before 'wrote before 1024 bytes'
expect 1 far_behind 'not allocated'
expect 1 behind_shared 'written behind an array of 1024 bytes'
expect 1 behind_dynamic 'written behind its 1024 bytes of dynamic shared memory'
expect 1 use_after_free 'write_at'
expect 3 no_wait 'not a number'
expect 3 no_host_wait 'not there yet'
expect 1 leak '1 allocations were not freed, 12 bytes'
expect 1 threads 'blocks of 1025 x 1 x 1 threads'
expect 1 threads_z 'blocks of 1 x 1 x 65 threads'
expect 1 no_blocks 'a grid of 0 x 1 x 1'
expect 1 blocks 'a grid of 1 x 65536 x 1'
expect 1 shared_static 'bytes of static'
expect 1 shared_dynamic 'allowed are 49152'
expect 0 asked_right ''
expect 1 asked_less 'allowed are 61440'
expect 3 asked_more '101377 bytes are refused'
expect 1 long_copy 'beyond an allocation'
expect 1 bad_product 'lda 3'
echo "test_emulation.sh: $passed passed, $failed failed"
[ $failed -eq 0 ]
