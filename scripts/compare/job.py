"""compare.sh job: the same training job with Transformers' Trainer under DeepSpeed ZeRO-3 and Gloo, and with tessera, in turn
on this machine: the same weights, rows, arguments and DeepSpeed file. Prints a Markdown table."""

import argparse
import datetime
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from importlib import metadata

import measure

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "compare" / "job"
SCRIPT, DEEPSPEED = ROOT / "scripts" / "compare" / "train.py", ROOT / "scripts" / "compare" / "cpu-ds.json"
# A Llama of 0.39 billion parameters.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "vocab_size": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "initializer_range": 0.02,
}
# Both compute the first loss from the same weights and rows, in bfloat16.
FIRST_LOSS_APART = 0.02
# DeepSpeed compiles its CPU operators at first use, in every rank at once: done before, and not counted as start-up.
BUILD_OPERATORS = """
from deepspeed.ops.op_builder.cpu import CPUAdamBuilder, ShareMemCommBuilder
ShareMemCommBuilder().load(verbose=False)
CPUAdamBuilder().load(verbose=False)
"""


def read_arguments():
    parser = argparse.ArgumentParser(prog="compare.sh job")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="text file; its paragraphs are the rows")
    parser.add_argument("--tessera", default=str(ROOT / "build" / "release" / "tessera"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="at least 4; a checkpoint is written in the middle")
    parser.add_argument(
        "--batches", nargs="+", default=["1x4", "4x1"], metavar="BxA", help="rows of a micro-batch x micro-batches of a step"
    )
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"], help="fewer for a quick try")
    parser.add_argument("--repeat", type=int, default=1, help="rounds, whose medians are shown")
    return parser.parse_args()


def quiet(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def prepare(arguments):
    """Rows, tokenizer and weights, the same for both, unless they are there."""
    rows = OUT / "rows.jsonl"
    paragraphs = [text.strip() for text in re.split(r"\n\s*\n", arguments.text.read_text())]
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in paragraphs if text))
    config, note = OUT / "config.json", OUT / "prepared.json"
    wanted = json.dumps({"text": str(arguments.text.resolve()), "layers": arguments.layers})
    if not note.exists() or note.read_text() != wanted:
        note.unlink(missing_ok=True)
        config.write_text(json.dumps(dict(CONFIG, num_hidden_layers=arguments.layers)))
        # The tokenizer has its own pad token; without one, Transformers' collator uses eos and masks it in the labels.
        quiet(arguments.tessera, "tokenizer", "train", "--input", str(arguments.text), "--vocab_size", "8192", "--pad_token",
              "<|pad|>", "--output", str(OUT / "tokenizer"), "--overwrite")  # fmt: skip
        quiet(arguments.tessera, "init", "--config", str(config), "--tokenizer", str(OUT / "tokenizer"), "--output",
              str(OUT / "model"), "--overwrite")  # fmt: skip
        note.write_text(wanted)
    return rows


def build_operators(environment):
    """Seconds that DeepSpeed's operators took to compile here, once."""
    note = OUT / "operators.json"
    if not note.exists():
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", BUILD_OPERATORS], check=True, env=environment, capture_output=True)
        note.write_text(json.dumps(time.monotonic() - begin))
    return json.loads(note.read_text())


def environments(arguments):
    cores = len(os.sched_getaffinity(0))
    ours = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    ours["XDG_CACHE_HOME"] = str(OUT / "cache")
    theirs = dict(
        os.environ,
        OMP_NUM_THREADS=str(max(1, cores // arguments.ranks)),
        DS_ACCELERATOR="cpu",  # a CUDA build of PyTorch on a machine with a card would take that
        GLOO_SOCKET_IFNAME="lo",  # the machine's name need not resolve to a device that is there
        MASTER_ADDR="127.0.0.1",
        HF_HUB_OFFLINE="1",
        PYTHONUNBUFFERED="1",
        HF_DATASETS_CACHE=str(OUT / "datasets"),
        TORCH_EXTENSIONS_DIR=str(OUT.parent / "torch_extensions"),
        PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",  # where ninja is
    )
    return {"hf": theirs, "tessera": ours}


def commands(arguments, rows, batch):
    """The command of either, by name, for a batch as in --batches."""
    micro_batch, accumulation = batch.split("x")
    same = [
        "--model", OUT / "model", "--dataset", rows, "--max_length", arguments.max_length, "--deepspeed", DEEPSPEED,
        "--bf16", "--per_device_train_batch_size", micro_batch,
        "--gradient_accumulation_steps", accumulation, "--max_steps", arguments.steps, "--learning_rate", "1e-4",
        "--logging_steps", 1, "--save_steps", save_step(arguments), "--include_num_input_tokens_seen", "true",
        "--report_to", "none", "--use_cpu",
    ]  # fmt: skip
    return {
        "hf": ["torchrun", "--nproc_per_node", arguments.ranks, SCRIPT, *same],
        "tessera": [arguments.tessera, "launch", "--nproc_per_node", arguments.ranks, "train", *same, "--allow_truncation"],
    }


def machine():
    model = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text()).group(1)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB"


def parameters():
    """From the header of the weights' file: an 8-byte length, then JSON."""
    with open(OUT / "model" / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def save_step(arguments):
    return arguments.steps // 2


def one_run(name, command, environment, arguments):
    output = OUT / name
    shutil.rmtree(output, ignore_errors=True)
    measured = measure.run(
        [str(word) for word in [*command, "--output_dir", output]], OUT / f"{name}.log", environment
    )
    if len(measured.step_times) != arguments.steps:
        raise SystemExit(f"error: expected {arguments.steps} steps in {OUT / name}.log, found {len(measured.step_times)}")
    state = json.loads((output / f"checkpoint-{arguments.steps}" / "trainer_state.json").read_text())
    log = [entry for entry in state["log_history"] if "loss" in entry]
    seen = [0] + [entry["num_input_tokens_seen"] for entry in log]
    intervals = [b - a for a, b in zip(measured.step_times, measured.step_times[1:])]
    saving = save_step(arguments) - 1  # the interval in which the checkpoint holds training up
    steady = [i for i in range(len(intervals)) if i != saving]
    checkpoint = list((output / f"checkpoint-{save_step(arguments)}").rglob("*"))
    seconds = sum(intervals[i] for i in steady)
    # A step's length depends on its rows, so the time without a checkpoint is that of as many tokens.
    rate = seconds / sum(seen[i + 2] - seen[i + 1] for i in steady)
    return {
        "first_step_s": measured.step_times[0],
        "steady_s": seconds,
        "steady_steps": [i + 2 for i in steady],
        "tokens": [b - a for a, b in zip(seen, seen[1:])],
        "losses": [entry["loss"] for entry in log],
        "rank_bytes": max(measured.rank_peaks.values()),
        "total_bytes": measured.total_peak,
        "network_bytes": (measured.step_bytes[-1] - measured.step_bytes[0]) / (arguments.steps - 1),
        "own_network": measured.own_network,
        "checkpoint_s": max(0.0, intervals[saving] - rate * (seen[saving + 2] - seen[saving + 1])),
        "checkpoint_bytes": sum(path.stat().st_size for path in checkpoint if path.is_file()),
        "whole_s": measured.seconds,
    }


def all_rounds(arguments, by_name, environment):
    """Returns the measurements by name, a list with an entry per round. The programs run in turn."""
    rounds = {name: [] for name in by_name}
    for number in range(arguments.repeat):
        for name in by_name:
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
            rounds[name].append(one_run(name, by_name[name], environment[name], arguments))
            print(json.dumps(rounds[name][-1]), file=sys.stderr, flush=True)
    first = {name: found[0]["losses"][0] for name, found in rounds.items()}
    if abs(first["hf"] - first["tessera"]) > FIRST_LOSS_APART:
        raise SystemExit(f"error: expected the same loss at the first step, found {first}")
    return rounds


def main():
    arguments = read_arguments()
    OUT.mkdir(parents=True, exist_ok=True)
    rows = prepare(arguments)
    environment = environments(arguments)
    compile_s = build_operators(environment["hf"])
    batches = {}
    for batch in arguments.batches:
        by_name = commands(arguments, rows, batch)
        batches[batch] = {
            "commands": {name: [str(word) for word in command] for name, command in by_name.items()},
            "rounds": all_rounds(arguments, by_name, environment),
        }
    record = {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(),
        "compile_s": compile_s,
        "machine": machine(),
        "parameters": parameters(),
        "versions": {name: metadata.version(name) for name in ("torch", "transformers", "deepspeed")},
        "batches": batches,
    }
    (OUT / "job.json").write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
