#!/usr/bin/env bash
# Runs a libFuzzer target for FUZZ_SECONDS (10): fuzz.sh TARGET [DICTIONARY]
# What it learns, and what breaks the target, goes to fuzz/NAME in the folder that it runs in.
set -euo pipefail

target=$1 dictionary=${2:-}
seconds=${FUZZ_SECONDS:-10}
name=$(basename "$target" _fuzz)
folder=$PWD/fuzz/$name
mkdir -p "$folder/corpus"
# libFuzzer ends by itself; should it hang, the test fails.
# What it ends with by itself when the target breaks, 77, Meson would take for a skipped test.
exec timeout "$((seconds + 60))" "$target" -max_total_time="$seconds" -max_len=16384 -timeout=20 \
  -error_exitcode=1 -timeout_exitcode=1 \
  -rss_limit_mb=2048 ${dictionary:+"-dict=$dictionary"} -artifact_prefix="$folder/" -print_final_stats=1 \
  "$folder/corpus"
