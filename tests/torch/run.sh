#!/usr/bin/env bash
# Installs torch and src/bindings/torch where they are missing; compares the backend with Gloo, and layers with one process.
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/torch/run.sh FOLDER INCLUDE VENV [RANKS...]

  FOLDER    has libmoeccl.so, or a folder of it has
  INCLUDE   has moeccl/moeccl.h
  VENV      a virtual environment of Python; made, with torch (2.4 GB from PyPI), where it has none
  RANKS     numbers of ranks to run the checks with: 4 and 8 unless given
END
}

(($# >= 3)) || { usage >&2 && exit 2; }
library=$(realpath "$1") include=$(realpath "$2") venv=$3
shift 3
ranks=("$@")
((${#ranks[@]})) || ranks=(4 8)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# What `import torch` asks for on a host without a GPU; torch itself depends on more.
torch=2.15.0
wheels=('cuda-toolkit[cublas,cudart,cufft,cufile,cupti,cusparse,nvjitlink,nvrtc]==13.2.2' nvidia-cudnn-cu13==9.26.0.51
  nvidia-cusparselt-cu13==0.8.1 nvidia-nccl-cu13==2.30.7 nvidia-nvshmem-cu13==3.7.2)
if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --no-deps "torch==$torch"
  "$venv/bin/pip" install -q --no-deps "${wheels[@]:1}"
  "$venv/bin/pip" install -q "${wheels[0]}" 'setuptools>=77.0.3' wheel numpy typing_extensions sympy networkx jinja2 fsspec \
    filelock
fi

# Clients, and what they import.
if ! "$venv/bin/python" -c 'import transformers, accelerate, deepspeed, expecttest' >/dev/null 2>&1; then
  "$venv/bin/pip" install -q transformers==5.23.0 accelerate expecttest py-cpuinfo hjson msgpack einops pydantic psutil tqdm
  DS_BUILD_OPS=0 "$venv/bin/pip" install -q --no-deps --no-build-isolation deepspeed==0.19.8
fi

# The package, with the library that was just built, by the guide's command.
MOECCL_ROOT=$library MOECCL_INCLUDE=$include MAX_JOBS=$(nproc) \
  "$venv/bin/pip" install -q --no-deps --force-reinstall "$root/src/bindings/torch"

"$venv/bin/python" "$root/tests/torch/installed_package.py" "$root/src/bindings/torch/README.md"

export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
# run NUMBER SCRIPT [CHECK...]
run() {
  local number=$1 script=$2
  shift 2
  "$venv/bin/python" -m torch.distributed.run --standalone --nproc-per-node "$number" "$root/tests/torch/$script" "$@"
}
for number in "${ranks[@]}"; do
  run "$number" checks.py
  run "$number" layers.py
  run "$number" chunks.py
  run "$number" routes.py
done
run 1 routes.py
run 1 chunks.py
run 2 chunks.py
run 4 compiled.py
run 4 errors.py
run 4 gradients.py
run 8 gradients.py small_gradients_in_float16
run 4 refusals.py
run 4 states.py
run 4 sharded.py
run 8 sharded.py
run 4 corners.py
run 4 c10d.py
BACKEND=gloo run 4 layers.py every_grid_and_schedule replicas_are_averaged
run 4 deepspeed_layer.py
run 8 mixtral.py
run 4 expert_parallelism.py
run 8 expert_parallelism.py
"$venv/bin/python" "$root/tests/torch/killed_rank.py"
"$venv/bin/python" "$root/tests/torch/cuda_streams.py" "$include"
"$venv/bin/python" "$root/tests/gpu/rivals_test.py"
python3 "$root/tests/pages/pages_test.py" --source "$root" --build "$library" --torch "$venv/bin" src/bindings/torch/README.md || (($? == 77))
python3 "$root/tests/pages/two_nodes.py" "$root" "$venv/bin/python" || (($? == 77))
