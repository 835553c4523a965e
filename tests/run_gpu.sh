#!/usr/bin/env bash
# Builds and runs what needs a GPU, on a machine that has nvcc and nothing else of ours. See --help.
set -uo pipefail

usage() {
  cat <<'END'
usage: tests/run_gpu.sh [OPTION]... [TEXT]
       tests/run_gpu.sh --bench [OPTION]...
       tests/run_gpu.sh --budget SECONDS [OPTION]...
       tests/run_gpu.sh --preflight [OPTION]...

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
                   Python's packages
  --include DIR    CLI/ and nlohmann/ are there, else where the compiler looks
  --seed NUMBER    of the kernels' random inputs; each run has another, which it prints
  --no-sanitizer   not under compute-sanitizer
  --build-only     build and link all of these programs, for measuring too, and run nothing. Needs no GPU
  --bench          measure instead: layout kernels beside cudaMemcpy, the gate and a layer of one rank in 16 bits
                   beside PyTorch, the executor beside ncclSend and ncclRecv that are grouped by hand (on 2 ranks,
                   or --nodes)
  --budget SECONDS test and measure, what tells most first, and stop after so many seconds, building included.
                   The next call with the same options goes on where this one stopped; what has passed is run
                   again when sources or options change
  --preflight      only say what is here and what is missing, and where it was looked for; the exit code is 0

The last lines are a table of the parts and "N passed, N failed, N skipped". build-gpu/results.json has that table, the
machine, versions and what each part has measured.
The exit code is 0 if some passed and none failed, 77 where there is no nvcc or no GPU, 75 where the budget did not
suffice and nothing has failed.
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
export MOECCL_PROBE="${MOECCL_PROBE:-0}"  # choices are the same in every run
build=$root/build-gpu
arch=
nccl=
include=
only=
sanitizer=1
bench=
budget=
preflight=
build_only=
nodes=()
of_kernels=() of_ranks=() of_tools=()
while (($#)); do
  case $1 in
    --only | --nodes | --limit | --build | --arch | --nccl | --include | --seed | --budget)
      (($# > 1)) || wrong "$1 needs a value"
      case $1 in
        --only) only=$2 ;;
        --nodes) nodes+=("$2") ;;
        --limit) of_ranks+=("$1" "$2") ;;
        --budget) budget=$2 ;;
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
    --preflight) preflight=1 ;;
    -h | --help) usage && exit ;;
    -*) wrong "there is no option $1" ;;
    *) of_kernels+=("$1") of_ranks+=("$1") of_tools+=("$1") ;;
  esac
  shift
done
[[ $only =~ ^(|kernels|ranks|tools)$ ]] || wrong "--only $only: there are kernels, ranks and tools"
[[ $budget =~ ^[0-9]*$ ]] || wrong "--budget $budget: it must be a number of seconds"
[[ -z $nccl || -f $nccl/include/nccl.h ]] || wrong "--nccl $nccl: there is no include/nccl.h"

cd "$root" || exit 1
# shellcheck source=tests/gpu/build.sh
source tests/gpu/build.sh
if [[ $preflight ]]; then
  say_found
  [[ $nvcc ]] && exit
  exit 77
fi
[[ $nvcc ]] || { say_found && skip "there is no nvcc"; }
[[ $gpu || $build_only ]] || { say_found && skip "there is no GPU; --build-only builds all the same"; }
# shellcheck source=tests/gpu/parts.sh
source tests/gpu/parts.sh
# wants WHAT: whether --only leaves it in.
wants() { [[ -z $only || $only == "$1" ]]; }

# The parts, what tells most first.
measures() { [[ $bench || $budget || $build_only ]]; }
tests() { [[ -z $bench || $budget || $build_only ]]; }
if wants kernels; then
  tests && part kernels kernels_gpu "$build/kernels_gpu" "${of_kernels[@]}"
  measures && part "layouts, measured" bench_gpu "$build/bench_gpu" layouts
  measures && part "gate, measured" bench_gpu python3 tests/gpu/gate_bench.py "$build/bench_gpu"
fi
if wants ranks && [[ $nccl ]]; then
  ((${#nodes[@]})) || nodes=(1 2 1+2 2+2 4+4)
  for sizes in "${nodes[@]}"; do
    tests && part "ranks $sizes" ranks_gpu "$build/ranks_gpu" --nodes "$sizes" "${of_ranks[@]}"
  done
  measures && part "executor, measured" ranks_gpu "$build/ranks_gpu" --bench executor "${of_ranks[@]}"
  measures && part "layer, measured" ranks_gpu python3 tests/gpu/layer_bench.py "$build/ranks_gpu"
elif wants ranks; then
  absent ranks "nccl.h is not here; --nccl DIR names the place"
fi
if wants kernels && tests && [[ $sanitizer ]]; then
  for tool in memcheck racecheck synccheck initcheck; do
    if [[ $sanitizer_program ]]; then
      part "kernels, $tool" kernels_gpu "$sanitizer_program" --tool "$tool" --error-exitcode 1 \
        "$build/kernels_gpu" --quick "${of_kernels[@]}"
    else
      absent "kernels, $tool" "compute-sanitizer is not installed"
    fi
  done
fi
if wants tools && tests; then
  if ((${#tools[@]})); then
    part tools "${tools[*]}" python3 tests/gpu/tools_test.py --perf "$build/moeccl-perf" --fit "$build/moeccl-fit" \
      "${of_tools[@]}"
  else
    absent tools "CLI11, nlohmann-json or NCCL is not here; --include DIR names the place"
  fi
fi
((${#names[@]})) || skip "there is nothing to build; see --help"

if [[ $build_only ]]; then
  mapfile -t needed < <(printf '%s\n' "${programs[@]}" | tr ' ' '\n' | sed '/^$/d' | sort -u)
  build_programs "${needed[@]}" || exit 1
  printf 'built    %s\n' "${needed[@]/#/$build/}"
  ((${#missing[@]})) && printf 'missing  %s\n' "${missing[@]}"
  exit 0
fi
run_parts
