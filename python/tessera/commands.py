"""Commands of the program as functions."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tessera.errors import TesseraError
from tessera.process import Run, flags, output_of


def launch(arguments: Sequence[str], nproc_per_node: int | str = "auto") -> None:
    """Starts ranks of a command of the program on this machine, as ``tessera launch`` does, and waits for them:
    ``launch(["train", "run.yaml"], nproc_per_node=2)``. A Python function cannot be one: ranks run the program."""
    if callable(arguments):
        raise TesseraError(
            "launch: expected the words of a command, found a function: ranks run the program, not Python; "
            "give the Trainer nproc_per_node, or start the script with `tessera launch -- python script.py`",
            64,
        )
    run = Run(["launch", "--nproc_per_node", str(nproc_per_node), *arguments], show=lambda line: True)
    try:
        for event in run.events():
            if event["event"] == "ask":
                run.answer({})
        run.finish()
    finally:
        run.close()


def plan(model: str | os.PathLike[str], dataset: str | Sequence[str] | None = None, **settings: Any) -> Any:
    """Forecasts a run: returns the object that ``tessera plan --json`` prints, with its fields as attributes.
    `settings` are flags of ``tessera plan`` and ``train``: ``plan("model", nnodes=4, max_length=2048)``."""
    arguments = ["plan", "--json", "--model", os.fspath(model)]
    if dataset is not None:
        arguments += ["--dataset", *([dataset] if isinstance(dataset, str) else dataset)]
    text = output_of([*arguments, *flags(settings)])
    return json.loads(text, object_hook=lambda values: SimpleNamespace(**values))


def generate(model: str | os.PathLike[str], prompts: str | Sequence[str], **settings: Any) -> Any:
    """The continuation of a prompt, or of each of a list: ``generate("out", ["Once"], max_new_tokens=20)``.
    `settings` are flags of ``tessera generate``."""
    texts = [prompts] if isinstance(prompts, str) else prompts
    if not isinstance(texts, Iterable):
        raise TesseraError(f"prompts: expected a string or a list of strings, found {type(prompts).__name__}", 64)
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        path = Path(folder) / "prompts.jsonl"
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        lines = output_of(["generate", "--model", os.fspath(model), "--prompts", str(path), *flags(settings)])
    found = [json.loads(line)["completion"] for line in lines.splitlines()]
    return found[0] if isinstance(prompts, str) else found
