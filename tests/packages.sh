# shellcheck shell=bash
# Sourced by scripts that build: which Debian packages moeccl needs, how they get there, and the compiler cache.
# shellcheck disable=SC2034  # the lists are for those who source this file

# To build the library.
library_packages=(
  build-essential meson ninja-build pkg-config python3
  libhwloc-dev libmd-dev libucx-dev nlohmann-json3-dev
)
# To build layers and the tools, too.
build_packages=("${library_packages[@]}" help2man libcli11-dev libopenblas-dev)
# To run moeccl-lab.
lab_packages=(iproute2 python3)
# To build and run all tests.
test_packages=(
  "${build_packages[@]}" "${lab_packages[@]}"
  abigail-tools binutils ccache clang-format cmake git libbenchmark-dev libboost-context-dev libgtest-dev libopenmpi-dev
  openmpi-bin python3-matplotlib shellcheck
)
# MPI programs of others, and the second ABI of MPI, for the suite mpi.
mpi_packages=(
  hpcc libfftw3-dev libfftw3-mpi-dev libmpich-dev mpich python3-mpi4py-fft python3-pip scalapack-mpi-test scalapack-test-common
)
# To install PyTorch and compile against it, for the suite torch.
torch_packages=(python3-dev python3-venv)
# To build with the sanitizers.
clang_packages=(clang libclang-rt-dev)

# missing_packages PACKAGE...: prints those that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      echo "$package"
  done
}

# ensure_packages PACKAGE...: installs what is missing, as root or with sudo. Where nothing is missing
# it neither needs rights nor the network. Returns 1, having said what to install, when it cannot.
ensure_packages() {
  if ! command -v dpkg-query >/dev/null; then
    echo "This is no Debian: please install what these packages hold, unless it is there: $*" >&2
    return 0
  fi
  local missing become=()
  mapfile -t missing < <(missing_packages "$@" | sort -u)
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    # Without a terminal nobody could type sudo's password.
    if command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then
      become=(sudo)
    else
      echo "These packages are missing, and installing them takes root or sudo. Please run:" >&2
      echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
      return 1
    fi
  fi
  echo "Installing: ${missing[*]}"
  local apt=("${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Dpkg::Use-Pty=0)
  # The machine's own lists may be old, or missing as in a fresh container.
  if ! "${apt[@]}" update </dev/null >/dev/null; then
    echo "apt-get update failed; trying with the package lists that are here." >&2
  fi
  if ! "${apt[@]}" install --no-install-recommends "${missing[@]}" </dev/null >/dev/null; then
    echo "apt-get could not install: ${missing[*]}" >&2
    return 1
  fi
}

# use_compiler_cache ROOT: what is compiled now may serve another clone. Sets `ccache` to the command, where there is
# one. Meson puts it before the compilers that it finds by itself.
use_compiler_cache() {
  ccache=$(command -v ccache || true)
  # Paths below the root are looked up relative to it, and debugging information may name another clone's folder.
  export CCACHE_BASEDIR=$1 CCACHE_NOHASHDIR=1
}
