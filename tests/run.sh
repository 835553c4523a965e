#!/usr/bin/env bash
# Installs what is missing, builds moeccl and runs its tests. See --help.
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/run.sh [--sanitize address|thread] [--build DIR] [SUITE...]

Installs the Debian packages that are missing (as root or with sudo), builds in build/ and runs all
tests but those of the suites slow, gpu, fuzz, torch and mpi. Suites: style, unit (the library), tools (perf/
and examples/), lab, slow, gpu, torch (installs it from PyPI: 4 GB), mpi (programs of others under moeccl-mpi;
installs them, and Intel MPI from PyPI in build/), fuzz (with --sanitize address; for FUZZ_SECONDS, 10 unless set).

  --sanitize address   build in build-address/ with Clang's address and undefined-behaviour sanitizers
  --sanitize thread    build in build-thread/ with Clang's thread sanitizer, and leave out what uses
                       UCX or starts no threads
                       either way the suite unit is run, unless suites are named
  --build DIR          build there instead

The last line is "N passed, N failed, N skipped", in test cases; the exit code is 0 only if some
passed and none failed. Logs: DIR/meson-logs/testlog.txt.
END
}

wrong() {
  echo "tests/run.sh: $1" >&2
  usage >&2
  exit 2
}

sanitize=
build=
suites=()
while (($#)); do
  case $1 in
    --sanitize | --build)
      (($# > 1)) || wrong "$1 needs a value"
      if [[ $1 == --build ]]; then build=$2; else sanitize=$2; fi
      shift
      ;;
    -h | --help) usage && exit ;;
    -*) wrong "there is no option $1" ;;
    *) suites+=("$1") ;;
  esac
  shift
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${build:-$root/build${sanitize:+-$sanitize}}
# shellcheck source=tests/packages.sh
source "$root/tests/packages.sh"

packages=("${test_packages[@]}")
# Nothing that is meant to be tested is left out because it was not found.
options=(-Dtests=enabled -Ducx=enabled -Dmpi=enabled -Dperf=enabled)
# A folder keeps the defaults that it was first set up with.
options+=(-Dpkgconfig.relocatable=true)
# Line numbers are all that reports need, and Clang takes half of GCC's time.
checked=(-Doptimization=1 -Ddebug=true -Dc_args=-g1 -Dcpp_args=-g1 -Db_ndebug=false -Db_lundef=false)
# Sanitizers see nothing of what nvcc compiles; doubles stand in for GPUs without it too.
checked+=(-Dcuda=disabled)
# Some tests do little but wait: two more than there are cores keep these busy.
meson_test=(meson test -C "$build" --print-errorlogs --num-processes $(($(nproc) + 2)))
case $sanitize in
  # Nothing here runs what nvcc makes: one generation shows that it compiles.
  "")
    options+=(-Dbuildtype=release -Dcuda=auto -Dgpu_archs=90)
    # Other programs may keep the cores busy.
    meson_test+=(--timeout-multiplier 3)
    ;;
  address)
    options+=("${checked[@]}" -Db_sanitize='address,undefined')
    ;;
  thread)
    options+=("${checked[@]}" -Db_sanitize=thread)
    meson_test+=(--no-suite ucx --no-suite sequential)
    ;;
  *) wrong "--sanitize $sanitize: there are address and thread" ;;
esac
if [[ $sanitize ]]; then
  packages+=("${clang_packages[@]}")
  ((${#suites[@]})) || suites=(unit)
  meson_test+=(--timeout-multiplier 5)
  # Sanitizers place their shadow memory at fixed addresses, which a randomised layout can hit.
  if setarch -R true 2>/dev/null; then meson_test=(setarch -R "${meson_test[@]}"); fi
fi

wants() { [[ " ${suites[*]} " == *" $1 "* ]]; }
if wants mpi; then packages+=("${mpi_packages[@]}"); fi
if wants torch; then packages+=("${torch_packages[@]}"); fi

ensure_packages "${packages[@]}"
use_compiler_cache "$root"
compilers=()
if [[ $sanitize ]]; then compilers=(CC="${ccache:+ccache }clang" CXX="${ccache:+ccache }clang++"); fi

if [[ ! -f $build/build.ninja ]]; then
  env "${compilers[@]}" meson setup "$build" "$root" "${options[@]}"
elif ! output=$(meson setup --reconfigure "$build" "$root" "${options[@]}" 2>&1); then
  echo "$output"
  exit 1
fi
# Named suites, and sanitizers, need only what their tests are made of; meson test builds that.
((${#suites[@]})) || ninja -C "$build"

if wants mpi; then
  export I_MPI_ROOT=$build/impi
  [[ -x $I_MPI_ROOT/bin/IMB-MPI1 ]] || /usr/bin/python3 "$root/tests/mpi/get_impi.py" "$I_MPI_ROOT"
fi

# What a crashed test's earlier run left must not count as its result.
rm -f "$build"/*.xml "$build"/meson-logs/testlog*

status=0
"${meson_test[@]}" "${suites[@]/#/--suite=}" || status=$?
# Benchmarks check nothing and are not counted. That they end well is seen once.
if ((${#suites[@]} == 0)); then
  meson test -C "$build" --benchmark --no-rebuild --logbase benchmarklog || status=1
fi
python3 "$root/tests/tally.py" "$build/meson-logs" || status=1
exit "$status"
