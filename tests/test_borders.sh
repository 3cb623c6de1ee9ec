#!/bin/sh
# The borders between the folders: see borders.awk for the rules. They bind the program, not tests/. Here they are checked
# on the sources; then the check is checked: each of a list of violations, planted in a copy, must be found at its place.
#   test_borders.sh [ROOT]
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=${1-$here/..}

# Prints what is wrong under folder $1 with file and line; fails if anything is.
borders() {
  (
    cd "$1" || exit 99
    files=$(find src kernels topology io -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)
    code=0
    # shellcheck disable=SC2086
    awk -v files="$files" -f "$here/borders.awk" $files || code=1
    # A source that no fragment lists is neither built nor distributed.
    for file in $files; do
      grep -q "[[:space:]]$file\([[:space:]]\|\$\)" Makefile.am src/*/*.am kernels/*.am topology/*.am io/*.am ||
        { echo "$file:1: is in no *.am"; code=1; }
    done
    exit $code
  )
}

fail=0
echo "== the sources"
borders "$root" || fail=1

copy=$(mktemp -d "${TMPDIR-/tmp}/motley-borders-XXXXXX") || exit 99
trap 'rm -rf "$copy"' EXIT
trap 'exit 99' HUP INT TERM
mkdir -p "$copy/src/base" "$copy/src/comm" "$copy/src/schedule" "$copy/src/experts" "$copy/src/model" "$copy/src/train"
mkdir -p "$copy/kernels/cpu" "$copy/topology" "$copy/io"
cd "$copy" || exit 99
clean() {
  rm -f src/*/*.[ch] src/*.c kernels/*.[ch] kernels/cpu/*.c topology/*.[ch] io/*.[ch]
  {
    echo 'int a; /* printf("%d") malloc(3) exit(1) MPI_Init */ char *t = "exit(1) malloc(2)"; // abort()'
    echo '/* a long comment: MPI_Comm'
    echo '#include <mpi.h>'
    echo 'ends here */ int my_exit(int a), mt_free(int), MY_MPI_X, snprintf_printf(int);'
    echo "int c = '\"'; int d = '\\''; int quote(void); char *u = \"\\\"exit(1)\";"
    echo 'int e = sizeof(x->exit) + mallocs(3);'
  } >io/good.c
  printf '#include "base/low.h"\n#include "cluster.h"\n#include "../topology/cluster.h"\n' >topology/good.c
  printf '#include "low.h"\n#include "config.h"\n#include <ini.h>\n#include <stdio.h>\n' >src/base/config.c
  printf '#include "cpu/../ops.h"\n#include "device.h"\n' >kernels/good.c
  printf '#include <oneapi/dnnl/dnnl.h>\n#include "ops.h"\n' >kernels/cpu/cpu.c
  printf '#include "train/train.h"\n#include <mpi.h>\nint main(void) { printf(""); MPI_Init(0, 0); exit(0); }\n' >src/main.c
  for empty in src/base/low.h src/base/config.h topology/cluster.h kernels/ops.h kernels/device.h src/train/train.h \
    src/comm/comm.h src/model/model.h io/good.h src/experts/moe.h src/schedule/task.h; do
    echo "/* nothing */" >$empty
  done
  touch src/base/x.am kernels/x.am topology/x.am io/x.am
  find src kernels topology io -name '*.[ch]' | sed 's/^/	/' >Makefile.am
}
# expect TEXT FILE LINE...: with these lines in the file, TEXT is said of its last line, and nothing else is said.
expect() {
  text=$1 file=$2
  shift 2
  clean
  printf '%s\n' "$@" >"$file"
  grep -q "	$file$" Makefile.am || echo "	$file" >>Makefile.am
  found=$(borders . 2>&1) && { echo "$file: '$*' was not found"; fail=1; return; }
  case $found in
  "$file:$#: "*"$text"*) [ "$(echo "$found" | wc -l)" -eq 1 ] || { echo "$file: '$*' gives more: $found"; fail=1; } ;;
  *) echo "$file: '$*' gives: $found"; fail=1 ;;
  esac
}
echo "== the check itself"
clean
borders . || { echo "a clean copy is refused"; fail=1; }
expect 'not below' src/base/a.c '#include "comm/comm.h"'
expect 'not below' src/base/a.c 'int x;' ' #  include "../comm/comm.h" /* no */'
expect 'not below' topology/a.c '#include "ops.h"'
expect 'not below' kernels/a.c '#include "topology/cluster.h"'
expect 'not below' io/a.c '#include "model/model.h"'
expect 'not below' src/model/a.c '#include "io/good.h"'
expect 'not below' src/schedule/a.c '#include "experts/moe.h"'
expect 'not below' src/model/a.h '#include "train/train.h"'
expect 'mpi.h' io/a.c '#include <mpi.h>'
expect 'hdf5.h' src/train/a.c '#include <hdf5.h>'
expect 'hwloc.h' topology/a.c '#include <hwloc.h>'
expect 'ini.h' src/base/a.c '#include "ini.h"'
expect 'jansson.h' src/base/a.c '#include <jansson.h>'
expect 'dnnl.h' kernels/a.c '#include <oneapi/dnnl/dnnl.h>'
expect 'no file of the project' io/a.c '#include "nowhere.h"'
expect 'allocates' io/a.c '/* fine */' 'char *a = malloc(3);'
expect 'allocates' src/comm/a.c 'char *a = (char *)strdup (b);'
expect 'ends the program' kernels/a.c '  if (x) exit(1);'
expect 'ends the program' io/a.c "char quote = '\"'; abort();"
expect 'prints' src/train/a.c '/* over' 'two lines */ printf("x");'
expect 'prints' kernels/a.c 'fprintf(stderr, "x");'
expect 'names MPI' src/train/a.c 'MPI_Comm comm;'
clean
sed -i '/kernels\/good.c/d' Makefile.am
found=$(borders .) && { echo "a source in no fragment was not found"; fail=1; }
[ "$found" = "kernels/good.c:1: is in no *.am" ] || { echo "a source in no fragment gives: $found"; fail=1; }
exit $fail
