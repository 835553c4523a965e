#!/usr/bin/env bash
# The first seven minutes on a GPU that is lent for a quarter of an hour: programs that were built elsewhere
# (tests/run_gpu.sh --build-only --arch sm_90) test and measure what tells most. Results go to the folder that OUT names.
#
#   OUT=FOLDER tests/gpu/first_call.sh [OPTION]...    options of tests/run_gpu.sh
exec bash "$(dirname "${BASH_SOURCE[0]}")/../run_gpu.sh" --prebuilt --budget 420 "$@"
