#!/usr/bin/env bash
# page_pictures.sh: draws docs/pictures/*.png, the page as docs/dashboard.md shows it, from two runs of scripts/quickstart.sh
# that differ in their learning rate. Needs chromium, the packages of tests/page (npm ci) and the built program.
# Settings: QUICKSTART_DIR (build/quickstart), PICTURE_STEPS (120).
set -euo pipefail
cd "$(dirname "$0")/.."

dir=${QUICKSTART_DIR:-build/quickstart}
steps=${PICTURE_STEPS:-120}
[ -f "$dir/start/model.safetensors" ] || QUICKSTART_STEPS=20 scripts/quickstart.sh

runs=build/pictures
rm -rf "$runs"
for rate in 2e-3 5e-4; do
  build/release/tessera launch --nproc_per_node 2 train --quiet --model "$dir/start" --dataset "$dir/corpus/train/*.txt" \
    --eval_dataset "$dir/corpus/valid/*.txt" --output_dir "$runs/15m-lr-$rate" --packing --max_length 256 \
    --per_device_train_batch_size 2 --max_steps "$steps" --learning_rate "$rate" --lr_scheduler_type cosine --warmup_ratio 0.05 \
    --weight_decay 0.1 --adam_beta2 0.95 --eval_strategy steps --eval_steps $((steps / 6)) --save_steps $((steps / 3))
done
build/release/tessera report "$runs"/15m-lr-2e-3 "$runs"/15m-lr-5e-4 --output "$runs/report.html"
exec node tests/page/pictures.mjs "$runs/report.html" docs/pictures
