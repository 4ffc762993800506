#!/usr/bin/env bash
# bench_simulation.sh [ROUNDS [STEPS]]: compares `tessera simulate` with real steps. Hosts are network namespaces
# (needs root) behind bridges, one rank with one thread each; token bucket filters limit every host's cable in both
# directions and, in the case with racks, the cable between the two bridges. The simulation gets the rate that iperf3 reaches
# through a cable, the share of it that the collectives of 2, 3 and 4 hosts reach (the median of a run in every round that
# hardly computes, without racks, in one schedule) and the compute times of the ranks in the same run (metrics.jsonl), so that the
# comparison is about the network. Prints the medians of ROUNDS (3) runs of STEPS (8) steps each, without the first two of a run.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-3}
steps=${2:-8}
scripts/install_packages.sh hosts
. scripts/bench_hosts.sh
make_model bench_simulation 512 1536 6 8 4

# limit NAMESPACE DEVICE GBPS: what leaves through the device; the queue is long enough to lose nothing.
limit() { ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$3gbit" burst 256kb limit 64mb; }

# build HOSTS GBPS RACKS: the hosts prefix-0, prefix-1, ... on bridges in prefix-net; the cable between two racks carries
# as much as one host's.
build() {
  local host rack
  ip netns add "$prefix-net"
  for ((rack = 0; rack < $3; ++rack)); do
    ip -n "$prefix-net" link add "rack$rack" type bridge
    ip -n "$prefix-net" link set "rack$rack" up
  done
  for ((host = 0; host < $1; ++host)); do
    ip netns add "$prefix-$host"
    ip -n "$prefix-$host" link set lo up
    ip -n "$prefix-$host" link add cable type veth peer name "port$host" netns "$prefix-net"
    ip -n "$prefix-net" link set "port$host" master "rack$((host * $3 / $1))" up
    ip -n "$prefix-$host" addr add "10.78.0.$((host + 1))/24" dev cable
    ip -n "$prefix-$host" link set cable up
    limit "$prefix-$host" cable "$2"
    limit "$prefix-net" "port$host" "$2"
  done
  if [ "$3" -eq 2 ]; then
    ip -n "$prefix-net" link add up0 type veth peer name up1
    for rack in 0 1; do
      ip -n "$prefix-net" link set "up$rack" master "rack$rack" up
      limit "$prefix-net" "up$rack" "$2"
    done
  fi
}

# reached: prints the Gbit/s of iperf3 between the first two hosts, both directions busy, the mean of the two.
reached() {
  ip netns exec "$prefix-1" iperf3 --server --one-off --daemon
  sleep 0.5
  ip netns exec "$prefix-0" iperf3 --client 10.78.0.2 --parallel 4 --bidir --time 3 --omit 1 --json |
    /usr/bin/python3 -c 'import json, sys
end = json.load(sys.stdin)["end"]
print((end["sum_received"]["bits_per_second"] + end["sum_received_bidir_reverse"]["bits_per_second"]) / 2e9)'
}

# train HOSTS NAME FLAG...
train() {
  local host
  agents=()
  for ((host = 0; host < $1; ++host)); do start_host "$host" "$1" "$2" --measure_peak false "${@:3}"; done
  wait_for_hosts "$2"
}

# simulate HOSTS RACKS SHARE NAME FLAG...: the simulation of a run that has been measured.
simulate() {
  local hosts=$1 racks=$2 share=$3 name=$4
  shift 4
  echo "{\"num_cores\": 1, \"network_gbps\": $(<"$out/$name.gbps"), \"network_efficiency\": $share}" >"$out/machine.json"
  "$tessera" simulate --model "$out/model" --machine "$out/machine.json" --nnodes "$hosts" \
    --nodes_per_rack "$((hosts / racks))" --oversubscription "$racks" --measured "$out/$name/metrics.jsonl" \
    --json "$@" >"$out/$name.simulated.json"
}

# share_reached NAME: prints the simulated time of transfers relative to the measured one.
share_reached() {
  /usr/bin/python3 - "$out/$1" <<'PYTHON'
import json, statistics, sys
steps = [json.loads(line) for line in open(f"{sys.argv[1]}/metrics.jsonl")][2:]
simulated = json.load(open(f"{sys.argv[1]}.simulated.json"))["clusters"][0]["network_s"]
print(min(1, simulated / statistics.median(step["network_time_s"] for step in steps)))
PYTHON
}

common=(--max_steps "$((steps + 2))" --merge_micro_batches never --zero_stage 3 --num_threads 1)
# A case a line: hosts, Gbit/s, racks, gather_schedule, gradient_accumulation_steps.
cases=("2 0.1 1 per_step 1" "2 0.5 1 per_step 1" "2 0.2 1 per_layer 2" "3 0.2 1 per_step 1" "3 0.2 1 per_layer 2"
  "4 0.2 1 per_step 2" "4 0.5 1 per_layer 1" "4 0.4 2 per_step 1" "4 0.4 2 per_layer 1")

# flags_of SCHEDULE ACCUMULATION: sets flags to the case's.
flags_of() {
  flags=("${common[@]}" --max_length 256 --per_device_train_batch_size 1 --gradient_accumulation_steps "$2"
    --gather_schedule "$1")
}

# run HOSTS GBPS RACKS NAME: trains with the flags, and records iperf3's rate at the same time.
run() {
  build "$1" "$2" "$3"
  reached >"$out/$4.gbps"
  train "$1" "$4" "${flags[@]}"
  remove_hosts
  echo "$4 done" >&2
}

for ((round = 1; round <= rounds; ++round)); do
  for hosts in 2 3 4; do
    flags=("${common[@]}" --gather_schedule per_step --max_length 32 --per_device_train_batch_size 1)
    run "$hosts" 0.2 1 "share-$hosts-$round"
    simulate "$hosts" 1 1 "share-$hosts-$round" "${flags[@]}"
    share_reached "share-$hosts-$round" >"$out/share-$hosts-$round.share"
  done
  for case in "${cases[@]}"; do
    read -r hosts gbps racks schedule accumulation <<<"$case"
    flags_of "$schedule" "$accumulation"
    run "$hosts" "$gbps" "$racks" "${case// /-}-$round"
  done
done

declare -A share
for hosts in 2 3 4; do
  share[$hosts]=$(cat "$out/share-$hosts-"*.share | sort -g | sed -n "$(((rounds + 1) / 2))p")
  echo "collectives of $hosts hosts reach ${share[$hosts]} of iperf3"
done
for case in "${cases[@]}"; do
  read -r hosts gbps racks schedule accumulation <<<"$case"
  flags_of "$schedule" "$accumulation"
  for ((round = 1; round <= rounds; ++round)); do
    simulate "$hosts" "$racks" "${share[$hosts]}" "${case// /-}-$round" "${flags[@]}"
  done
done
/usr/bin/python3 scripts/summaries/simulation_summary.py "$out" "${cases[@]}"
