"""The dataclasses of the package have the fields of the installed libraries: names, order and defaults."""

from __future__ import annotations

import dataclasses
import enum
import json
import warnings
from pathlib import Path
from typing import Any, Callable

import peft
import pytest
import transformers
import trl

import tessera


def plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    return sorted(value) if isinstance(value, (set, frozenset)) else value


def fields(kind: type) -> dict[str, Any]:
    """The fields that the constructor takes, in its order, with their defaults."""
    found = {}
    for item in dataclasses.fields(kind):
        if item.init:
            made = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
            found[item.name] = plain(made)
    return found


# The package's own fields, after those of the library.
OWN = {"nproc_per_node", "settings"}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(tessera.TrainingArguments, transformers.TrainingArguments), (tessera.SFTConfig, trl.SFTConfig)],
    ids=["TrainingArguments", "SFTConfig"],
)
def test_fields_and_defaults_are_the_librarys(ours: type, theirs: type) -> None:
    found = {name: value for name, value in fields(ours).items() if name not in OWN}
    expected = fields(theirs)
    assert sorted(found) == sorted(expected)
    assert {name: value for name, value in found.items() if value != expected[name]} == {}


def test_training_arguments_have_the_librarys_order() -> None:
    ours = [name for name in fields(tessera.TrainingArguments) if name not in OWN]
    assert ours == list(fields(transformers.TrainingArguments))


def test_lora_config_takes_the_fields_it_names_with_pefts_defaults() -> None:
    theirs = fields(peft.LoraConfig)
    for name, value in fields(tessera.LoraConfig).items():
        if name not in OWN:
            assert value == theirs[name], name


STORED = Path(__file__).parents[3] / "tests/data/foreign-settings"
# Values in tests/data that the libraries refuse by themselves, or take only with others.
OTHER_VALUES = {"debug": "underflow_overflow", "fsdp": True}
COMPANIONS = {
    "load_best_model_at_end": {"eval_strategy": "steps", "eval_steps": 500},
    "dataloader_prefetch_factor": {"dataloader_num_workers": 1},
}
# Transformers sets these three together.
COMPILATION = {"torch_compile", "torch_compile_backend", "torch_compile_mode"}


def stored(library: str, kind: type) -> dict[str, Any]:
    settings = json.loads((STORED / f"{library}.json").read_text())["settings"]
    names = {item.name for item in dataclasses.fields(kind)}
    return {name: OTHER_VALUES.get(name, value["other"]) for name, value in settings.items() if name in names}


def outcome(model: Path, trainer: Any, make_args: Callable[[], Any]) -> tuple[str, Any]:
    """The refusal, or the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer(str(model), make_args(), train_dataset=[{"text": "a"}], eval_dataset=[{"text": "b"}])
        except tessera.TesseraError as error:
            return "refused", str(error)
    return "taken", sorted({str(warning.message) for warning in caught if warning.category is UserWarning})


@pytest.mark.parametrize(
    ("trainer", "ours", "theirs", "name", "value"),
    [
        pytest.param(trainer, ours, theirs, name, value, id=f"{theirs.__name__}.{name}")
        for trainer, ours, theirs, library in (
            (tessera.Trainer, tessera.TrainingArguments, transformers.TrainingArguments, "transformers"),
            (tessera.SFTTrainer, tessera.SFTConfig, trl.SFTConfig, "trl"),
        )
        for name, value in stored(library, theirs).items()
        if name != "output_dir"
    ],
)
def test_real_arguments_are_taken_and_refused_as_ours(
    base: Path, trainer: Any, ours: Any, theirs: Any, name: str, value: Any
) -> None:
    given = {"output_dir": "out", "use_cpu": True, "report_to": "none", **COMPANIONS.get(name, {}), name: value}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            real = theirs(**given)
        except (ValueError, AssertionError) as error:
            pytest.skip(f"the library itself refuses it here: {error}")
    (verdict, said), (our_verdict, we_said) = (outcome(base, trainer, make) for make in (lambda: real, lambda: ours(**given)))
    assert verdict == our_verdict
    assert set(we_said) <= set(said) if name in COMPILATION else we_said == said
