#!/usr/bin/python3
"""Computes the training cases below tests/data/reference with PyTorch in float32 (Debian's python3-torch).

    tests/data/make_case.py                   writes the cases in CASES anew, byte for byte on the same machine
    tests/data/make_case.py --check DIR ...   computes existing cases again and compares everything they expect

Llama is written out here rather than taken from Transformers, so that each formula can be read. Training is what
Hugging Face's Trainer does: torch.optim.AdamW without decay on norm weights, torch.nn.utils.clip_grad_norm_, a linear
schedule with warm-up. README.md describes the files.
"""

import argparse
import json
import math
import pathlib
import re
import struct
import sys

try:
    import numpy as np
    import torch
    from torch.nn import functional as F
except ImportError:
    print("skipped: python3-torch is not installed")
    sys.exit(77)  # what CTest takes for a skipped test

TRAINING = {"learning_rate": 5e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "max_grad_norm": 1.0,
            "warmup_steps": 2, "steps": 8, "ignored_fraction": 0.1}
CASES = {
    # Heads that together are wider than the hidden size, groups of two query heads, two micro-batches a step.
    "llama-wide-heads": {
        "seed": 1, "accum": 2, "batch": 2, "seq": 24,
        "config": {"vocab_size": 96, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 2,
                   "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
                   "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": False}},
    # Tied embeddings, scaled rotary frequencies of all three kinds, three micro-batches of a single row.
    "llama-small-tied-rope3": {
        "seed": 2, "accum": 3, "batch": 1, "seq": 45,
        "config": {"vocab_size": 80, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
                   "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6,
                   "rope_theta": 500000.0, "tie_word_embeddings": True,
                   "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0, "original_max_position_embeddings": 32}}},
}

# Adapters trained on a case, by name of the folder in it.
ADAPTERS = {
    "llama-wide-heads/lora": {
        "seed": 3, "r": 3, "lora_alpha": 6, "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {},
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]},
    "llama-small-tied-rope3/rslora": {
        "seed": 4, "r": 2, "lora_alpha": 5, "use_rslora": True,
        "rank_pattern": {"v_proj": 5, "^model.layers.0.mlp.down_proj": 3},
        "alpha_pattern": {"layers.1.mlp.up_proj": 1.5},
        "target_modules": ["q_proj", "v_proj", "up_proj", "layers.0.mlp.down_proj"]},
}

DTYPES = {"F32": np.float32, "I64": np.int64}


def read_safetensors(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        content = data[8 + size + begin : 8 + size + end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(content, DTYPES[entry["dtype"]])
        tensors[name] = torch.tensor(values.reshape(entry["shape"]))
    return tensors


def write_safetensors(path, tensors):
    header, parts, at = {}, [], 0
    names = {torch.float32: "F32", torch.int64: "I64", torch.bfloat16: "BF16"}
    for name, tensor in tensors.items():
        values = tensor.detach().contiguous()
        as_numpy = values.view(torch.int16) if values.dtype == torch.bfloat16 else values
        parts.append(as_numpy.numpy().tobytes())
        header[name] = {"dtype": names[values.dtype], "shape": list(values.shape),
                        "data_offsets": [at, at + len(parts[-1])]}
        at += len(parts[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def parameter_shapes(config):
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q_width = config["num_attention_heads"] * config["head_dim"]
    kv_width = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes[layer + "input_layernorm.weight"] = (hidden,)
        shapes[layer + "self_attn.q_proj.weight"] = (q_width, hidden)
        shapes[layer + "self_attn.k_proj.weight"] = (kv_width, hidden)
        shapes[layer + "self_attn.v_proj.weight"] = (kv_width, hidden)
        shapes[layer + "self_attn.o_proj.weight"] = (hidden, q_width)
        shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        shapes[layer + "mlp.gate_proj.weight"] = (inner, hidden)
        shapes[layer + "mlp.up_proj.weight"] = (inner, hidden)
        shapes[layer + "mlp.down_proj.weight"] = (hidden, inner)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def rms_norm(x, weight, eps):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


# Angle per position of each pair of columns. Scaling as in Llama 3.1: wavelengths longer than the original context
# divided by low_freq_factor are stretched by `factor`, those shorter than it divided by high_freq_factor stay, and
# between them the two are blended.
def rotary_frequencies(config):
    head_dim = config["head_dim"]
    frequencies = config["rope_theta"] ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    scaling = config["rope_scaling"]
    if scaling is None:
        return frequencies
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / scaling["factor"] + blend * frequencies


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


# The value of the first pattern that fits the module, as PEFT's get_pattern_key() finds it.
def value_for(module, patterns, otherwise):
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), otherwise)


# PEFT's scaling of each module that has an adapter (LoraLayer.update_layer).
def adapter_scales(config, adapter):
    scales = {}
    for name in parameter_shapes(config):
        module = name.removesuffix(".weight")
        if any(module == target or module.endswith("." + target) for target in adapter["target_modules"]):
            r = value_for(module, adapter["rank_pattern"], adapter["r"])
            alpha = value_for(module, adapter["alpha_pattern"], adapter["lora_alpha"])
            scales[module] = (r, alpha / (math.sqrt(r) if adapter["use_rslora"] else r))
    return scales


# A module with adapters returns result + lora_B(lora_A(x)) * scaling (PEFT's Linear.forward).
def linear(w, module, x):
    y = F.linear(x, w[module + ".weight"])
    if module not in w.get("scales", {}):
        return y
    a, b = (w[f"base_model.model.{module}.lora_{part}.weight"] for part in "AB")
    return y + F.linear(F.linear(x, a), b) * w["scales"][module][1]


def attention(w, layer, x, config, cos, sin):
    rows, length, _ = x.shape

    def heads(name):
        y = linear(w, f"{layer}self_attn.{name}_proj", x)
        return y.view(rows, length, -1, config["head_dim"]).transpose(1, 2)

    group = config["num_attention_heads"] // config["num_key_value_heads"]
    q, k = rotate(heads("q"), cos, sin), rotate(heads("k"), cos, sin)
    k, v = k.repeat_interleave(group, dim=1), heads("v").repeat_interleave(group, dim=1)
    scores = q @ k.transpose(2, 3) / math.sqrt(config["head_dim"])
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    p = torch.softmax(scores.masked_fill(future, -math.inf), dim=-1)
    return linear(w, layer + "self_attn.o_proj", (p @ v).transpose(1, 2).reshape(rows, length, -1))


def mlp(w, layer, x):
    gate = F.silu(linear(w, layer + "mlp.gate_proj", x))
    return linear(w, layer + "mlp.down_proj", gate * linear(w, layer + "mlp.up_proj", x))


def forward(w, config, input_ids):
    angles = torch.outer(torch.arange(input_ids.shape[1], dtype=torch.float32), rotary_frequencies(config))
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    eps = config["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][input_ids]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        x = x + attention(w, layer, rms_norm(x, w[layer + "input_layernorm.weight"], eps), config, cos, sin)
        x = x + mlp(w, layer, rms_norm(x, w[layer + "post_attention_layernorm.weight"], eps))
    head = w["model.embed_tokens.weight"] if config["tie_word_embeddings"] else w["lm_head.weight"]
    return F.linear(rms_norm(x, w["model.norm.weight"], eps), head)


def learning_rate(case, step):
    if step < case["warmup_steps"]:
        return case["learning_rate"] * step / case["warmup_steps"]
    return case["learning_rate"] * (case["steps"] - step) / (case["steps"] - case["warmup_steps"])


# Everything in expected.safetensors. If `adapters` is given, (adapter_config, tensors), only these are trained.
def train(config, weights, batches, case, adapters=None):
    trained = {name: tensor.clone().requires_grad_() for name, tensor in (adapters[1] if adapters else weights).items()}
    w = {**weights, **trained, "scales": adapter_scales(config, adapters[0]) if adapters else {}}
    groups = [{"params": [p for p in trained.values() if p.dim() == 2], "weight_decay": case["weight_decay"]},
              {"params": [p for p in trained.values() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=case["betas"], eps=case["eps"])
    expected = {"logits": forward(w, config, batches["input_ids"][0, 0]).detach()}
    curves = {"loss": [], "grad_norm": [], "lr": []}
    for step in range(case["steps"]):
        labels = batches["labels"][step]
        num_targets = int((labels[..., 1:] != -100).sum())
        loss = 0.0
        for micro in range(case["accum"]):
            logits = forward(w, config, batches["input_ids"][step, micro])[:, :-1]
            part = F.cross_entropy(logits.reshape(-1, config["vocab_size"]), labels[micro][:, 1:].reshape(-1),
                                   ignore_index=-100, reduction="sum") / num_targets
            part.backward()
            loss += part.item()
        if step == 0:
            expected.update({"grad." + name: p.grad.clone() for name, p in trained.items()})
        norm = torch.nn.utils.clip_grad_norm_(list(trained.values()), case["max_grad_norm"] or math.inf)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(case, step)
        optimizer.step()
        optimizer.zero_grad()
        for name, value in zip(curves, (loss, norm.item(), learning_rate(case, step))):
            curves[name].append(value)
    expected.update({name: torch.tensor(values, dtype=torch.float32) for name, values in curves.items()})
    expected.update({"final." + name: p.detach() for name, p in trained.items()})
    return expected


# Rows that a model can learn: mostly a step of three tokens on, sometimes any token.
def make_batches(config, case, random):
    shape = (case["steps"], case["accum"], case["batch"], case["seq"])
    vocab_size = config["vocab_size"]
    ids = np.empty(shape, np.int64)
    ids[..., 0] = random.randint(0, vocab_size, shape[:-1])
    for t in range(1, case["seq"]):
        jumps = random.random_sample(shape[:-1]) < 0.2
        ids[..., t] = np.where(jumps, random.randint(0, vocab_size, shape[:-1]), (ids[..., t - 1] + 3) % vocab_size)
    labels = np.where(random.random_sample(shape) < case["ignored_fraction"], -100, ids)
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


# RandomState's numbers are the same in every version of NumPy.
def make_case(folder, seed, accum, batch, seq, config):
    random = np.random.RandomState(seed)
    case = {**TRAINING, "accum": accum, "batch": batch, "seq": seq}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
              "attention_bias": False, "mlp_bias": False, "max_position_embeddings": 8192, "bos_token_id": 1,
              "eos_token_id": 2, "torch_dtype": "bfloat16", **config}
    weights = {}
    for name, shape in parameter_shapes(config).items():
        values = random.standard_normal(shape)
        values = 1 + 0.1 * values if len(shape) == 1 else values * 0.1
        weights[name] = torch.tensor(values, dtype=torch.float32).bfloat16()
    batches = make_batches(config, case, random)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "case.json").write_text(json.dumps(case, indent=1) + "\n")
    write_safetensors(folder / "model.safetensors", weights)
    write_safetensors(folder / "batches.safetensors", batches)
    expected = train(config, {name: tensor.float() for name, tensor in weights.items()}, batches, case)
    write_safetensors(folder / "expected.safetensors", expected)
    print(f"{folder}: loss {expected['loss'][0]:.4f} -> {expected['loss'][-1]:.4f}")


# B is not zero, unlike at the start of training, so that A has a gradient.
def make_adapter(folder, seed, **fields):
    random = np.random.RandomState(seed)
    config, case, model, batches = read_case(folder.parent)
    shapes = parameter_shapes(config)
    tensors = {}
    for module, (r, _) in adapter_scales(config, fields).items():
        out, inner = shapes[module + ".weight"]
        for part, shape in (("A", (r, inner)), ("B", (out, r))):
            values = torch.tensor(0.1 * random.standard_normal(shape), dtype=torch.float32)
            tensors[f"base_model.model.{module}.lora_{part}.weight"] = values
    folder.mkdir(parents=True, exist_ok=True)
    adapter = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "lora_dropout": 0.0, "bias": "none", **fields}
    (folder / "adapter_config.json").write_text(json.dumps(adapter, indent=1) + "\n")
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    expected = train(config, model, batches, case, (adapter, tensors))
    write_safetensors(folder / "expected.safetensors", expected)
    print(f"{folder}: loss {expected['loss'][0]:.4f} -> {expected['loss'][-1]:.4f}")


def read_case(folder):
    config, case = (json.loads((folder / name).read_text()) for name in ("config.json", "case.json"))
    return config, case, *(read_safetensors(folder / f"{name}.safetensors") for name in ("model", "batches"))


# Losses to 1e-5, the rest to 1e-5 of its largest value: ten times what another processor's order of summation changes.
# Final weights to 1e-3: Adam divides by the root of squared gradients, some of which are next to nothing.
def check_case(folder):
    of_adapter = folder / "adapter_config.json"
    adapters = None
    if of_adapter.exists():
        adapters = (json.loads(of_adapter.read_text()), read_safetensors(folder / "adapter_model.safetensors"))
    config, case, model, batches = read_case(folder.parent if adapters else folder)
    all_expected = read_safetensors(folder / "expected.safetensors")
    found = train(config, model, batches, case, adapters)
    differences = {"loss": 0.0, "grad_norm": 0.0, "lr": 0.0, "logits": 0.0, "grad": 0.0, "final": 0.0}
    bounds = {"final": 1e-3}
    if set(found) != set(all_expected):
        sys.exit(f"{folder}: other tensors: {sorted(set(found) ^ set(all_expected))}")
    for name, values in found.items():
        expected = all_expected[name]
        kind = name.split(".")[0]
        scale = 1.0 if kind == "loss" else expected.abs().max().item()
        differences[kind] = max(differences[kind], (values - expected).abs().max().item() / scale)
    print(f"{folder}: " + ", ".join(f"{kind} {value:.1e}" for kind, value in differences.items()))
    return all(value <= bounds.get(kind, 1e-5) for kind, value in differences.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="+", type=pathlib.Path, metavar="DIR", default=[])
    folders = parser.parse_args().check
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if folders:
        sys.exit(0 if all([check_case(folder) for folder in folders]) else 1)
    for name, case in CASES.items():
        make_case(pathlib.Path(__file__).parent / "reference" / name, **case)
    for name, adapter in ADAPTERS.items():
        make_adapter(pathlib.Path(__file__).parent / "reference" / name, **adapter)


if __name__ == "__main__":
    main()
