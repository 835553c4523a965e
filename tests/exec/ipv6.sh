#!/bin/sh
# ipv6.sh PROGRAM [ARGUMENT...]: runs a test where the host has no IPv4 address. 77 where namespaces are not allowed.
if [ "${1:-}" != --inside ]; then
  unshare --map-root-user --net true 2>/dev/null || exit 77
  exec unshare --map-root-user --net "$0" --inside "$@"
fi
shift
ip link set lo up && ip address del 127.0.0.1/8 dev lo && [ -z "$(ip -4 -o address)" ] || exit 1
exec "$@"
