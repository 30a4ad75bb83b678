#!/usr/bin/env bash
# Checks that take too long for every change: hours in all. An argument selects one part:
#   tests/nightly.sh tests         the tests that tests/run.sh excludes, property tests with more cases, and
#                                  tests with Chromium, TensorBoard and Perfetto's schema
#   tests/nightly.sh signals       336 signals, in every phase of a job
#   tests/nightly.sh faults        random faults, kills while saving, soak (tests/faults.sh)
#   tests/nightly.sh emulator      the emulated device under sanitizers, even if its sources have not changed
#   tests/nightly.sh fuzz          ten minutes for each target
#   tests/nightly.sh machines      other kinds of machines, users and folders (tests/machines.sh)
#   tests/nightly.sh portability   other versions of libraries (tests/portability.sh)
#   tests/nightly.sh aarch64       an Arm processor, with qemu (tests/aarch64.sh)
# A failed part does not stop the others. The last lines list the result and the duration of each part.
set -uo pipefail
unset CDPATH  # with it, cd may choose a folder of another clone
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Builds the cpu leg. Prints the output only if it fails.
build() {
  local said
  said=$(tests/run.sh cpu list 2>&1) || { tail -n 100 <<<"$said"; return 1; }
}

part() {
  case $1 in
    tests)
      local failed=0
      tests/run.sh cpu -L nightly || failed=1
      LOCKSTEP_LARGE_TESTS=1 tests/run.sh cpu -R 'keys_ranks|KilledPack|RunningSums|RememberingCodecs|CodecExchange' || failed=1
      LOCKSTEP_TEST_CLIENTS=1 tests/run.sh cpu -R 'report_page_test|tensorboard_test|profile_test' || failed=1
      return $failed
      ;;
    signals) build && python3 -B tests/launch/program/signals_test.py build/cpu/bin/lockstep --cells 336 ;;
    faults) build && tests/faults.sh ;;
    emulator) LOCKSTEP_EMULATED_DEVICE=ON tests/run.sh asan && LOCKSTEP_EMULATED_DEVICE=ON tests/run.sh tsan ;;
    fuzz) tests/run.sh fuzz 600 ;;
    machines)
      # Without these packages some cases are skipped.
      build && { (more_packages=(clang libomp-dev locales) && source launch/setup.sh) || true; } && tests/machines.sh
      ;;
    portability) tests/portability.sh ;;
    aarch64) tests/aarch64.sh ;;
  esac
}

all=(tests signals faults emulator fuzz machines portability aarch64)
parts=("$@")
[ $# -gt 0 ] || parts=("${all[@]}")
for name in "${parts[@]}"; do
  [[ " ${all[*]} " == *" $name "* ]] || { echo "tests/nightly.sh: unknown part \"$name\"; allowed are ${all[*]}" >&2; exit 64; }
done
failed=0
lines=()
for name in "${parts[@]}"; do
  echo "== tests/nightly.sh $name"
  begin=$SECONDS
  result=passed
  part "$name" || result=FAILED failed=1
  lines+=("$(printf '%-12s %5d s  %s' "$name" $((SECONDS - begin)) "$result")")
done
printf '%s\n' "== summary" "${lines[@]}"
exit $failed
