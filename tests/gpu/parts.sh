# shellcheck shell=bash
# shellcheck disable=SC2154  # $build, $budget and others are those of who sources this file
# Sourced by tests/run_gpu.sh: parts of a run, each a command with the programs that it needs. What became of each is
# kept in $build/parts, so that a run with a budget goes on where the one before stopped.

names=() programs=() commands=() reasons=()
# part NAME PROGRAMS COMMAND...
part() {
  local command
  printf -v command '%q ' "${@:3}"
  names+=("$1") programs+=("$2") commands+=("$command") reasons+=("")
}
# absent NAME REASON: a part that cannot be run here.
absent() { names+=("$1") programs+=("") commands+=("") reasons+=("$2"); }

# Of all that is built, of the GPU's model and of how each part is called: what passed with another is run again.
fingerprint() {
  {
    find algorithms include kernels perf src tests/api tests/gpu tests/kernels tests/moe examples \
      -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.sh' -o -name '*.py' \) 2>/dev/null | sort |
      xargs cat
    printf '%s\n' "$arch" "$nccl" "${gpu% (UUID*}" "$1"
  } | cksum
}

left() { echo $((budget - SECONDS)); }
# The same for timeout, which takes 0 for no limit and nothing below.
timeout_left() { echo $((SECONDS < budget ? budget - SECONDS : 1)); }

# keep NUMBER STATUS SECONDS PASSED FAILED SKIPPED
keep() {
  printf '%s\n' "${names[$1]}" "$(fingerprint "${commands[$1]}")" "${@:2}" >"$build/parts/$1"
}

# run_part NUMBER: sets $status, and adds to $passed, $failed and $skipped.
run_part() {
  local number=$1 began=$SECONDS code limit=() log=$build/parts/$1.log counts=(0 0 0)
  printf '\n==== %s: %s\n' "${names[number]}" "${commands[number]:-${reasons[number]}}"
  if [[ -z ${commands[number]} ]]; then
    status=skipped counts=(0 0 1)
  else
    [[ $budget ]] && limit=(timeout --kill-after=5 "$(timeout_left)")
    MEASUREMENTS=$build/parts/$number.jsonl
    rm -f "$MEASUREMENTS"
    (export MEASUREMENTS && "${limit[@]}" bash -c "${commands[number]}") 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    if [[ $(<"$log") =~ ([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped ]]; then
      counts=("${BASH_REMATCH[@]:1:3}")
    elif ((code == 0)); then
      counts=(1 0 0) # something was measured
    elif ((code == 77)); then
      counts=(0 0 1)
    fi
    status=passed
    if [[ $budget ]] && ((code == 124 || code == 137)) && (($(left) <= 0)); then
      status=unfinished counts=(0 0 0)
    # Whatever went wrong beside the tests, such as what a sanitizer found, counts too.
    elif ((code != 0 && code != 77 && counts[1] == 0)); then
      ((counts[1] += 1))
    fi
    ((counts[1] > 0)) && status=failed
    ((code == 77)) && status=skipped
  fi
  keep "$number" "$status" $((SECONDS - began)) "${counts[@]}"
  ((passed += counts[0], failed += counts[1], skipped += counts[2]))
}

# kept NUMBER: whether an earlier run with a budget has dealt with it; adds its counts.
kept() {
  [[ $budget && -f $build/parts/$1 ]] || return
  local known
  mapfile -t known <"$build/parts/$1"
  [[ ${known[0]} == "${names[$1]}" && ${known[2]} == passed && ${known[1]} == "$(fingerprint "${commands[$1]}")" ]] ||
    return
  ((passed += known[4], failed += known[5], skipped += known[6]))
  return 0 # whatever these add up to
}

# tried NUMBER: whether an earlier run with a budget has begun it and not seen it pass.
tried() {
  [[ $budget && -f $build/parts/$1 ]] || return
  local known
  mapfile -t known <"$build/parts/$1"
  [[ ${known[0]} == "${names[$1]}" && ${known[2]} =~ ^(unfinished|failed|not built)$ && ${known[3]} -gt 0 &&
    ${known[1]} == "$(fingerprint "${commands[$1]}")" ]]
}

# Builds and runs the parts, and exits.
run_parts() {
  local number unfinished=0 built fresh=() again=()
  passed=0 failed=0 skipped=0
  mkdir -p "$build/parts"
  # What has taken a budget before comes last, or one part that hangs would keep all others from it.
  for number in "${!names[@]}"; do
    if tried "$number"; then again+=("$number"); else fresh+=("$number"); fi
  done
  for number in "${fresh[@]}" "${again[@]}"; do
    kept "$number" && continue
    if [[ $budget ]] && (($(left) <= 0)); then
      keep "$number" unfinished 0 0 0 0
      ((unfinished += 1))
      continue
    fi
    if [[ ${programs[number]} ]]; then
      # shellcheck disable=SC2086
      build_programs ${programs[number]}
      built=$?
      if ((built != 0)); then
        if [[ $budget ]] && (($(left) <= 0)); then
          keep "$number" unfinished 0 0 0 0
          ((unfinished += 1))
        else
          keep "$number" "not built" 0 0 1 0
          ((failed += 1))
        fi
        continue
      fi
    fi
    run_part "$number"
    [[ $status == unfinished ]] && ((unfinished += 1))
  done
  python3 tests/gpu/report.py "$build" "${#names[@]}" "$nvcc" "$nccl" "$sanitizer_program"
  ((unfinished)) && printf '%d parts are left; the same call goes on with them\n' "$unfinished"
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  ((failed)) && exit 1
  ((unfinished)) && exit 75
  ((passed)) && exit
  exit 77
}
