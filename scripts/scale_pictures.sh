#!/usr/bin/env bash
# scale_pictures.sh [PROGRAM]: the simulations of docs/scale.md. Prints each command and its tables, and draws the
# pictures in docs/images. Takes a few seconds; nothing is measured.
set -euo pipefail
cd "$(dirname "$0")/.."

tessera=${1:-build/release/tessera}
# simulate FLAG...
simulate() {
  printf '$ tessera simulate --preset llama3-8b --max_length 2048 --zero_stage 2 \\\n    %s\n' "$*"
  "$tessera" simulate --preset llama3-8b --max_length 2048 --zero_stage 2 "$@"
  echo
}

per_node=(--per_device_train_batch_size 4 --gradient_accumulation_steps 8)
racks=(--nodes_per_rack 16 --oversubscription 4 --flow_gbps 5)
simulate --machine r7i.16xlarge "${per_node[@]}" --flow_gbps 10
simulate --machine r7i.16xlarge "${per_node[@]}" "${racks[@]}" --mtbf_hours 1000 --plot docs/images/scale-per-node.svg
simulate --machine r7i.16xlarge "${per_node[@]}" "${racks[@]}" --sync_every 50 --num_fragments 4 --fragment_sync_delay 2
simulate --machine c8i.48xlarge "${per_node[@]}" "${racks[@]}"
simulate --machine r7i.16xlarge --global_batch_size 1024 --per_device_train_batch_size 1 --flow_gbps 10 \
  --mtbf_hours 1000 --plot docs/images/scale-fixed-batch.svg
simulate --machine r7i.16xlarge "${per_node[@]}" --flow_gbps 10 --straggler_spread 0.03
simulate --machine r7i.16xlarge "${per_node[@]}" --flow_gbps 10 --stragglers 2:1.3
simulate --machine r7i.16xlarge "${per_node[@]}" --flow_gbps 10 --mtbf_hours 200 --checkpoint_steps 20
simulate --machine r7i.16xlarge "${per_node[@]}" --flow_gbps 10 --zero_stage 3 --gather_schedule per_layer
