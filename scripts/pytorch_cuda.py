#!/usr/bin/env python3
"""Trains a Llama of random weights on the card with PyTorch and Transformers, for scripts/bench_cuda.sh. Only for comparison,
not part of the product. Prints a line of JSON: tokens per second, the most memory in use, the losses.

SDPA, layers compiled, fused AdamW, gradients clipped to a norm of one. --form bf16 keeps weights, gradients and moments in
bfloat16, which is less exact than float32 master weights; mixed keeps them in float32 and computes in bfloat16.
"""

import argparse
import json
import pathlib
import statistics
import time

import torch
from transformers import AutoConfig, LlamaForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True, help="folder with config.json")
    parser.add_argument("--rows", type=pathlib.Path, required=True, help="JSON lines with input_ids")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--form", choices=["bf16", "mixed"], default="bf16")
    parser.add_argument("--gradient_checkpointing", action="store_true")
    arguments = parser.parse_args()

    config = AutoConfig.from_pretrained(arguments.config)
    dtype = torch.bfloat16 if arguments.form == "bf16" else torch.float32
    torch.manual_seed(1)
    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    model.config.use_cache = False
    model.train()
    if arguments.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in model.model.layers:
        layer.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, fused=True)
    lines = arguments.rows.read_text(encoding="utf-8").splitlines()
    rows = torch.tensor([json.loads(line)["input_ids"] for line in lines], device="cuda")

    times, losses = [], []
    for step in range(arguments.steps):
        batch = rows[torch.arange(step * arguments.batch, (step + 1) * arguments.batch) % len(rows)]
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=arguments.form == "mixed"):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    half = times[len(times) // 2 :]
    print(
        json.dumps(
            {
                "program": f"PyTorch {torch.__version__}, {arguments.form}",
                "tokens_per_second": batch.numel() / statistics.median(half),
                "memory_gib": torch.cuda.max_memory_reserved() / 2**30,
                "first_step_s": times[0],
                "losses": losses,
            }
        )
    )


if __name__ == "__main__":
    main()
