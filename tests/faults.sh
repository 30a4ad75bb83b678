#!/usr/bin/env bash
# Makes hundreds of faults; too slow for every change. Repeatedly kills a rank while it saves a checkpoint
# and resumes: no saved checkpoint may be lost, each start must resume from the newest one, and the final
# digest must equal that of an undisturbed training. Then makes random faults of all kinds
# (tests/random_faults.py), and checks that a long training and many short ones leak nothing (tests/soak.py).
#
#   tests/faults.sh [BUILD [KILLS [FAULTS]]]      default: build/cpu, 50, 200
set -euo pipefail
unset CDPATH  # with it, cd may choose a folder of another clone
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/cpu} kills=${2:-50} faults=${3:-200}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_odls_base_sigkill_timeout=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
steps=$((10 * (kills + 2)))
train() {
  mpirun --oversubscribe --bind-to none -np 2 "$build/bin/lockstep" train fashion_mnist_cnn --set train.threads=1 \
    --set kernels.choose=direct --set train.batch=8 --set train.steps=$steps --set run.checkpoint_every=5 "$@"
}
fail() {
  echo "$1:"
  cat "$work/log"
  exit 1
}
# The number in the last match of a sed expression in the log; 0 without a match.
last_number() {
  local found
  found=$(sed -nE "s|.*$1.*|\\1|p" "$work/log" | tail -n 1)
  echo $((10#${found:-0}))
}
# The step of the newest complete checkpoint; 0 without one.
newest() {
  local folder step=0
  for folder in "$work"/run/checkpoints/step-*[0-9]; do
    [ ! -d "$folder" ] || step=$((10#${folder##*-}))
  done
  echo "$step"
}
# A killed rank may still have completed a later checkpoint than `saved`.
expect_resumed() {
  (($(last_number 'training resumes after step ([0-9]+) from') >= saved)) || fail "$1 did not resume from step $saved"
}
train --set run.dir="$work/whole" --digest "$work/whole.digest" >"$work/log" 2>&1 || fail "the undisturbed training failed"
saved=0
for ((kill = 0; kill < kills; ++kill)); do
  code=0
  fault="kill-saving:rank=$((kill % 2)),step=$((10 * kill + 8)),ms=$(awk -v n="$kill" 'BEGIN { print (n * 7 % 20) / 4 }')"
  train --set run.dir="$work/run" --resume auto --inject "$fault" >"$work/log" 2>&1 || code=$?
  [ "$code" = 137 ] || fail "kill $kill ($fault) ended with exit code $code"
  # A checkpoint that cannot be read is a warning with its path.
  if grep -q "^warning .*/step-[0-9]" "$work/log"; then fail "kill $kill"; fi
  expect_resumed "the start before kill $kill"
  saved=$(newest) written=$(last_number 'checkpoint .*/step-([0-9]+): .* written')
  # Before the rank is killed, the checkpoint of step 10 * kill + 5 is begun, and so the one before it is complete.
  ((saved >= written && saved >= 10 * kill)) || fail "kill $kill left step $saved as the newest checkpoint"
done
train --set run.dir="$work/run" --resume auto --digest "$work/resumed.digest" >"$work/log" 2>&1 || fail "the last start failed"
expect_resumed "the last start"
grep "training resumes after step" "$work/log"
cmp "$work/whole.digest" "$work/resumed.digest"
echo "$kills kills while saving: the digest is that of the undisturbed training"
tests/random_faults.py --bin "$build/bin" --count "$faults"
tests/soak.py --bin "$build/bin" || [ $? = 77 ]  # many starts are skipped where namespaces cannot be made
