"""The dataclasses of the package have the fields of the installed libraries: names, order and defaults."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

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
