# shellcheck shell=bash
# shellcheck disable=SC2154  # $build, $budget and others are those of who sources this file
# Sourced by tests/run_gpu.sh: parts of a run, each a command with the programs that it needs. What became of each is
# kept in $build/parts, so that a run with a budget goes on where the one before stopped.

names=() limits=() programs=() commands=() reasons=()
# part NAME SECONDS PROGRAMS COMMAND...: with a budget the command takes no more than so many seconds of it.
part() {
  local command
  printf -v command '%q ' "${@:4}"
  names+=("$1") limits+=("$2") programs+=("$3") commands+=("$command") reasons+=("")
}
# absent NAME REASON: a part that cannot be run here.
absent() { names+=("$1") limits+=(0) programs+=("") commands+=("") reasons+=("$2"); }

# A sum of the sources, the GPU's model, the libraries and how a part is called: what passed with another is run again. The
# same wherever the repository is, and whichever of a machine's GPUs is lent.
fingerprint() {
  local model=${gpu% (UUID*}
  [[ $gpu == /dev/* ]] && model="a GPU"
  printf '%s\n' "$sources_sum" "$arch" "$model" "$library_versions" "${1//"$root/"/}" | cksum
}

# Parts leave some of the budget for their own end and for the page: 15 s of 420.
left() { echo $((budget - budget / 28 - SECONDS)); }
# The same for timeout, which takes 0 for no limit and nothing below.
timeout_left() { echo $(($(left) > 0 ? $(left) : 1)); }

# share NUMBER: seconds that a part may take, and thrice as many where that was not enough before.
share() {
  local seconds=${limits[$1]}
  [[ " ${again[*]} " == *" $1 "* ]] && ((seconds *= 3))
  echo $((seconds < $(timeout_left) ? seconds : $(timeout_left)))
}

# note NUMBER STATUS SECONDS PASSED FAILED SKIPPED: no half of it is left where the run is killed.
note() {
  printf '%s\n' "${names[$1]}" "$(fingerprint "${commands[$1]}")" "${@:2}" >"$build/parts/new" &&
    mv "$build/parts/new" "$build/parts/$1"
}
keep() { note "$@" && python3 tests/gpu/report.py after "$build" "$results"; }
# keep_rows NUMBER: what it has measured, unless an earlier run had the time for more.
keep_rows() {
  local rows=$build/parts/$1.jsonl
  [[ -f $rows.new ]] || return
  if [[ ! -f $rows ]] || (($(wc -l <"$rows.new") >= $(wc -l <"$rows"))); then mv "$rows.new" "$rows"; else rm "$rows.new"; fi
}

stopped= # this script is told to end
# run_command NUMBER SHARE: nothing that it has started outlives it, nor it its share; 0 for no limit.
run_command() {
  local group code=0
  timeout --kill-after=5 "$2" bash -c "${commands[$1]}" &
  group=$! # timeout leads a process group of its own
  trap 'stopped=1; kill -TERM -- "-$group" 2>/dev/null' INT TERM
  wait "$group" || code=$?
  [[ $stopped ]] && wait "$group" # now it is the group that ends
  kill -KILL -- "-$group" 2>/dev/null
  trap - INT TERM
  return "$code"
}

# run_part NUMBER: sets $status, and adds to $passed, $failed and $skipped.
run_part() {
  local number=$1 began=$SECONDS took code printed reader log=$build/parts/$1.log counts=(0 0 0) told
  local share=0 earlier=() lacking=
  printf '\n==== %s: %s\n' "${names[number]}" "${commands[number]:-${reasons[number]}}"
  if [[ -z ${commands[number]} ]]; then
    status=skipped counts=(0 0 1)
  else
    [[ $budget ]] && share=$(share "$number")
    if ! known "$number"; then
      note "$number" unfinished 0 0 0 0
    elif [[ ${known[2]} == failed ]]; then
      earlier=("${known[@]:4}")
      [[ -f $log.failed ]] || mv "$log" "$log.failed"
    fi
    # A signal to this whole process group must not end what writes the part's last words.
    exec {printed}> >(trap '' INT TERM; exec python3 tests/gpu/keep_end.py "$build" "$number" "$results")
    reader=$!
    MEASUREMENTS=$build/parts/$number.jsonl.new run_command "$number" "$share" >&"$printed" 2>&1
    code=$?
    (trap '' PIPE; printf '\0over\0' >&"$printed") # a process that is left may hold the pipe open
    exec {printed}>&-
    wait "$reader"
    [[ $stopped ]] && exit 143 # the reader has written what the part has printed and measured
    told=$(grep -aoE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' "$log" | tail -1)
    case ${names[number]} in
      *", measured") [[ -s $build/parts/$number.jsonl.new ]] || lacking="nothing was measured" ;;
      counters) ;;
      *) [[ $told ]] || lacking="no test was counted" ;;
    esac
    keep_rows "$number"
    if [[ $told ]]; then
      mapfile -t counts < <(grep -oE '[0-9]+' <<<"$told")
    elif ((code == 0)); then
      counts=(1 0 0) # something was measured
    elif ((code == 77)); then
      counts=(0 0 1)
    fi
    status=passed
    if [[ $budget ]] && ((code == 124 || code == 137)) && ((SECONDS - began >= share - 1)); then
      status=unfinished counts=(0 "$(grep -c '^FAILED ' "$log")" 0)
    # Whatever went wrong beside the tests, such as what a sanitizer found, counts too.
    elif ((code != 0 && code != 77 && counts[1] == 0)); then
      ((counts[1] += 1))
    elif [[ $lacking ]] && ((code == 0)); then
      echo "${names[number]}: $lacking"
      counts=(0 1 0)
    fi
    ((counts[1] > 0)) && status=failed
    ((code == 77 && counts[1] == 0)) && status=skipped
  fi
  took=$((SECONDS - began))
  # Where the end of the budget cut it off, it has not been tried; but a budget may be shorter than its share.
  [[ $status == unfinished ]] && ((took < limits[number] && 2 * took < budget)) && took=0
  # What has failed has failed until it has run to its end.
  if [[ $status == unfinished && ${earlier[*]} ]]; then status=failed counts=("${earlier[@]}"); else rm -f "$log.failed"; fi
  keep "$number" "$status" "$took" "${counts[@]}"
  ((passed += counts[0], failed += counts[1], skipped += counts[2]))
}

# known NUMBER: whether an earlier run with a budget has dealt with it; sets $known to what it kept.
known() {
  [[ $budget && -f $build/parts/$1 ]] || return
  mapfile -t known <"$build/parts/$1"
  ((${#known[@]} == 7)) && [[ ${known[0]} == "${names[$1]}" && ${known[1]} == "$(fingerprint "${commands[$1]}")" ]]
}
kept() { known "$1" && [[ ${known[2]} == passed ]]; }
# tried NUMBER: whether it was begun and did not pass.
tried() { known "$1" && [[ ${known[2]} =~ ^(unfinished|failed|not\ built)$ && ${known[3]} -gt 0 ]]; }

# put_off NUMBER: the budget does not suffice for it. What has failed before still counts.
put_off() {
  known "$1" && ((failed += known[5]))
  ((unfinished += 1))
}

# Builds and runs the parts, and exits.
run_parts() {
  local number unfinished=0 built fresh=()
  passed=0 failed=0 skipped=0 again=() sources_sum=$(sum_of_sources)
  mkdir -p "$build/parts"
  printf '%s\n' "${names[@]}" >"$build/parts/names"
  python3 tests/gpu/report.py begin "$build" "$nvcc" "$nccl" "$sanitizer_program" "$from" || exit 1
  library_versions=$(python3 tests/gpu/report.py libraries "$build") || exit 1
  # What has taken its share before comes last, or a part that hangs would keep others from the budget. Where a call was
  # killed, what the part has measured that was running stays until there is more.
  for number in "${!names[@]}"; do
    if tried "$number"; then again+=("$number"); else fresh+=("$number"); fi
    if known "$number"; then keep_rows "$number"; else rm -f "$build/parts/$number"{,.log,.log.failed,.jsonl,.jsonl.new}; fi
  done
  for number in "${fresh[@]}" "${again[@]}"; do
    if kept "$number"; then
      ((passed += known[4], failed += known[5], skipped += known[6]))
      continue
    fi
    if [[ $budget ]] && (($(left) <= 0)); then
      put_off "$number"
      continue
    fi
    if [[ ${programs[number]} ]]; then
      # shellcheck disable=SC2086
      build_programs ${programs[number]}
      built=$?
      if ((built != 0)); then
        if [[ $budget ]] && (($(left) <= 0)); then
          put_off "$number"
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
  python3 tests/gpu/report.py after "$build" "$results"
  python3 tests/gpu/report.py table "$build"
  ((unfinished)) && printf '%d parts are left; the same call goes on with them\n' "$unfinished"
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  ((failed)) && exit 1
  ((unfinished)) && exit 75
  ((passed)) && exit
  exit 77
}
