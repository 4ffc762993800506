"""Python code that Transformers runs within a step: refused, with what to use in its place."""

from __future__ import annotations

from typing import Any

from tessera.errors import TesseraError

# Collators that pad rows, and copy the ids as labels or mask them: what the program does with its rows.
_PROGRAM_COLLATORS = (
    "DataCollatorForLanguageModeling",
    "DataCollatorWithPadding",
    "DataCollatorForSeq2Seq",
    "DefaultDataCollator",
    "default_data_collator",
    "DataCollatorWithFlattening",
)
# Methods of Transformers' Trainer that subclasses override, none of which this Trainer has.
_COMPUTING_METHODS = (
    "compute_loss",
    "training_step",
    "prediction_step",
    "create_optimizer",
    "create_scheduler",
    "get_train_dataloader",
    "get_eval_dataloader",
    "evaluation_loop",
    "log",
)
_INSTEAD = {
    "data_collator": "rows are put together by the program, without padding: leave it out",
    "compute_loss_func": "the loss is the program's; label_smoothing_factor, completion_only_loss and "
    "assistant_only_loss are settings",
    "compute_metrics": "evaluations report loss and perplexity; score texts from tessera.generate(), "
    "or give multiple-choice questions in settings={'eval_choices': ...}",
    "preprocess_logits_for_metrics": "leave it out, with compute_metrics",
    "optimizers": "name the optimizer in args.optim and the schedule in args.lr_scheduler_type",
    "optimizer_cls_and_kwargs": "name the optimizer in args.optim",
    "trial": "start a run for each set of hyperparameters",
    "quantization_config": "set settings={'load_in_4bit': True} or 8bit, with peft_config",
}

# Attributes that a script may ask of Transformers' Trainer, with what there is in their place.
_ATTRIBUTES_INSTEAD = {
    "hyperparameter_search": _INSTEAD["trial"],
    "create_model_card": "write README.md into args.output_dir",
    "log": "metrics of your own go to your own logger, in a callback's on_log",
    "optimizer": _INSTEAD["optimizers"],
    "lr_scheduler": _INSTEAD["optimizers"],
    "get_num_trainable_parameters": "tessera.plan(model).num_parameters",
    "num_examples": "len(train_dataset)",
}


class MissingAttribute(TesseraError, AttributeError):
    """Both, so that `hasattr()` and `getattr()` with a default work."""


def missing_attribute(owner: Any, name: str) -> AttributeError:
    """The error for an attribute that Transformers' Trainer may have and this one does not."""
    kind = type(owner).__name__
    if name.startswith("_"):
        return AttributeError(f"'{kind}' object has no attribute '{name}'")
    instead = _ATTRIBUTES_INSTEAD.get(name, "the program trains, and has its model, optimizer and rows to itself")
    return MissingAttribute(f"{kind}.{name} does not exist in Tessera: {instead}", 64)


def refuse_code(**given: Any) -> None:
    """Refuses each that is not None, except for collators whose work the program does."""
    for name, value in given.items():
        if value is None:
            continue
        kind = getattr(value, "__name__", type(value).__name__)
        if name == "data_collator" and kind in _PROGRAM_COLLATORS:
            continue
        raise TesseraError(f"{name}: {kind} is Python code, which the program does not run: {_INSTEAD[name]}")


def collator_settings(collator: Any) -> dict[str, Any]:
    """The settings of ``tessera train`` for a collator that masks tokens; none for one that only pads."""
    if not getattr(collator, "mlm", False):
        return {}
    if getattr(collator, "whole_word_mask", False):
        raise TesseraError("data_collator: whole_word_mask is not supported: tokens are masked one by one", 78)
    names = ("mlm_probability", "mask_replace_prob", "random_replace_prob")
    return {"stage": "mlm", **{name: getattr(collator, name) for name in names}}


def refuse_overrides(kind: type) -> None:
    """Refuses a subclass of Trainer that computes something itself."""
    for name in _COMPUTING_METHODS:
        if hasattr(kind, name):
            raise TesseraError(
                f"{kind.__name__}.{name}: the program trains, not Python, and would not call it; "
                f"see `tessera help train` for a setting that does what it is for",
                78,
            )
