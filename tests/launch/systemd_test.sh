#!/usr/bin/env bash
# systemd_test.sh UNIT LOCKSTEP: systemd reads the template without a complaint, and lockstep what it is told there.
set -euo pipefail
unit=$1 lockstep=$2
command -v systemd-analyze >/dev/null || { echo "Skipped: systemd's unit, because systemd-analyze is not installed"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# The programs are somewhere else here than on the machine that it is for.
sed "s|^ExecStart=[^ ]*|ExecStart=$(command -v mpirun)|; s|/usr/local/bin/lockstep|$lockstep|" "$unit" >"$folder/lockstep@.service"
complaints=$(systemd-analyze verify "$folder/lockstep@.service" 2>&1) || { echo "$complaints"; exit 1; }
[ -z "$complaints" ] || { echo "$complaints"; exit 1; }
# What systemd would make of a fault.
sed 's|^RestartSec=.*|RestartSex=30|' "$folder/lockstep@.service" >"$folder/fault@.service"
systemd-analyze verify "$folder/fault@.service" 2>&1 | grep -q RestartSex || { echo "a fault was not found"; exit 1; }
told=$(tr -d '\\\n' <"$unit" | grep -o 'lockstep train .*--resume auto')
read -ra words <<<"$told"
"$lockstep" train fashion_mnist_mlp "${words[@]:3:${#words[@]}-5}" --print-config >/dev/null
