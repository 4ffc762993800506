#!/usr/bin/env bash
# bench_nodes.sh [STEPS]: measures what the network costs a step of two nodes. Two network namespaces joined by a veth
# cable (needs root), with one rank and half of the processors each, train 4 layers of the shape of llama3.2-1b with 2048
# tokens per rank and step, with both schedules of stage 3. Prints the medians of STEPS (8) steps of metrics.jsonl, not
# counting the first two; needs 16 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."

steps=${1:-8}
scripts/install_packages.sh hosts
. scripts/bench_hosts.sh
make_model bench_nodes 2048 8192 4 32 8

join_two_hosts

# cpus NODE: prints the half of the processors that belongs to NODE.
cpus() {
  local all half
  mapfile -t all < <(taskset -cp $$ | sed 's/.*: //' | tr , '\n' |
    while IFS=- read -r first last; do seq "$first" "${last:-$first}"; done)
  half=$((${#all[@]} / 2))
  [ "$half" -gt 0 ] || { echo "error: two nodes need two processors, found ${#all[@]}" >&2; exit 78; }
  (IFS=, && echo "${all[*]:$(($1 * half)):half}")
}

echo
# shellcheck disable=SC2016
echo '| `--gather_schedule` | sent per step by both nodes | under way | hidden | step |'
echo '|---|---|---|---|---|'
for schedule in per_step per_layer; do
  agents=()
  for node in 0 1; do
    pin=(taskset -c "$(cpus "$node")")
    start_host "$node" 2 "$schedule" --max_steps "$((steps + 2))" --max_length 512 --per_device_train_batch_size 4 --zero_stage 3 \
      --gather_schedule "$schedule"
  done
  wait_for_hosts "$schedule"
  /usr/bin/python3 - "$out/$schedule/metrics.jsonl" "$schedule" <<'PYTHON'
import json, statistics, sys
steps = [json.loads(line) for line in open(sys.argv[1])][2:]
median = lambda name: statistics.median(step[name] for step in steps)
print(f"| `{sys.argv[2]}` | {median('network_sent_bytes') / 1e6:.0f} MB | {median('network_time_s'):.2f} s "
      f"| {100 * median('network_hidden'):.0f} % | {median('step_time_s'):.2f} s |")
PYTHON
done
