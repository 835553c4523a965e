#!/usr/bin/env bash
# Installs the PyTorch package from a clone, with all that it needs. See --help.
set -euo pipefail

usage() {
  cat <<'END'
usage: src/bindings/torch/install.sh VENV

Installs the Debian packages that are missing (as root or with sudo), makes the virtual environment VENV where there is none,
installs torch from PyPI where VENV has none, builds the library and the package, and installs them in VENV.
END
}

case ${1---help} in
  -h | --help) usage && exit ;;
  -*) usage >&2 && exit 2 ;;
esac
venv=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
# shellcheck source=tests/packages.sh
source "$root/tests/packages.sh"
ensure_packages "${library_packages[@]}" "${torch_packages[@]}"

[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  echo "Installing torch ..."
  "$venv/bin/pip" install --quiet torch numpy
fi
echo "Building the library and the package ..."
"$venv/bin/pip" install --quiet --force-reinstall --no-deps "$root/src/bindings/torch"
"$venv/bin/python" -c 'import moeccl.torch; print("Installed: moeccl", moeccl.__version__)'
