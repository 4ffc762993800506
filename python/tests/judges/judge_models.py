"""Transformers and PEFT load what the program trained, and compute with it what the program computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from judging import sentences, tessera, train, write_rows
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

# Float32 on both sides: sums in another order.
CLOSE = 2e-5


def rows_of(model: Path, data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in tessera("data", "preview", "--json", "--model", model, "--dataset", data,
                                                 "--num_rows", 1000).splitlines()]  # fmt: skip


def mean_loss(model: Any, rows: list[dict[str, Any]]) -> float:
    """The mean loss over all targets, with each row in a pass of its own."""
    total, count = 0.0, 0
    with torch.no_grad():
        for row in rows:
            ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])[1:]
            logits = model(ids).logits[0, :-1].double()
            total += torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
            count += int((labels != -100).sum())
    return total / count


def eval_loss(model: Path, data: Path, *flags: Any) -> float:
    return float(
        json.loads(tessera("eval", "--json", "--model", model, "--dataset", data, "--dtype", "float32", *flags))["loss"]
    )


def test_transformers_gives_the_loss_of_a_trained_model(trained: Path, base: Path, rows_file: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    found = mean_loss(model, rows_of(trained, rows_file))
    assert found == pytest.approx(eval_loss(trained, rows_file), abs=CLOSE)
    assert found < eval_loss(base, rows_file) - 0.5


def test_transformers_gives_the_logits_of_a_trained_model(trained: Path, tmp_path: Path) -> None:
    """Log-probabilities of one token each, after a context: logits up to a common shift."""
    tokenizer = AutoTokenizer.from_pretrained(trained)
    model = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    context = "the model learns"
    choices = [text for text in (tokenizer.decode([i]) for i in range(len(tokenizer)))
               if len(tokenizer(text, add_special_tokens=False).input_ids) == 1 and text.startswith(" ")]  # fmt: skip
    assert len(choices) >= 5
    questions = write_rows(tmp_path / "q.jsonl", [{"context": context, "choices": choices, "answer": 0}])
    found = json.loads(tessera("eval", "--json", "--model", trained, "--choices", questions, "--dtype", "float32"))
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer(context).input_ids])).logits[0, -1].log_softmax(-1)
    ids = [tokenizer(text, add_special_tokens=False).input_ids[0] for text in choices]
    ours = found["questions"][0]["log_likelihoods"]
    assert ours == pytest.approx([logits[i].item() for i in ids], abs=1e-4)


@pytest.mark.parametrize("flags", [(), ("--use_rslora", "true", "--lora_target", "q_proj", "down_proj")])
def test_peft_gives_the_loss_of_an_adapter(base: Path, rows_file: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    adapter = train(base, rows_file, tmp_path / "adapter", "--finetuning_type", "lora", "--lora_rank", 4, *flags)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    found = mean_loss(model.eval(), rows_of(base, rows_file))
    assert found == pytest.approx(eval_loss(base, rows_file, "--adapter", adapter), abs=CLOSE)
    assert found < eval_loss(base, rows_file) - 0.1


def test_greedy_continuations_are_those_of_transformers(trained: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained)
    model = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    for prompt in sentences(3, seed=5):
        inputs = tokenizer(prompt, return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs.input_ids.shape[1] :]
        ours = tessera("generate", "--model", trained, "--prompt", prompt, "--temperature", 0, "--max_new_tokens", 12,
                       "--dtype", "float32")  # fmt: skip
        expected = prompt + tokenizer.decode(ids, skip_special_tokens=True)
        assert ours.strip() in (expected.strip(), expected.removeprefix(prompt).strip())
