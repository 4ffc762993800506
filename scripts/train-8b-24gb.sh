#!/usr/bin/env bash
# train-8b-24gb.sh: trains all weights of a model of Llama-3-8B's shape (random weights, 32 layers, vocabulary 128,256)
# on a machine with 24 GB of memory: optimizer state and the weights of layers are on disk, and layers are updated in the
# backward pass. First says what it needs of memory and disk, and ends if the disk has less: 63 GB for the 8-bit form of
# the optimizer, 110 GB for the exact one, and more for checkpoints. Finished stages are not repeated, and a run that was
# stopped resumes from its last checkpoint.
# Settings: TRAIN_8B_DIR (build/train-8b), TRAIN_8B_STEPS (5), TRAIN_8B_TOKENS (2048, of a row; a step has one),
# TRAIN_8B_OPTIM (adamw_8bit; adamw_torch is the exact form), TRAIN_8B_SAVE_STEPS (0: a checkpoint is written only on
# SIGTERM or Ctrl-C; a run that is killed begins anew), TRAIN_8B_MEMORY (24GB, what the plan may take), TRAIN_8B_CONFIG (a config.json with another shape),
# TRAIN_8B_FLAGS (more flags of tessera train), TESSERA (build/release/tessera, built if it is not there).
set -euo pipefail
cd "$(dirname "$0")/.."

dir=$(realpath -m "${TRAIN_8B_DIR:-build/train-8b}")
steps=${TRAIN_8B_STEPS:-5}
tokens=${TRAIN_8B_TOKENS:-2048}
save_steps=${TRAIN_8B_SAVE_STEPS:-0}
tessera=${TESSERA:-build/release/tessera}

say() { printf '\n== %s\n' "$*"; }
gigabytes() { echo "$((($1 + 99999999) / 100000000))" | sed 's/\(.\)$/.\1 GB/; s/^\./0./'; }

mkdir -p "$dir"
if [ ! -x "$tessera" ]; then
  say "Packages and program"
  scripts/install_packages.sh build
  cmake --preset release >/dev/null
  cmake --build --preset release --target tessera
fi
if [ ! -f "$dir/tokenizer/tokenizer.json" ]; then
  say "Tokenizer: byte-level BPE with 2048 tokens, trained on the documentation"
  "$tessera" tokenizer train --input 'docs/*.md' --vocab_size 2048 --output "$dir/tokenizer"
fi
mkdir -p "$dir/shape"
if [ -n "${TRAIN_8B_CONFIG:-}" ]; then
  cp "$TRAIN_8B_CONFIG" "$dir/shape/config.json"
else
  cat >"$dir/shape/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
 "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
 "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
 "tie_word_embeddings": false, "initializer_range": 0.02}
JSON
fi

flags=(--packing --max_length "$tokens" --per_device_train_batch_size 1 --gradient_checkpointing --max_steps "$steps"
  --learning_rate 1e-5 --optim "${TRAIN_8B_OPTIM:-adamw_8bit}" --optimizer_in_backward --clip_mode previous
  --offload_optimizer_device nvme --offload_param_device nvme --offload_dir "$dir/offload")
if [ "$save_steps" = 0 ]; then
  flags+=(--save_strategy no)
else
  flags+=(--save_steps "$save_steps" --save_total_limit 1)
fi
read -ra more <<<"${TRAIN_8B_FLAGS:-}"
flags+=("${more[@]}")

say "Plan"
plan=$("$tessera" plan --model "$dir/shape" "${flags[@]}" --memory "${TRAIN_8B_MEMORY:-24GB}" --json)
bytes() { sed -n "s/^ *\"$1\": \([0-9]*\),\{0,1\}$/\1/p" <<<"$plan" | head -n 1; }
model=$(bytes model_bytes)
needed=$((model + $(bytes bytes_beside_model)))  # the finished model, and what a run keeps on disk beside it
[ -f "$dir/start/config.json" ] || needed=$((needed + model))
if [ "$save_steps" != 0 ]; then
  # One is kept, and the next is written before it is deleted.
  present=0
  [ ! -d "$dir/model" ] || present=$(find "$dir/model" -maxdepth 1 -name 'checkpoint-*' | wc -l)
  needed=$((needed + (present > 0 ? 1 : 2) * $(bytes checkpoint_bytes)))
fi
free=$(df --output=avail -B1 "$dir" | tail -n 1)
printf 'memory %s; disk %s more in %s, %s free\n' "$(gigabytes "$(bytes node_bytes)")" "$(gigabytes "$needed")" "$dir" \
  "$(gigabytes "$free")"
[ "$save_steps" != 0 ] ||
  printf 'a checkpoint, which SIGTERM and Ctrl-C write, takes %s more\n' "$(gigabytes "$(bytes checkpoint_bytes)")"
if [ "$needed" -gt "$free" ]; then
  echo "error: $dir: $(gigabytes "$needed") needed, $(gigabytes "$free") free: set TRAIN_8B_DIR to a larger disk" >&2
  exit 78
fi

if [ ! -f "$dir/start/config.json" ]; then
  say "Model: random weights"
  "$tessera" init --config "$dir/shape" --tokenizer "$dir/tokenizer" --output "$dir/start" --overwrite
fi
say "Training: $steps steps of $tokens tokens"
"$tessera" train --model "$dir/start" --dataset 'docs/*.md' --output_dir "$dir/model" --cache_dir "$dir/cache" \
  --logging_steps 1 --resume_from_checkpoint auto "${flags[@]}"
