#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# instruction_set_test.sh SET PROGRAM ..: runs test programs with Lockstep's loops and oneDNN's kernels
# limited to an instruction set: baseline (SSE4.1), avx2 or avx512. One thread: how work is divided among
# threads does not depend on the set, and tests of it set their number of threads. Exit code 77 (skipped) if
# the processor has no larger set, because the tests then run at this set anyway.
set -euo pipefail
set=$1
shift
case $set in
  baseline) larger='avx2' onednn=SSE41 ;;
  avx2) larger='avx512f' onednn=AVX2 ;;
  avx512) larger='avx512_bf16|amx_bf16' onednn=AVX512_CORE ;;
  *) echo "instruction_set_test.sh: unknown set \"$set\"; allowed are baseline, avx2, avx512" >&2; exit 64 ;;
esac
if ! grep -qwE "$larger" /proc/cpuinfo; then
  echo "Skipped: this processor has no instruction set above $set"
  exit 77
fi
export LOCKSTEP_MAX_CPU_ISA=$set ONEDNN_MAX_CPU_ISA=$onednn OMP_NUM_THREADS=1
for program in "$@"; do "$program" --gtest_brief=1; done
