#!/usr/bin/env bash
# Runs a command under mpirun on several nodes joined by links of a given rate, all of them on this machine: each node is a
# network namespace with a host name of its own, plugged into one bridge through an interface that `tc tbf` limits both ways.
#
#   tests/nodes.sh RATE NODES RANKS_PER_NODE COMMAND [ARGUMENT ..]
#
# RATE            as tc writes it, 200mbit or 10gbit, of each node's link; none: as fast as the machine
# NODES           1 and more
# RANKS_PER_NODE  a number for all, or one for each node: 3,1
#
#   tests/nodes.sh 200mbit 2 1 build/cpu/bin/lockstep train fashion_mnist_cnn --set train.threads=1
#
# Ends with mpirun's exit code; 64 for arguments that make no sense; 77, saying why, where this user or this machine may not
# make namespaces. Nothing is left behind however this ends: namespaces, links and processes are those of a namespace that
# dies with it. LOCKSTEP_NODES_MPIRUN holds further arguments for mpirun. LOCKSTEP_NODES_CORES gives each node so much of the
# machine's processors, 0.45 of one or 2, and never more, however idle the machine is: nodes that together have no more than
# there is compute as if each had processors of its own. It takes root and control groups, which an end by SIGKILL leaves
# behind, empty.
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
[ $# -ge 4 ] || usage "wants a rate, nodes, ranks per node and a command"
[[ $rate == none || $rate =~ ^[0-9.]+(k|m|g)?bit$ ]] || usage "RATE is \"$rate\": give 200mbit, 1gbit or none"
[[ $nodes =~ ^[0-9]+$ ]] && ((nodes >= 1 && nodes <= 200)) || usage "NODES is \"$nodes\": give 1 to 200"
[[ $per_node =~ ^[0-9]+(,[0-9]+)*$ ]] || usage "RANKS_PER_NODE is \"$per_node\": give a number, or one for each node: 3,1"
IFS=, read -ra ranks <<<"$per_node"
if ((${#ranks[@]} == 1)); then
  for ((node = 1; node < nodes; ++node)); do ranks+=("${ranks[0]}"); done
fi
((${#ranks[@]} == nodes)) || usage "RANKS_PER_NODE has ${#ranks[@]} numbers for $nodes nodes"
for count in "${ranks[@]}"; do ((count >= 1)) || usage "RANKS_PER_NODE is \"$per_node\": each node has a rank"; done

cores=${LOCKSTEP_NODES_CORES:-}
[[ -z $cores || $cores =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage "LOCKSTEP_NODES_CORES is \"$cores\": give 0.5 or 2"
groups='' period=5000 quota=5000 # microseconds
[ -z "$cores" ] || quota=$(awk -v cores="$cores" 'BEGIN { printf "%d", cores * 5000 }')
((quota >= 1000)) || usage "LOCKSTEP_NODES_CORES is \"$cores\": give 0.2 or more"
# One for each node, of either version of control groups. Short periods: a rank that has spent its share of one goes on soon.
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
# Processes that were just killed take a moment to go.
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

# A namespace for all that follows: of processes, so that all end with this one; of mounts, networks and host names, so
# that nothing made there is seen elsewhere. Who is not root is root of a namespace of users.
if [ -z "${LOCKSTEP_NODES_INSIDE:-}" ]; then
  for tool in ip tc unshare mpirun; do
    command -v "$tool" >/dev/null || { echo "Skipped: nodes on one machine, because $tool is not installed" >&2; exit 77; }
  done
  apart=(unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc)
  ((EUID == 0)) || apart+=(--user --map-root-user)
  why=$("${apart[@]}" true 2>&1) || { echo "Skipped: nodes on one machine, because namespaces cannot be made: $why" >&2; exit 77; }
  if [ -n "$cores" ]; then
    for top in /sys/fs/cgroup/cpu /sys/fs/cgroup/cpu,cpuacct /sys/fs/cgroup; do
      groups=$top/lockstep_nodes_$$
      if { [ "$top" != /sys/fs/cgroup ] || [ -f $top/cgroup.controllers ]; } && mkdir "$groups" 2>/dev/null; then break; fi
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
    # Out of the node and into it; what is held back is at most 50 ms old, as in a switch with small buffers.
    tc -n "$name" qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 50ms
    tc qdisc add dev "port$node" root tbf rate "$rate" burst 256kb latency 50ms
  fi
  hosts+=("$name:${ranks[node]}")
done
# In this namespace of mounts nodes see their groups here, whatever else they mount.
if [ -n "${LOCKSTEP_NODES_GROUPS:-}" ]; then
  mkdir "$folder/groups"
  mount --bind "$LOCKSTEP_NODES_GROUPS" "$folder/groups"
fi
# Names of nodes are known to them alone.
mount --bind "$folder/hosts" /etc/hosts

# Runs a command line on a node, with a host name and a /dev/shm of the node's own. What mpirun calls to start its daemons.
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
# shellcheck disable=SC2086  # several arguments
command=(mpirun --oversubscribe --bind-to none --host "$(IFS=,; echo "${hosts[*]}")" -np "$total"
         ${LOCKSTEP_NODES_MPIRUN:-} "$@")
code=0
"$folder/enter" node0 exec "$(printf '%q ' "${command[@]}")" || code=$?
exit "$code"
