#!/usr/bin/env bash
# bench_cuda.sh: trains a model of Llama-3-8B's shape (random weights, vocabulary 128,256) on an NVIDIA card with Tessera, and with
# PyTorch on the same rows, one after the other, and prints a line of JSON for each. Needs a program built with the preset cuda, and
# python3 with PyTorch and Transformers for the comparison.
# Settings: BENCH_PROGRAM (build/cuda/tessera), BENCH_DIR (build/cuda_bench; a fast folder with room for the model),
# BENCH_LAYERS (32), BENCH_BATCH (4 rows in a step), BENCH_LENGTH (2048 tokens in a row), BENCH_STEPS (8),
# BENCH_FLAGS (further flags of tessera train), BENCH_FORMS (bf16; mixed: float32 weights in PyTorch; "": no PyTorch),
# BENCH_TORCH_FLAGS (of scripts/pytorch_cuda.py).
set -euo pipefail
cd "$(dirname "$0")/.."

tessera=${BENCH_PROGRAM:-build/cuda/tessera}
dir=${BENCH_DIR:-build/cuda_bench}
layers=${BENCH_LAYERS:-32} batch=${BENCH_BATCH:-4} length=${BENCH_LENGTH:-2048} steps=${BENCH_STEPS:-8}
start=$dir/start-$layers
mkdir -p "$dir/shape"

if [ ! -f "$start/config.json" ]; then
  cat >"$dir/shape/config.json" <<EOF
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
 "num_hidden_layers": $layers, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
 "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
 "tie_word_embeddings": false, "initializer_range": 0.02}
EOF
  "$tessera" init --config "$dir/shape" --tokenizer tests/data/tokenizers/gpt2 --output "$start" --overwrite >&2
fi
python3 - "$dir/rows.jsonl" "$((batch * steps > 64 ? batch * steps : 64))" "$length" <<'EOF'
import json, random, sys

random.seed(1)
with open(sys.argv[1], "w", encoding="utf-8") as file:
    for _ in range(int(sys.argv[2])):
        file.write(json.dumps({"input_ids": [random.randrange(1000, 128000) for _ in range(int(sys.argv[3]))]}) + "\n")
EOF

read -ra flags <<<"${BENCH_FLAGS:-}"
read -ra torch_flags <<<"${BENCH_TORCH_FLAGS:-}"
# Steps only: the run is killed before it would write a model.
rm -rf "$dir/run"
"$tessera" train --device cuda --model "$start" --dataset "$dir/rows.jsonl" --max_length "$length" \
  --per_device_train_batch_size "$batch" --max_steps $((steps + 1000)) --learning_rate 1e-5 --logging_steps 1 \
  --save_strategy no --output_dir "$dir/run" "${flags[@]}" >&2 &
run=$!
begin=$(date +%s.%N)
steps_done() { if [ -f "$dir/run/metrics.jsonl" ]; then wc -l <"$dir/run/metrics.jsonl"; else echo 0; fi; }
while [ "$(steps_done)" -eq 0 ] && kill -0 $run 2>/dev/null; do sleep 0.05; done
first=$(date +%s.%N)
while [ "$(steps_done)" -le "$steps" ] && kill -0 $run 2>/dev/null; do sleep 0.2; done
kill -KILL $run 2>/dev/null || true
wait $run 2>/dev/null || true
python3 - "$dir/run" "$begin" "$first" <<'EOF'
import json, pathlib, statistics, sys

run = pathlib.Path(sys.argv[1])
steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
memory = json.loads((run / "memory.json").read_text(encoding="utf-8"))
half = steps[len(steps) // 2 :]
median = lambda name: statistics.median(step[name] for step in half)
print(
    json.dumps(
        {
            "program": "tessera",
            "tokens_per_second": median("tokens_per_second"),
            "memory_gib": memory["measured"]["device_bytes"] / 2**30,
            "planned_gib": memory["predicted"]["device_bytes"] / 2**30,
            "first_step_s": float(sys.argv[3]) - float(sys.argv[2]),
            "tflops": median("tflops"),
            "mfu": median("mfu"),
            "losses": [step["loss"] for step in steps],
        }
    )
)
EOF
for form in ${BENCH_FORMS-bf16}; do
  python3 scripts/pytorch_cuda.py --config "$dir/shape" --rows "$dir/rows.jsonl" --batch "$batch" --steps "$steps" --form "$form" \
    "${torch_flags[@]}"
done
