#!/usr/bin/env bash
# small_memory_check.sh TESSERA: scripts/train-8b-24gb.sh on a small shape, under a memory limit (cgroup) that the same
# training in memory breaks: it trains, is asked for more steps, resumes from its checkpoint, is killed in a step, leaves
# nothing in offload_dir, and resumes again.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "$1")
limit=$((320 << 20))

# Version 2 or 1 of control groups.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  group=/sys/fs/cgroup/tessera-check-$$ file=memory.max
else
  group=/sys/fs/cgroup/memory/tessera-check-$$ file=memory.limit_in_bytes
fi
mkdir "$group" 2>/dev/null || { echo "skipped: no control group can be made here"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"; rmdir "$group"' EXIT
{ echo "$limit" >"$group/$file"; } 2>/dev/null || { echo "skipped: $group has no limit of memory"; exit 77; }

# limited COMMAND...: runs it in the group.
limited() {
  # shellcheck disable=SC2016
  bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
}

# 63 million parameters: 1 GB in memory.
cat >"$folder/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408,
 "num_hidden_layers": 20, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "hidden_act": "silu",
 "vocab_size": 4096, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": false, "initializer_range": 0.02}
JSON
export TESSERA=$program TRAIN_8B_DIR=$folder/run TRAIN_8B_CONFIG=$folder/config.json TRAIN_8B_TOKENS=128
export TRAIN_8B_SAVE_STEPS=1 TRAIN_8B_MEMORY=320MiB TRAIN_8B_OPTIM=${SMALL_MEMORY_OPTIM:-adamw_8bit}

TRAIN_8B_STEPS=2 limited scripts/train-8b-24gb.sh >"$folder/first.log" 2>&1 || { cat "$folder/first.log"; exit 1; }
TRAIN_8B_STEPS=4 limited scripts/train-8b-24gb.sh >"$folder/killed.log" 2>&1 &
steps=$folder/run/model/metrics.jsonl
until [ "$(grep -c loss "$steps")" -ge 3 ]; do
  kill -0 $! || { cat "$folder/killed.log"; exit 1; }
  sleep 0.1
done
while [ -n "$(cat "$group/cgroup.procs")" ]; do xargs -r kill -KILL <"$group/cgroup.procs" || true; done
wait $! && { echo "ended before it was killed"; cat "$folder/killed.log"; exit 1; }
left=$(ls -A "$folder/run/offload")
[ -z "$left" ] || { echo "left in offload_dir: $left"; exit 1; }
TRAIN_8B_STEPS=4 limited scripts/train-8b-24gb.sh >"$folder/second.log" 2>&1 || { cat "$folder/second.log"; exit 1; }
grep -q "resum" "$folder/second.log" || { echo "did not resume"; cat "$folder/second.log"; exit 1; }
lines=$(grep -c '"loss": *[0-9]' "$steps")
[ "$lines" = 4 ] || { echo "$lines steps with a loss, expected 4"; cat "$steps"; exit 1; }

status=0
limited "$program" train --model "$folder/run/start" --dataset 'docs/*.md' --output_dir "$folder/in-memory" --packing \
  --max_length 128 --per_device_train_batch_size 1 --max_steps 1 --save_strategy no --measure_peak false \
  >"$folder/in-memory.log" 2>&1 || status=$?
if [ "$status" != 78 ] || ! grep -q "does not fit in memory" "$folder/in-memory.log"; then
  echo "in memory: status $status, expected 78"
  cat "$folder/in-memory.log"
  exit 1
fi
