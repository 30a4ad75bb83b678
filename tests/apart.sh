# Sourced by nodes.sh and slurm.sh, which create their resources in namespaces that end with them.

# Runs a command and exits with its exit code; a signal, also SIGKILL, kills the command. Not by exec, because
# unshare ignores signals while it waits, but its namespaces end with it.
end_with() {
  setpriv --pdeathsig KILL "$@" <&0 &
  local inside=$! code=0
  trap "kill -KILL $inside; wait $inside 2>/dev/null || true; exit 130" INT
  trap "kill -KILL $inside; wait $inside 2>/dev/null || true; exit 143" TERM HUP
  wait "$inside" || code=$?
  exit "$code"
}
