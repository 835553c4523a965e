#!/usr/bin/env bash
# Builds and runs what needs a GPU, on a machine that has nvcc and nothing else of ours. See --help.
set -uo pipefail

usage() {
  cat <<'END'
usage: tests/run_gpu.sh [--build DIR] [--arch ARCH] [--seed NUMBER] [--no-sanitizer] [TEXT]
       tests/run_gpu.sh --bench

Builds the kernels and their tests in build-gpu/ with nvcc alone, runs them against the CPU's on one GPU, all
tests or those with TEXT in their name, and once more, smaller, under each of compute-sanitizer's tools where
it is installed.

  --build DIR      build there instead
  --arch ARCH      what nvcc builds for: native where there is a GPU, else sm_90
  --seed NUMBER    of the random inputs; each run has another, which it prints
  --no-sanitizer   not under compute-sanitizer
  --bench          measure instead: layout kernels beside cudaMemcpy, the gate beside PyTorch

The last line is "N passed, N failed, N skipped"; the exit code is 0 if some passed and none failed, 77 where
there is no nvcc or no GPU.
END
}

wrong() {
  echo "tests/run_gpu.sh: $1" >&2
  usage >&2
  exit 2
}

skip() {
  echo "$1"
  echo "0 passed, 0 failed, 1 skipped"
  exit 77
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build-gpu
arch=
sanitizer=1
bench=
arguments=()
while (($#)); do
  case $1 in
    --build | --arch | --seed)
      (($# > 1)) || wrong "$1 needs a value"
      case $1 in
        --build) build=$2 ;;
        --arch) arch=$2 ;;
        --seed) arguments+=(--seed "$2") ;;
      esac
      shift
      ;;
    --no-sanitizer) sanitizer= ;;
    --bench) bench=1 ;;
    -h | --help) usage && exit ;;
    -*) wrong "there is no option $1" ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc) || skip "there is no nvcc"
# cuBLAS is opened by name.
toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
export LD_LIBRARY_PATH=$toolkit/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if [[ -z $arch ]]; then
  if nvidia-smi -L >/dev/null 2>&1; then arch=native; else arch=sm_90; fi
fi

cd "$root" || exit 1
# What the tests are made of. The CPU's kernels are the reference; where they need a BLAS, plain loops do.
sources=(
  kernels/*_cuda.cu kernels/gates/*_cuda.cu kernels/*.cc kernels/gates/*.cc src/text.cc
  tests/kernels/gates_plain.cc tests/gpu/check.cc
)
programs=(kernels_gpu bench_gpu)
declare -A own=([kernels_gpu]="$(echo tests/gpu/*_test.cc) tests/gpu/main.cc" [bench_gpu]=tests/gpu/bench.cc)
flags=(-std=c++20 -O2 --expt-relaxed-constexpr -arch="$arch" -I"$root" -I"$root/include"
  -I"$root/tests/gpu/plain_blas" -Xcompiler=-Wall)

mkdir -p "$build" || exit 1
makefile=$build/Makefile
{
  # object SOURCE: the rule that makes it.
  object() {
    local target=$build/${1//\//_}.o extra=
    [[ $1 == kernels/gates/gate_cuda.cu ]] && extra=-fmad=false
    printf '%s: %s %s\n\t%s %s %s -MD -MF %s.d -c %s -o %s\n-include %s.d\n' "$target" "$1" \
      "$makefile.flags" "$nvcc" "${flags[*]}" "$extra" "$target" "$1" "$target" "$target"
  }
  shared=()
  for source in "${sources[@]}"; do
    object "$source"
    shared+=("$build/${source//\//_}.o")
  done
  for program in "${programs[@]}"; do
    objects=("${shared[@]}")
    for source in ${own[$program]}; do
      object "$source"
      objects+=("$build/${source//\//_}.o")
    done
    printf '%s: %s\n\t%s %s %s -o %s -ldl\n' "$build/$program" "${objects[*]}" "$nvcc" "${flags[*]}" \
      "${objects[*]}" "$build/$program"
  done
} >"$makefile"
# Other flags make all of it again.
echo "${flags[*]}" | cmp -s - "$makefile.flags" || echo "${flags[*]}" >"$makefile.flags"
make -s -j"$(nproc)" -f "$makefile" "${programs[@]/#/$build/}" || {
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
}

if [[ $bench ]]; then
  "$build/bench_gpu" layouts && echo && python3 tests/gpu/gate_bench.py "$build/bench_gpu"
  exit
fi

# Programs for several ranks on one GPU join here: each ends with a line of counts too.
passed=0 failed=0 skipped=0
step() {
  printf '\n==== %s\n' "$*"
  local output status
  output=$("$@" 2>&1)
  status=$?
  printf '%s\n' "$output"
  if [[ $output =~ ([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped ]]; then
    ((passed += BASH_REMATCH[1], failed += BASH_REMATCH[2], skipped += BASH_REMATCH[3]))
    # Whatever went wrong beside the tests, such as what a sanitizer found, counts too.
    if ((status && status != 77 && BASH_REMATCH[2] == 0)); then ((failed += 1)); fi
  else
    ((failed += 1))
  fi
  return $status
}

status=0
step "$build/kernels_gpu" "${arguments[@]}" || status=$?
if ((status != 77)) && [[ $sanitizer ]]; then
  if checker=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer); then
    for tool in memcheck racecheck synccheck initcheck; do
      step "$checker" --tool "$tool" --error-exitcode 1 "$build/kernels_gpu" --quick "${arguments[@]}"
    done
  else
    echo "compute-sanitizer is not installed"
    ((skipped += 1))
  fi
fi

printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((status == 77)) && exit 77
((passed > 0 && failed == 0))
