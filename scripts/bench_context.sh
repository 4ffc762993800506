#!/usr/bin/env bash
# bench_context.sh [TOKENS]: trains on two hosts that have rows of TOKENS (8192) tokens of their own, and on the same rows shared by
# both (--context_parallel_size 2), with and without gradient checkpointing. Hosts are network namespaces joined by a veth cable (needs
# root), one rank with one thread each; 4 layers with 16 heads of 64 and 8 key-value heads. Prints the medians of 4 steps after the
# first, and the memory of a host, as a table in Markdown.
set -euo pipefail
cd "$(dirname "$0")/.."

tokens=${1:-8192}
scripts/install_packages.sh hosts
. scripts/bench_hosts.sh
make_model bench_context 1024 2816 4 16 8 "$tokens"
join_two_hosts

# train NAME FLAG...: two rows a step.
train() {
  local host
  agents=()
  for host in 0 1; do
    start_host "$host" 2 "$1" --max_length "$tokens" --per_device_train_batch_size 1 --merge_micro_batches never --max_steps 5 \
      --num_threads 1 --measure_peak false --zero_stage 2 "${@:2}"
  done
  wait_for_hosts "$1"
}
for checkpointing in false true; do
  train "own-$checkpointing" --gradient_checkpointing "$checkpointing"
  train "shared-$checkpointing" --gradient_checkpointing "$checkpointing" --context_parallel_size 2 --gradient_accumulation_steps 2
done

/usr/bin/python3 - "$out" <<'PYTHON'
import json, statistics, sys

print("| rows | gradient checkpointing | activations | memory of a host | sent a host and step | step | of it waiting |")
print("|---|---|---|---|---|---|---|")
for checkpointing in "false", "true":
    for rows in "own", "shared":
        folder = f"{sys.argv[1]}/{rows}-{checkpointing}"
        steps = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")][1:]
        memory = json.load(open(f"{folder}/memory.json"))
        planned = sum(item["bytes"] for item in memory["predicted"]["items"] if item["kind"] == "activations")
        median = lambda name: statistics.median(step[name] for step in steps)
        print(f"| {rows} | {checkpointing} | {planned / 2**20:.0f} MiB | {memory['measured']['node_bytes'] / 2**20:.0f} MiB "
              f"| {median('network_sent_bytes') / 2 / 1e6:.0f} MB | {median('step_time_s'):.2f} s | {median('time_wait_s'):.2f} s |")
PYTHON
