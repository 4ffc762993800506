#!/bin/sh
# report_node_check.sh FILE MAX_AGE_S: what node_check_loop.sh left in FILE, as the node problem detector takes it: exit code
# 0 healthy, 1 unhealthy, 2 unknown, and the message on standard output. Too old a result is not known to be true still.
set -u
if ! { read -r time && read -r code; } 2>/dev/null <"$1"; then
  echo "no check has ended yet"
  exit 2
fi
age=$(($(date +%s) - time))
if [ "$age" -gt "$2" ]; then
  echo "the last check ended $age s ago"
  exit 2
fi
message=$(sed -n 3p "$1")
case $code in
  0) echo "healthy" && exit 0 ;;
  1) echo "${message:-unhealthy}" && exit 1 ;;
  *) echo "the check ended with code $code: $message" && exit 2 ;;
esac
