#!/usr/bin/env bash
# Installs the build into a folder of its own, builds tests/launch/install_consumer against it with find_package, and
# trains that program's network on 1 to 4 ranks. The program itself says whether it has learned.
#   install_test.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >/dev/null
cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/build"
for ranks in 1 2 3 4; do
  mpirun --oversubscribe --bind-to none -np "$ranks" "$work/build/consumer" | tee "$work/output"
  grep -q "accuracy" "$work/output"
done
OMPI_COMM_WORLD_RANK=0 "$work/prefix/bin/lockstep" info | grep -q Lockstep
