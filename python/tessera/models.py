"""Models and tokenizers that are objects: written to folders once, and loaded back after training."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tessera.errors import TesseraError


def check_model(model: Any) -> None:
    """Refuses an object that cannot be written as a model of the program."""
    if isinstance(model, (str, os.PathLike)):
        return
    if hasattr(model, "peft_config"):
        raise TesseraError(
            "model: expected a model without adapters, found a PeftModel: pass its base model and "
            "peft_config=, or the adapter's folder in settings={'adapter_name_or_path': ...}"
        )
    if not hasattr(model, "save_pretrained") or not hasattr(model, "config"):
        raise TesseraError(
            f"model: expected a folder, a name on the Hub or a PreTrainedModel, found {type(model).__name__}"
        )
    kind = type(model).__name__
    if not kind.endswith(("ForCausalLM", "ForMaskedLM")) and kind != "T5ForConditionalGeneration":
        raise TesseraError(
            f"model: {kind} is not supported: expected a ...ForCausalLM, a ...ForMaskedLM or a T5ForConditionalGeneration"
        )


def model_source(model: Any, folder: Path) -> str:
    """A folder or a name on the Hub as it is; of a ``PreTrainedModel`` the folder to which it is written."""
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    model.save_pretrained(folder)
    return str(folder)


def tokenizer_source(tokenizer: Any, model: Any, folder: Path) -> str | None:
    """The value for --tokenizer. None is the tokenizer in the model's folder, also in the one an object was loaded from."""
    if tokenizer is None and not isinstance(model, (str, os.PathLike)):
        tokenizer = getattr(model, "name_or_path", None)
        if not tokenizer:
            raise TesseraError("processing_class: expected a tokenizer, as the model was not loaded from a folder with one")
    if tokenizer is None:
        return None
    if isinstance(tokenizer, (str, os.PathLike)):
        return os.fspath(tokenizer)
    if not getattr(tokenizer, "is_fast", False):
        raise TesseraError(
            f"processing_class: expected a name or a fast tokenizer, which has a tokenizer.json, "
            f"found {type(tokenizer).__name__}"
        )
    tokenizer.save_pretrained(folder)
    return str(folder)


def load_back(model: Any, folder: Path) -> None:
    """Gives `model`, a PreTrainedModel, the trained weights. An adapter stays in its folder: the model is its base."""
    if (folder / "adapter_config.json").exists():
        return
    from safetensors.torch import load_file  # type: ignore[import-not-found, unused-ignore]

    unknown: set[str] = set()
    loaded: set[str] = set()
    for file in _weight_files(folder):
        weights = load_file(file)
        unknown.update(model.load_state_dict(weights, strict=False).unexpected_keys)
        loaded.update(weights)
    model.tie_weights()
    missing = set(dict(model.named_parameters())) - loaded  # which names tied weights once
    if missing or unknown:
        raise TesseraError(
            f"{folder}: expected the weights of {type(model).__name__}, "
            f"found other names: {', '.join(sorted(missing | unknown)[:5])}",
            70,
        )


def copy_model(source: Path, target: Path) -> None:
    """Copies the model that a run has written, without its checkpoints and reports."""
    target.mkdir(parents=True, exist_ok=True)
    reports = {"training_args.json", "trainer_state.json", "memory.json", "mlflow.json", "latest"}
    for file in source.iterdir():
        if file.is_file() and file.name not in reports and file.suffix in (".json", ".safetensors", ".jinja", ".txt"):
            shutil.copy2(file, target)


def _weight_files(folder: Path) -> Iterator[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        yield folder / "model.safetensors"
        return
    for name in sorted(set(json.loads(index.read_text())["weight_map"].values())):
        yield folder / name
