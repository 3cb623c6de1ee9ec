# Reads C sources (paths relative to the root, with `files` naming all of them) and prints file:line of every border that is
# crossed: who may include whom, which foreign headers and calls belong where. Comments and strings do not count.
# Exit code 1 if anything was printed.

function layer(path) {
  if (path ~ /^src\/base\//) return 10
  if (path ~ /^kernels\//) return 20
  if (path ~ /^topology\//) return 21 # kernels and topology do not know each other
  if (path ~ /^src\/comm\//) return 30
  if (path ~ /^src\/schedule\//) return 40
  if (path ~ /^src\/experts\//) return 50
  if (path ~ /^io\//) return 60
  if (path ~ /^src\/model\//) return 61 # nor do io and model
  if (path ~ /^src\/train\//) return 70
  if (path == "src/main.c") return 80
  return 0
}

# May a file of layer `from` include one of layer `to`?
function may_include(from, to) {
  return from == to || int(to / 10) < int(from / 10)
}

function complain(text) {
  print FILENAME ":" FNR ": " text
  bad = 1
}

# The file that a quoted name means, seen from `path`; "" if it is none of ours.
function resolve(path, name, folder, n, part, i, try) {
  folder = path
  sub(/[^\/]*$/, "", folder)
  n = split(folder " src/ kernels/ ./", part, " ")
  for (i = 1; i <= n; i++) {
    try = part[i] name
    while (sub(/^\.\//, "", try) || sub(/[^\/]+\/\.\.\//, "", try)) {}
    if (try in known) return try
  }
  return ""
}

# The line without comments, strings and characters; `inside` carries a comment over lines.
function code(line, out, c, two, quote) {
  out = ""
  while (line != "") {
    if (inside) {
      if (!match(line, /\*\//)) return out
      line = substr(line, RSTART + 2)
      inside = 0
      out = out " "
      continue
    }
    if (!match(line, /\/\*|\/\/|["']/)) return out line
    out = out substr(line, 1, RSTART - 1)
    two = substr(line, RSTART, 2)
    quote = substr(line, RSTART, 1)
    line = substr(line, RSTART + 1)
    if (two == "//") return out
    if (two == "/*") {
      inside = 1
      line = substr(line, 2)
      continue
    }
    out = out quote
    while (line != "") {
      c = substr(line, 1, 1)
      line = substr(line, c == "\\" ? 3 : 2)
      if (c == quote) break
    }
    out = out quote
  }
  return out
}

# Is `word` called in the code (not part of a longer name)?
function calls(text, words) {
  return match(" " text, "[^A-Za-z0-9_](" words ")[ \t]*\\(")
}

BEGIN {
  n = split(files, list, "\n")
  for (i = 1; i <= n; i++) known[list[i]] = 1
  foreign["mpi.h"] = "^(src/comm/|src/main\\.c$|io/checkpoint_mpio\\.c$)"
  foreign["mpi-ext.h"] = foreign["mpi.h"]
  foreign["hwloc.h"] = "^topology/discover\\.c$"
  foreign["hdf5.h"] = "^io/checkpoint[a-z_]*\\.c$"
  foreign["ini.h"] = "^src/base/config[a-z_]*\\.c$"
  foreign["jansson.h"] = "^src/base/json\\.c$"
  foreign["dnnl.h"] = "^kernels/cpu/"
  foreign["cblas.h"] = "^kernels/cpu/"
  foreign["cuda.h"] = "^kernels/cuda/"
  foreign["cuda_runtime.h"] = foreign["cuda_runtime_api.h"] = foreign["cublas_v2.h"] = foreign["cuda.h"]
  foreign["cuda_bf16.h"] = foreign["cublasLt.h"] = foreign["cuda.h"]
}

FNR == 1 { inside = 0 }

# A file that may be absent.
/__has_include\("/ {
  name = $0
  sub(/^.*__has_include\("/, "", name)
  sub(/".*$/, "", name)
  probed[name] = 1
}

{
  was_inside = inside
  text = code($0)
  if (!was_inside && match($0, /^[ \t]*#[ \t]*include[ \t]*[<"][^>"]*[>"]/)) {
    name = substr($0, RSTART, RLENGTH)
    quoted = name ~ /"$/
    sub(/^[^<"]*[<"]/, "", name)
    sub(/[>"]$/, "", name)
    ours = quoted ? resolve(FILENAME, name) : ""
    if (ours != "") {
      if (!may_include(layer(FILENAME), layer(ours)))
        complain("includes " ours ", which is not below it in the order of layers")
    } else {
      base = name
      sub(/^.*\//, "", base)
      if (base in foreign && FILENAME !~ foreign[base])
        complain("includes " name ", which only " foreign[base] " may")
      else if (quoted && name != "config.h" && !(base in foreign) && !(name in probed))
        complain("includes \"" name "\", which is no file of the project")
    }
    next
  }
  if (FILENAME !~ /^(src\/base|kernels)\// &&
      calls(text, "malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|strdup|strndup|asprintf|vasprintf"))
    complain("allocates by itself; use mt_alloc")
  if (FILENAME !~ /^(src\/base\/|src\/main\.c)/) {
    if (calls(text, "exit|_exit|_Exit|quick_exit|abort"))
      complain("ends the program; return a status or use MT_CHECK")
    if (calls(text, "printf|vprintf|fprintf|vfprintf|dprintf|vdprintf|puts|putchar|perror"))
      complain("prints by itself; use mt_info, mt_warn or mt_error")
  }
  if (FILENAME !~ foreign["mpi.h"] && match(" " text, /[^A-Za-z0-9_]P?MPI_[A-Z]/))
    complain("names MPI, which belongs to src/comm")
}

END { exit bad }
