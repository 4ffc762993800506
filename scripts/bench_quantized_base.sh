#!/usr/bin/env bash
# bench_quantized_base.sh [MODEL]: trains the same adapters on the same rows beside a base in bfloat16, int8 and nf4, and prints
# the evaluation losses before and after as a table in Markdown. The text is this repository's documentation, of which one page is
# held out. MODEL is a trained model: by default what bench_optimizers.sh has trained with adamw_torch.
# Settings: BENCH_DIR (build/quantized_base), BENCH_STEPS (100), BENCH_PROGRAM (build/release/tessera).
set -euo pipefail
cd "$(dirname "$0")/.."
renice -n 19 $$ >/dev/null

dir=${BENCH_DIR:-build/quantized_base}
steps=${BENCH_STEPS:-100}
tessera=${BENCH_PROGRAM:-build/release/tessera}
model=${1:-build/optimizers/adamw_torch-2e-4-160m-300-1024}
mkdir -p "$dir/text"
cp docs/*.md "$dir/text"
mv "$dir/text/plan.md" "$dir/held_out.md"

for base in bf16 int8 nf4; do
  case $base in
    bf16) form=() ;;
    int8) form=(--quantization_bit 8) ;;
    nf4) form=(--quantization_bit 4) ;;
  esac
  rm -rf "${dir:?}/$base"
  "$tessera" train --model "$model" --dataset "$dir/text/*.md" --eval_dataset "$dir/held_out.md" --packing --max_length 256 \
    --peft lora --lora_rank 16 --learning_rate 5e-4 --lr_scheduler_type cosine --warmup_ratio 0.1 --max_steps "$steps" \
    --per_device_train_batch_size 4 --eval_strategy steps --eval_steps "$steps" --eval_on_start --logging_steps 10 \
    --save_strategy no --quiet "${form[@]}" --output_dir "$dir/$base" >&2
done
/usr/bin/python3 - "$dir" <<'EOF'
import json, pathlib, sys

losses = {}
for base in "bf16", "int8", "nf4":
    state = json.loads((pathlib.Path(sys.argv[1]) / base / "trainer_state.json").read_text(encoding="utf-8"))
    entries = [entry["eval_loss"] for entry in state["log_history"] if "eval_loss" in entry]
    losses[base] = entries[0], entries[-1]
print("| base | loss of the held-out page before | against bf16 | after | against bf16 |\n|---|---|---|---|---|")
for base, both in losses.items():
    cells = [f"{loss:.4f} | {100 * (loss / exact - 1):+.2f} %" for loss, exact in zip(both, losses["bf16"])]
    print(f"| {base} | {' | '.join(cells)} |")
EOF
