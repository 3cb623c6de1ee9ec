#!/bin/sh
# The executor under ThreadSanitizer: its own test, whose tasks stand in for computing and messages, so that neither MPI nor
# OpenMP (which the sanitizer does not understand) is there. Then the check is checked: an executor that waits for nothing must
# be reported.
set -u
source=${srcdir-.} build=${builddir-.}
work=$(mktemp -d "${TMPDIR-/tmp}/motley-races-XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
trap 'exit 99' HUP INT TERM
cc=${MOTLEY_TEST_CC-cc}

cat >"$work/stand_in.c" <<'END' # for src/comm
#include <time.h>
#include "comm/comm.h"
double mt_time(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
struct mt_pace mt_pace_begin(void)
{
  return (struct mt_pace){mt_time(), 0};
}
void mt_pace_end(struct mt_pace pace)
{
  (void)pace;
}
END

# Builds the test with executor $1 as program $2.
build_with() {
  # shellcheck disable=SC2046
  $cc -fsanitize=thread -g -O1 -std=gnu11 -I"$build" -I"$source/src" -I"$source" -I"$source/tests" $(pkg-config --cflags check) \
    -o "$2" "$source/tests/test_executor.c" "$1" "$source/src/schedule/task.c" "$source/src/base/memory.c" \
    "$source/src/base/log.c" "$source/src/base/random.c" "$source/src/base/status.c" "$source/src/base/launcher.c" \
    "$source/src/base/text.c" "$source/src/base/thread.c" "$work/stand_in.c" $(pkg-config --libs check) -lm
}

echo 'int main(void) { return 0; }' >"$work/empty.c"
if ! $cc -fsanitize=thread -o "$work/empty" "$work/empty.c" 2>/dev/null || ! "$work/empty" 2>/dev/null; then
  echo "skipped: no ThreadSanitizer here"
  exit 77
fi
fail=0
echo "== the executor"
build_with "$source/src/schedule/executor.c" "$work/executor" || exit 99
TSAN_OPTIONS=exitcode=66 CK_FORK=no "$work/executor" >"$work/out" 2>&1 || { cat "$work/out"; fail=1; }
grep "^100%" "$work/out" || fail=1

echo "== one that does not wait"
sed 's/while (!is_ready(x, task))/while (0)/' "$source/src/schedule/executor.c" >"$work/broken.c"
cmp -s "$source/src/schedule/executor.c" "$work/broken.c" && { echo "nothing was broken"; fail=1; }
build_with "$work/broken.c" "$work/broken" || exit 99
i=0 # threads need not meet every time
while [ $i -lt 20 ] && ! grep -m 1 "ThreadSanitizer: data race" "$work/out"; do
  TSAN_OPTIONS=exitcode=66 CK_FORK=no timeout 60 "$work/broken" >"$work/out" 2>&1
  i=$((i + 1))
done
[ $i -lt 20 ] || { echo "no race was reported"; fail=1; }
exit $fail
