#!/usr/bin/env bash
# Fuzzes one target for SECONDS. Starts with its seeds and the corpus of earlier runs, and extends the corpus.
# For an input that fails, keeps the input and prints the command that repeats it.
#
#   tests/fuzz/run.sh TARGET SECONDS [BUILD]      such as config 600; default of BUILD: build/fuzz
set -euo pipefail
target=${1:?TARGET is missing} seconds=${2:?SECONDS is missing} build=$(realpath "${3:-build/fuzz}")
program=$build/bin/${target}_fuzzer work=$build/fuzzing/$target
mkdir -p "$work/corpus"
cd "$work"
rm -rf seeds
# A program that ends with a finding does not remove its files.
TMPDIR=$(mktemp -d /dev/shm/lockstep_fuzz_XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
"$program" --seeds=seeds
export UBSAN_OPTIONS=print_stacktrace=1
code=0
# Exceeding the limits of memory or time is also a finding.
"$program" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -artifact_prefix=finding- -print_final_stats=1 \
  corpus seeds >log 2>&1 || code=$?
if [ $code != 0 ]; then
  grep -av '^#[0-9]\|^INFO' log | tail -60 || true  # a killed program leaves no other lines
  echo "$target: found a failing input; repeat it with $program $(ls -t "$work"/finding-* 2>/dev/null | head -1)"
  exit 1
fi
awk -v target="$target" -v seconds="$seconds" '
  / cov: / { for (i = 1; i < NF; ++i) if ($i == "cov:") edges = $(i + 1) }
  /^stat::number_of_executed_units/ { inputs = $2 }
  END { printf "%s: %d inputs in %d s, %d edges, no failing input\n", target, inputs, seconds, edges }' log
