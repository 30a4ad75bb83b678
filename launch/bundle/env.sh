# SPDX-License-Identifier: Apache-2.0
# Source this file (bash) to run the bundle's programs on this node. It sets LD_LIBRARY_PATH, PATH and
# variables of MPI. It searches, in this order, for
#   CUDA, cuDNN, NCCL   the loader's folders, CUDA_HOME, CUDA_PATH, /usr/local/cuda*, the Python packages
#                       nvidia/*/lib of LOCKSTEP_PEER_PYTHON (or python3), the usual folders of the system
#   Open MPI 4.1, 5.0   LOCKSTEP_MPI, the bundle's mpi/, mpirun on the PATH, the usual folders
# It reports missing libraries on standard error unless LOCKSTEP_BUNDLE_QUIET is set. If the driver is older
# than the programs need, it always reports that and returns 78, unless LOCKSTEP_BUNDLE_DRIVER=any is set.
# shellcheck shell=bash

bundle_say() { [ -n "${LOCKSTEP_BUNDLE_QUIET:-}" ] || echo "lockstep bundle: $*" >&2; }

# The file that the loader selects for a library on this node.
bundle_loader_finds() {
  local folder
  local -a folders=()
  IFS=: read -r -a folders <<<"$bundle_given_path"
  # The long form is for bash 4.3, where an empty list counts as unset.
  for folder in ${folders[@]+"${folders[@]}"}; do
    if [ -n "$folder" ] && [ -e "$folder/$1" ]; then echo "$folder/$1"; return 0; fi
  done
  awk -v name="$1" '$1 == name && /x86-64|aarch64|AArch64/ { print $NF; found = 1; exit } END { exit !found }' \
    <<<"$bundle_loader_cache" && return 0
  for folder in /lib64 /usr/lib64 /lib /usr/lib; do
    if [ -e "$folder/$1" ]; then echo "$folder/$1"; return 0; fi
  done
  return 1
}

# Folders that may hold CUDA's libraries, the likeliest first.
bundle_cuda_folders() {
  local home
  for home in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-*; do
    if [ -n "$home" ]; then printf '%s\n' "$home/lib64" "$home/lib" "$home/targets/x86_64-linux/lib"; fi
  done
  "${LOCKSTEP_PEER_PYTHON:-python3}" -c '
import glob, sys
for folder in sys.path:
    print(*sorted(glob.glob(folder + "/nvidia/*/lib")), folder + "/torch/lib", sep="\n")' 2>/dev/null || true
  printf '%s\n' /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/wsl/lib /usr/lib/x86_64-linux-gnu
}

bundle_add() {  # FOLDER: appends it to LD_LIBRARY_PATH
  case ":$bundle_path:" in *":$1:"*) ;; *) bundle_path=$bundle_path:$1 ;; esac
}

bundle_find_cuda() {
  local folders name folder missing='' major
  local -a names=("$@")
  folders=$(bundle_cuda_folders)
  for name in "$@"; do
    # Libraries that cuDNN loads when a plan needs them.
    major=${name##*.}
    case $name in libcudart.so.*) names+=("libcublas.so.$major" "libcublasLt.so.$major" "libnvrtc.so.$major") ;; esac
  done
  names+=(libcuda.so.1)
  for name in $(printf '%s\n' "${names[@]}" | sort -u); do
    if bundle_loader_finds "$name" >/dev/null; then continue; fi
    while read -r folder; do
      if [ -e "$folder/$name" ]; then bundle_add "$folder"; continue 2; fi
    done <<<"$folders"
    if [ "$name" = libcuda.so.1 ]; then
      bundle_say "found no NVIDIA driver (libcuda.so.1)${bundle_driver:+; the programs need $bundle_driver or newer}:" \
        "--device cuda will be refused, tests of it will be skipped"
    else
      missing="$missing $name"
    fi
  done
  if [ -n "$missing" ]; then
    bundle_say "did not find$missing: the programs of this bundle need them; set CUDA_HOME to the toolkit's folder, or" \
      "LOCKSTEP_PEER_PYTHON to a Python that has PyTorch with CUDA, or LD_LIBRARY_PATH to their folders"
  fi
}

# The version of the driver library that programs load, from its file name. It may differ from the kernel
# driver's.
bundle_driver_version() {
  local library version
  if library=$(bundle_loader_finds libcuda.so.1); then
    version=$(basename "$(readlink -f "$library")")
    version=${version#libcuda.so.}
    if [[ $version =~ ^[0-9]+\.[0-9.]+$ && $version != 1.* ]]; then echo "$version"; return 0; fi
  fi
  sed -nE '1s/.*[^0-9.]([0-9]{3,}\.[0-9.]+).*/\1/p' "${LOCKSTEP_BUNDLE_DRIVER_FILE:-/proc/driver/nvidia/version}" \
    2>/dev/null
}

bundle_check_driver() {  # VERSION CUDA
  local have
  bundle_driver=$1
  have=$(bundle_driver_version) || true
  if [ -z "$have" ] || [ "$(printf '%s\n' "$1" "$have" | sort -V | tail -1)" = "$have" ]; then return 0; fi
  if [ "${LOCKSTEP_BUNDLE_DRIVER:-}" = any ]; then return 0; fi
  bundle_status=78
  LOCKSTEP_BUNDLE_QUIET='' bundle_say "$(uname -n) has the NVIDIA driver $have, and the programs, made with CUDA $2," \
    "need $1 or newer. Update the driver, or on a data-centre GPU install the package cuda-compat of CUDA $2 and put" \
    "its folder into LD_LIBRARY_PATH, or pack a build made with an older CUDA (launch/bundle.sh --toolkit). With" \
    "LOCKSTEP_BUNDLE_DRIVER=any the programs start all the same, and compute on the CPU"
}

# LIBRARY VERSION ..: adds the bundle's library if the node's is missing or lacks a symbol version.
bundle_fall_back() {
  local name=$1 version found
  shift
  found=$(bundle_loader_finds "$name") || { bundle_add "$bundle_root/lib/fallback/$name"; return 0; }
  for version in "$@"; do
    grep -qaF "$version" "$found" || { bundle_add "$bundle_root/lib/fallback/$name"; return 0; }
  done
}

# PREFIX: the folder of libmpi.so.40 of the Open MPI in this prefix.
bundle_mpi_libraries() {
  local folder found
  for folder in "$1/lib" "$1/lib64" "$1/lib/x86_64-linux-gnu" "$1/lib/aarch64-linux-gnu"; do
    if [ -e "$folder/libmpi.so.40" ]; then echo "$folder"; return 0; fi
  done
  found=$(bundle_loader_finds libmpi.so.40) && dirname "$found"
}

bundle_find_mpi() {
  local prefix libraries candidate python_prefix version
  local -a moved
  candidate=$(command -v mpirun || true)
  python_prefix=$("${LOCKSTEP_PEER_PYTHON:-python3}" -c 'import sys; print(sys.prefix)' 2>/dev/null || true)
  for prefix in "${LOCKSTEP_MPI:-}" "$bundle_root/mpi" "${candidate%/bin/mpirun}" "${OPAL_PREFIX:-}" "$python_prefix" \
    /usr /usr/local /usr/lib64/openmpi /opt/openmpi /opt/hpcx/ompi /opt/amazon/openmpi; do
    if [ -z "$prefix" ] || [ ! -x "$prefix/bin/mpirun" ]; then continue; fi
    libraries=$(bundle_mpi_libraries "$prefix") || continue
    moved=()
    if [ "$prefix" = "$bundle_root/mpi" ]; then moved=("OPAL_PREFIX=$prefix" "PMIX_PREFIX=$prefix" "PRTE_PREFIX=$prefix"); fi
    version=$(env ${moved[@]+"${moved[@]}"} "LD_LIBRARY_PATH=$libraries${bundle_given_path:+:$bundle_given_path}" \
      "$prefix/bin/mpirun" --version 2>/dev/null || true)
    case $version in *"Open MPI"*) ;; *) continue ;; esac
    if [ ${#moved[@]} -gt 0 ]; then export "${moved[@]}"; fi
    export LOCKSTEP_MPIRUN=$prefix/bin/mpirun
    # lockstep --ranks starts the first mpirun on the PATH.
    [ "$(command -v mpirun)" -ef "$prefix/bin/mpirun" ] || export PATH=$prefix/bin:$PATH
    # Not if the loader finds it anyway: a system folder must not precede folders of other libraries.
    if ! [ "$(bundle_loader_finds libmpi.so.40)" -ef "$libraries/libmpi.so.40" ]; then bundle_add "$libraries"; fi
    # With UCX for one-sided communication, Open MPI 5 has no shared-memory windows.
    export OMPI_MCA_osc=${OMPI_MCA_osc:-^ucx}
    # Open MPI starts as root, as in containers, only with both variables.
    if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
    if [ -n "${LOCKSTEP_MPI:-}" ] && [ "$prefix" != "$LOCKSTEP_MPI" ]; then
      bundle_say "LOCKSTEP_MPI=$LOCKSTEP_MPI holds no Open MPI (bin/mpirun, lib/libmpi.so.40); using the one in $prefix"
    fi
    return 0
  done
  unset LOCKSTEP_MPIRUN
  bundle_say "found no Open MPI (mpirun, libmpi.so.40), without which no program here starts: install openmpi-bin, or" \
    "set LOCKSTEP_MPI to its folder, or pack one with launch/bundle.sh --mpi FOLDER"
}

bundle_set_up() {
  local kind rest have
  local -a cuda=()
  bundle_root=$(CDPATH="" cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  bundle_given_path=${LD_LIBRARY_PATH:-}
  bundle_path=$bundle_root/lib
  bundle_loader_cache=$("$(command -v ldconfig || echo /sbin/ldconfig)" -p 2>/dev/null || true)
  while read -r kind rest; do
    # shellcheck disable=SC2086
    case $kind in
      glibc)
        have=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/.* //' || true)
        if [ "$(printf '%s\n' "$rest" "${have:-0}" | sort -V | tail -1)" != "${have:-0}" ]; then
          bundle_say "this node has glibc ${have:-of unknown version}, the programs need $rest: bundle a build made on" \
            "a system as old as this node's"
        fi
        ;;
      cuda) cuda+=("$rest") ;;
      driver) bundle_check_driver $rest ;;
      fallback) bundle_fall_back $rest ;;
    esac
  done <"$bundle_root/share/needs"
  bundle_find_mpi
  if [ ${#cuda[@]} -gt 0 ]; then bundle_find_cuda "${cuda[@]}"; fi
  export LD_LIBRARY_PATH=$bundle_path${bundle_given_path:+:$bundle_given_path}
  export LOCKSTEP_BUNDLE=$bundle_root
}

bundle_status=0 bundle_driver=
bundle_set_up
unset -f bundle_say bundle_loader_finds bundle_cuda_folders bundle_add bundle_find_cuda bundle_driver_version \
  bundle_check_driver bundle_fall_back bundle_mpi_libraries bundle_find_mpi bundle_set_up
unset bundle_root bundle_given_path bundle_path bundle_loader_cache bundle_driver
if [ "$bundle_status" -ne 0 ]; then unset bundle_status; return 78; fi
unset bundle_status
