"""A tiny model and its tokenizer, made by the program; every test in a folder of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from sample_rows import texts

from tessera._program import program_path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": 300,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "initializer_range": 0.2,
}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    (folder / "text.txt").write_text("\n".join(row["text"] for row in texts(300)))
    (folder / "config.json").write_text(json.dumps(CONFIG))

    def run(*arguments: str) -> None:
        subprocess.run([program_path(), *arguments], check=True, capture_output=True, cwd=folder)

    run("tokenizer", "train", "--input", "text.txt", "--vocab_size", "300", "--output", "tokenizer")
    run("init", "--config", "config.json", "--tokenizer", "tokenizer", "--output", "model", "--dtype", "float32")
    return str(folder / "model")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
