#!/usr/bin/env bash
# Runs compare.mjs; exits with 77 (skipped) and a reason if something it needs is missing.
#   run.sh HELPER TOKENIZER_FOLDER [TEXT_FILE...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "skipped: $1"; exit 77; }
command -v node > /dev/null || skip "node is not installed"
[ -d "$here/node_modules/@huggingface/tokenizers" ] || skip "run 'npm ci' in tests/tokenizer_compat first"
[ -f "$2/tokenizer.json" ] || skip "no tokenizer at $2"
exec node "$here/compare.mjs" "$@"
