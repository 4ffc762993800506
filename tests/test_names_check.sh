#!/usr/bin/env bash
# test_names_check.sh PROGRAM...: checks that test parameters are listed as words, not as the bytes of an
# object. Give the type a PrintTo and the suite its own names. Programs that were not built are skipped.
set -euo pipefail
status=0
for program in "$@"; do
  [ -x "$program" ] || continue
  if "$program" --gtest_list_tests | grep -e '-byte object'; then
    echo "$(basename "$program") lists the tests above by the bytes of their parameters" >&2
    status=1
  fi
done
exit $status
