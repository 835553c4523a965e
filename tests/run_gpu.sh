#!/usr/bin/env bash
# Builds and runs what needs a GPU, on a machine that has nvcc and nothing else of ours. See --help.
set -uo pipefail

usage() {
  cat <<'END'
usage: tests/run_gpu.sh [OPTION]... [TEXT]
       tests/run_gpu.sh --bench [OPTION]...

Builds in build-gpu/, with nvcc and Python alone, and runs on one GPU
  - the kernels, against the CPU's; and once more, smaller, under each of compute-sanitizer's tools where it
    is installed;
  - where NCCL is there, the library, as 1, 2, 3, 4 and 8 ranks that share the GPU (NCCL_HOSTID), or have one
    each: collectives, grids, graphs, communicators and MoE layers, against what they should give;
  - where the headers of CLI11 and nlohmann-json are there too, moeccl-perf and moeccl-fit on two ranks.
All tests, or those with TEXT in their name.

  --only WHAT      kernels, ranks, or tools
  --nodes SIZES    ranks on nodes of these sizes, as in 2+2, which the library takes for nodes; more than once
                   if you like. Unless given: 1, 2, 1+2, 2+2 and 4+4
  --limit SECONDS  what ranks may do without news (120); then those that are stuck are named
  --quick          no large messages between ranks
  --build DIR      build there instead
  --arch ARCH      what nvcc builds for: native where there is a GPU, else sm_90
  --nccl DIR       NCCL's include/ and lib/ are there; else they are looked for beside CUDA, in /usr, and in
                   Python's package nvidia-nccl
  --include DIR    CLI/ and nlohmann/ are there, else where the compiler looks
  --seed NUMBER    of the kernels' random inputs; each run has another, which it prints
  --no-sanitizer   not under compute-sanitizer
  --build-only     run nothing
  --bench          measure instead: layout kernels beside cudaMemcpy, the gate beside PyTorch, the executor
                   beside ncclSend and ncclRecv that are grouped by hand (on 2 ranks, or --nodes)

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
nccl=
include=
only=
sanitizer=1
bench=
build_only=
of_kernels=() of_ranks=() of_tools=()
while (($#)); do
  case $1 in
    --only | --nodes | --limit | --build | --arch | --nccl | --include | --seed)
      (($# > 1)) || wrong "$1 needs a value"
      case $1 in
        --only) only=$2 ;;
        --nodes | --limit) of_ranks+=("$1" "$2") ;;
        --build) build=$2 ;;
        --arch) arch=$2 ;;
        --nccl) nccl=$2 ;;
        --include) include=$2 ;;
        --seed) of_kernels+=(--seed "$2") ;;
      esac
      shift
      ;;
    --quick) of_ranks+=(--quick) ;;
    --no-sanitizer) sanitizer= ;;
    --build-only) build_only=1 ;;
    --bench) bench=1 ;;
    -h | --help) usage && exit ;;
    -*) wrong "there is no option $1" ;;
    *) of_kernels+=("$1") of_ranks+=("$1") of_tools+=("$1") ;;
  esac
  shift
done
[[ $only =~ ^(|kernels|ranks|tools)$ ]] || wrong "--only $only: there are kernels, ranks and tools"
[[ -z $nccl || -f $nccl/include/nccl.h ]] || wrong "--nccl $nccl: there is no include/nccl.h"

cd "$root" || exit 1
# shellcheck source=tests/gpu/build.sh
source tests/gpu/build.sh
[[ $nvcc ]] || skip "there is no nvcc"
programs=()
# wants WHAT: whether --only leaves it in.
wants() { [[ -z $only || $only == "$1" ]]; }
wants kernels && programs+=(kernels_gpu ${bench:+bench_gpu})
wants ranks && [[ $nccl ]] && programs+=(ranks_gpu)
wants tools && [[ -z $bench ]] && programs+=("${tools[@]}")
((${#programs[@]})) || skip "there is nothing to build; see --help"
if ! build_programs "${programs[@]}"; then
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi

if [[ $build_only ]]; then exit; fi
if [[ $bench ]]; then
  status=0
  if wants kernels; then
    "$build/bench_gpu" layouts && echo && python3 tests/gpu/gate_bench.py "$build/bench_gpu" || status=$?
  fi
  if wants ranks && [[ $nccl ]]; then echo && "$build/ranks_gpu" --bench "${of_ranks[@]}" || status=$?; fi
  exit "$status"
fi

log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0
# step COMMAND...: runs one that prints a line of counts, and adds them up.
step() {
  printf '\n==== %s\n' "$*"
  local status
  "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  if [[ $(<"$log") =~ ([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped ]]; then
    ((passed += BASH_REMATCH[1], failed += BASH_REMATCH[2], skipped += BASH_REMATCH[3]))
    # Whatever went wrong beside the tests, such as what a sanitizer found, counts too.
    if ((status && status != 77 && BASH_REMATCH[2] == 0)); then ((failed += 1)); fi
  else
    ((failed += 1))
  fi
  return "$status"
}

if wants kernels; then
  step "$build/kernels_gpu" "${of_kernels[@]}"
  if (($? != 77)) && [[ $sanitizer ]]; then
    if checker=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer); then
      for tool in memcheck racecheck synccheck initcheck; do
        step "$checker" --tool "$tool" --error-exitcode 1 "$build/kernels_gpu" --quick "${of_kernels[@]}"
      done
    else
      echo "compute-sanitizer is not installed"
      ((skipped += 1))
    fi
  fi
fi
if wants ranks && [[ $nccl ]]; then
  step "$build/ranks_gpu" "${of_ranks[@]}"
elif wants ranks; then
  printf '\nnccl.h is not here, so ranks cannot be tried; --nccl DIR names the place\n'
  ((skipped += 1))
fi
if wants tools && ((${#tools[@]} == 0)); then
  printf '\nCLI11, nlohmann-json or NCCL is not here, so the tools cannot be tried; --include DIR names the place\n'
  ((skipped += 1))
elif wants tools; then
  step python3 tests/gpu/tools_test.py --perf "$build/moeccl-perf" --fit "$build/moeccl-fit" "${of_tools[@]}"
fi

printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((passed > 0 && failed == 0)) && exit
((failed == 0)) && exit 77
exit 1
