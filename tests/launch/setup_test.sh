#!/usr/bin/env bash
# setup_test.sh SETUP: checks that sourcing setup.sh installs nothing if all packages are installed, neither
# uses nor changes the arguments of the sourcing script, installs without questions, counts the cores and the
# memory of this container, and lets ccache write.
set -euo pipefail
setup=$1
command -v dpkg-query >/dev/null || { echo "Skipped: not a Debian system"; exit 77; }
apt-get() { echo "setup.sh ran apt-get $*"; exit 1; }
sudo() { "$@"; }

set -- --set train.epochs=1
source "$setup"
[ "$*" = "--set train.epochs=1" ] || { echo "setup.sh changed the arguments to $*"; exit 1; }
# Every package is installed for two architectures.
(
  dpkg-query() { printf '%s installed\n' "${@:3}" "${@:3}"; }
  source "$setup"
)

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
printf '#!/bin/sh\nexec env -i PATH="$PATH" "$@"\n' >"$tools/sudo"
printf '#!/bin/sh\necho "$DEBIAN_FRONTEND $*" >>"%s/calls"\n' "$tools" >"$tools/apt-get"
chmod +x "$tools/sudo" "$tools/apt-get"
# A user who is not root, whose sudo passes no variable on, needs a package.
with_missing_package() (
  unset -f apt-get sudo
  id() { echo 1000; }
  PATH=$tools:$PATH
  more_packages=(no-such-package-of-debian)
  source "$setup"
)
with_missing_package >/dev/null
grep -q '^noninteractive install .*-recommends no-such-package-of-debian$' "$tools/calls" ||
  { echo "setup.sh called apt-get with: $(cat "$tools/calls")"; exit 1; }

# apt-get has no such package, or there is no network.
printf '#!/bin/sh\nexit 100\n' >"$tools/apt-get"
code=0
with_missing_package >/dev/null 2>"$tools/said" || code=$?
[ $code -eq 78 ] && grep -q no-such-package-of-debian "$tools/said" ||
  { echo "setup.sh ended with exit code $code after apt-get failed: $(cat "$tools/said")"; exit 1; }

# The other checks do not depend on packages.
dpkg-query() { printf '%s installed\n' "${@:3}"; }

# The cores that OpenMP may use are not the machine's.
(
  export OMP_NUM_THREADS=100000
  source "$setup"
  [ "$cores" -lt 100000 ] || { echo "setup.sh takes OMP_NUM_THREADS for the number of cores"; exit 1; }
)

# A container's quota is the time of half a core.
(
  cat() { echo 50000 100000; }
  source "$setup"
  [ "$cores $jobs" = "1 1" ] || { echo "with a quota of half a core setup.sh counts $cores cores"; exit 1; }
)

# flags_with LIMIT: the compiler's flags, the limit of compilers, and the jobs, on a machine of 16 TiB in a container with this
# limit of memory.
flags_with() (
  limit=$1 CXX=g++ CXXFLAGS=
  unset CMAKE_BUILD_PARALLEL_LEVEL
  sed() { echo $((16 << 30)); }
  cat() { echo "$limit"; }
  source "$setup"
  echo "$CXXFLAGS, ${CMAKE_BUILD_PARALLEL_LEVEL:-no} limit, $jobs at once"
)
[[ $(flags_with max) == *"ggc-min-heapsize"*", no limit, $(env -u OMP_NUM_THREADS nproc) at once" ]] ||
  { echo "with 16 TiB of memory setup.sh sets: $(flags_with max)"; exit 1; }
[ "$(flags_with $((1 << 30)))" = ", 1 limit, 1 at once" ] ||
  { echo "with a container's limit of 1 GiB setup.sh sets: $(flags_with $((1 << 30)))"; exit 1; }

# cache_with HOME: ccache's folder.
cache_with() (
  unset CCACHE_DIR
  HOME=$1
  source "$setup"
  echo "${CCACHE_DIR:-}"
)
[ -z "$(cache_with "$tools")" ] || { echo "setup.sh moves ccache's folder out of a writable HOME"; exit 1; }
[[ $(cache_with /nonexistent) == */build/ccache ]] || { echo "setup.sh leaves ccache a HOME that does not exist"; exit 1; }
