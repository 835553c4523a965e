#!/bin/sh
# two_families.sh PROGRAM: runs it on two nodes of one rank, one of which has IPv4 and IPv6, the other IPv6 alone; then with the
# ranks the other way round. As some containers do, they share all but the network. 77 where namespaces are not allowed.
if [ "${1:-}" != --inside ]; then
  unshare --map-root-user --net true 2>/dev/null || exit 77
  exec unshare --map-root-user --net "$0" --inside "$@"
fi
program=$2
folder=$(mktemp -d)
unshare --net sleep 100 &
other=$!
trap 'kill $other; rm -r "$folder"' EXIT
there() { nsenter --target "$other" --net "$@"; }

own=$(readlink /proc/self/ns/net)
while [ "$(readlink /proc/$other/ns/net)" = "$own" ]; do sleep 0.01; done
ip link set lo up && ip link add v0 type veth peer name v1 netns $other || exit 77
ip address add 10.9.0.1/24 dev v0 && ip address add fd00::1/64 dev v0 nodad && ip link set v0 up || exit 1
there ip link set lo up && there ip address add fd00::2/64 dev v1 nodad && there ip link set v1 up || exit 1

export MOECCL_NRANKS=2 MOECCL_TIMEOUT=20000
for first in 0 1; do
  export MOECCL_ID_FILE="$folder/id$first"
  MOECCL_NODE_ID=both MOECCL_RANK=$first timeout 60 "$program" &
  rank=$!
  MOECCL_NODE_ID=six MOECCL_RANK=$((1 - first)) there timeout 60 "$program" || exit 1
  wait $rank || exit 1
done
