#!/bin/sh
# node_check_loop.sh FILE SECONDS [FLAGS...]: runs `tessera doctor --node-check` every SECONDS and leaves in FILE when it ran,
# its exit code and what it complained about, for report_node_check.sh. The check runs here, in the program's own image,
# because the node problem detector's image lacks the libraries, and kills a plugin that takes long.
set -u
file=$1
seconds=$2
shift 2
trap 'kill ${!:-} 2>/dev/null; exit 0' TERM INT
while :; do
  # The lowest priority: a training run on the node comes first.
  nice -n 19 timeout 120 tessera doctor --node_check --json "$@" >/dev/null 2>"$file.errors"
  code=$?
  {
    date +%s
    echo "$code"
    head -n 5 "$file.errors" | tr '\n' ' '
    echo
  } >"$file.new"
  mv "$file.new" "$file"
  sleep "$seconds" &
  wait $!
done
