"""TRL's SFTTrainer makes the rows and labels that `tessera data preview` shows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from judging import sentence, sentences, tessera, write_rows
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

Row = dict[str, Any]
# Cuts some of the texts, and some conversations, whose markers are many tokens of this tokenizer.
MAX_LENGTH, MAX_CONVERSATION_LENGTH = 48, 200


def texts() -> list[Row]:
    return [{"text": text} for text in sentences(40)]


def prompts() -> list[Row]:
    draw = random.Random(2)
    return [{"prompt": sentence(draw), "completion": " " + sentence(draw)} for _ in range(40)]


def conversations() -> list[Row]:
    draw = random.Random(3)
    return [{"messages": [{"role": role, "content": sentence(draw)} for role in ("user", "assistant") * turns]}
            for turns in (1, 2, 3) * 8]  # fmt: skip


def trl_trainer(model: Path, rows: list[Row], **settings: Any) -> SFTTrainer:
    args = SFTConfig(
        output_dir="trl", use_cpu=True, bf16=False, report_to="none", gradient_checkpointing=False, **settings
    )
    return SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model),
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model),
    )


def trl_rows(trainer: SFTTrainer) -> list[tuple[list[int], list[int]]]:
    """Ids and labels as its collator makes them, row by row."""
    found = []
    for row in trainer.train_dataset:
        batch = trainer.data_collator([dict(row)])
        ids, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
        length = len(row["input_ids"])
        found.append((ids[:length], labels[:length]))
    return found


def tessera_rows(model: Path, rows: list[Row], folder: Path, *flags: Any) -> list[tuple[list[int], list[int]]]:
    data = write_rows(folder / "rows.jsonl", rows)
    lines = tessera("data", "preview", "--json", "--model", model, "--dataset", data, "--num_rows", len(rows),
                    *flags).splitlines()  # fmt: skip
    return [(row["input_ids"], row["labels"]) for row in map(json.loads, lines)]


@pytest.mark.parametrize("kind", [texts, prompts], ids=["text", "prompt and completion"])
def test_rows_and_labels_are_trls(base: Path, tmp_path: Path, kind: Any) -> None:
    rows = kind()
    ours = tessera_rows(base, rows, tmp_path, "--max_length", MAX_LENGTH)
    assert ours == trl_rows(trl_trainer(base, rows, max_length=MAX_LENGTH))
    assert any(len(ids) == MAX_LENGTH for ids, _ in ours)


@pytest.mark.parametrize("only", [False, True], ids=["whole conversation", "answers only"])
def test_conversations_are_trls(base: Path, tmp_path: Path, only: bool) -> None:
    rows = conversations()
    ours = tessera_rows(
        base, rows, tmp_path, "--max_length", MAX_CONVERSATION_LENGTH, "--assistant_only_loss", str(only).lower()
    )
    assert ours == trl_rows(trl_trainer(base, rows, max_length=MAX_CONVERSATION_LENGTH, assistant_only_loss=only))
    assert any(len(ids) == MAX_CONVERSATION_LENGTH for ids, _ in ours)
    assert any(-100 in labels for _, labels in ours) == only


def test_packing_fills_rows_as_trl_does(base: Path, tmp_path: Path) -> None:
    """`--json` shows documents before they are packed, so the lengths of the packed rows are compared."""
    trainer = trl_trainer(base, texts(), max_length=MAX_LENGTH, packing=True, packing_strategy="bfd")
    expected = [len(row["input_ids"]) for row in trainer.train_dataset]
    data = write_rows(tmp_path / "rows.jsonl", texts())
    tessera("train", "--model", base, "--dataset", data, "--packing", "--packing_strategy", "bfd", "--max_length", MAX_LENGTH,
            "--output_dir", tmp_path / "out", "--dtype", "float32", "--shuffle", "false", "--num_train_epochs", 1,
            "--per_device_train_batch_size", 1, "--logging_steps", 1, "--save_strategy", "no")  # fmt: skip
    steps = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [step["num_tokens"] for step in steps if "num_tokens" in step] == expected
