"""Objects of the real libraries, and a script for Transformers' Trainer with other imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
import trl
from judging import sentences, write_rows
from transformers import AutoModelForCausalLM, AutoTokenizer

import tessera

ROOT = Path(__file__).parents[3]
ROWS = [{"text": text} for text in sentences(20)]


def real_arguments(kind: Any = transformers.TrainingArguments, **changed: Any) -> Any:
    given = {"output_dir": "out", "use_cpu": True, "max_steps": 3, "logging_steps": 1, "save_strategy": "no",
             "report_to": "none", **changed}  # fmt: skip
    return kind(**given)


def test_model_object_has_the_trained_weights(base: Path) -> None:
    """It needs no tokenizer object: the folder it was loaded from has one."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    tessera.Trainer(model, real_arguments(learning_rate=0.01), train_dataset=ROWS).train()
    written = AutoModelForCausalLM.from_pretrained("out", dtype=torch.float32).state_dict()
    assert not any(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert all(torch.equal(written[name], weight) for name, weight in model.state_dict().items())


def test_model_object_that_cannot_be_trained_is_refused_at_once(base: Path) -> None:
    adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), peft.LoraConfig(task_type="CAUSAL_LM"))
    for model in (adapted, transformers.AutoModelForSequenceClassification.from_pretrained(base), torch.nn.Linear(2, 2)):
        with pytest.raises(tessera.TesseraError, match="^model: "):
            tessera.Trainer(model, real_arguments(), train_dataset=ROWS)


def test_adapter_of_real_configurations_loads_in_peft(base: Path) -> None:
    lora = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    args = real_arguments(trl.SFTConfig, model_init_kwargs={"dtype": "float32"})
    tessera.SFTTrainer(str(base), args, train_dataset=ROWS, peft_config=lora).train()
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), "out")
    assert model.peft_config["default"].r == 4


def test_callbacks_of_transformers_follow_the_run(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = real_arguments(max_steps=40, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2,
                          load_best_model_at_end=True, metric_for_best_model="loss", learning_rate=1.0)  # fmt: skip
    callbacks = [
        transformers.ProgressCallback,
        transformers.PrinterCallback(),
        transformers.EarlyStoppingCallback(early_stopping_patience=2),
    ]
    trainer = tessera.Trainer(str(base), args, train_dataset=ROWS, eval_dataset=ROWS[:5], callbacks=callbacks)
    assert trainer.train().global_step < 40
    assert "'eval_loss'" in capsys.readouterr().out


@dataclass
class ScriptArguments(transformers.TrainingArguments):
    """A subclass, as scripts have them, for fields of their own."""

    learning_rate: float = 1e-3
    model_max_length: int = 512


def test_fields_of_a_scripts_own_are_no_settings(base: Path) -> None:
    trainer = tessera.Trainer(str(base), real_arguments(ScriptArguments, model_max_length=64), train_dataset=ROWS)
    trainer.train()
    assert trainer.state.log_history[0]["learning_rate"] == 1e-3


def test_script_for_transformers_runs_with_other_imports(base: Path) -> None:
    """As in a TrainJob: two ranks of torchrun, a DeepSpeed file, arguments of the command line."""
    script = (ROOT / "scripts/compare/train.py").read_text()
    changed = script.replace("    Trainer,\n    TrainingArguments,\n)", ")\nfrom tessera import Trainer, TrainingArguments")
    assert changed != script
    Path("train.py").write_text(changed)
    rows = write_rows(Path("rows.jsonl"), ROWS)
    flags = ["--deepspeed", str(ROOT / "scripts/compare/cpu-ds.json"), "--bf16", "--max_steps", "3", "--logging_steps", "1",
             "--per_device_train_batch_size", "1", "--report_to", "none", "--output_dir", "tuned", "--use_cpu"]  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "train.py", "--model", str(base),
               "--dataset", str(rows), *flags]  # fmt: skip
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(Path("tuned/trainer_state.json").read_text())["global_step"] == 3
    assert AutoTokenizer.from_pretrained("tuned") and AutoModelForCausalLM.from_pretrained("tuned")
