#!/usr/bin/env bash
# quickstart.sh: from a fresh Debian 12 to a small language model that writes C++ headers. Installs packages, builds,
# trains a tokenizer and a model of 16 million parameters on the headers in /usr/include, with two ranks that share the
# cores and the weights, and shows what the model learned.
# Settings: QUICKSTART_DIR (build/quickstart), QUICKSTART_STEPS (900). Finished stages are not repeated.
set -euo pipefail
cd "$(dirname "$0")/.."

here=$PWD
dir=$(realpath -m "${QUICKSTART_DIR:-build/quickstart}")
steps=${QUICKSTART_STEPS:-900}
tessera=build/release/tessera

say() { printf '\n== %s\n' "$*"; }

say "Packages and program"
scripts/install_packages.sh build
cmake --preset release >/dev/null
cmake --build --preset release --target tessera
mkdir -p "$dir"

if [ ! -d "$dir/corpus" ]; then
  say "Text: the headers of the C and C++ libraries and of Linux"
  rm -rf "$dir/corpus.new"
  mkdir -p "$dir/corpus.new/train" "$dir/corpus.new/valid"
  # Files of 1 to 200 KiB in an order that depends on their paths alone, 20 MB at most; every 80th is held out. Headers of
  # other packages in /usr/include are not used, so that every machine gets about the same text.
  cd /usr/include
  total=0
  count=0
  while read -r size path; do
    iconv -f UTF-8 -t UTF-8 "$path" >/dev/null 2>&1 || continue
    total=$((total + size))
    [ "$total" -le 20000000 ] || break
    count=$((count + 1))
    part=train
    [ $((count % 80)) != 0 ] || part=valid
    cp "$path" "$dir/corpus.new/$part/$(printf '%05d' "$count")-$(basename "$path").txt"
  done < <(LC_ALL=C find c++ linux asm-generic x86_64-linux-gnu/{bits,sys,c++} -type f -size +1k -size -200k \
    -printf '%s %p\n' | LC_ALL=C sort -k2 | shuf --random-source=<(yes))
  cd "$here"
  mv "$dir/corpus.new" "$dir/corpus"
fi
du -sh "$dir/corpus/train" "$dir/corpus/valid"

if [ ! -f "$dir/tokenizer/tokenizer.json" ]; then
  say "Tokenizer: byte-level BPE with 8192 tokens"
  "$tessera" tokenizer train --input "$dir/corpus/train/*.txt" --vocab_size 8192 --output "$dir/tokenizer"
fi
if [ ! -f "$dir/start/model.safetensors" ]; then
  say "Model: random weights"
  "$tessera" init --preset 15m --tokenizer "$dir/tokenizer" --output "$dir/start" --overwrite
fi
if [ ! -f "$dir/model/model.safetensors" ]; then
  say "Training: $steps steps of 1024 tokens, half of them on each of two ranks"
  "$tessera" launch --nproc_per_node 2 train --model "$dir/start" --dataset "$dir/corpus/train/*.txt" --eval_dataset "$dir/corpus/valid/*.txt" \
    --output_dir "$dir/model" --packing --max_length 256 --per_device_train_batch_size 2 --max_steps "$steps" \
    --learning_rate 2e-3 --lr_scheduler_type cosine --warmup_ratio 0.05 --weight_decay 0.1 --adam_beta2 0.95 \
    --logging_steps 50 --eval_strategy steps --eval_steps $((steps / 3 > 0 ? steps / 3 : 1)) --save_strategy no
fi

say "Validation (a random model starts at ln 8192 = 9.0; 900 steps bring it to about 4.7)"
"$tessera" eval --model "$dir/model" --dataset "$dir/corpus/valid/*.txt" --packing --max_length 256
say "What it writes after 'namespace std { template<typename'"
"$tessera" generate --model "$dir/model" --prompt $'namespace std\n{\n  template<typename' --max_new_tokens 200 --temperature 0.7 --top_k 40
say "The model is in $dir/model; delete $dir to start over"
