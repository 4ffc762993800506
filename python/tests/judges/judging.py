"""Helpers of the judges: the program's commands, texts, and the shape of a tiny model."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

from tessera._program import program_path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 300,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "initializer_range": 0.2,
}
CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}"
    "{%- else %}{{ message.content + '<|im_end|>' }}{%- endif %}{{ '\n' }}{%- endfor %}"
)


def tessera(*arguments: Any) -> str:
    """The output of a command of the program."""
    words = [program_path(), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sentence(draw: random.Random, least: int = 3) -> str:
    words = "the a model learns what rows say and forgets noise in time".split()
    return " ".join(draw.choices(words, k=draw.randint(least, 25)))


def sentences(count: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return [sentence(draw) for _ in range(count)]


def train(model: Path, rows: Path, output: Path, *flags: Any) -> Path:
    tessera("train", "--model", model, "--dataset", rows, "--output_dir", output, "--dtype", "float32", "--max_steps", 8,
            "--learning_rate", 0.01, "--per_device_train_batch_size", 4, "--save_strategy", "no", *flags)  # fmt: skip
    return output
