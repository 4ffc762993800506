"""The losses of Transformers' Trainer and of this package's, step by step, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from judging import sentences
from transformers import AutoModelForCausalLM, AutoTokenizer

import tessera


def train_both(base: Path, arguments: dict[str, Any]) -> list[list[float]]:
    tokenizer = AutoTokenizer.from_pretrained(base)
    rows = Dataset.from_list([{"input_ids": tokenizer(text).input_ids} for text in sentences(48)])
    common = dict(logging_steps=1, save_strategy="no", report_to="none", learning_rate=1e-3, **arguments)
    collator = transformers.DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    theirs = transformers.Trainer(
        model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        args=transformers.TrainingArguments(output_dir="theirs", use_cpu=True, **common),
        train_dataset=rows.add_column("labels", rows["input_ids"][:]),
        data_collator=collator,
    )
    theirs.train()
    ours = tessera.Trainer(
        model=str(base),
        args=tessera.TrainingArguments(output_dir="ours", settings={"dtype": "float32"}, **common),
        train_dataset=rows,
    )
    ours.train()
    return [[entry["loss"] for entry in trainer.state.log_history if "loss" in entry] for trainer in (theirs, ours)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"per_device_train_batch_size": 4, "max_steps": 20},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "num_train_epochs": 2, "weight_decay": 0.1,
         "lr_scheduler_type": "cosine", "warmup_steps": 3, "max_grad_norm": 0.5},
    ],
    ids=["defaults", "accumulation, cosine, clipping"],
)  # fmt: skip
def test_losses_are_those_of_transformers_trainer(base: Path, arguments: dict[str, Any]) -> None:
    theirs, ours = train_both(base, arguments)
    assert len(theirs) == len(ours) > 10
    assert ours == pytest.approx(theirs, abs=1e-4)
    # Before rounding adds up.
    assert ours[:5] == pytest.approx(theirs[:5], abs=1e-5)
