#!/usr/bin/env python3
"""Computes the training cases below tests/data/families with Transformers' own models in float32.

    make_family_case.py [NAME...]       (needs torch, transformers and safetensors)
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    get_linear_schedule_with_warmup,
)

SIZES = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
FAMILIES = {"helium": {"head_dim": 8, "attention_bias": True, "mlp_bias": True}}
CASE = {"steps": 4, "accum": 2, "batch": 2, "seq": 24, "learning_rate": 2e-3, "betas": [0.9, 0.95], "eps": 1e-8,
        "weight_decay": 0.1, "max_grad_norm": 0.7, "warmup_steps": 2}


def make(name, folder):
    torch.manual_seed(3)
    config = AutoConfig.for_model(name, **SIZES, **FAMILIES[name])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().train()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            scale = 0.1 if parameter.dim() > 1 else 0.2
            parameter.copy_(torch.randn_like(parameter) * scale + ("norm" in parameter_name))
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    (folder / "case.json").write_text(json.dumps(CASE, indent=1) + "\n", encoding="utf-8")
    ids = torch.randint(4, SIZES["vocab_size"], (CASE["steps"], CASE["accum"], CASE["batch"], CASE["seq"]))
    save_file({"input_ids": ids, "labels": ids.clone()}, folder / "batches.safetensors")

    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() > 1], "weight_decay": CASE["weight_decay"]},
                                   {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0}],
                                  lr=CASE["learning_rate"], betas=CASE["betas"], eps=CASE["eps"])
    schedule = get_linear_schedule_with_warmup(optimizer, CASE["warmup_steps"], CASE["steps"])
    steps = {"loss": [], "grad_norm": [], "lr": []}
    num_targets = CASE["accum"] * CASE["batch"] * (CASE["seq"] - 1)
    for micro_batches in ids:
        optimizer.zero_grad()
        losses = []
        for rows in micro_batches:
            logits = model(rows).logits[:, :-1].float()
            losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum") / num_targets)
            losses[-1].backward()
        steps["loss"].append(sum(loss.item() for loss in losses))
        steps["grad_norm"].append(torch.nn.utils.clip_grad_norm_(parameters, CASE["max_grad_norm"]).item())
        steps["lr"].append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    start = load_file(folder / "model.safetensors")
    final = {f"final.{key}": value.contiguous() for key, value in model.state_dict().items() if key in start}
    save_file({key: torch.tensor(value) for key, value in steps.items()} | final, folder / "expected.safetensors")
    print(name, steps["loss"])


if __name__ == "__main__":
    for family in sys.argv[1:] or FAMILIES:
        target = pathlib.Path(__file__).parent / "families" / family
        target.mkdir(parents=True, exist_ok=True)
        make(family, target)
