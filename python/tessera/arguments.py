"""Settings by the names, positions and defaults of Transformers 5, TRL 1 and PEFT.

They become the keys of a configuration file of ``tessera train``, which decides what is taken, without effect or
refused: this module knows no setting's meaning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import logging
import os
import warnings
from dataclasses import dataclass, field
from typing import Any

from tessera.errors import TesseraError
from tessera.process import check_settings, environment_rank
from tessera.scratch import environment_local_rank


@dataclass
class TrainingArguments:
    """``transformers.TrainingArguments``; settings that Tessera refuses raise a TesseraError with the reason.

    Two more fields: ``nproc_per_node``, ranks to start on this machine, and ``settings``, those of ``tessera train``
    that Transformers does not have (``{"zero_stage": 3, "fit": True}``).
    """

    output_dir: str | None = None
    per_device_train_batch_size: int = 8
    num_train_epochs: float = 3.0
    max_steps: int = -1
    learning_rate: float = 5e-05
    lr_scheduler_type: str = "linear"
    lr_scheduler_kwargs: dict[str, Any] | str | None = None
    warmup_steps: float = 0
    optim: str = "adamw_torch_fused"
    optim_args: str | None = None
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-08
    optim_target_modules: None | str | list[str] = None
    gradient_accumulation_steps: int = 1
    average_tokens_across_devices: bool = True
    max_grad_norm: float = 1.0
    label_smoothing_factor: float = 0.0
    bf16: bool | None = False
    fp16: bool = False
    bf16_full_eval: bool = False
    fp16_full_eval: bool = False
    tf32: bool | None = None
    activation_checkpointing: bool | None = None
    activation_checkpointing_kwargs: dict[str, Any] | str | None = None
    gradient_checkpointing: bool | None = None
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = None
    torch_compile: bool = False
    torch_compile_backend: str | None = None
    torch_compile_mode: str | None = None
    use_liger_kernel: bool = False
    liger_kernel_config: dict[str, bool] | None = None
    use_cache: bool = False
    neftune_noise_alpha: float | None = None
    torch_empty_cache_steps: int | None = None
    auto_find_batch_size: bool = False
    logging_strategy: str = "steps"
    logging_steps: float = 500
    logging_first_step: bool = False
    log_on_each_node: bool = True
    logging_nan_inf_filter: bool = True
    include_num_input_tokens_seen: str | bool = "no"
    log_level: str = "passive"
    log_level_replica: str = "warning"
    disable_tqdm: bool | None = None
    report_to: None | str | list[str] = "none"
    run_name: str | None = None
    project: str = "huggingface"
    trackio_space_id: str | None = None
    trackio_bucket_id: str | None = None
    trackio_static_space_id: Any = None
    eval_strategy: str = "no"
    eval_steps: float | None = None
    eval_delay: float = 0
    per_device_eval_batch_size: int = 8
    prediction_loss_only: bool = False
    eval_on_start: bool = False
    eval_do_concat_batches: bool = True
    eval_use_gather_object: bool = False
    eval_accumulation_steps: int | None = None
    include_for_metrics: list[str] = field(default_factory=list)
    batch_eval_metrics: bool = False
    save_only_model: bool = False
    save_strategy: str = "steps"
    save_steps: float = 500
    save_on_each_node: bool = False
    save_total_limit: int | None = None
    enable_jit_checkpoint: bool = False
    push_to_hub: bool = False
    hub_token: str | None = None
    hub_private_repo: bool | None = None
    hub_model_id: str | None = None
    hub_strategy: str = "every_save"
    hub_always_push: bool = False
    hub_revision: str | None = None
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    ignore_data_skip: bool = False
    restore_callback_states_from_checkpoint: bool = False
    full_determinism: bool = False
    seed: int = 42
    data_seed: int | None = None
    use_cpu: bool = False
    accelerator_config: dict[str, Any] | str | None = None
    parallelism_config: Any = None
    dataloader_drop_last: bool = False
    dataloader_num_workers: int = 0
    dataloader_pin_memory: bool = True
    dataloader_persistent_workers: bool = False
    dataloader_prefetch_factor: int | None = None
    dataloader_multiprocessing_context: str | None = None
    dataloader_in_order: bool = True
    remove_unused_columns: bool = True
    label_names: list[str] | None = None
    train_sampling_strategy: str = "random"
    length_column_name: str = "length"
    ddp_find_unused_parameters: bool | None = None
    ddp_bucket_cap_mb: int | None = None
    ddp_broadcast_buffers: bool | None = None
    ddp_static_graph: bool | None = None
    ddp_backend: str | None = None
    ddp_timeout: int = 1800
    fsdp: bool | str | list[str] | None = None
    fsdp_config: dict[str, Any] | str | None = None
    deepspeed: dict[str, Any] | str | None = None
    debug: str | list[str] = ""
    skip_memory_metrics: bool = True
    do_train: bool = False
    do_eval: bool = False
    do_predict: bool = False
    resume_from_checkpoint: str | None = None
    local_rank: int = -1
    nproc_per_node: int | str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.settings, dict):
            raise TesseraError(f"settings: expected a dict, found {type(self.settings).__name__}", 64)
        if self.output_dir is None:
            self.output_dir = "trainer_output"
        self.report_to = _sinks(self.report_to)
        num_ranks = self.nproc_per_node if isinstance(self.nproc_per_node, int) else self.world_size
        for line in check_settings(self.to_settings(), max(1, num_ranks)):
            warnings.warn(line, UserWarning, stacklevel=3)

    def to_settings(self) -> dict[str, Any]:
        """The arguments that differ from the defaults of Transformers' Trainer, by the names of ``tessera train``."""
        own = {"nproc_per_node", "settings", *_fields_of_users(type(self))}
        return {**_changed(self, _defaults(TrainingArguments), own), **self.settings}

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Only values that loggers of hyperparameters take; others become text."""
        kept = (bool, int, float, str)
        return {name: value if isinstance(value, kept) else str(value) for name, value in self.to_dict().items()}

    # Properties and methods of Transformers' arguments that scripts use.

    @property
    def device(self) -> str:
        """The device of tensors in this process; the program chooses its own."""
        return "cpu"

    @property
    def n_gpu(self) -> int:
        return 0

    @property
    def should_log(self) -> bool:
        return self.local_process_index == 0 if self.log_on_each_node else self.process_index == 0

    @property
    def should_save(self) -> bool:
        return self.local_process_index == 0 if self.save_on_each_node else self.process_index == 0

    def get_process_log_level(self) -> int:
        """A level of ``logging``; "passive" is WARNING."""
        level = logging.getLevelName((self.log_level if self.should_log else self.log_level_replica).upper())
        return level if isinstance(level, int) else logging.WARNING

    def main_process_first(self, local: bool = True, desc: str = "work") -> contextlib.AbstractContextManager[None]:
        """Does not wait: the lock of a datasets cache serializes the ranks of a machine."""
        return contextlib.nullcontext()

    @property
    def world_size(self) -> int:
        return int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def process_index(self) -> int:
        return environment_rank() or 0

    @property
    def local_process_index(self) -> int:
        return environment_local_rank()

    @property
    def train_batch_size(self) -> int:
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        return self.per_device_eval_batch_size


@dataclass
class Seq2SeqTrainingArguments(TrainingArguments):
    """``transformers.Seq2SeqTrainingArguments``."""

    sortish_sampler: bool = False
    predict_with_generate: bool = False
    generation_max_length: int | None = None
    generation_num_beams: int | None = None
    generation_config: Any = None


@dataclass
class SFTConfig(TrainingArguments):
    """``trl.SFTConfig``."""

    learning_rate: float = 2e-05
    bf16: bool | None = None
    gradient_checkpointing: bool = True
    logging_steps: float = 10
    model_init_kwargs: dict[str, Any] | str | None = None
    trust_remote_code: bool = False
    router_aux_loss_coef: float | None = None
    chat_template_path: str | None = None
    dataset_text_field: str = "text"
    dataset_kwargs: dict[str, Any] | str | None = None
    dataset_num_proc: int | None = None
    eos_token: str | None = None
    max_length: int | None = 1024
    truncation_mode: str = "keep_start"
    shuffle_dataset: bool = False
    packing: bool = False
    packing_strategy: str = "bfd"
    padding_free: bool = False
    pad_to_multiple_of: int | str | None = "auto"
    eval_packing: bool | None = None
    completion_only_loss: bool | None = None
    assistant_only_loss: bool = False
    loss_type: str = "nll"
    activation_offloading: bool = False
    pad_token: str | None = None


@dataclass
class LoraConfig:
    """``peft.LoraConfig``. Fields that Tessera refuses when they are set are in ``settings`` by their names."""

    task_type: str | None = None
    r: int = 8
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    lora_alpha: float = 8
    lora_dropout: float = 0.0
    bias: str = "none"
    use_rslora: bool = False
    modules_to_save: list[str] | None = None
    init_lora_weights: bool | str = True
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    use_dora: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


# Fields of PEFT that tessera train knows under another name.
_LORA_NAMES = {"r": "lora_rank", "target_modules": "lora_target", "bias": "lora_bias", "task_type": "lora_task_type"}
# PEFT writes them into every adapter_config.json; they say nothing about what is trained.
_LORA_NOTES = {"peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
               "runtime_config", "settings"}  # fmt: skip


def lora_settings(config: Any) -> dict[str, Any]:
    """The settings of ``tessera train`` for a LoraConfig of this package or of PEFT."""
    if not hasattr(config, "lora_alpha") or not hasattr(config, "__dataclass_fields__"):
        raise TesseraError(f"peft_config: expected a LoraConfig, found {type(config).__name__}", 64)
    kind = getattr(config, "peft_type", "LORA")
    if _plain(kind) != "LORA":
        raise TesseraError(
            f"peft_config: expected a LoraConfig, found one of type {_plain(kind)}: only LoRA is trained"
        )
    changed = _changed(config, _defaults(type(config)), _LORA_NOTES)
    settings = {_LORA_NAMES.get(name, name): value for name, value in changed.items()}
    settings.update(finetuning_type="lora", lora_rank=config.r, lora_alpha=config.lora_alpha)
    # PEFT's choice for decoders of the Llama kind.
    target = settings.get("lora_target", ["q_proj", "v_proj"])
    settings["lora_target"] = "all" if target == "all-linear" else target
    return {**settings, **getattr(config, "settings", {})}


def training_settings(args: Any) -> dict[str, Any]:
    """The settings of ``tessera train`` for arguments of this package, of Transformers or of TRL."""
    if isinstance(args, TrainingArguments):
        return args.to_settings()
    if not hasattr(args, "per_device_train_batch_size") or not hasattr(args, "use_cpu"):
        raise TesseraError(f"args: expected TrainingArguments or SFTConfig, found {type(args).__name__}")
    # Its constructor derives values from others and from the machine, so what counts is what differs from a
    # structure that was made without arguments.
    kind: Any = type(args)
    untouched = _values(kind(output_dir=args.output_dir, use_cpu=args.use_cpu))
    base, sft = _defaults(TrainingArguments), _defaults(SFTConfig)
    # None is no default: the constructor chooses, as for TRL's bf16.
    own = {name for name, value in _defaults(kind).items() if name in base and value not in (None, base[name])}
    defaults = {
        name: base[name] if name in own else value
        for name, value in untouched.items()
        if name in base or name not in sft
    }
    settings = _changed(args, defaults, _fields_of_users(kind))
    settings["output_dir"] = args.output_dir
    if "eval_strategy" in settings:
        settings.pop("do_eval", None)  # which follows from it
    if "report_to" in settings:
        settings["report_to"] = _sinks(settings["report_to"])
    return settings


def _fields_of_users(kind: type) -> set[str]:
    """Fields that a script's subclass adds to the arguments of a library, for its own use."""
    known = (base for base in kind.__mro__ if base.__module__.split(".")[0] in ("tessera", "transformers", "trl"))
    return set(_defaults(kind)) - set(_defaults(next(known)))


def _defaults(kind: type) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in dataclasses.fields(kind):
        if item.default is not dataclasses.MISSING:
            values[item.name] = _plain(item.default)
        elif item.default_factory is not dataclasses.MISSING:
            values[item.name] = _plain(item.default_factory())
    return values


def _values(config: Any) -> dict[str, Any]:
    return {item.name: _plain(getattr(config, item.name, None)) for item in dataclasses.fields(config) if item.init}


def _changed(config: Any, defaults: dict[str, Any], leave_out: set[str]) -> dict[str, Any]:
    settings = {
        name: value
        for name, value in _values(config).items()
        if name not in leave_out and (name not in defaults or value != defaults[name])
    }
    if settings.get("max_length", 0) is None:  # TRL's word for rows that are not cut; null is not set
        settings["max_length"] = "none"
    return settings


def _plain(value: Any) -> Any:
    """The value as JSON: words of enumerations, lists of sets and tuples, dicts of structures."""
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "to_dict"):
        return _plain(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _values(value)
    try:
        json.dumps(value)
    except TypeError:
        return str(value)
    return value


def _sinks(report_to: Any) -> Any:
    """Transformers writes None for none, and a list may contain it, too."""
    return "none" if report_to in (None, [], ["none"]) else report_to
