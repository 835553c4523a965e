# shellcheck shell=bash
# shellcheck disable=SC2034  # `tools` is for who sources this file
# Sourced by tests/run_gpu.sh, in the repository's root: builds programs with nvcc alone, in the folder $build,
# for $arch, with the NCCL of $nccl and the headers in $include. What of these is empty is found, and stays so
# where there is none.

nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc)
toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
if [[ -z $arch ]]; then
  if nvidia-smi -L >/dev/null 2>&1; then arch=native; else arch=sm_90; fi
fi
if [[ -z $nccl ]]; then
  in_python=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)
  for place in "$toolkit" /usr "$in_python"; do
    if [[ $place && -f $place/include/nccl.h ]]; then
      nccl=$place
      break
    fi
  done
fi
# cuBLAS and NCCL are opened by name; the NCCL of $nccl comes before one of the toolkit's.
for place in "$toolkit"/lib{,64} ${nccl:+"$nccl/lib"}; do
  [[ -d $place && $place != /usr/lib ]] && LD_LIBRARY_PATH=$place${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH

# The CPU's kernels are what the GPU's are held against. Where they need a BLAS, plain loops do (tests/gpu/plain).
kernel_sources=(kernels/*_cuda.cu kernels/gates/*_cuda.cu kernels/*.cc kernels/gates/*.cc src/text.cc)

# has HEADER: whether the compiler finds it.
has() { echo "#include <$1>" | "$nvcc" ${include:+-I"$include"} -x c++ -E - >/dev/null 2>&1; }
has nlohmann/json.hpp && json=1 || json=
# moeccl-perf and moeccl-fit need no more than headers beside the library.
tools=()
[[ $json && $nccl ]] && has CLI/CLI.hpp && tools=(moeccl-perf moeccl-fit)

# The library on a machine without UCX, hwloc, libmd, OpenBLAS and perhaps nlohmann-json: it can do without, or
# something plain does.
library_sources=("${kernel_sources[@]}" algorithms/*.cc algorithms/*/*.cc "$build/registry.cc"
  "$build/schedules_registry.cc")
for source in src/*.cc src/{api,bootstrap,comm,cost,exec,moe,profile,select,watch}/*.cc; do
  case $source in
    src/exec/ucx_absent.cc | src/bootstrap/hardware_absent.cc) library_sources+=("$source") ;;
    src/exec/ucx_*.cc | src/bootstrap/hardware.cc) ;;
    src/profile/profile_json.cc | src/profile/json_*.cc) [[ $json ]] && library_sources+=("$source") ;;
    src/profile/profile_json_absent.cc) [[ $json ]] || library_sources+=("$source") ;;
    *_absent.cc) ;; # CUDA and NCCL are here
    src/text.cc) ;; # with the kernels
    *) library_sources+=("$source") ;;
  esac
done

# sources_of PROGRAM: one a line.
sources_of() {
  case $1 in
    kernels_gpu)
      printf '%s\n' "${kernel_sources[@]}" tests/kernels/{gates_plain,plain}.cc tests/gpu/{check,main}.cc \
        tests/gpu/*_test.cc
      ;;
    bench_gpu)
      printf '%s\n' "${kernel_sources[@]}" tests/kernels/gates_plain.cc tests/gpu/{check,bench}.cc
      ;;
    ranks_gpu)
      printf '%s\n' "${library_sources[@]}" tests/gpu/ranks/*.cc tests/gpu/launcher/launcher.cc \
        tests/api/{exercise,results}.cc tests/moe/{on_device,problem,problem_tables,task}.cc examples/moe_reference*.cc
      ;;
    moeccl-perf | moeccl-fit)
      printf '%s\n' "${library_sources[@]}" perf/common/{choices,collectives,competitor,cuda_memory,job,memory}.cc \
        perf/common/{mpi_competitor_absent,pattern,statistics,tool}.cc perf/perf/options.cc
      if [[ $1 == moeccl-fit ]]; then
        printf '%s\n' perf/fit/*.cc
      else
        printf '%s\n' perf/perf/{measure,moeccl_perf,report}.cc
      fi
      ;;
  esac
}

# makefile_for FLAGS PROGRAM...
makefile_for() {
  local flags=$1 source program target extra
  shift
  for source in $(for program in "$@"; do sources_of "$program"; done | sort -u); do
    target=$build/${source//\//_}.o extra=
    # As in kernels/meson.build.
    [[ $source == kernels/gates/gate_cuda.cu ]] && extra=-fmad=false
    printf '%s: %s %s\n\t%s %s %s -MD -MF %s.d -c %s -o %s\n-include %s.d\n' "$target" "$source" \
      "$build/flags" "$nvcc" "$flags" "$extra" "$target" "$source" "$target" "$target"
  done
  for program in "$@"; do
    local objects=()
    for source in $(sources_of "$program"); do objects+=("$build/${source//\//_}.o"); done
    printf '%s: %s\n\t%s %s %s -o %s -ldl -lrt -lpthread\n' "$build/$program" "${objects[*]}" "$nvcc" "$flags" \
      "${objects[*]}" "$build/$program"
  done
}

# build_programs PROGRAM...: makes what is out of date.
build_programs() {
  local flags="-std=c++20 -O2 --expt-relaxed-constexpr -arch=$arch -I. -Iinclude -Itests/gpu/plain -Xcompiler=-Wall"
  [[ $nccl && $nccl != /usr ]] && flags+=" -I$nccl/include"
  [[ $include ]] && flags+=" -I$include"
  mkdir -p "$build" && python3 tests/gpu/registry.py . >"$build/registry.new" &&
    python3 tests/gpu/registry.py --schedules . >"$build/schedules_registry.new" || return 1
  # Only what has changed is made again; other flags make all of it.
  for made in registry schedules_registry; do
    cmp -s "$build/$made.new" "$build/$made.cc" || mv "$build/$made.new" "$build/$made.cc"
  done
  echo "$flags" | cmp -s - "$build/flags" || echo "$flags" >"$build/flags"
  makefile_for "$flags" "$@" >"$build/Makefile"
  make -s -j"$(nproc)" -f "$build/Makefile" "${@/#/$build/}"
}
