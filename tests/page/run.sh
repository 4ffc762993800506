#!/usr/bin/env bash
# Runs page_test.mjs; exits with 77 (skipped) and a reason if something it needs is missing.
#   run.sh TESSERA
set -eu
here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "skipped: $1"; exit 77; }
command -v node > /dev/null || skip "node is not installed"
command -v chromium > /dev/null || skip "chromium is not installed"
[ -d "$here/node_modules/playwright-core" ] || skip "run 'npm ci' in tests/page first"
if ! "$1" report "$here/no such run" 2>&1 | grep -q "found no metrics.jsonl"; then
  skip "this build has no page"
fi
exec node "$here/page_test.mjs" "$@"
