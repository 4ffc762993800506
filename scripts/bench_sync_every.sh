#!/usr/bin/env bash
# bench_sync_every.sh [GBPS]: trains on two hosts joined by a cable of GBPS Gbit/s (0.2), taking every step together and with weights
# exchanged every 10 steps (--sync_every), at once, with a delay, and in fragments with a delay. Hosts are network namespaces (needs
# root), one rank with one thread each. Prints the times of 30 steps after the first as a table in Markdown.
set -euo pipefail
cd "$(dirname "$0")/.."

gbps=${1:-0.2}
scripts/install_packages.sh hosts
. scripts/bench_hosts.sh
make_model bench_sync_every 512 1536 6 8 4

join_two_hosts
for host in 0 1; do
  # A long queue loses nothing.
  ip netns exec "$prefix-$host" tc qdisc add dev cable root tbf rate "${gbps}gbit" burst 256kb limit 64mb
done

# train NAME FLAG...
train() {
  local host
  agents=()
  for host in 0 1; do
    start_host "$host" 2 "$1" --max_length 256 --per_device_train_batch_size 4 --max_steps 31 --num_threads 1 --measure_peak false "${@:2}"
  done
  wait_for_hosts "$1"
}
train together --zero_stage 2
train every10 --sync_every 10
train delayed --sync_every 10 --fragment_sync_delay 8 --fragment_update_alpha 0.5
train fragments --sync_every 10 --num_fragments 2 --fragment_sync_delay 4 --fragment_update_alpha 0.5

/usr/bin/python3 - "$out" <<'PYTHON'
import json, statistics, sys

print("| | MB sent a node and step | step, median | longest | waiting, mean | 30 steps |\n|---|---|---|---|---|---|")
for name in "together", "every10", "delayed", "fragments":
    steps = [json.loads(line) for line in open(f"{sys.argv[1]}/{name}/metrics.jsonl")][1:]
    times = [step["step_time_s"] for step in steps]
    sent = sum(step["network_sent_bytes"] for step in steps) / 2 / len(steps)
    waits = statistics.fmean(step["time_wait_s"] for step in steps)
    print(f"| {name} | {sent / 1e6:.2f} | {statistics.median(times):.2f} s | {max(times):.2f} s | {waits:.2f} s | {sum(times):.1f} s |")
PYTHON
