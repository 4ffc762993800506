"""Real libraries beside the package: it takes their objects, and they read what runs write."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sample_rows import texts
from test_training import arguments, losses

from tessera import Trainer
from tessera._program import program_path

WORDS = "the model forgets what rows say, in time: 1234 \u00e4\u00f6\u00fc \u4e2d\u6587 <x>"


@pytest.fixture(scope="module")
def trained(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    args = arguments(output_dir=str(folder), report_to="tensorboard", settings={"logging_dir": str(folder / "runs")})
    Trainer(model, args, train_dataset=texts(20)).train()
    return folder


@pytest.mark.parametrize("kind", ["Dataset", "selected", "IterableDataset"])
def test_rows_of_datasets_are_those_of_a_list(model: str, kind: str) -> None:
    datasets = pytest.importorskip("datasets")
    data: Any = datasets.Dataset.from_list(texts(60))
    if kind == "selected":
        data = datasets.Dataset.from_list(texts(1) + texts(60)).select(range(1, 61))
    if kind == "IterableDataset":
        data = data.to_iterable_dataset()
    order = {} if kind != "IterableDataset" else {"train_sampling_strategy": "sequential"}
    found = Trainer(model, arguments(output_dir="found"), train_dataset=data)
    found.train()
    expected = Trainer(model, arguments(output_dir="expected", **order), train_dataset=texts(60))
    expected.train()
    assert losses(found) == losses(expected)


def test_transform_of_a_dataset_is_applied(model: str) -> None:
    datasets = pytest.importorskip("datasets")
    raw = datasets.Dataset.from_list([{"words": row["text"], "text": "not this"} for row in texts(20)])
    shown = raw.with_transform(lambda batch: {"text": batch["words"]})
    chosen = raw.rename_columns({"text": "other", "words": "text"}).with_format(columns=["text"])
    runs = [Trainer(model, arguments(output_dir=name), train_dataset=data)
            for name, data in (("a", texts(20)), ("b", shown), ("c", chosen))]  # fmt: skip
    for run in runs:
        run.train()
    assert losses(runs[0]) == losses(runs[1]) == losses(runs[2])


def test_conversations_and_token_ids_of_datasets(model: str) -> None:
    datasets = pytest.importorskip("datasets")
    talks = [{"messages": [{"role": "user", "content": "what?"}, {"role": "assistant", "content": row["text"]}]}
             for row in texts(30)]  # fmt: skip
    ids = [{"input_ids": list(range(5, 9 + i % 7)), "attention_mask": [1] * (4 + i % 7)} for i in range(30)]
    for rows in (talks, ids):
        runs = [Trainer(model, arguments(output_dir=name, settings={"chat_template": "chatml"}), train_dataset=data)
                for name, data in (("a", rows), ("b", datasets.Dataset.from_list(rows)))]  # fmt: skip
        for run in runs:
            run.train()
        assert losses(runs[0]) == losses(runs[1])


def test_named_splits_are_evaluated_by_themselves(model: str) -> None:
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict(news=datasets.Dataset.from_list(texts(6)), code=datasets.Dataset.from_list(texts(9)))
    trainer = Trainer(
        model, arguments(eval_strategy="steps", eval_steps=6), train_dataset=texts(20), eval_dataset=splits
    )
    trainer.train()
    logged = {name for entry in trainer.state.log_history for name in entry}
    assert {"eval_news_loss", "eval_code_loss"} <= logged
    found = trainer.evaluate()
    last = {name: value for entry in trainer.state.log_history for name, value in entry.items()}
    assert found["eval_news_loss"] == pytest.approx(last["eval_news_loss"], rel=1e-3)


def test_tokenizers_reads_the_tokenizer(trained: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    ids = tokenizers.Tokenizer.from_file(str(trained / "tokenizer.json")).encode(WORDS, add_special_tokens=False).ids
    words = [str(program_path()), "tokenize", "--tokenizer", str(trained), "--add_special_tokens", "false"]
    found = subprocess.run(words, input=WORDS, check=True, capture_output=True, text=True).stdout
    assert [int(word) for word in found.split()] == ids


def test_safetensors_reads_the_weights(trained: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    config = json.loads((trained / "config.json").read_text())
    with safetensors.safe_open(trained / "model.safetensors", framework="np") as weights:
        shape = weights.get_slice("model.layers.0.mlp.up_proj.weight").get_shape()
    assert shape == [config["intermediate_size"], config["hidden_size"]]


def test_gguf_reads_the_export(trained: Path) -> None:
    gguf = pytest.importorskip("gguf")
    output = trained / "model.gguf"
    subprocess.run([program_path(), "export", "--model", trained, "--format", "gguf", "--type", "q8_0", "--output",
                    output], check=True, capture_output=True)  # fmt: skip
    reader = gguf.GGUFReader(output)
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    assert shapes["blk.0.ffn_up.weight"] == [32, 64]
    assert reader.get_field("general.architecture").contents() == "llama"
    assert reader.get_field("llama.block_count").contents() == 2


def test_tensorboard_reads_the_events(trained: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(trained / "runs")).Reload()
    history = json.loads((trained / "trainer_state.json").read_text())["log_history"]
    logged = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
    found = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert [step for step, _ in found] == [step for step, _ in logged]
    assert [value for _, value in found] == pytest.approx([value for _, value in logged], rel=1e-6)
