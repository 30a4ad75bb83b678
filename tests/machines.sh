#!/usr/bin/env bash
# Runs one training on each of several kinds of machines, users and folders. Cases that this machine cannot
# emulate are skipped by name.
#
#   tests/machines.sh [BUILD] [CASE ..]        default: build/cpu, all cases
set -uo pipefail
unset CDPATH  # with it, cd may choose a folder of another clone
cd "$(dirname "${BASH_SOURCE[0]}")/.."
all=(root_in_a_container one_core user_that_is_not_root home_that_is_read_only small_shared_memory no_shared_memory
  other_language install_that_was_moved folder_of_odd_name other_compiler)
build=build/cpu
if [ $# -gt 0 ] && [[ " ${all[*]} " != *" $1 "* ]]; then
  build=$1
  shift
fi
cases=("$@")
[ $# -gt 0 ] || cases=("${all[@]}")
for name in "${cases[@]}"; do
  [[ " ${all[*]} " == *" $name "* ]] || { echo "tests/machines.sh: unknown case \"$name\"; allowed are ${all[*]}" >&2; exit 64; }
done
[ "${cases[*]}" = folder_of_odd_name ] || [ -x "$build/bin/lockstep" ] ||
  { echo "tests/machines.sh: \"$build/bin/lockstep\" is missing; \"tests/run.sh cpu list\" builds it in build/cpu; cases are ${all[*]}" >&2
    exit 74; }
build=$(realpath -m "$build")  # folder_of_odd_name needs none
program=$build/bin/lockstep
work=$(mktemp -d) || exit 74
trap 'rm -rf "$work"' EXIT
chmod 1777 "$work"  # another user also creates folders there
plain=(env -u OMPI_ALLOW_RUN_AS_ROOT -u OMPI_ALLOW_RUN_AS_ROOT_CONFIRM)

# train [PROGRAM]: trains with PROGRAM (default: the build's) into a new folder.
train() {
  local run
  run=$(mktemp -d "$work/run.XXXXXX") && chmod 777 "$run" &&
    "${1:-$program}" train fashion_mnist_mlp --ranks 2 --set train.steps=3 --set train.batch=16 --set kernels.choose=direct \
      --set run.measure_peak=false --set "run.dir=$run/run" --export "$run/weights.safetensors" && test -s "$run/weights.safetensors"
}
export -f train
export program work

skip() { echo "$*"; return 77; }
as_root() { [ "$(id -u)" -eq 0 ] || skip "needs root"; }
in_namespace() { unshare -m true 2>/dev/null || skip "needs a mount namespace"; }

root_in_a_container() { as_root && "${plain[@]}" bash -c train; }
one_core() { "${plain[@]}" taskset -c "$(awk -F '[\t,-]' '/^Cpus_allowed_list/ { print $2 }' /proc/self/status)" bash -c train; }
user_that_is_not_root() {
  local as_nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  as_root && { "${as_nobody[@]}" test -x "$program" || skip "needs a build that every user may read"; } &&
    "${plain[@]}" HOME=/nonexistent "${as_nobody[@]}" bash -c 'cd / && train'
}
home_that_is_read_only() { "${plain[@]}" HOME=/proc bash -c train; }
small_shared_memory() { in_namespace && unshare -m bash -c 'mount -t tmpfs -o size=64m shm /dev/shm && train'; }
no_shared_memory() { in_namespace && unshare -m bash -c 'mount -t tmpfs -o ro,size=4k shm /dev/shm && train'; }
other_language() {
  local locale=$work/locale
  mkdir -p "$locale"
  localedef -i de_DE -f UTF-8 "$locale/de_DE.UTF-8" 2>/dev/null || { skip "no source of locales (Debian: locales)"; return; }
  LOCPATH=$locale LC_ALL=de_DE.UTF-8 bash -c train
}
install_that_was_moved() {
  cmake --install "$build" --prefix "$work/installed" >/dev/null && mv "$work/installed" "$work/moved" &&
    bash -c 'train "$work/moved/bin/lockstep"'
}
# The first command of the README, in a folder whose name has a space and letters beyond ASCII. A copy of the
# sources as they are, also without git.
folder_of_odd_name() {
  mkdir "$work/Größe und Maß" && tar -c --exclude=./build --exclude=./runs --exclude=./.git . | tar -xC "$work/Größe und Maß" &&
    cd "$work/Größe und Maß" &&
    launch/quickstart.sh --set train.epochs=1 --set run.dir="$work/run of it" &&
    cmake --build build/cpu && cmake --install build/cpu --prefix "$work/installed of it" >/dev/null
}
other_compiler() {
  local name own compiler
  # The build's compiler, which is g++-13 or g++-14 on newer systems.
  own=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
  for name in g++-14 g++-13 clang++; do
    compiler=$(command -v "$name") && [ ! "$compiler" -ef "$own" ] &&
      "$compiler" -fopenmp -x c++ -o "$work/with_openmp" - <<<'int main() {}' && break
    compiler=
  done
  [ -n "$compiler" ] || { skip "no second compiler with OpenMP (Debian: clang, libomp-dev)"; return; }
  cmake -S . -B "$work/other" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_TESTS=OFF \
    -DCMAKE_UNITY_BUILD=ON >/dev/null && cmake --build "$work/other" --target lockstep &&
    bash -c 'train "$work/other/bin/lockstep"'
}

failed=0
for name in "${cases[@]}"; do
  code=0
  ("$name") >"$work/output" 2>&1 || code=$?
  case $code in
    0) echo "$name: trained" ;;
    77) echo "$name: skipped: $(tail -n 1 "$work/output")" ;;
    *) echo "$name: FAILED with exit code $code"; tail -n 30 "$work/output"; failed=1 ;;
  esac
done
exit $failed
