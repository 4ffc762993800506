#!/usr/bin/python3
"""random_plans_check.py TESSERA [FIRST [COUNT]]: `tessera plan` with settings drawn at random.

Every plan either says what it found, in lines of at most 80 columns, or refuses in one line with exit code 64 or 78; none
ends in an internal error or a signal. Seed FIRST (1) draws the first of COUNT (40) plans.
"""
import random
import subprocess
import sys

COLUMNS = 80
REFUSALS = 64, 78  # usage, configuration

# By flag: its values, and how often it is given. None: a flag without a value.
SETTINGS = {
    "max_length": ([64, 512, 2048, 8192, 32768, 131072], 0.5),
    "per_device_train_batch_size": ([1, 2, 3, 8, 64], 0.3),
    "gradient_accumulation_steps": ([1, 2, 7, 16], 0.3),
    "global_batch_size": ([1, 8, 12, 100, 512], 0.2),
    "zero_stage": ([0, 1, 2, 3], 0.4),
    "gather_schedule": (["auto", "per_step", "per_layer"], 0.3),
    "optim": (["adamw_torch", "adamw_bf16", "adamw_8bit", "lion_32bit", "lion_8bit", "muon", "adafactor"], 0.4),
    "dtype": (["bfloat16", "float32"], 0.2),
    "gradient_checkpointing": ([None], 0.3),
    "gradient_checkpointing_mode": (["full", "selective", "offload"], 0.3),
    "optimizer_in_backward": ([None], 0.3),
    "clip_mode": (["global", "previous", "layer"], 0.2),
    "max_grad_norm": ([0, 1], 0.3),
    "offload_optimizer_device": (["none", "cpu", "nvme"], 0.3),
    "offload_param_device": (["none", "cpu", "nvme"], 0.3),
    "merge_micro_batches": (["auto", "always", "never"], 0.3),
    "pack_weights": (["auto", "always", "never"], 0.3),
    "context_parallel_size": ([1, 2, 3, 4, 8], 0.2),
    "sync_every": ([0, 1, 10, 50], 0.2),
    "num_fragments": ([1, 2, 5], 0.2),
    "fragment_sync_delay": ([0, 1, 2], 0.2),
    "zero_quantized_weights": ([None], 0.2),
    "zero_quantized_gradients": (["none", "int8", "int4"], 0.3),
    "peft": (["lora"], 0.25),
    "lora_rank": ([1, 8, 64, 256], 0.1),
    "quantization_bit": ([4, 8], 0.1),
    "peer_snapshot_steps": ([0, 5], 0.1),
    "replay_check_steps": ([0, 5], 0.1),
    "fabric": (["tcp", "tcp;ofi_rxm", "auto"], 0.2),
    "fit": ([None], 0.1),
    "num_threads": ([1, 4, 64], 0.1),
}
# Flags that are refused without another one.
NEEDS = {
    "clip_mode": "optimizer_in_backward",
    "lora_rank": "peft",
    "quantization_bit": "peft",
    "num_fragments": "sync_every",
    "fragment_sync_delay": "sync_every",
}
PRESETS = ["15m", "60m", "160m", "llama3.2-1b", "llama3.2-3b", "llama3-8b"]


def drawn_settings(draw):
    given = {name: draw.choice(values) for name, (values, share) in SETTINGS.items() if draw.random() < share}
    for name, other in NEEDS.items():
        if other not in given:
            given.pop(name, None)
    if given.get("gather_schedule") == "per_layer":
        given["zero_stage"] = 3
    if "global_batch_size" in given:
        given.pop("gradient_accumulation_steps", None)
    if "peft" in given:
        given.pop("optimizer_in_backward", None)
        given.pop("clip_mode", None)
    return given


def drawn_cluster(draw):
    """Machines like this one or of a type, the best types, forms for a memory size, a simulation, or a card."""
    kind = draw.choice(["here", "here", "type", "search", "forms", "simulation", "card"])
    ranks = ["--nproc_per_node", draw.choice([1, 1, 2, 3, 4, 8])]
    nodes = ["--nnodes", draw.choice([1, 2, 3, 4, 16, 64])]
    if kind == "here":
        return nodes + ranks + ["--memory", draw.choice(["4GiB", "24GiB", "128GiB", "1TiB"])] + (
            ["--network_gbps", draw.choice([1, 10, 100]), "--tflops", draw.choice([1, 50])] if draw.random() < 0.7 else [])
    if kind == "type":
        return nodes + ranks + ["--machine", draw.choice(["r7i.16xlarge", "m7i.48xlarge", "c7i.8xlarge", "r8i.24xlarge"])]
    if kind == "search":
        return ["--instances", draw.choice(["all", "r7i.*"]), "--tokens", "1e8", "--max_nodes", draw.choice([2, 8])]
    if kind == "forms":
        return ["--memory", draw.choice(["16GiB", "24GiB", "64GiB"]), "--disk", draw.choice(["40GB", "80GB", "500GB"])]
    if kind == "simulation":
        return ranks + ["--machine", "r7i.16xlarge", "--simulate", "--nodes", *draw.sample([1, 2, 4, 6, 16, 70], 2)] + (
            ["--straggler_spread", 0.1] if draw.random() < 0.5 else ["--nodes_per_rack", 4, "--oversubscription", 3])
    return ["--device", "cuda", "--machine", draw.choice(["p5en.48xlarge", "g6e.xlarge"])]


def fault(done):
    """The problem with the end of a command; None if there is none."""
    if done.returncode not in (0, *REFUSALS):
        return f"exit code {done.returncode}: {done.stderr}"
    errors = [line for line in done.stderr.split("\n") if line.startswith("error:")]
    if (len(errors) == 1) != (done.returncode != 0):
        return f"{len(errors)} errors with exit code {done.returncode}: {done.stderr}"
    for line in done.stdout.split("\n"):
        if len(line) > COLUMNS:
            return f"a line of {len(line)} columns: {line}"
    return None


def main():
    program = sys.argv[1]
    first, count = int(sys.argv[2]) if len(sys.argv) > 2 else 1, int(sys.argv[3]) if len(sys.argv) > 3 else 40
    num_plans = num_faults = 0
    for seed in range(first, first + count):
        draw = random.Random(seed)
        words = ["plan", "--preset", draw.choice(PRESETS)]
        for name, value in drawn_settings(draw).items():
            words += [f"--{name}"] if value is None else [f"--{name}", value]
        command = [program] + [str(word) for word in words + drawn_cluster(draw)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        num_plans += done.returncode == 0
        found = fault(done)
        if found:
            num_faults += 1
            print(f"seed {seed}: {' '.join(command)}\n  {found}")
    print(f"{num_plans} plans and {count - num_plans} refusals, {num_faults} faults")
    # Too few plans mean that the settings contradict each other too often to test anything.
    return 1 if num_faults > 0 or num_plans < count / 4 else 0


if __name__ == "__main__":
    sys.exit(main())
