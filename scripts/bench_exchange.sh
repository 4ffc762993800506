#!/usr/bin/env bash
# bench_exchange.sh [FORM...]: trains one model from the same start on the same rows on four nodes of one rank, which exchange
# gradients exactly, in int8 or int4 blocks with weights in int8, or their weights every 50 steps (DiLoCo), and compares the
# evaluation losses and the bytes. All nodes are on this machine. Prints a table in Markdown and draws a picture. Finished forms are
# not trained again, interrupted ones continue. FORM: exact, int8, int4, every50, every50-int4, every50-fragments.
# Settings: BENCH_DIR (build/exchange), BENCH_MODEL (what bench_optimizers.sh has trained with adamw_torch), BENCH_STEPS (1000),
# BENCH_LENGTH (256, tokens of a node in a step), BENCH_PICTURE (docs/images/exchange.svg), BENCH_PROGRAM (build/release/tessera),
# BENCH_THREADS (1, of a node), BENCH_FLAGS (further flags of tessera train, such as --device cuda --offload_param_device cpu: the nodes
# share a card).
# QUICK=1: 10 steps of the 15m preset, with the picture in BENCH_DIR.
set -euo pipefail
cd "$(dirname "$0")/.."
renice -n 19 $$ >/dev/null

dir=${BENCH_DIR:-build/exchange}
steps=1000 picture=docs/images/exchange.svg model=build/optimizers/adamw_torch-2e-4-160m-300-1024
[ -z "${QUICK:-}" ] || steps=10 picture=$dir/exchange.svg model=$dir/start-15m
steps=${BENCH_STEPS:-$steps}
model=${BENCH_MODEL:-$model}
picture=${BENCH_PICTURE:-$picture}
tessera=${BENCH_PROGRAM:-build/release/tessera}
text=${BENCH_TEXT:-build/optimizers/text}
nodes=4
length=${BENCH_LENGTH:-256}
forms=("$@")
[ $# -gt 0 ] || forms=(exact int8 int4 every50 every50-int4 every50-fragments)
mkdir -p "$dir"

# The quickstart's text and tokenizer.
if [ ! -f "$text/model/model.safetensors" ]; then
  QUICKSTART_DIR=$text QUICKSTART_STEPS=1 scripts/quickstart.sh >"$dir/text.log" 2>&1 || { tail -5 "$dir/text.log" >&2; exit 1; }
fi
[ -z "${QUICK:-}" ] || [ -f "$model/model.safetensors" ] ||
  "$tessera" init --preset 15m --tokenizer "$text/tokenizer" --output "$model"
[ -f "$model/model.safetensors" ] || { echo "error: $model: no model; run scripts/bench_optimizers.sh adamw_torch first" >&2; exit 66; }

flags_of() {
  case $1 in
    exact) ;;
    int8) echo --zero_quantized_weights true --zero_quantized_gradients int8 ;;
    int4) echo --zero_quantized_weights true --zero_quantized_gradients int4 ;;
    every50) echo --sync_every 50 ;;
    every50-int4) echo --sync_every 50 --zero_quantized_gradients int4 ;;
    every50-fragments) echo --sync_every 50 --num_fragments 4 --fragment_sync_delay 5 --fragment_update_alpha 0.5 ;;
    *) echo "error: expected exact, int8, int4, every50, every50-int4 or every50-fragments, found '$1'" >&2; exit 64 ;;
  esac
}

# One more step, so that the exchange begun by the last of them counts. Evaluations and checkpoints exchange weights
# that are not due, which the bytes of steps do not count: they are at multiples of 50, and with fragments at the end
# alone.
pauses_of() {
  if [ "$1" = every50-fragments ] || [ "$steps" -lt 50 ]; then
    echo --eval_steps "$steps" --save_strategy no
  else
    echo --eval_steps $((steps >= 500 ? 100 : 50)) --save_steps 100 --save_total_limit 1
  fi
}
runs=()
for form in "${forms[@]}"; do
  run=$dir/$form-$steps
  runs+=("$run")
  [ -f "$run/model.safetensors" ] && continue
  form_flags=$(flags_of "$form")
  read -ra flags <<<"$form_flags $(pauses_of "$form") ${BENCH_FLAGS:-}"
  echo "== $form" >&2
  agents=()
  for ((node = 0; node < nodes; ++node)); do
    "$tessera" launch --nnodes "$nodes" --node_rank "$node" --nproc_per_node 1 --rdzv_endpoint 127.0.0.1:29622 train --model "$model" \
      --dataset "$text/corpus/train/*.txt" --eval_dataset "$text/corpus/valid/*00-*.txt" --packing --max_length "$length" \
      --per_device_train_batch_size 1 --max_steps "$((steps + 1))" --learning_rate 2e-4 --lr_scheduler_type cosine --warmup_ratio 0.1 \
      --weight_decay 0.1 --adam_beta2 0.95 --seed 7 --zero_stage 2 --num_threads "${BENCH_THREADS:-1}" --eval_strategy steps --eval_on_start \
      --logging_steps 10 --resume_from_checkpoint auto --quiet --output_dir "$run" "${flags[@]}" \
      >"$dir/$form.$node.log" 2>&1 &
    agents+=($!)
  done
  for agent in "${agents[@]}"; do
    wait "$agent" || { tail -3 "$dir/$form".*.log >&2; exit 1; }
  done
  rm -rf "$run"/checkpoint-*
done
scripts/summaries/exchange_summary.py "$picture" "${runs[@]}"
