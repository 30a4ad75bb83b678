#!/usr/bin/env bash
# Runs a command under mpirun on several nodes of this machine, joined by links of a given rate. Each node is
# a network namespace with a separate host name, connected to one bridge by an interface that `tc tbf` limits
# in both directions.
#
#   tests/nodes.sh RATE NODES RANKS_PER_NODE COMMAND [ARGUMENT ..]
#
# RATE            of each node's link in tc's notation: 200mbit, 10gbit; none: no limit
# NODES           1 to 200
# RANKS_PER_NODE  a number for all nodes, or one for each node: 3,1
#
#   tests/nodes.sh 200mbit 2 1 build/cpu/bin/lockstep train fashion_mnist_cnn --set train.threads=1
#
# Exit codes: mpirun's; 64 wrong arguments; 77 namespaces cannot be made here, with the reason. Namespaces,
# links and processes end with this script, even after SIGKILL. LOCKSTEP_NODES_MPIRUN has further arguments of
# mpirun. LOCKSTEP_NODES_CORES limits each node to a number of processors, such as 0.45 or 2, even if the
# machine is idle. If all nodes together do not exceed the machine's processors, each computes as if it had
# its own. The limit needs root and control groups; SIGKILL leaves empty control groups.
set -euo pipefail
here=${BASH_SOURCE[0]%/*}
[ "$here" != "${BASH_SOURCE[0]}" ] || here=.
source "$here/apart.sh"

usage() {
  echo "tests/nodes.sh: $1" >&2
  sed -n 's/^# \{0,1\}//; 2,18p' "${BASH_SOURCE[0]}" >&2
  exit 64
}

rate=${1:-} nodes=${2:-} per_node=${3:-}
[ $# -ge 4 ] || usage "needs a rate, a number of nodes, ranks per node and a command"
[[ $rate == none || $rate =~ ^[0-9.]+(k|m|g)?bit$ ]] || usage "RATE is \"$rate\": give 200mbit, 1gbit or none"
[[ $nodes =~ ^[0-9]+$ ]] && ((nodes >= 1 && nodes <= 200)) || usage "NODES is \"$nodes\": give 1 to 200"
[[ $per_node =~ ^[0-9]+(,[0-9]+)*$ ]] || usage "RANKS_PER_NODE is \"$per_node\": give a number, or one for each node: 3,1"
IFS=, read -ra ranks <<<"$per_node"
if ((${#ranks[@]} == 1)); then
  for ((node = 1; node < nodes; ++node)); do ranks+=("${ranks[0]}"); done
fi
((${#ranks[@]} == nodes)) || usage "RANKS_PER_NODE has ${#ranks[@]} numbers for $nodes nodes"
for count in "${ranks[@]}"; do ((count >= 1)) || usage "RANKS_PER_NODE is \"$per_node\": each node needs at least one rank"; done

cores=${LOCKSTEP_NODES_CORES:-}
[[ -z $cores || $cores =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage "LOCKSTEP_NODES_CORES is \"$cores\": give 0.5 or 2"
groups='' period=5000 quota=5000 # microseconds
[ -z "$cores" ] || quota=$(awk -v cores="$cores" 'BEGIN { printf "%d", cores * 5000 }')
((quota >= 1000)) || usage "LOCKSTEP_NODES_CORES is \"$cores\": give 0.2 or more"
# Creates a control group per node, in version 1 or 2. Periods are short, so a rank that has used its quota
# resumes soon.
make_groups() {
  local node group
  if [ -f "$groups/cgroup.subtree_control" ]; then echo +cpu >"$groups/cgroup.subtree_control" || return; fi
  for ((node = 0; node < nodes; ++node)); do
    group=$groups/node$node
    mkdir "$group" || return
    if [ -f "$group/cpu.max" ]; then
      echo "$quota $period" >"$group/cpu.max" || return
    else
      { echo $period >"$group/cpu.cfs_period_us" && echo "$quota" >"$group/cpu.cfs_quota_us"; } || return
    fi
  done
} 2>/dev/null
# Removes the control groups. Retries, because killed processes leave them with a delay.
leave_groups() {
  local group try
  for group in "$groups"/node* "$groups"; do
    for ((try = 0; try < 50; ++try)); do
      rmdir "$group" 2>/dev/null && break
      [ -d "$group" ] || break
      sleep 0.1
    done
  done
}

# Runs the rest in new namespaces: of processes, so that all end with this one; of mounts, networks and host
# names, so that other programs see no changes. A user who is not root becomes root of a user namespace.
if [ -z "${LOCKSTEP_NODES_INSIDE:-}" ]; then
  export PATH=$PATH:/usr/sbin:/sbin  # Debian's users do not have the folder of tc
  for tool in ip tc unshare setpriv mpirun; do
    command -v "$tool" >/dev/null || { echo "Skipped: nodes on one machine, because $tool is not installed" >&2; exit 77; }
  done
  apart=(unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc)
  ((EUID == 0)) || apart+=(--user --map-root-user)
  why=$("${apart[@]}" true 2>&1) || { echo "Skipped: nodes on one machine, because namespaces cannot be made: $why" >&2; exit 77; }
  if [ -n "$cores" ]; then
    for top in /sys/fs/cgroup/cpu /sys/fs/cgroup/cpu,cpuacct /sys/fs/cgroup; do
      if { [ "$top" != /sys/fs/cgroup ] || [ -f $top/cgroup.controllers ]; } &&
        groups=$(mktemp -d "$top/lockstep_nodes_XXXXXX" 2>/dev/null); then break; fi
      groups=
    done
    [ -n "$groups" ] || { echo "Skipped: nodes with $cores cores, because control groups of processors cannot be made" >&2; exit 77; }
    trap 'leave_groups' EXIT
    make_groups || { echo "Skipped: nodes with $cores cores, because control groups do not limit processors" >&2; exit 77; }
    export LOCKSTEP_NODES_GROUPS=$groups
  fi
  LOCKSTEP_NODES_INSIDE=1 end_with "${apart[@]}" "$here/${BASH_SOURCE[0]##*/}" "$@"
fi

shift 3
network=10.77.0
mount -t tmpfs nodes /run
folder=/run/nodes
mkdir -p /run/netns "$folder"
ip link set dev lo up
ip link add switch type bridge
ip link set dev switch up
hosts=()
{
  echo "127.0.0.1 localhost"
  for ((node = 0; node < nodes; ++node)); do echo "$network.$((node + 1)) node$node"; done
} >"$folder/hosts"
for ((node = 0; node < nodes; ++node)); do
  name=node$node
  ip netns add "$name"
  ip link add "port$node" type veth peer name eth0 netns "$name"
  ip link set dev "port$node" master switch up
  ip -n "$name" address add "$network.$((node + 1))/24" dev eth0
  ip -n "$name" link set dev eth0 up
  ip -n "$name" link set dev lo up
  if [ "$rate" != none ]; then
    # Limits both directions. A packet is queued for at most 50 ms, as in a switch with small buffers.
    tc -n "$name" qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 50ms
    tc qdisc add dev "port$node" root tbf rate "$rate" burst 256kb latency 50ms
  fi
  hosts+=("$name:${ranks[node]}")
done
# Makes the control groups visible to the nodes, independent of other mounts.
if [ -n "${LOCKSTEP_NODES_GROUPS:-}" ]; then
  mkdir "$folder/groups"
  mount --bind "$LOCKSTEP_NODES_GROUPS" "$folder/groups"
fi
# Only the nodes see these host names.
mount --bind "$folder/hosts" /etc/hosts

# Runs a command line on a node, with the node's host name and /dev/shm. mpirun starts its daemons with it.
cat >"$folder/enter" <<'ENTER'
#!/usr/bin/env bash
node=$1
shift
group=$(dirname "${BASH_SOURCE[0]}")/groups/$node
[ ! -d "$group" ] || echo 0 >"$group/cgroup.procs" || exit 1
exec ip netns exec "$node" unshare --uts \
  bash -c 'hostname "$1" && mount -t tmpfs shm /dev/shm && shift && exec bash -c "$*"' enter "$node" "$@"
ENTER
chmod +x "$folder/enter"

total=0
for count in "${ranks[@]}"; do total=$((total + count)); done
export OMPI_MCA_orte_tmpdir_base=$folder PRTE_MCA_prte_tmpdir_base=$folder
export OMPI_MCA_plm_rsh_agent=$folder/enter PRTE_MCA_plm_ssh_agent=$folder/enter
for framework in OMPI_MCA_oob_tcp OMPI_MCA_btl_tcp PRTE_MCA_oob_tcp PMIX_MCA_ptl_tcp; do
  export "${framework}_if_include=$network.0/24"
done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
# shellcheck disable=SC2206  # several arguments
command=(mpirun --oversubscribe --bind-to none --host "$(IFS=,; echo "${hosts[*]}")" -np "$total"
         ${LOCKSTEP_NODES_MPIRUN:-} "$@")
"$folder/enter" node0 exec "$(printf '%q ' "${command[@]}")"
