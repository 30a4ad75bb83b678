#!/usr/bin/env bash
# Runs a command under mpirun on several nodes joined by links of a given rate, all of them on this machine: each node is a
# network namespace with a host name of its own, plugged into one bridge through an interface that `tc tbf` limits both ways.
#
#   tests/nodes.sh RATE NODES RANKS_PER_NODE COMMAND [ARGUMENT ..]
#
# RATE            as tc writes it, 200mbit or 10gbit, of each node's link; none: as fast as the machine
# NODES           2 and more
# RANKS_PER_NODE  a number for all, or one for each node: 3,1
#
#   tests/nodes.sh 200mbit 2 1 build/cpu/bin/lockstep train fashion_mnist_cnn --set train.threads=1
#
# Ends with mpirun's exit code; 64 for arguments that make no sense; 77, saying why, where this user or this machine may not
# make namespaces. Nothing is left behind however this ends: namespaces, links and processes are those of a namespace that
# dies with it. LOCKSTEP_NODES_MPIRUN holds further arguments for mpirun.
set -euo pipefail

usage() {
  echo "tests/nodes.sh: $1" >&2
  sed -n 's/^# \{0,1\}//; 2,15p' "${BASH_SOURCE[0]}" >&2
  exit 64
}

rate=${1:-} nodes=${2:-} per_node=${3:-}
[ $# -ge 4 ] || usage "wants a rate, nodes, ranks per node and a command"
[[ $rate == none || $rate =~ ^[0-9.]+(k|m|g)?bit$ ]] || usage "RATE is \"$rate\": give 200mbit, 1gbit or none"
[[ $nodes =~ ^[0-9]+$ ]] && ((nodes >= 2 && nodes <= 200)) || usage "NODES is \"$nodes\": give 2 to 200"
[[ $per_node =~ ^[0-9]+(,[0-9]+)*$ ]] || usage "RANKS_PER_NODE is \"$per_node\": give a number, or one for each node: 3,1"
IFS=, read -ra ranks <<<"$per_node"
if ((${#ranks[@]} == 1)); then
  for ((node = 1; node < nodes; ++node)); do ranks+=("${ranks[0]}"); done
fi
((${#ranks[@]} == nodes)) || usage "RANKS_PER_NODE has ${#ranks[@]} numbers for $nodes nodes"
for count in "${ranks[@]}"; do ((count >= 1)) || usage "RANKS_PER_NODE is \"$per_node\": each node has a rank"; done

# A namespace for all that follows: of processes, so that all end with this one; of mounts, networks and host names, so
# that nothing made there is seen elsewhere. Who is not root is root of a namespace of users.
if [ -z "${LOCKSTEP_NODES_INSIDE:-}" ]; then
  for tool in ip tc unshare mpirun; do
    command -v "$tool" >/dev/null || { echo "Skipped: nodes on one machine, because $tool is not installed" >&2; exit 77; }
  done
  apart=(unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc)
  ((EUID == 0)) || apart+=(--user --map-root-user)
  why=$("${apart[@]}" true 2>&1) || { echo "Skipped: nodes on one machine, because namespaces cannot be made: $why" >&2; exit 77; }
  # Not exec: unshare does not listen to signals while it waits, but what it made ends with it.
  LOCKSTEP_NODES_INSIDE=1 "${apart[@]}" "${BASH_SOURCE[0]}" "$@" <&0 &
  inside=$!
  trap 'kill -KILL $inside; wait $inside 2>/dev/null || true; exit 130' INT
  trap 'kill -KILL $inside; wait $inside 2>/dev/null || true; exit 143' TERM HUP
  code=0
  wait "$inside" || code=$?
  exit "$code"
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
# Names of nodes are known to them alone.
mount --bind "$folder/hosts" /etc/hosts

# Runs a command line on a node, with a host name and a /dev/shm of the node's own. What mpirun calls to start its daemons.
cat >"$folder/enter" <<'ENTER'
#!/usr/bin/env bash
node=$1
shift
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
