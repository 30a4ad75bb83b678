#!/usr/bin/env bash
# systemd_test.sh UNIT LOCKSTEP: checks that systemd and lockstep accept the template without an error.
set -euo pipefail
unit=$1 lockstep=$2
command -v systemd-analyze >/dev/null || { echo "Skipped: systemd's unit, because systemd-analyze is not installed"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Replaces the paths of the programs by those of this machine.
sed "s|^ExecStart=[^ ]*|ExecStart=$(command -v mpirun)|; s|/usr/local/bin/lockstep|$lockstep|" "$unit" >"$folder/lockstep@.service"
complaints=$(systemd-analyze verify "$folder/lockstep@.service" 2>&1) || { echo "$complaints"; exit 1; }
[ -z "$complaints" ] || { echo "$complaints"; exit 1; }
# systemd must report a misspelled key.
sed 's|^RestartSec=.*|RestartSex=30|' "$folder/lockstep@.service" >"$folder/fault@.service"
[[ $(systemd-analyze verify "$folder/fault@.service" 2>&1) == *RestartSex* ]] || { echo "systemd did not report a misspelled key"; exit 1; }
told=$(tr -d '\\\n' <"$unit" | grep -o 'lockstep train .*--resume auto')
read -ra words <<<"$told"
"$lockstep" train fashion_mnist_mlp "${words[@]:3:${#words[@]}-5}" --print-config >/dev/null
