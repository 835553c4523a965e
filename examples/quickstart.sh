#!/usr/bin/env bash
# moeccl's main job, from a clean clone to a table. See --help.
set -euo pipefail

usage() {
  cat <<'END'
usage: examples/quickstart.sh [OPTION...]

Installs what is missing (as root or with sudo), builds moeccl, brings up an emulated cluster, runs a
Mixture-of-Experts layer over English text under two schedules and two algorithms of each, checks
every output on every rank against a single-process reference, prints one table, and takes the cluster
down again. The exit code is 0 only if everything was right.

  --nodes N                 nodes of the cluster (2)
  --ranks-per-node G[,G..]  ranks in each node: one number, or one for each node (4)
  --uplink RATE             what each node's uplink carries, as in 1gbit, or none: unshaped (100mbit)
  --text FILE               English to take words from; may be given more than once (the licences that
                            Debian's base-files keeps in /usr/share/common-licenses)
  --build DIR               build there (build/ in the repository)
  --help                    show this help

and the program's:

  --tokens N, --embedding N, --hidden N, --experts N, --top-k N, --capacity-factor F   the layer
  --mp N, --ep N, --esp N                                                              the grid
  --alltoall A,B  --dispatch A,B  --iterations N  --warm-up N  --tolerance X  --seed N

which DIR/examples/quickstart/quickstart --help explains.
END
}

wrong() {
  echo "examples/quickstart.sh: $1" >&2
  echo "See examples/quickstart.sh --help." >&2
  exit 2
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
nodes=
ranks=4
uplink=100mbit
texts=()
options=()
while (($#)); do
  if [[ $1 == --*=* ]]; then set -- "${1%%=*}" "${1#*=}" "${@:2}"; fi
  case $1 in
    -h | --help) usage && exit ;;
    --check | --uplink-counter) wrong "there is no option $1" ;;
    --*) (($# > 1)) || wrong "$1 needs a value" ;;&
    --nodes) nodes=$2 ;;
    --ranks-per-node) ranks=$2 ;;
    --uplink) uplink=$2 ;;
    --build) build=$2 ;;
    --text)
      [[ -r $2 ]] || wrong "--text $2: there is no such file, or it cannot be read"
      texts+=(--text "$(realpath "$2")")
      ;;
    --*) options+=("$1" "$2") ;;
    *) wrong "\"$1\" is no option" ;;
  esac
  shift 2
done
if [[ -z $nodes ]]; then
  commas=${ranks//[^,]/}
  nodes=2
  [[ -z $commas ]] || nodes=$((${#commas} + 1))
fi
if ((${#texts[@]} == 0)); then
  for name in GPL-3 GPL-2 LGPL-2.1 GFDL-1.3 MPL-2.0 Apache-2.0; do
    texts+=(--text "/usr/share/common-licenses/$name")
  done
fi
options+=("${texts[@]}" --uplink "$uplink")

# shellcheck source=tests/packages.sh
source "$root/tests/packages.sh"
ensure_packages "${build_packages[@]}" "${lab_packages[@]}"
use_compiler_cache "$root"

# The build folder is tests/run.sh's; only what the quickstart needs is built in it.
target=examples/quickstart/quickstart
program=$build/$target
log=$(mktemp)
scratch=("$log")
trap 'rm -f "${scratch[@]}"' EXIT
configure=()
if [[ ! -f $build/build.ninja ]]; then
  configure=(meson setup "$build" "$root" -Dbuildtype=release -Ducx=enabled)
elif ! meson introspect "$build" --buildoptions | python3 -c 'import json, sys
sys.exit(all(each["value"] != "enabled" for each in json.load(sys.stdin) if each["name"] == "ucx"))'; then
  # It may be one without UCX.
  configure=(meson setup --reconfigure "$build" "$root" -Ducx=enabled)
fi
if ((${#configure[@]})); then
  echo "Configuring $build ..."
  if ! "${configure[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
  fi
fi
echo "Building ..."
ninja -C "$build" "$target"
"$program" --check "${options[@]}"

lab=$root/perf/moeccl-lab
name=quickstart-$$
running=
# shellcheck disable=SC2317  # called by the trap
cleanup() {
  if [[ $running ]]; then kill "$running" 2>/dev/null || true; fi
  "$lab" down --name "$name" >/dev/null || true
  rm -f "${scratch[@]}"
}
trap cleanup EXIT
# A signal ends the script by way of the trap above.
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

export OPENBLAS_NUM_THREADS=1 # ranks outnumber cores
# In the background, because bash handles no signal before a command in the foreground has ended.
run_ranks() {
  "$lab" run --no-prefix "$@" "${options[@]}" &
  running=$!
  wait "$running"
  running=
}
status=0
"$lab" up --name "$name" --nodes "$nodes" --ranks-per-node "$ranks" --uplink "$uplink" || status=$?
if ((status == 3)); then
  echo "No emulated cluster here: ranks run unshaped and uncounted, told by MOECCL_NODE_ID which node"
  echo "is theirs. Times say nothing about slow links."
  [[ $ranks == *,* ]] || ranks=${nodes}x$ranks
  run_ranks --emulate "$ranks" -- "$program"
  exit
fi
((status == 0)) || exit "$status"

counter=/sys/class/net/eth0/statistics/tx_bytes # a node's own end of its uplink
options+=(--uplink-counter "$counter")
run_ranks --name "$name" -- "$program"

# The program has read its nodes' ends of the uplinks; the lab's counters are the switch's. Connections may
# take a moment to close.
for ((try = 0; try < 20; ++try)); do
  ends=$(for ((node = 0; node < nodes; ++node)); do
    "$lab" exec --name "$name" "$node" -- cat "$counter"
  done)
  switch=$("$lab" counters --name "$name" --json | python3 -c '
import json, sys
for node in json.load(sys.stdin)["nodes"]:
    print(node["sent_bytes"])')
  if [[ $ends == "$switch" ]]; then
    echo "Counters: nodes and switch agree on what crossed the uplinks in all, in bytes: ${ends//$'\n'/, }"
    exit 0
  fi
  sleep 0.1
done
echo "The nodes have counted these bytes as sent: ${ends//$'\n'/, }" >&2
echo "and the switch of the lab these: ${switch//$'\n'/, }" >&2
exit 1
