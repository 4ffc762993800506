"""lm-evaluation-harness scores multiple-choice questions as `tessera eval --choices` does, on a task made here."""

from __future__ import annotations

import json
import random
from pathlib import Path

import lm_eval
import pytest
from judging import sentence, tessera, write_rows
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

TASK = """
task: own_questions
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: " "
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


def test_accuracies_are_those_of_lm_eval(trained: Path, tmp_path: Path) -> None:
    draw = random.Random(4)
    rows = [{"context": sentence(draw), "choices": [sentence(draw, 1) for _ in range(3)], "answer": draw.randrange(3)}
            for _ in range(30)]  # fmt: skip
    task_rows = write_rows(tmp_path / "task.jsonl", rows)
    # lm-eval puts target_delimiter before a choice, ours are taken as they are.
    for row in rows:
        row["choices"] = [" " + choice for choice in row["choices"]]
    questions = write_rows(tmp_path / "questions.jsonl", rows)
    ours = json.loads(tessera("eval", "--json", "--model", trained, "--choices", questions, "--dtype", "float32"))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "own.yaml").write_text(TASK.format(file=task_rows))
    model = HFLM(pretrained=str(trained), device="cpu", dtype="float32", batch_size=4)
    manager = TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False)
    found = lm_eval.simple_evaluate(model=model, tasks=["own_questions"], task_manager=manager, log_samples=True)
    results = found["results"]["own_questions"]
    assert ours["accuracy"] == pytest.approx(results["acc,none"], abs=1e-9)
    assert ours["accuracy_norm"] == pytest.approx(results["acc_norm,none"], abs=1e-9)
    theirs = {sample["doc_id"]: [float(answer[0]) for answer in sample["filtered_resps"]]
              for sample in found["samples"]["own_questions"]}  # fmt: skip
    for number, question in enumerate(ours["questions"]):
        assert question["log_likelihoods"] == pytest.approx(theirs[number], abs=1e-3)
