#!/usr/bin/env bash
# Runs a command with a private Slurm on this machine; srun, sbatch and other clients use it.
#
#   tests/slurm.sh CORES COMMAND [ARGUMENT ..]
#
# CORES  number of cores that the only node reports, independent of the machine's
#
#   tests/slurm.sh 2 srun --mpi=pmix -n 2 build/cpu/bin/lockstep train fashion_mnist_cnn
#
# Jobs of the partition "low" (the default) are requeued when a job of "high" needs their cores. Their ranks
# get a signal LOCKSTEP_SLURM_GRACE seconds before (10). LOCKSTEP_SLURM_CONF has further lines of slurm.conf.
#
# Exit codes: the command's; 64 wrong arguments; 77, with the reason, if Slurm is not installed or the user is
# not root or cannot make namespaces. All processes end with this script, even after SIGKILL, because they run
# in its namespace of processes.
set -euo pipefail
here=${BASH_SOURCE[0]%/*}
[ "$here" != "${BASH_SOURCE[0]}" ] || here=.
source "$here/apart.sh"

cores=${1:-}
if [[ $# -lt 2 || ! $cores =~ ^[1-9][0-9]*$ ]]; then
  echo "tests/slurm.sh: needs a number of cores and a command" >&2
  sed -n 's/^# \{0,1\}//; 2,15p' "${BASH_SOURCE[0]}" >&2
  exit 64
fi

if [ -z "${LOCKSTEP_SLURM_INSIDE:-}" ]; then
  export PATH=$PATH:/usr/sbin:/sbin
  for tool in slurmctld slurmd munged srun ip unshare setpriv; do
    command -v "$tool" >/dev/null || { echo "Skipped: Slurm, because $tool is not installed" >&2; exit 77; }
  done
  apart=(unshare --mount --net --pid --fork --kill-child --mount-proc)
  ((EUID == 0)) || { echo "Skipped: Slurm, because its daemons need root" >&2; exit 77; }
  why=$("${apart[@]}" true 2>&1) || { echo "Skipped: Slurm, because namespaces cannot be made: $why" >&2; exit 77; }
  LOCKSTEP_SLURM_INSIDE=1 end_with "${apart[@]}" "$here/${BASH_SOURCE[0]##*/}" "$@"
fi

shift
unset LOCKSTEP_SLURM_INSIDE
ip link set dev lo up
# Hosts with only a loopback address do not resolve names, so the node gets an address.
address=10.78.0.1
ip link add node type bridge
ip address add $address/24 dev node
ip link set dev node up
folder=/run/slurm # visible only in this namespace
mount -t tmpfs slurm /run
mkdir "$folder" "$folder/state" "$folder/spool" "$folder/tmp"
host=$(hostname)
host=${host%%.*}
printf '%s\n' "127.0.0.1 localhost" "$address $host" >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
(umask 077 && head -c 128 /dev/urandom >"$folder/key")
# The node has the host's name, so mpirun starts ranks itself. Requeued jobs wait until their old credentials
# expire.
cat >"$folder/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host
SlurmUser=root
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdSpoolDir=$folder/spool
SlurmdPidFile=$folder/slurmd.pid
TmpFS=$folder/tmp
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=10
SchedulerParameters=sched_interval=1
NodeName=$host CPUs=$cores State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=${LOCKSTEP_SLURM_GRACE:-10} State=UP
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF State=UP
${LOCKSTEP_SLURM_CONF:-}
CONF
export SLURM_CONF=$folder/slurm.conf OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo

daemon() {
  "$@" >"$folder/$1.log" 2>&1 </dev/null &
  daemons+=($!)
}
fail() {
  echo "tests/slurm.sh: $1; the last lines of its daemons:" >&2
  tail -n 8 "$folder"/*.log >&2
  exit 70
}
daemons=()
# wait_for WHAT COMMAND ..
wait_for() {
  local what=$1 try pid
  shift
  for ((try = 0; try < 150; ++try)); do
    "$@" && return
    for pid in "${daemons[@]}"; do kill -0 "$pid" 2>/dev/null || fail "a daemon ended before $what was available"; done
    sleep 0.2
  done
  fail "there was no $what within 30 seconds"
}
idle_node() { [ -n "$(sinfo --noheader --states=idle --partition=low --format=%N 2>/dev/null)" ]; }

daemon munged -F -f --key-file="$folder/key" -S "$folder/munge.socket" --pid-file="$folder/munged.pid" --seed-file="$folder/seed"
wait_for "socket of munged" test -S "$folder/munge.socket"
daemon slurmctld -D -c
daemon slurmd -D
wait_for "idle node" idle_node

"$@"
