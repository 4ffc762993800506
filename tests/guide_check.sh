#!/usr/bin/env bash
# guide_check.sh TESSERA: runs the commands of docs/guide.md from section 2 onwards in a temporary folder, the longest
# training with a fifth of its steps.
set -euo pipefail
guide=$(cd "$(dirname "$0")/.." && pwd)/docs/guide.md
program=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cd "$folder"
ln -s "$(dirname "$guide")/../tests" tests
# Commands are indented by four spaces; other code is fenced.
sed -n '/^## 2/,$ s/^    //p' "$guide" | sed 's/--max_steps 100/--max_steps 20/; s/--eval_steps 50/--eval_steps 10/' >commands
[ "$(wc -l <commands)" -gt 10 ] || { echo "found no commands in $guide"; exit 1; }
XDG_CACHE_HOME=$folder/cache PATH=$(dirname "$program"):$PATH bash -exuo pipefail commands
[ -f demo/tuned/model.safetensors ] && [ -f demo/chat.gguf ]
