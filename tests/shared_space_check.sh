#!/usr/bin/env bash
# shared_space_check.sh TESSERA: runs with state on a disk save checkpoints on a file system that can share space between files
# (XFS on a loop device) and on one that need not: their files have the same bytes, most of which the former only shares, and both
# resume. On a disk without room for another checkpoint the run continues without it.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "$1")

command -v mkfs.xfs >/dev/null || { echo "skipped: no mkfs.xfs (package xfsprogs)"; exit 77; }
folder=$(mktemp -d)
cleanup() {
  mountpoint -q "$folder/xfs" && umount "$folder/xfs"
  rm -rf "$folder"
}
trap cleanup EXIT
mkdir "$folder/xfs" "$folder/plain"

# on_xfs MEGABYTES: an empty file system of this size.
on_xfs() {
  mountpoint -q "$folder/xfs" && umount "$folder/xfs"
  rm -f "$folder/image"
  truncate -s "$1M" "$folder/image"
  mkfs.xfs -q "$folder/image"
  mount -o loop "$folder/image" "$folder/xfs" 2>/dev/null || { echo "skipped: no loop device can be mounted here"; exit 77; }
}

# 8 million parameters.
mkdir "$folder/shape"
cat >"$folder/shape/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408,
 "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "hidden_act": "silu",
 "vocab_size": 2048, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": false, "initializer_range": 0.02}
JSON
"$program" tokenizer train --input 'docs/*.md' --vocab_size 2048 --output "$folder/tokenizer" >/dev/null
"$program" init --config "$folder/shape/config.json" --tokenizer "$folder/tokenizer" --output "$folder/start" >/dev/null

# train FOLDER STEPS FLAG...: saves after every step.
train() {
  local where=$1 steps=$2
  shift 2
  "$program" "${launch[@]}" train --model "$folder/start" --dataset 'docs/*.md' --packing --max_length 64 \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 1 --max_steps "$steps" --save_steps 1 --bf16 --measure_peak false \
    --offload_optimizer_device nvme --offload_dir "$where/offload" --output_dir "$where/run" "$@" >"$where.log" 2>&1 ||
    { cat "$where.log"; exit 1; }
}
bytes() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p"; }
same() { cmp "$folder/xfs/run/$1" "$folder/plain/run/$1" || exit 1; }

compare() {
  on_xfs 1500
  echo "== $*"
  for where in "$folder/xfs" "$folder/plain"; do
    train "$where" 2 "$@"
    train "$where" 3 "$@" --resume_from_checkpoint auto
    "$program" checkpoint verify "$where/run" >"$where.log" 2>&1 || { cat "$where.log"; exit 1; }
  done
  for step in 1 2 3; do
    for file in "$folder/plain/run/checkpoint-$step"/{,tessera/}*.safetensors; do same "${file#"$folder/plain/run/"}"; done
  done
  same model.safetensors
  # But for weights in memory.
  grep '"checkpoint"' "$folder/xfs/run/events.jsonl" | while read -r event; do
    shared=$(bytes shared_bytes <<<"$event") all=$(bytes bytes <<<"$event")
    echo "$shared of $all bytes are shared"
    [ "$shared" -ge $((all * least / 100)) ] || { echo "expected $least %"; exit 1; }
  done
  rm -rf "$folder"/plain/run
}
on_xfs 1500
"$program" doctor --offload_dir "$folder/xfs" | tr -s ' \n' ' ' >"$folder/doctor.log" || true
grep -q "share the space" "$folder/doctor.log" || { cat "$folder/doctor.log"; exit 1; }
launch=() least=80
compare --optim adamw_torch --optimizer_in_backward --gradient_checkpointing --offload_param_device nvme
# Its codes begin at page boundaries, as in runs with 33 million parameters or more.
least=30
compare --optim adamw_8bit
least=50
compare --optim muon
launch=(launch --nproc_per_node 2) least=75
compare --zero_stage 3

echo "== a disk that becomes full"
on_xfs 360
launch=()
train "$folder/xfs" 3 --save_total_limit 3
grep -q "the run continues: .*No space left on device" "$folder/xfs.log" || { cat "$folder/xfs.log"; exit 1; }
"$program" checkpoint verify "$folder/xfs/run" >"$folder/verify.log" 2>&1 || { cat "$folder/verify.log"; exit 1; }
