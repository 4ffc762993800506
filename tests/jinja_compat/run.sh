#!/usr/bin/env bash
# Runs compare.mjs; exits with 77 (skipped) and a reason if something it needs is missing.
#   run.sh HELPER [TEMPLATE_FILE...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "skipped: $1"; exit 77; }
command -v node > /dev/null || skip "node is not installed"
[ -d "$here/node_modules/@huggingface/jinja" ] || skip "run 'npm ci' in tests/jinja_compat first"
exec node "$here/compare.mjs" "$@"
