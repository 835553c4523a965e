#!/usr/bin/env bash
# Runs a command with CUDA's Multi-Process Service, where its daemon is installed and works: kernels of processes that
# share a GPU then run beside each other. Without it the processes take turns of milliseconds.
#
#   mps.sh KERNELS_GPU COMMAND [ARGUMENT]...
#
# KERNELS_GPU shows whether it works. No setting of the GPU changes, and the daemon ends with the command.
set -u
kernels_gpu=$1
shift
if command -v nvidia-cuda-mps-control >/dev/null; then
  folder=$(mktemp -d)
  trap 'echo quit | CUDA_MPS_PIPE_DIRECTORY=$folder timeout --kill-after=1 3 nvidia-cuda-mps-control >/dev/null 2>&1; rm -rf "$folder"' EXIT
  export CUDA_MPS_PIPE_DIRECTORY=$folder CUDA_MPS_LOG_DIRECTORY=$folder
  # The daemon is not to hold open what reads this script's output.
  if timeout --kill-after=1 10 nvidia-cuda-mps-control -d </dev/null >/dev/null 2>&1 &&
    timeout --kill-after=1 20 "$kernels_gpu" --quick copiesInAGraph >/dev/null 2>&1; then
    echo "processes share the GPU by MPS"
  else
    echo "processes take turns on the GPU: MPS does not work here"
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  fi
fi
"$@"
