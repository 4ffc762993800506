#!/usr/bin/env bash
# bench_nodes.sh [STEPS]: measures what the network costs a step of two nodes. Two network namespaces joined by a veth
# cable (needs root), with one rank and half of the processors each, train 4 layers of the shape of llama3.2-1b with 2048
# tokens per rank and step, with both schedules of stage 3. Prints the medians of STEPS (8) steps of metrics.jsonl, not
# counting the first two; needs 16 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."

steps=${1:-8}
scripts/install_packages.sh bench
cmake --preset release >/dev/null
cmake --build --preset release --target tessera
tessera=$PWD/build/release/tessera
out=$PWD/build/bench_nodes
rm -rf "$out"
mkdir -p "$out"

"$tessera" tokenizer train --input 'docs/*.md' 'src/*/*.cc' --vocab_size 8192 --output "$out/tokenizer"
cat >"$out/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
 "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 8192,
 "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": true}
JSON
"$tessera" init --config "$out" --tokenizer "$out/tokenizer" --output "$out/model"

hosts=("tessera-bench-$$-a" "tessera-bench-$$-b")
trap 'for host in "${hosts[@]}"; do ip netns del "$host" 2>/dev/null || true; done' EXIT
for host in "${hosts[@]}"; do
  ip netns add "$host"
  ip -n "$host" link set lo up
done
ip -n "${hosts[0]}" link add cable type veth peer name cable netns "${hosts[1]}"
for node in 0 1; do
  ip -n "${hosts[node]}" addr add "10.78.0.$((node + 1))/24" dev cable
  ip -n "${hosts[node]}" link set cable up
done

# cpus NODE: prints the half of the processors that belongs to NODE.
cpus() {
  local all half
  mapfile -t all < <(taskset -cp $$ | sed 's/.*: //' | tr , '\n' |
    while IFS=- read -r first last; do seq "$first" "${last:-$first}"; done)
  half=$((${#all[@]} / 2))
  [ "$half" -gt 0 ] || { echo "error: two nodes need two processors, found ${#all[@]}" >&2; exit 78; }
  (IFS=, && echo "${all[*]:$(($1 * half)):half}")
}

# train SCHEDULE: runs both nodes; ends the script with the ends of their logs if one fails.
train() {
  local node agents=()
  for node in 1 0; do
    ip netns exec "${hosts[node]}" taskset -c "$(cpus $node)" "$tessera" launch --nnodes 2 --node_rank $node \
      --nproc_per_node 1 --rdzv_endpoint 10.78.0.1:29500 train --model "$out/model" \
      --dataset 'docs/*.md' 'src/*/*.cc' --output_dir "$out/$1" --cache_dir "$out/cache" --packing --max_length 512 \
      --per_device_train_batch_size 4 --max_steps "$((steps + 2))" --save_strategy no --zero_stage 3 \
      --gather_schedule "$1" >"$out/$1.$node.log" 2>&1 &
    agents+=($!)
  done
  if ! wait "${agents[0]}" || ! wait "${agents[1]}"; then
    tail -n 5 "$out/$1".*.log >&2
    exit 1
  fi
}

echo
echo '| `--gather_schedule` | sent per step by both nodes | under way | hidden | step |'
echo '|---|---|---|---|---|'
for schedule in per_step per_layer; do
  train "$schedule"
  /usr/bin/python3 - "$out/$schedule/metrics.jsonl" "$schedule" <<'PYTHON'
import json, statistics, sys
steps = [json.loads(line) for line in open(sys.argv[1])][2:]
median = lambda name: statistics.median(step[name] for step in steps)
print(f"| `{sys.argv[2]}` | {median('network_sent_bytes') / 1e6:.0f} MB | {median('network_time_s'):.2f} s "
      f"| {100 * median('network_hidden'):.0f} % | {median('step_time_s'):.2f} s |")
PYTHON
done
