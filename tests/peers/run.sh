#!/bin/sh
# A check against PyTorch, the script of this folder that is named first, by the Python that LOCKSTEP_PEER_PYTHON names,
# else python3; 77, skipped, where there is none.
python=${LOCKSTEP_PEER_PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo "Skipped: $python is not here. LOCKSTEP_PEER_PYTHON can name a Python that has torch and numpy."
  exit 77
fi
script=$1
shift
exec "$python" "$(dirname "$0")/$script" "$@"
