#!/usr/bin/env bash
# Makes a toy model of a kind, exports it to GGUF in every type and compares Tessera with llama.cpp (compare.mjs).
# Exits with 77 (skipped) and a reason if something it needs is missing.
#   run.sh TESSERA RUN_TEXTS TOKENIZER_FOLDER|TEXT_FILE CONFIG_FIELDS     (of a text file: a tokenizer trained on it)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tessera=$1 run_texts=$2 tokenizer=$3 fields=$4
skip() { echo "skipped: $1"; exit 77; }
command -v node > /dev/null || skip "node is not installed"
[ -d "$here/node_modules/@node-llama-cpp/linux-x64" ] || skip "run 'npm ci' in tests/gguf_compat first"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -f "$tokenizer" ]; then
  "$tessera" tokenizer train --input "$tokenizer" --vocab_size 700 --output "$work/tokenizer"
  tokenizer=$work/tokenizer
fi
[ -f "$tokenizer/tokenizer.json" ] || skip "no tokenizer at $tokenizer"
# Weights with a spread of 0.3 instead of 0.02, so that attention depends on content and position.
node "$here/config.mjs" "$tokenizer" "$fields" > "$work/config.json"
"$tessera" init --config "$work/config.json" --tokenizer "$tokenizer" --output "$work/model" --dtype bfloat16 --seed 7
for type in f32 bf16 f16 q8_0; do
  "$tessera" export --model "$work/model" --format gguf --type "$type" --output "$work/$type.gguf"
done
node "$here/compare.mjs" "$run_texts" "$work" "$tokenizer"
