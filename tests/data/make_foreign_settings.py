#!/usr/bin/env python3
"""Writes foreign-settings/*.json: the settings of Hugging Face's classes, with their defaults and another value.

    pip install transformers==5.24.0 trl==1.16.0 deepspeed==0.19.8
    tests/data/make_foreign_settings.py
"""
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import typing

os.environ["HF_HUB_OFFLINE"] = "1"
FOLDER = pathlib.Path(__file__).parent / "foreign-settings"

# Another value than the default, where one by type would be meaningless.
OTHER = {
    "output_dir": "out", "lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 0.25}, "optim": "adafactor",
    "logging_strategy": "epoch", "eval_strategy": "epoch", "save_strategy": "epoch", "include_num_input_tokens_seen": "all",
    "log_level": "warning", "report_to": "tensorboard", "hub_strategy": "end", "metric_for_best_model": "loss",
    "accelerator_config": {"split_batches": True}, "train_sampling_strategy": "sequential", "fsdp": "full_shard",
    "fsdp_config": {"min_num_params": 5}, "resume_from_checkpoint": "auto", "max_steps": 7, "warmup_steps": 0.1,
    "deepspeed": {"zero_optimization": {"stage": 1}}, "gradient_checkpointing_kwargs": {"use_reentrant": False},
    "activation_checkpointing_kwargs": {"use_reentrant": False}, "adam_beta1": 0.5, "adam_beta2": 0.5,
    "label_smoothing_factor": 0.1, "local_rank": 0, "dataset_text_field": "body", "truncation_mode": "keep_end",
    "packing_strategy": "wrapped", "pad_to_multiple_of": 8, "loss_type": "dft", "dtype": "bfloat16",
    "lora_dropout": 0.1, "lora_target_modules": ["q_proj"], "lora_task_type": "SEQ_CLS", "bnb_4bit_quant_type": "fp4",
    "datasets": [{"path": "other"}], "chat_template_path": "chat.jinja", "model_init_kwargs": {"dtype": "float32"},
    "dataset_kwargs": {"skip_prepare_dataset": True}, "neftune_noise_alpha": 5.0, "save_steps": 7, "eval_steps": 7,
    "logging_steps": 7,
}


def default_of(field):
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None


def other_of(name, default, annotation):
    if name in OTHER:
        return OTHER[name]
    if isinstance(default, bool):
        return not default
    if isinstance(default, (int, float)):
        return default + 1
    if isinstance(default, str):
        return "other"
    text = str(annotation)
    if isinstance(default, list) or "list[" in text:
        return ["other"]
    if "bool" in text and "dict" not in text:
        return True
    if "int" in text and "str" not in text:
        return 3
    if "float" in text:
        return 0.5
    if "str" in text and "dict" not in text:
        return "other"
    return {"other": 1}


def plain(value):
    if dataclasses.is_dataclass(value):
        return dataclasses.asdict(value)
    return getattr(value, "value", value)


def write(name, package, classes, skip=()):
    settings = {}
    for cls in classes:
        for field in dataclasses.fields(cls):
            if field.name in skip or not field.init:
                continue
            default = plain(default_of(field))
            settings[field.name] = {"default": default, "other": other_of(field.name, default, field.type)}
    origin = f"{package} {importlib.metadata.version(package)}: {', '.join(cls.__name__ for cls in classes)}"
    lines = ",\n".join(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in settings.items())
    text = f'{{\n  "origin": {json.dumps(origin)},\n  "settings": {{\n{lines}\n  }}\n}}\n'
    (FOLDER / f"{name}.json").write_text(text)


class Recorder(dict):
    """A section of a DeepSpeed file that notes which keys are asked for."""

    def __init__(self, path, names, content=()):
        super().__init__(content)
        self.path, self.names = path, names

    def note(self, key):
        self.names.add(self.path + str(key))

    def get(self, key, default=None):
        self.note(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.note(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.note(key)
        return super().__contains__(key)

    def keys(self):
        return self

    def __copy__(self):
        return self


def write_deepspeed():
    import inspect

    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.compile.config import CompileConfig
    from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
    from deepspeed.runtime import lr_schedules
    from deepspeed.runtime.config import DeepSpeedConfig, HybridEngineConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
    from deepspeed.runtime.zero.offload_config import (DeepSpeedZeroOffloadOptimizerConfig,
                                                       DeepSpeedZeroOffloadParamConfig)
    from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

    names = set()
    sections = ("activation_checkpointing aio autotuning checkpoint data_efficiency data_types flops_profiler optimizer "
                "scheduler timers torch_autocast").split()
    content = {name: Recorder(name + ".", names) for name in sections}
    DeepSpeedConfig(Recorder("", names, {**content, "train_micro_batch_size_per_gpu": 1}))
    zero = "zero_optimization"
    for section, model in {
            zero: DeepSpeedZeroConfig, f"{zero}.offload_param": DeepSpeedZeroOffloadParamConfig,
            f"{zero}.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
            f"{zero}.leaf_module": DeepSpeedZeroLeafModuleConfig, "bf16": DeepSpeedBF16Config,
            "fp16": DeepSpeedFP16Config, "tensorboard": TensorBoardConfig, "csv_monitor": CSVConfig,
            "wandb": WandbConfig, "comet": CometConfig, "comms_logger": CommsLoggerConfig,
            "hybrid_engine": HybridEngineConfig, "compile": CompileConfig, "tensor_parallel": TPTrainingConfig,
            "timers.throughput": DeepSpeedThroughputTimerConfig}.items():
        for name, field in model.model_fields.items():
            names.update(f"{section}.{key}" for key in (name, field.alias) if key)
    for name in lr_schedules.VALID_LR_SCHEDULES:
        parameters = inspect.signature(getattr(lr_schedules, name).__init__).parameters
        names.update(f"scheduler.params.{key}" for key in parameters if key not in ("self", "optimizer"))
    origin = f"# deepspeed {importlib.metadata.version('deepspeed')}: every key that it reads or declares\n"
    (FOLDER / "deepspeed.txt").write_text(origin + "\n".join(sorted(names)) + "\n")


if __name__ == "__main__":
    from transformers import TrainingArguments
    from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig

    FOLDER.mkdir(exist_ok=True)
    names = {field.name for field in dataclasses.fields(TrainingArguments)}
    write("transformers", "transformers", [TrainingArguments])
    write("trl", "trl", [SFTConfig, ScriptArguments, ModelConfig, DatasetMixtureConfig], names)
    for name, args in {"training_arguments": TrainingArguments("out", use_cpu=True, bf16=False),
                       "sft_config": SFTConfig("out", use_cpu=True)}.items():
        (FOLDER / f"{name}.json").write_text(args.to_json_string() + "\n")
    write_deepspeed()
