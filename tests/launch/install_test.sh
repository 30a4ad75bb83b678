#!/usr/bin/env bash
# Installs the build into a new folder, builds tests/launch/install_consumer against it with find_package, and
# trains that program's network on 1 to 4 ranks. The program's commands must know the parts that it registers.
#   install_test.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >/dev/null
cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/build"
consumer=$work/build/consumer
for ranks in 1 2 3 4; do
  mpirun --oversubscribe --bind-to none -np "$ranks" "$consumer" train brightness --set "run.dir=$work/run" \
    --set kernels.choose=direct
  tail -n 1 "$work/run/metrics.jsonl" | grep -qE '"test_accuracy":(0\.9[0-9]*|1\.0)[,}]'
done
# The consumer's keys have a registered name more often than those of lockstep.
for name in small_cnn brightness line; do
  [ "$("$consumer" keys | grep -ow $name | wc -l)" -gt "$("$work/prefix/bin/lockstep" keys | grep -ow $name | wc -l)" ]
done
"$consumer" why | grep -q "light from dark"
"$consumer" help | grep -q "Say what this program is for"
"$consumer" plan brightness --set kernels.choose=direct | grep -q "2048 samples"
! "$consumer" plan brightness --set model.name=small_cn 2>"$work/refused"
# Once in the list of names, and once as the suggestion.
[ "$(grep -o "\<small_cnn\>" "$work/refused" | wc -l)" -ge 2 ]
OMPI_COMM_WORLD_RANK=0 "$work/prefix/bin/lockstep" info | grep -q Lockstep
