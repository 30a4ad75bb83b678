# Sourced by nodes.sh and slurm.sh: what they make lies in namespaces that end with them.

# Runs a command as its own last act: ends with its exit code, and ends it when a signal comes. Not exec: unshare does not
# listen to signals while it waits, but what it made ends with it.
end_with() {
  "$@" <&0 &
  local inside=$! code=0
  trap "kill -KILL $inside; wait $inside 2>/dev/null || true; exit 130" INT
  trap "kill -KILL $inside; wait $inside 2>/dev/null || true; exit 143" TERM HUP
  wait "$inside" || code=$?
  exit "$code"
}
