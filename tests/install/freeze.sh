#!/usr/bin/env bash
# freeze.sh VERSION: keeps the public headers as those of a release, such as 0.2, in tests/install/frozen/VERSION. From
# then on a program that was built against them must run on every library of that major version.
set -euo pipefail
version=${1:?"which release? for instance: tests/install/freeze.sh 0.2"}
[[ $version =~ ^[0-9]+\.[0-9]+$ ]] || { echo "\"$version\" is not MAJOR.MINOR, as in 0.2" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")"
to=frozen/$version/moeccl
rm -rf "$to"
mkdir -p "$to"
cp ../../include/moeccl/{moeccl,moe,model,route,select}.h "$to"
echo "frozen: tests/install/$to"
grep -q "'$version'" meson.build || echo "now add '$version' to the releases in tests/install/meson.build"
