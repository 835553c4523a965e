#!/usr/bin/env bash
# Does what a new user does, on a Debian 12 that has nothing else. See --help.
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/install/bare_debian.sh [OPTION...] [COMMAND...]

Makes a bare Debian 12 in a temporary folder, clones this repository's HEAD into it, and runs the commands there, in the clone and as
root: README's two unless others are given. Prints how long each took, and ends with 1 when one fails. The machine's own mirrors,
proxies and certificates are used. Takes debootstrap and root; where they are missing the exit code is 77.

  --with PACKAGE   install this first; may be given more than once
  --base FOLDER    keep the Debian in FOLDER, and take that which is there. Commands change a copy
  --ccache FOLDER  let what is compiled with ccache come from there
END
}

# In namespaces of its own, so that nothing stays mounted or runs on.
if [[ ! ${IN_NAMESPACES-} && ${1-} != --help ]]; then
  if ((EUID != 0)) || ! command -v debootstrap >/dev/null || ! unshare --mount --pid --fork true; then
    echo "This takes root, namespaces and debootstrap (apt-get install debootstrap)." >&2
    exit 77
  fi
  IN_NAMESPACES=1 unshare --mount --pid --ipc --fork --kill-child=TERM "$0" "$@" &
  outside=$!
  # unshare itself ignores it.
  trap 'kill -TERM $(<"/proc/$outside/task/$outside/children")' HUP INT TERM
  status=0
  while [[ -d /proc/$outside ]]; do
    wait "$outside" && status=0 || status=$?
  done
  exit "$status"
fi

packages=()
base=
ccache=
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --with | --base | --ccache) (($# > 1)) || { usage >&2 && exit 2; } ;;&
    --with) packages+=("$2") ;;
    --base) base=$2 ;;
    --ccache) ccache=$2 ;;
    -*) usage >&2 && exit 2 ;;
    *) break ;;
  esac
  shift 2
done
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
commands=("$@")
if ((${#commands[@]} == 0)); then
  mapfile -t commands < <(sed -n '/^## Two commands/,/^The first/{s/ *#.*//;s/^    //p}' "$root/README.md")
  ((${#commands[@]} == 2)) || { echo "README.md no longer has two commands" >&2 && exit 1; }
fi

folder=$(mktemp -d -p /var/tmp bare-debian.XXXXXX)
new=$folder/new
# shellcheck disable=SC2317  # called by the trap
cleanup() {
  # What still runs in this namespace, whose first process this is, keeps its files from being unmounted.
  { (($$ != 1)) || kill -KILL -1 || true; wait; } 2>/dev/null
  # Those that have been killed may need a moment to end.
  umount --recursive "$new" 2>/dev/null || umount --recursive --lazy "$new" 2>/dev/null || true
  rm -rf --one-file-system "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
debian=${base:-$folder/debian}

# timed WHAT COMMAND...: runs it and says how long it took.
timed() {
  local what=$1 begin=$SECONDS status=0
  shift
  # In the background, because bash handles no signal before a command in the foreground has ended.
  "$@" </dev/null &
  wait "$!" || status=$?
  printf '==== %s: %s after %d:%02d min\n' "$what" "$( ((status)) && echo "failed with $status" || echo ok)" \
    $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60))
  return "$status"
}

# The suites of Debian 12 that this machine knows of, as lines of sources.list.
sources() {
  # shellcheck disable=SC2016  # apt-get replaces these
  apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
    awk '$1 == "Debian" && $3 ~ /^bookworm(-updates|-security|$)/ { print "deb", $2, $3, $4 }' | sort -u
}

# shellcheck disable=SC2317  # called by timed
make_debian() {
  local mirror
  mirror=$(sources | awk '$3 == "bookworm" { print $2; exit }')
  debootstrap --variant=minbase bookworm "$1.part" ${mirror:+"$mirror"} >"$folder/log" 2>&1 || {
    tail -n 20 "$folder/log"
    return 1
  }
  mv "$1.part" "$1"
}

# mount_copy: has a copy of the Debian at $new, with what a kernel and an administrator give a machine.
mount_copy() {
  local certificates=/etc/ssl/certs/ca-certificates.crt own=/usr/local/share/ca-certificates
  mkdir "$folder/upper" "$folder/work" "$new"
  mount -t overlay copy -o "lowerdir=$debian,upperdir=$folder/upper,workdir=$folder/work" "$new"
  mount --rbind /dev "$new/dev"
  mount -t tmpfs shm "$new/dev/shm"
  mount -t proc proc "$new/proc"
  mount -t sysfs sysfs "$new/sys"
  mount -t tmpfs run "$new/run"
  cat /etc/resolv.conf >"$new/etc/resolv.conf"
  cat /etc/hosts >"$new/etc/hosts"
  if [[ $(sources) ]]; then sources >"$new/etc/apt/sources.list"; fi
  apt-config dump | grep -E '^Acquire::(https?|Check|Retries)' >"$new/etc/apt/apt.conf.d/99host" || true
  if [[ -e $certificates ]]; then install -D -m 644 "$certificates" "$new$certificates"; fi
  # The package ca-certificates makes that file anew, of its own and of these.
  if compgen -G "$own/*.crt" >/dev/null; then install -D -m 644 -t "$new$own" "$own"/*.crt; fi
  if [[ $ccache ]]; then mkdir "$new/ccache" && mount --bind "$ccache" "$new/ccache"; fi
}

# Nothing else of this machine's environment.
user=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8)
while IFS= read -r name; do
  user+=("$name=${!name}")
done < <(compgen -e | grep -E '^(https?_proxy|no_proxy|PIP_(CERT|INDEX_URL|DEFAULT_TIMEOUT))$')
if [[ $ccache ]]; then user+=(CCACHE_DIR=/ccache); fi

# enter COMMAND: runs it there.
# shellcheck disable=SC2317  # called by timed
enter() {
  env -i "${user[@]}" chroot "$new" bash -c "cd /root && { [[ ! -d moeccl ]] || cd moeccl; } && $1"
}

[[ -d $debian ]] || timed "a bare Debian" make_debian "$debian"
mount_copy
if ((${#packages[@]})); then
  timed "with ${packages[*]}" enter "apt-get -qq update &&
    DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends ${packages[*]} >/dev/null"
fi
git clone -q "$root" "$new/root/moeccl"
failed=0
for command in "${commands[@]}"; do
  timed "$command" enter "$command" || failed=1
done
exit "$failed"
