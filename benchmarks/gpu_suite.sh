#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures everything on a machine with an NVIDIA GPU, from an unpacked bundle (launch/bundle.sh), offline:
#   lockstep-bundle/share/benchmarks/gpu_suite.sh --json FILE
# --help tells more. PyTorch's side runs in LOCKSTEP_PEER_PYTHON, or python3.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${LOCKSTEP_PEER_PYTHON:-python3}
command -v "$python" >/dev/null || {
  echo "gpu_suite.sh: \"$python\" is not there: install python3, or name one in LOCKSTEP_PEER_PYTHON" >&2
  exit 78
}
exec "$python" -B "$here/gpu_suite.py" "$@"
