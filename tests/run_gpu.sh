#!/usr/bin/env bash
# Builds and runs what needs a GPU, on a machine that has nvcc and nothing else of ours. See --help.
set -uo pipefail

usage() {
  cat <<'END'
usage: tests/run_gpu.sh [OPTION]... [TEXT]
       tests/run_gpu.sh --bench [OPTION]...
       tests/run_gpu.sh --budget SECONDS [OPTION]...
       tests/run_gpu.sh --preflight [OPTION]...

Builds in build-gpu/, with nvcc, make, g++ and Python alone, and runs on one GPU
  - the kernels, against the CPU's; and once more, smaller, under each of compute-sanitizer's tools where it
    is installed;
  - where NCCL is there, the library, as 1, 2, 3, 4 and 8 ranks that share the GPU (NCCL_HOSTID, and MPS where it is
    installed), or have one each: collectives, grids, graphs, communicators and MoE layers, against what they should
    give;
  - where the headers of CLI11 and nlohmann-json are there too, moeccl-perf and moeccl-fit on two ranks.
All tests, or those with TEXT in their name.

  --only WHAT      kernels, ranks, or tools
  --nodes SIZES    ranks on nodes of these sizes, as in 2+2, which the library takes for nodes; more than once
                   if you like. Unless given: 1, 2, 1+2, 2+2 and 4+4
  --limit SECONDS  what ranks may do without news (120; with a budget 30); then those that are stuck are named
  --quick          no large messages between ranks
  --build DIR      build there instead
  --arch ARCH      what nvcc builds for: native where there is a GPU, else sm_90
  --nccl DIR       NCCL's include/ and lib/ are there; else they are looked for beside CUDA, in /usr, and in
                   Python's packages
  --include DIR    CLI/ and nlohmann/ are there, else where the compiler looks
  --seed NUMBER    of the kernels' random inputs; each run has another, which it prints
  --no-sanitizer   not under compute-sanitizer
  --build-only     build, link and strip all of these programs, for measuring too, and run nothing. Needs no GPU
  --prebuilt       take the programs in build-gpu/ that start here and, by build-gpu/built_from, were built of the
                   sources that are here; build the others
  --bench          measure instead: kernels beside copies and PyTorch, a layer of one rank in 16 bits beside
                   PyTorch, the executor beside ncclSend and ncclRecv that are grouped by hand (on 2 ranks),
                   a step of a token route in latency mode
  --budget SECONDS test and measure, what tells most first, and stop after so many seconds, building included.
                   No part takes more than its share. The next call with the same options goes on where this one
                   stopped; what has passed is run again when sources or options change
  --from FILE      with --budget: go on from the results.json of another machine
  --preflight      only say what is here and what is missing, and where it was looked for; the exit code is 0, or 77 without nvcc

The last lines are a table of the parts and "N passed, N failed, N skipped". After each part these are written to
build-gpu/, and to the folder that OUT names, if it names one:
  results.json     the machine, versions, the parts and what each has measured
  bars.txt         the figures, beside what the GPU could do and what PyTorch does in the same run
  log.txt          what the parts have printed
While a part runs, OUT also has
  current.txt      what that part has printed so far, or the end of it
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
from=
preflight=
build_only=
prebuilt=
nodes=()
of_kernels=() of_ranks=() of_tools=()
while (($#)); do
  case $1 in
    --only | --nodes | --limit | --build | --arch | --nccl | --include | --seed | --budget | --from)
      (($# > 1)) || wrong "$1 needs a value"
      case $1 in
        --only) only=$2 ;;
        --nodes) nodes+=("$2") ;;
        --limit) of_ranks+=("$1" "$2") ;;
        --budget) budget=$2 ;;
        --from) from=$2 ;;
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
    --prebuilt) prebuilt=1 ;;
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
[[ -z $from || $budget ]] || wrong "--from needs --budget"
[[ -z $from || -f $from ]] || wrong "--from $from: there is no such file"
[[ -z $nccl || -f $nccl/include/nccl.h ]] || wrong "--nccl $nccl: there is no include/nccl.h"
from=${from:+$(realpath "$from")}
build=$(realpath -ms "$build")
nccl=${nccl:+$(realpath -ms "$nccl")}
include=${include:+$(realpath -ms "$include")}
[[ -z ${OUT:-} ]] || mkdir -p "$OUT" || exit 1
results=${OUT:+$(realpath "$OUT")}
cd "$root" || exit 1
# shellcheck source=tests/gpu/build.sh
source tests/gpu/build.sh
if [[ $preflight ]]; then
  say_found
  [[ $nvcc ]] && exit
  exit 77
fi
[[ $nvcc || $prebuilt ]] || { say_found && skip "there is no nvcc"; }
[[ $gpu || $build_only ]] || { say_found && skip "there is no GPU; --build-only builds all the same"; }
# shellcheck source=tests/gpu/parts.sh
source tests/gpu/parts.sh
# wants WHAT: whether --only leaves it in.
wants() { [[ -z $only || $only == "$1" ]]; }
measures() { [[ $bench || $budget || $build_only ]]; }
tests() { [[ -z $bench || $budget || $build_only ]]; }

# Each adds a part where it is wanted: NAME, and the SECONDS that it may take of a budget, come first.
test_kernels() {
  wants kernels && tests && part "$1" "$2" kernels_gpu "$build/kernels_gpu" "${@:3}" "${of_kernels[@]}"
}
# check_kernels TOOL SECONDS
check_kernels() {
  wants kernels && tests && [[ $sanitizer ]] || return
  if [[ $sanitizer_program ]]; then
    part "kernels, $1" "$2" kernels_gpu "$sanitizer_program" --tool "$1" --error-exitcode 1 --print-limit 20 \
      "$build/kernels_gpu" --quick "${of_kernels[@]}"
  else
    absent "kernels, $1" "compute-sanitizer is not installed"
  fi
}
# measure_kernels NAME SECONDS ARGUMENT...
measure_kernels() {
  wants kernels && measures && part "$1, measured" "$2" bench_gpu \
    "${python_beside_torch[@]}" tests/gpu/kernel_bench.py "$build/bench_gpu" "${@:3}"
}
# count_kernels SECONDS: what the GPU's counters say of those that tell most. Times of what is watched are no figures.
count_kernels() {
  wants kernels && [[ $budget ]] || return
  if [[ $counter_program ]]; then
    part counters "$1" bench_gpu \
      env -u MEASUREMENTS "$counter_program" --clock-control none --section SpeedOfLight --section Occupancy \
      -k "regex:logits|choose|quantise|rowKernel" "$build/bench_gpu" --once gate rows
  else
    absent counters "ncu is not installed"
  fi
}
# shared_by SIZES: sets $shared, which goes before a command of ranks on such nodes.
shared_by() {
  shared=()
  [[ $1 == 1 ]] || shared=(bash tests/gpu/mps.sh "$build/kernels_gpu")
}
# test_ranks SIZES SECONDS [--quick]
test_ranks() {
  wants ranks && tests && [[ $nccl ]] || return
  shared_by "$1"
  part "ranks $1${3:+, quick}" "$2" "ranks_gpu${shared[0]:+ kernels_gpu}" "${shared[@]}" \
    "$build/ranks_gpu" --nodes "$1" "${of_ranks[@]}" "${@:3}"
}
# measure_ranks NAME SECONDS BENCHMARK SIZES
measure_ranks() {
  wants ranks && measures && [[ $nccl ]] || return
  shared_by "$4"
  part "$1, measured" "$2" "ranks_gpu${shared[0]:+ kernels_gpu}" "${shared[@]}" \
    "$build/ranks_gpu" --bench --nodes "$4" "${of_ranks[@]}" "$3"
}
# measure_layer NAME SECONDS [OPTION]...
measure_layer() {
  wants ranks && measures && [[ $nccl ]] && part "$1, measured" "$2" ranks_gpu \
    "${python_beside_torch[@]}" tests/gpu/layer_bench.py "$build/ranks_gpu" "${@:3}"
}
test_tools() {
  wants tools && tests || return
  if ((${#tools[@]})); then
    part tools "$1" "${tools[*]}" python3 tests/gpu/tools_test.py --perf "$build/moeccl-perf" --fit "$build/moeccl-fit" \
      "${of_tools[@]}"
  else
    absent tools "CLI11, nlohmann-json or NCCL is not here; --include DIR names the place"
  fi
}

all_nodes=("${nodes[@]}")
((${#nodes[@]})) || all_nodes=(1 2 1+2 2+2 4+4)
# has_nodes SIZES: whether ranks are to be on such nodes.
has_nodes() { [[ " ${all_nodes[*]} " == *" $1 "* ]]; }

# What tells most comes first.
if [[ $budget ]]; then
  [[ " ${of_ranks[*]} " == *" --limit "* ]] || of_ranks+=(--limit 30)
  test_kernels "kernels, quick" 40 --quick
  check_kernels memcheck 90
  measure_kernels kernels 100 layouts gate experts
  measure_layer layer 80
  measure_kernels rows 50 lists rows latency
  has_nodes 1 && test_ranks 1 60
  measure_ranks executor 60 executor 2
  measure_ranks "route step" 30 routeStep 1
  has_nodes 2 && test_ranks 2 60 --quick
fi
test_kernels kernels 150
if [[ $budget ]]; then
  check_kernels racecheck 60
  measure_layer "layer, compiled" 120 --compiled
  measure_kernels rules 60 rules
  count_kernels 60
  has_nodes 2+2 && test_ranks 2+2 90 --quick
else
  measure_kernels kernels 0 layouts gate rules experts lists rows latency
  measure_layer layer 0
  measure_ranks executor 0 executor 2
  measure_ranks "route step" 0 routeStep 1
  check_kernels memcheck 0
  check_kernels racecheck 0
fi
for sizes in "${all_nodes[@]}"; do [[ $budget && $sizes == 1 ]] || test_ranks "$sizes" 180; done
for tool in synccheck initcheck; do check_kernels "$tool" 60; done
if wants ranks && [[ ! $nccl ]]; then absent ranks "nccl.h is not here; --nccl DIR names the place"; fi
test_tools 120
((${#names[@]})) || skip "there is nothing to build; see --help"

if [[ $build_only ]]; then
  mapfile -t needed < <(printf '%s\n' "${programs[@]}" | tr ' ' '\n' | sed '/^$/d' | sort -u)
  build_programs "${needed[@]}" || exit 1
  strip "${needed[@]/#/$build/}"
  du --apparent-size -m "${needed[@]/#/$build/}" | awk '{print "built    " $2 ", " $1 " MB"}'
  ((${#missing[@]})) && printf 'missing  %s\n' "${missing[@]}"
  exit 0
fi
run_parts
