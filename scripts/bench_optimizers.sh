#!/usr/bin/env bash
# bench_optimizers.sh [FORM[=RATE]...]: trains one model from the same start on the same rows with each form of the optimizer,
# Muon and Adafactor at three learning rates, and compares their evaluation losses with those of the first. Prints a table in
# Markdown and draws a picture. Finished forms are not trained again, interrupted ones continue.
# Settings: BENCH_DIR (build/optimizers), BENCH_PRESET (160m), BENCH_STEPS (300), BENCH_TOKENS (1024 in a step; rows have 256),
# BENCH_PICTURE (docs/images/optimizers.svg), BENCH_PROGRAM (build/release/tessera), BENCH_FLAGS (further flags of tessera train, such
# as --device cuda --offload_optimizer_device cpu).
# QUICK=1: 10 steps of the 15m preset, with the picture in BENCH_DIR.
set -euo pipefail
cd "$(dirname "$0")/.."
renice -n 19 $$ >/dev/null

dir=${BENCH_DIR:-build/optimizers}
preset=160m steps=300 picture=docs/images/optimizers.svg
[ -z "${QUICK:-}" ] || preset=15m steps=10 picture=$dir/optimizers.svg
preset=${BENCH_PRESET:-$preset}
steps=${BENCH_STEPS:-$steps}
picture=${BENCH_PICTURE:-$picture}
tokens=${BENCH_TOKENS:-1024}
tessera=${BENCH_PROGRAM:-build/release/tessera}
read -ra flags <<<"${BENCH_FLAGS:-}"
forms=("$@")
[ $# -gt 0 ] || forms=(adamw_torch adamw_bf16 adamw_8bit muon=2e-4 muon=4e-4 muon=8e-4 adafactor=2e-4 adafactor=4e-4
  adafactor=8e-4 lion_32bit lion_8bit)

# Lion's updates are larger than AdamW's, for which its authors recommend a third to a tenth of the rate.
default_rate() {
  case $1 in
    lion_*) echo 4e-5 ;;
    *) echo 2e-4 ;;
  esac
}

# The quickstart's text and tokenizer.
mkdir -p "$dir"
if [ ! -f "$dir/text/model/model.safetensors" ]; then
  QUICKSTART_DIR=$dir/text QUICKSTART_STEPS=1 scripts/quickstart.sh >"$dir/text.log" 2>&1 ||
    { tail -5 "$dir/text.log" >&2; exit 1; }
fi
start=$dir/start-$preset
[ -f "$start/model.safetensors" ] ||
  "$tessera" init --preset "$preset" --tokenizer "$dir/text/tokenizer" --output "$start" --overwrite

# Ten evaluations (QUICK: two) on a fifth of the files that were held out: on all of them they would take as long as training.
eval_steps=$((steps / 10 > 5 ? steps / 10 : 5))
runs=()
for form in "${forms[@]}"; do
  name=${form%%=*}
  rate=$(default_rate "$name")
  [ "$form" = "$name" ] || rate=${form#*=}
  run=$dir/$name-$rate-$preset-$steps-$tokens
  runs+=("$run")
  [ -f "$run/model.safetensors" ] && continue
  echo "== $name, learning rate $rate" >&2
  "$tessera" train --model "$start" --dataset "$dir/text/corpus/train/*.txt" \
    --eval_dataset "$dir/text/corpus/valid/*00-*.txt" --packing --max_length 256 --optim "$name" --learning_rate "$rate" \
    --per_device_train_batch_size $((tokens / 256)) --max_steps "$steps" --lr_scheduler_type cosine --warmup_ratio 0.1 \
    --weight_decay 0.1 --adam_beta2 0.95 --eval_strategy steps --eval_steps "$eval_steps" --logging_steps 10 \
    --save_steps 50 --save_total_limit 1 --resume_from_checkpoint auto --quiet --output_dir "$run" "${flags[@]}" >&2
  rm -rf "$run"/checkpoint-*
done
scripts/summaries/optimizer_summary.py "$picture" "${runs[@]}"
