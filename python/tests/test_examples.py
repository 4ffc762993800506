"""The files of examples/ run as they stand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sample_rows import texts

from tessera._program import program_path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments: str, **environment: str) -> str:
    given = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    done = subprocess.run([sys.executable, *arguments], env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_notebook(model: str) -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    Path("cells.py").write_text("\n\n".join(code))
    assert "fp16 true is not supported" in run("cells.py", MODEL=model)
    assert Path("sums/model.safetensors").exists()


def test_sft_with_lora(model: str) -> None:
    output = run(str(EXAMPLES / "sft_lora.py"), "--model", model, "--max_steps", "10", "--chat_template", "chatml")
    assert "TrainOutput(global_step=10" in output
    assert Path("adapter/adapter_config.json").exists()


def prepare_text() -> str:
    Path("text.txt").write_text("\n".join(row["text"] for row in texts(80)))
    return "text.txt"


def test_script_for_trainer(model: str) -> None:
    pytest.importorskip("transformers"), pytest.importorskip("datasets")
    script = [str(EXAMPLES / "train.py"), "--model", model, "--text", prepare_text()]
    output = run(*script, "--deepspeed", str(EXAMPLES / "cpu-ds.json"), "--max_steps", "4")
    assert "'eval_loss'" in output
    # Again, to the end that was asked for first.
    assert "'eval_loss'" in run(*script, "--max_steps", "6", "--resume")
    assert json.loads(Path("tuned/trainer_state.json").read_text())["global_step"] == 6


def test_script_for_trainer_as_ranks(model: str) -> None:
    """One process for each rank, as torchrun or a TrainJob starts them; and the same under `tessera launch`."""
    pytest.importorskip("transformers"), pytest.importorskip("datasets")
    words = ["--model", model, "--text", prepare_text(), "--max_steps", "3", "--output_dir", "by-launch"]
    command = [
        str(program_path()),
        "launch",
        "--nproc_per_node",
        "2",
        "--",
        sys.executable,
        str(EXAMPLES / "train.py"),
        *words,
    ]
    done = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    state = json.loads(Path("by-launch/trainer_state.json").read_text())
    assert state["global_step"] == 3
    arguments = json.loads(Path("by-launch/checkpoint-3/training_args.json").read_text())
    assert arguments["per_device_train_batch_size"] == 1
    # 2 ranks, a row each, 4 times a step.
    steps = [json.loads(line) for line in Path("by-launch/metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 3 and len(steps[0]["rank_compute_s"]) == 2
