# shellcheck shell=bash
# shellcheck disable=SC2034  # `tools` is for who sources this file
# Sourced by tests/run_gpu.sh, in the repository's root: builds programs with nvcc alone, in the folder $build,
# for $arch, with the NCCL of $nccl and the headers in $include. What of these is empty is found, and stays so
# where there is none.

# CUDA's parts may be Python packages too, in folders such as nvidia/cu13 and nvidia/nccl.
mapfile -t wheels < <(python3 -c '
import glob, sys
for place in sys.path:
    print(*sorted(glob.glob((place or ".") + "/nvidia/*/")), sep="\n")' 2>/dev/null | sed '/^$/d; s,/$,,')

found=() missing=() of_wheels=()
toolkit='' cudart_place='' cub_place='' cublas_place=''
# find_in VARIABLE WHAT FILE DIR...: sets the variable to the first folder that has the file, and remembers what
# was found, or what is missing and where it was looked for. The folder is relative to FILE.
find_in() {
  local -n place=$1
  local what=$2 file=$3 folder
  shift 3
  place=
  for folder in "$@"; do
    [[ $folder && -e $folder/$file ]] || continue
    place=$folder
    found+=("$what: $folder/$file")
    return
  done
  missing+=("$what: no $file in $(printf '%s, ' "$@" | sed 's/, $//')")
}

on_path=$(command -v nvcc)
find_in toolkit "compiler" bin/nvcc "${on_path:+$(dirname "$(dirname "$(readlink -f "$on_path")")")}" \
  /usr/local/cuda /usr/local/cuda-* "${wheels[@]}"
nvcc=${toolkit:+$toolkit/bin/nvcc}
# Containers may have GPUs and no nvidia-smi, or one that hangs.
if gpu=$(timeout --kill-after=5 20 nvidia-smi -L 2>/dev/null); then
  gpu=$(head -1 <<<"$gpu")
else
  gpu=$(compgen -G '/dev/nvidia[0-9]*' | head -1)
fi
[[ $arch ]] || arch=${gpu:+native}
: "${arch:=sm_90}"
find_in cudart_place "CUDA runtime" include/cuda_runtime.h "$toolkit" "${wheels[@]}"
find_in cub_place "CUB" cub/device/device_scan.cuh "$toolkit"/include{/cccl,} "${wheels[@]/%//include}"
find_in cublas_place "cuBLAS" include/cublas_v2.h "$toolkit" /usr "${wheels[@]}"
if [[ $nccl ]]; then
  found+=("NCCL: $nccl/include/nccl.h")
else
  find_in nccl "NCCL" include/nccl.h "$toolkit" /usr "${wheels[@]}"
fi
# PyTorch finds its own libraries, and must not find others of the same name before them: it gets the path that there was,
# and hands $LIBRARIES_OF_PROGRAMS to what it starts.
python_beside_torch=(env "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}" python3)
# cuBLAS and NCCL are opened by name; the NCCL of $nccl comes before one of the toolkit's. A toolkit may have their headers
# alone: those of Python's packages come last.
for place in "${wheels[@]}"; do
  [[ $(compgen -G "$place/lib/libcublas.so*" || compgen -G "$place/lib/libnccl.so*") ]] && of_wheels+=("$place/lib")
done
for place in "${of_wheels[@]}" "$cublas_place"/lib{,64} "$toolkit"/lib{,64} ${nccl:+"$nccl/lib"}; do
  [[ -d $place && $place != /usr/lib && $place != /lib ]] &&
    LD_LIBRARY_PATH=$place${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH LIBRARIES_OF_PROGRAMS=${LD_LIBRARY_PATH:-}

for program in make g++; do
  if place=$(command -v "$program"); then found+=("$program: $place"); else missing+=("$program: not in PATH"); fi
done

# has WHAT HEADER: whether the compiler finds it.
has() {
  [[ $nvcc ]] || return
  if echo "#include <$2>" | "$nvcc" ${include:+-I"$include"} -x c++ -E - >/dev/null 2>&1; then
    found+=("$1: ${include:-where the compiler looks}, $2")
  else
    missing+=("$1: no $2 in ${include:+$include, }where the compiler looks; --include DIR names another place")
    return 1
  fi
}
has nlohmann-json nlohmann/json.hpp && json=1 || json=
# moeccl-perf and moeccl-fit need no more than headers beside the library.
tools=()
has CLI11 CLI/CLI.hpp && [[ $json && $nccl ]] && tools=(moeccl-perf moeccl-fit)
if [[ $gpu ]]; then
  found+=("GPU: $gpu")
else
  missing+=("GPU: nvidia-smi lists none, and there is no /dev/nvidia0")
fi
# It takes seconds to import.
if python3 -c 'import importlib.util as i, sys; sys.exit(i.find_spec("torch") is None)' 2>/dev/null; then
  found+=("PyTorch: Python has it")
else
  missing+=("PyTorch: Python has no torch, beside which the gate and the layer are measured")
fi
if sanitizer_program=$(command -v compute-sanitizer || command -v "$toolkit/bin/compute-sanitizer"); then
  found+=("compute-sanitizer: $sanitizer_program")
else
  missing+=("compute-sanitizer: neither in PATH nor in $toolkit/bin")
fi
counter_program=$(command -v ncu || command -v "$toolkit/bin/ncu")

# say_found: what is here and what is not, a line each.
say_found() {
  ((${#found[@]})) && printf 'here     %s\n' "${found[@]}"
  ((${#missing[@]})) && printf 'missing  %s\n' "${missing[@]}"
}

# shellcheck source=tests/gpu/sources.sh
source tests/gpu/sources.sh

# makefile_for FLAGS PROGRAM...
makefile_for() {
  local flags=$1 source program target extra
  shift
  for source in $(for program in "$@"; do sources_of "$program"; done | sort -u); do
    target=$build/${source//\//_}.o extra=
    # As in kernels/meson.build.
    [[ $source == *.cu ]] && extra=-Xptxas=-warn-spills
    [[ $source == kernels/gates/gate_cuda.cu ]] && extra+=' -fmad=false'
    printf '%s: %s %s\n\t%s %s %s -MD -MP -MF %s.d -c %s -o %s\n-include %s.d\n' "$target" "$source" \
      "$build/flags" "$nvcc" "$flags" "$extra" "$target" "$source" "$target" "$target"
  done
  for program in "$@"; do
    local objects=()
    for source in $(sources_of "$program"); do objects+=("$build/${source//\//_}.o"); done
    printf '%s: %s\n\t%s %s %s -o %s -ldl -lrt -lpthread\n' "$build/$program" "${objects[*]}" "$nvcc" "$flags" \
      "${objects[*]}" "$build/$program"
  done
}

# sum_of EXPRESSION: a sum of our code, and of other files beside it that find's EXPRESSION names.
sum_of() {
  find algorithms include kernels perf src tests/api tests/gpu tests/kernels tests/moe examples \
    -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cc.in' -o -name '*.cu' -o "$@" \) 2>/dev/null |
    LC_ALL=C sort | xargs cat | cksum | tr -d ' '
}
# What programs are built of, as a sum. $build/built_from has that of each, in lines of "SUM PROGRAM".
sum_of_code() { sum_of -path algorithms/meson.build; }
# What results depend on.
sum_of_sources() { sum_of -path algorithms/meson.build -o -name '*.sh' -o -name '*.py'; }
# note_built PROGRAM...: that they are built of what is here.
note_built() {
  local sum program
  sum=$(sum_of_code)
  for program in "$@"; do
    { grep -v " $program\$" "$build/built_from" 2>/dev/null; echo "$sum $program"; } >"$build/built_from.new"
    mv "$build/built_from.new" "$build/built_from"
  done
}

# usable PROGRAM: whether one that was built elsewhere is of what is here, and starts here; else says why not. kernels_gpu
# stands for the kernels of all.
usable() {
  local said status sum most=60
  [[ -f $build/$1 ]] || { echo "there is no $build/$1" && return 1; }
  chmod +x "$build/$1" # whoever carried it may have lost that
  if ! sum=$(grep -s " $1\$" "$build/built_from"); then
    echo "$build/$1: there is no $build/built_from that says what it was built of; it is taken as it is"
  elif [[ ${sum% *} != "$(sum_of_code)" ]]; then
    echo "$build/$1 is built of other sources than those that are here" && return 1
  fi
  [[ $budget ]] && (($(timeout_left) < most)) && most=$(timeout_left)
  said=$(timeout --kill-after=5 "$most" "$build/$1" --quick copiesInAGraph 2>&1 </dev/null)
  status=$?
  # The second is what the loader says of libraries that are too old; it exits with 1 then.
  if ((status == 126 || status == 127)) || [[ $said == *"not found (required by "* ]]; then
    echo "$build/$1 does not start here: $said" && return 1
  fi
  [[ $said != *"no kernel image"* ]] || { echo "$build/$1 is built for another GPU" && return 1; }
}

declare -A started=()
# build_programs PROGRAM...: makes what is out of date; with $prebuilt what is not there, is of other sources, or does not
# start.
build_programs() {
  local program needed=()
  for program in "$@"; do
    if [[ $prebuilt && ! ${started[$program]:-} ]]; then
      usable "$program" || rm -f "$build/$program"
      started[$program]=1
    fi
    [[ $prebuilt && -x $build/$program ]] || needed+=("$program")
  done
  ((${#needed[@]} == 0)) || make_programs "${needed[@]}"
}
make_programs() {
  local flags="-std=c++20 -O2 --expt-relaxed-constexpr -arch=$arch -I. -Iinclude -Itests/gpu/plain -Xcompiler=-Wall"
  local place made
  for place in "$cudart_place" "$cublas_place" "$nccl"; do
    [[ $place && $place != /usr && $place != "$toolkit" ]] && flags+=" -I$place/include"
  done
  [[ $include ]] && flags+=" -I$include"
  mkdir -p "$build" || return 1
  [[ $nvcc ]] || { echo "$*: there is no nvcc to build it" && return 1; }
  echo "building $*"
  # Only what has changed is made again; other flags make all of it.
  for made in "${made_sources[@]}"; do
    python3 tests/gpu/registry.py "${made%.cc}" . >"$build/$made.new" || return 1
    cmp -s "$build/$made.new" "$build/$made" || mv "$build/$made.new" "$build/$made"
  done
  echo "$flags" | cmp -s - "$build/flags" || echo "$flags" >"$build/flags"
  makefile_for "$flags" "$@" >"$build/Makefile"
  ${budget:+timeout --kill-after=5 "$(timeout_left)"} make -s -j"$(nproc)" -f "$build/Makefile" "${@/#/$build/}" &&
    note_built "$@"
}
