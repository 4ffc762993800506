"""Settings by the names of the real classes, whose fields tests/data/foreign-settings lists."""

from __future__ import annotations

import dataclasses
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest

from tessera import LoraConfig, SFTConfig, TesseraError, TrainingArguments
from tessera.arguments import lora_settings
from tessera.process import check_settings

STORED = Path(__file__).parents[2] / "tests/data/foreign-settings"
SETTINGS: dict[str, Any] = json.loads((STORED / "transformers.json").read_text())["settings"]
OWN = ["nproc_per_node", "settings"]


def defaults(kind: type) -> dict[str, Any]:
    values = {}
    for item in dataclasses.fields(kind):
        made = item.default_factory
        values[item.name] = made() if made is not dataclasses.MISSING else item.default
    return values


def test_fields_are_those_of_transformers_in_their_order() -> None:
    found = defaults(TrainingArguments)
    assert [name for name in found if name not in OWN] == list(SETTINGS)
    for name, values in SETTINGS.items():
        assert found[name] == values["default"], name


@pytest.mark.parametrize("name", SETTINGS)
def test_field_is_taken_without_effect_or_refused(name: str) -> None:
    """In one line without the words of a command line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            args = TrainingArguments(**{"output_dir": "out", name: SETTINGS[name]["other"]})
        except TesseraError as error:
            assert name in str(error) or name in ("fp16_full_eval", "hub_token")
            assert "\n" not in str(error) and "--" not in str(error) and "/tmp" not in str(error)
            assert error.exit_code == 78
        else:
            assert name in args.to_settings() or name == "output_dir"
    assert all("--" not in str(warning.message) for warning in caught)


def test_fsdp_is_taken_in_every_form(recwarn: pytest.WarningsRecorder) -> None:
    config = {"reshard_after_forward": True, "min_num_params": 0, "xla": False, "cpu_ram_efficient_loading": True}
    for fsdp in (True, "full_shard auto_wrap", ["full_shard", "auto_wrap"]):
        args = TrainingArguments("out", fsdp=fsdp, fsdp_config=dict(config), nproc_per_node=2)
        assert args.to_settings()["fsdp"] == fsdp
    assert [str(warning.message) for warning in recwarn] == []
    with pytest.raises(TesseraError, match=r"fsdp_config: unknown key 'wrap'"):
        TrainingArguments("out", fsdp=True, fsdp_config={"wrap": 1})
    with pytest.raises(TesseraError, match=r"fsdp shard_grad_op means zero_stage 2, which contradicts zero_stage 3"):
        TrainingArguments("out", fsdp="shard_grad_op", settings={"zero_stage": 3})


def test_effects_are_those_on_the_ranks_of_the_run() -> None:
    with pytest.warns(UserWarning, match="fsdp full_shard has no effect on one rank"):
        TrainingArguments("out", fsdp="full_shard")


def test_sft_config_says_where_it_differs_from_trainer() -> None:
    settings = SFTConfig().to_settings()
    assert settings["learning_rate"] == 2e-5
    assert settings["logging_steps"] == 10
    assert settings["gradient_checkpointing"] is True
    assert settings["max_length"] == 1024
    assert SFTConfig(max_length=None).to_settings()["max_length"] == "none"
    assert check_settings(settings) == []


def test_scripts_find_what_they_ask_of_transformers_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    args = TrainingArguments("out", log_level="info")
    assert json.loads(args.to_json_string())["output_dir"] == "out"
    assert (args.device, args.n_gpu, args.should_save, args.get_process_log_level()) == ("cpu", 0, True, logging.INFO)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert (args.should_log, args.get_process_log_level()) == (False, logging.WARNING)
    with args.main_process_first(desc="rows"):
        pass


@dataclasses.dataclass
class OwnArguments(TrainingArguments):
    learning_rate: float = 1e-3
    model_max_length: int = 512


def test_fields_of_a_subclass_are_the_scripts_own() -> None:
    assert OwnArguments("out", model_max_length=64).to_settings() == {"output_dir": "out", "learning_rate": 1e-3}


def test_loggers_of_hyperparameters_get_plain_values() -> None:
    values = TrainingArguments("out", report_to=["jsonl"]).to_sanitized_dict()
    assert values["report_to"] == "['jsonl']" and values["max_steps"] == -1


def test_setting_of_no_library_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(TesseraError, match="zero_stage"):
        TrainingArguments(settings={"zero_stages": 3})


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(TesseraError, match="2 mistakes.*fp16.*push_to_hub"):
        TrainingArguments(fp16=True, push_to_hub=True)


def test_lora_config_becomes_settings() -> None:
    assert lora_settings(LoraConfig(r=4)) == {"finetuning_type": "lora", "lora_rank": 4, "lora_alpha": 8,
                                              "lora_target": ["q_proj", "v_proj"]}  # fmt: skip
    assert lora_settings(LoraConfig(target_modules="all-linear"))["lora_target"] == "all"


@pytest.mark.parametrize("field, value", [("use_dora", True), ("bias", "all"), ("modules_to_save", ["lm_head"]),
                                          ("init_lora_weights", "pissa")])  # fmt: skip
def test_what_lora_lacks_is_refused(field: str, value: Any) -> None:
    with pytest.raises(TesseraError, match=field):
        check_settings(lora_settings(LoraConfig(**{field: value})))
