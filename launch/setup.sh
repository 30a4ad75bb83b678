#!/usr/bin/env bash
# Installs the missing Debian packages of Lockstep's build and of the array more_packages.
# Sourced by quickstart.sh and the scripts in tests/; changes to the repository's root, sets cores and jobs, and limits
# the compilers that `cmake --build` starts at once to those that fit into memory.
set -euo pipefail
unset CDPATH  # with it, cd may choose a folder of another clone
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(cmake ninja-build g++ openmpi-bin libopenmpi-dev libdnnl-dev libcli11-dev libtomlplusplus-dev
  nlohmann-json3-dev libspdlog-dev libfmt-dev libxxhash-dev libisal-dev zlib1g-dev libturbojpeg0-dev libspng-dev libcsv-dev
  dataset-fashion-mnist ${more_packages[@]+"${more_packages[@]}"})

# A library of two architectures has two lines. The call fails if it does not know a package.
states=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  [[ $'\n'$states$'\n' == *$'\n'"$package installed"$'\n'* ]] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  by_hand() {
    echo "$1: install ${missing[*]} by hand, then run cmake --preset cpu -DLOCKSTEP_TESTS=OFF && cmake --build --preset cpu" >&2
    exit 78
  }
  command -v apt-get >/dev/null || by_hand "Not a Debian system"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "As root, run: apt-get install ${missing[*]}" >&2; exit 78; }
    as_root=(sudo)
  fi
  echo "Installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq || true  # fails also where another repository of this machine does
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    by_hand "apt-get failed, for the reason above"
fi

# nproc returns OMP_NUM_THREADS if it is set.
cores=$(env -u OMP_NUM_THREADS nproc)
ninja_starts=$((cores + 2))  # compilers at once, without a limit
# A container may have less time than its cores (docker run --cpus): "QUOTA PERIOD" in microseconds, or "max PERIOD".
# The other files are those of version 1 of control groups.
quota=$(cat /sys/fs/cgroup/cpu.max 2>/dev/null || paste -d ' ' /sys/fs/cgroup/cpu/cpu.cfs_{quota,period}_us 2>/dev/null || true)
if [[ $quota =~ ^([0-9]+)\ ([0-9]+)$ ]] && [ $((BASH_REMATCH[1] / BASH_REMATCH[2])) -lt "$cores" ]; then
  cores=$((BASH_REMATCH[1] / BASH_REMATCH[2]))
  [ $cores -gt 0 ] || cores=1
fi

# With 4 GiB per core, GCC collects garbage only above 1 GiB, which saves a tenth of the compile time.
# A container may have less memory than the machine.
memory_kib=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)
# In bytes, or "max". The second file is that of version 1 of control groups.
memory_limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || true)
if [[ $memory_limit =~ ^[0-9]+$ ]] && [ $((memory_limit >> 10)) -lt "${memory_kib:-0}" ]; then
  memory_kib=$((memory_limit >> 10))
fi
if [ "${memory_kib:-0}" -gt $((cores * 4 << 20)) ] && [[ ${CXX:-g++} != *clang* && ${CXXFLAGS:-} != *ggc-min-heapsize* ]]; then
  export CXXFLAGS="${CXXFLAGS:-} --param ggc-min-heapsize=1048576"
fi
# Compiling a unity batch takes up to about 1.5 GiB.
compilers=$((cores + 2)) fitting=$((memory_kib / (3 << 19)))
[ -z "$memory_kib" ] || [ $fitting -ge $compilers ] || compilers=$((fitting > 0 ? fitting : 1))
[ $compilers -ge $ninja_starts ] || export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$compilers}
# The number of cores that compilers, tests or fuzzers can use at once with this memory.
jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-$cores}
[ "$jobs" -lt "$cores" ] || jobs=$cores

# Containers may start with a user ID that has no writable home folder; ccache then fails.
if [ -z "${CCACHE_DIR:-}" ] && [ ! -w "${HOME:-/nonexistent}" ]; then export CCACHE_DIR=$PWD/build/ccache; fi

# Open MPI starts as root, as in containers, only with both variables.
if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
