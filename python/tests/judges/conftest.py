"""A tiny model in float32 that the program made and trained; every test in a folder of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from judging import CHATML, CONFIG, sentences, tessera, train, write_rows

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, and a tokenizer with ChatML's tokens and a chat template that marks answers."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "text.txt").write_text("\n".join(sentences(300)))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tessera("tokenizer", "train", "--input", folder / "text.txt", "--vocab_size", 290, "--output", folder / "tokenizer")
    tessera("init", "--config", folder / "config.json", "--tokenizer", folder / "tokenizer", "--output",
            folder / "model", "--dtype", "float32")  # fmt: skip
    (folder / "model" / "chat_template.jinja").write_text(CHATML)
    return folder / "model"


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", [{"text": text} for text in sentences(64)])


@pytest.fixture(scope="session")
def trained(base: Path, rows_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(base, rows_file, tmp_path_factory.mktemp("trained") / "model")
