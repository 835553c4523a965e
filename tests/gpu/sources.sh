# shellcheck shell=bash
# shellcheck disable=SC2154  # $build and $json are those of who sources this file
# Sourced by tests/gpu/build.sh, in the repository's root: what each program is made of. tests/gpu/sources.py holds it
# against what meson makes them of.

# The CPU's kernels are what the GPU's are held against. Where they need a BLAS, plain loops do (tests/gpu/plain).
kernel_sources=(kernels/*_cuda.cu kernels/gates/*_cuda.cu kernels/*.cc kernels/gates/*.cc src/base/text.cc)

# Those that registry.py generates into $build.
made_sources=(registry.cc routes_registry.cc schedules_registry.cc)

# The library on a machine without UCX, hwloc, libmd, OpenBLAS and, where $json is empty, nlohmann-json: it can do
# without, or something plain does. One source a line.
library_sources() {
  local source
  printf '%s\n' "${kernel_sources[@]}" algorithms/*.cc algorithms/*/*.cc "${made_sources[@]/#/$build/}"
  for source in src/*/*.cc; do
    case $source in
      src/exec/ucx_absent.cc | src/bootstrap/hardware_absent.cc) ;;
      src/exec/ucx_*.cc | src/bootstrap/hardware.cc) continue ;;
      src/model/profile_json.cc | src/model/json_*.cc) [[ $json ]] || continue ;;
      src/model/profile_json_absent.cc) [[ $json ]] && continue ;;
      *_absent.cc) continue ;;  # CUDA and NCCL are here
      src/base/text.cc) continue ;;  # with the kernels
    esac
    echo "$source"
  done
}

# sources_of PROGRAM: one a line.
sources_of() {
  case $1 in
    kernels_gpu)
      printf '%s\n' "${kernel_sources[@]}" tests/kernels/{gate_pass,plain}.cc tests/gpu/{check,main}.cc \
        tests/gpu/*_test.cc
      ;;
    bench_gpu)
      printf '%s\n' "${kernel_sources[@]}" tests/gpu/check.cc tests/gpu/bench/*.cc
      ;;
    ranks_gpu)
      library_sources
      printf '%s\n' tests/gpu/ranks/*.cc tests/gpu/launcher/launcher.cc tests/api/{exercise,results,route_world}.cc \
        tests/moe/{on_device,problem,problem_tables,task}.cc examples/moe_reference*.cc
      ;;
    moeccl-perf | moeccl-fit)
      library_sources
      printf '%s\n' perf/common/{choices,collectives,competitor,cuda_memory,job,memory,options}.cc \
        perf/common/{mpi_competitor_absent,output_file,pattern,statistics,stolen,tool}.cc perf/perf/options.cc
      if [[ $1 == moeccl-fit ]]; then
        printf '%s\n' perf/fit/*.cc
      else
        printf '%s\n' perf/perf/{measure,moeccl_perf,report,route,route_drawn,route_options,route_report}.cc \
          perf/perf/{layer_*,layers}.cc
      fi
      ;;
  esac
}
