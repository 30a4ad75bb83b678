#!/usr/bin/env bash
# Cross-compiles the program and the unit tests of core, kernels, data and models for Arm (aarch64), and runs
# those tests with qemu. Needs Debian 12 on x86-64. Too slow for every change; run it when a loop or a check of
# the processor changes, and before a release.
#   tests/aarch64.sh [CTEST OPTION ..]      default: all of these tests, one per core
set -euo pipefail
more_packages=(g++-aarch64-linux-gnu qemu-user-static mmdebstrap uidmap ccache xz-utils)
source "$(dirname "${BASH_SOURCE[0]}")/../launch/setup.sh"

# Unpacks Arm's libraries into a folder, without changing this system.
root=$PWD/build/aarch64-root
libraries=$root/usr/lib/aarch64-linux-gnu
if [ ! -e "$libraries/libdnnl.so" ]; then
  rm -rf "$root" "$root.new"
  # In this mode no package's script runs.
  mmdebstrap --variant=extract --architectures=arm64 --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --include=libc6-dev,libstdc++-12-dev,libopenmpi-dev,libdnnl-dev,libspdlog-dev,libfmt-dev,libxxhash-dev,libisal-dev \
    --include=zlib1g-dev,libturbojpeg0-dev,libspng-dev,libcsv-dev,libgtest-dev,libhdf5-dev,libcli11-dev,libtomlplusplus-dev,nlohmann-json3-dev \
    bookworm "$root.new" "deb http://deb.debian.org/debian bookworm main"
  mv "$root.new" "$root"  # whole
fi

build=build/aarch64
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DLOCKSTEP_TESTS=ON \
  -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_SYSROOT="$root" -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu \
  -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY \
  -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY \
  -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-aarch64-static;-L;$root" \
  -DMPI_CXX_SKIP_MPICXX=ON -DMPI_CXX_LIB_NAMES=mpi -DMPI_mpi_LIBRARY="$libraries/openmpi/lib/libmpi.so" \
  -DMPI_CXX_HEADER_DIR="$libraries/openmpi/include" >/dev/null
# Without hdf5_test, which starts another program and limits its memory: qemu does neither for Arm programs.
tests=(core_test data_test kernels_affine_test kernels_norm_test kernels_chosen_test kernels_golden_test models_test)
cmake --build "$build" --target lockstep "${tests[@]}"
IFS='|'
# Without MeasuredPeak, which compares speeds: qemu's are not those of a processor.
ctest --test-dir "$build" --output-on-failure --no-tests=error -R "^(${tests[*]})\." -E "\.at_(baseline|avx2|avx512)$|MeasuredPeak" -j "$jobs" "$@"
