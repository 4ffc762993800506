# shellcheck shell=bash
# What bench_context.sh, bench_nodes.sh, bench_simulation.sh and bench_sync_every.sh share; all source it, from the root of the repository.

# make_model NAME HIDDEN_SIZE INTERMEDIATE_SIZE LAYERS HEADS KEY_VALUE_HEADS [MAX_TOKENS]: builds the program and sets `tessera`, makes
# the folder build/NAME and sets `out`, and leaves a small Llama in $out/model, with a tokenizer trained on this repository.
# Names of network namespaces must begin with `prefix`, which it sets: they are removed when the script ends.
make_model() {
  prefix=tessera-bench-$$
  trap remove_hosts EXIT
  cmake --preset release >/dev/null
  cmake --build --preset release --target tessera
  tessera=$PWD/build/release/tessera
  out=$PWD/build/$1
  rm -rf "$out"
  mkdir -p "$out"
  "$tessera" tokenizer train --input 'docs/*.md' 'src/*/*.cc' --vocab_size 8192 --output "$out/tokenizer"
  cat >"$out/config.json" <<JSON
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": $2, "intermediate_size": $3,
 "num_hidden_layers": $4, "num_attention_heads": $5, "num_key_value_heads": $6, "head_dim": 64, "vocab_size": 8192,
 "max_position_embeddings": ${7:-2048}, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": true}
JSON
  "$tessera" init --config "$out" --tokenizer "$out/tokenizer" --output "$out/model"
}

# join_two_hosts: makes the hosts $prefix-0 and $prefix-1, which a veth cable joins.
join_two_hosts() {
  local host
  for host in 0 1; do
    ip netns add "$prefix-$host"
    ip -n "$prefix-$host" link set lo up
  done
  ip -n "$prefix-0" link add cable type veth peer name cable netns "$prefix-1"
  for host in 0 1; do
    ip -n "$prefix-$host" addr add "10.78.0.$((host + 1))/24" dev cable
    ip -n "$prefix-$host" link set cable up
  done
}

# start_host HOST COUNT NAME FLAG...: starts the agent of one of COUNT hosts in the network namespace $prefix-HOST, by the
# command in `pin`, and adds its process to `agents`. Its output goes to $out/NAME.HOST.log.
pin=()
start_host() {
  local host=$1 count=$2 name=$3
  shift 3
  ip netns exec "$prefix-$host" "${pin[@]}" "$tessera" launch --nnodes "$count" --node_rank "$host" \
    --nproc_per_node 1 --rdzv_endpoint 10.78.0.1:29500 train --model "$out/model" --dataset 'docs/*.md' 'src/*/*.cc' \
    --output_dir "$out/$name" --overwrite_output_dir true --cache_dir "$out/cache" --packing --save_strategy no "$@" \
    >"$out/$name.$host.log" 2>&1 &
  agents+=($!)
}

# wait_for_hosts NAME: until all agents have ended; ends the script with the ends of their logs if one fails.
wait_for_hosts() {
  local agent failed=0
  for agent in "${agents[@]}"; do wait "$agent" || failed=1; done
  [ "$failed" -eq 0 ] || { tail -n 5 "$out/$1".*.log >&2; exit 1; }
}

remove_hosts() {
  local name
  for name in $(ip netns list | cut -d" " -f1 | grep "^$prefix-" || true); do ip netns del "$name"; done
}
