#!/bin/sh
# run.sh SCRIPT [ARGUMENT ..]: runs a check against PyTorch, a script of this folder, with the Python of
# LOCKSTEP_PEER_PYTHON (default: python3). Exit code 77 (skipped) without it.
python=${LOCKSTEP_PEER_PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo "Skipped: $python is not installed. LOCKSTEP_PEER_PYTHON can name a Python that has torch and numpy."
  exit 77
fi
script=$1
shift
exec "$python" "$(dirname "$0")/$script" "$@"
