#!/bin/sh
# A compiler behind Open MPI's wrapper that is several words ("ccache gcc") configures and builds, now and when make runs later.
set -u
builddir=${builddir-.} srcdir=${srcdir-.}
builddir=$(cd "$builddir" && pwd) srcdir=$(cd "$srcdir" && pwd)
[ ! -f "$srcdir/config.status" ] || { echo "skipped: the sources are configured in place"; exit 77; }
work=$(mktemp -d "${TMPDIR-/tmp}/motley-configure-XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
trap 'exit 99' HUP INT TERM
cd "$work" || exit 99
real=${OMPI_CC-$(mpicc --showme:command)}
unset OMPI_CC
cat >through <<'END'
#!/bin/sh
echo x >>"$SEEN"
exec "$@"
END
chmod +x through
SEEN=$work/seen
export SEEN
# With the arguments of the build at hand, but its compiler.
eval "set -- $("$builddir/config.status" --config | sed "s/'OMPI_CC=[^']*'//")"
"$srcdir/configure" "$@" --without-cuda "OMPI_CC=$work/through $real" >configure.out 2>&1 || { tail -n 5 configure.out; exit 1; }
: >seen
make src/base/status.o >make.out 2>&1 || { tail -n 5 make.out; exit 1; }
[ -s seen ] || { echo "make does not compile through OMPI_CC"; exit 1; }
echo "all right"
