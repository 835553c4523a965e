#!/usr/bin/env bash
# The second seven minutes: goes on where the first call stopped, from the results.json that it left, on a machine that
# need know nothing of it.
#
#   OUT=FOLDER tests/gpu/second_call.sh RESULTS [OPTION]...    options of tests/run_gpu.sh
[[ -f ${1:-} ]] || { echo "usage: tests/gpu/second_call.sh RESULTS [OPTION]...: results.json of the first call" >&2 && exit 2; }
exec bash "$(dirname "${BASH_SOURCE[0]}")/../run_gpu.sh" --prebuilt --budget 420 --from "$@"
