#!/usr/bin/env bash
# Makes hundreds of faults; too slow for every change. Repeatedly kills a rank while it saves a checkpoint
# and resumes: the final digest must equal that of an undisturbed training. Then makes random faults of all
# kinds (tests/random_faults.py), and checks that a long training and many short ones leak nothing
# (tests/soak.py).
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
train --set run.dir="$work/whole" --digest "$work/whole.digest" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for ((kill = 0; kill < kills; ++kill)); do
  code=0
  fault="kill-saving:rank=$((kill % 2)),step=$((10 * kill + 8)),ms=$(awk -v n="$kill" 'BEGIN { print (n * 7 % 20) / 4 }')"
  train --set run.dir="$work/run" --resume auto --inject "$fault" >"$work/log" 2>&1 || code=$?
  [ "$code" = 137 ] || { echo "kill $kill ($fault) ended with exit code $code:"; cat "$work/log"; exit 1; }
  # A checkpoint that cannot be read is a warning with its path.
  if grep -q "^warning .*/step-[0-9]" "$work/log"; then echo "kill $kill:"; cat "$work/log"; exit 1; fi
done
train --set run.dir="$work/run" --resume auto --digest "$work/resumed.digest" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
grep -E "step [0-9]+.*/checkpoints/step-[0-9]|/checkpoints/step-[0-9].*step [0-9]" "$work/log"
cmp "$work/whole.digest" "$work/resumed.digest"
echo "$kills kills while saving: the digest is that of the undisturbed training"
tests/random_faults.py --bin "$build/bin" --count "$faults"
tests/soak.py --bin "$build/bin" || [ $? = 77 ]  # many starts are skipped where namespaces cannot be made
