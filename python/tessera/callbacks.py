"""Callbacks by Transformers' names, called while the program trains."""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tessera.errors import TesseraError


@dataclass
class TrainerState:
    """``transformers.TrainerState``: what a run has reported so far."""

    epoch: float | None = None
    global_step: int = 0
    max_steps: int = 0
    logging_steps: float = 500
    eval_steps: float | None = None
    save_steps: float = 500
    train_batch_size: int | None = None
    num_train_epochs: int = 0
    num_input_tokens_seen: int = 0
    total_flos: float = 0
    log_history: list[dict[str, float]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False

    def save_to_json(self, json_path: str) -> None:
        Path(json_path).write_text(json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n")


@dataclass
class TrainerControl:
    """``transformers.TrainerControl``: what callbacks ask for."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False


class TrainerCallback:
    """``transformers.TrainerCallback``; its own objects are taken as well, and need not derive from this."""

    def on_init_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...


# Events inside a step, which the program reports only once the step is over.
_NEVER_CALLED = (
    "on_step_begin",
    "on_substep_end",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_prediction_step",
    "on_predict",
    "on_push_begin",
)


class CallbackList:
    """Calls all callbacks in order, as Transformers' CallbackHandler does."""

    def __init__(self, callbacks: list[Any], args: Any, state: TrainerState, objects: dict[str, Any]) -> None:
        self.callbacks = callbacks
        self.control = TrainerControl()
        self._args, self._state, self._objects = args, state, objects

    def reset(self, args: Any, objects: dict[str, Any]) -> None:
        """Before another run."""
        self.control = TrainerControl()
        self._args, self._objects = args, objects

    def add(self, callback: Any) -> None:
        """The callback, or an instance of it if it is a class."""
        made = callback() if isinstance(callback, type) else callback
        if not any(hasattr(made, name) for name in ("on_step_end", "on_log", "on_train_begin", "on_train_end")):
            raise TesseraError(f"callbacks: expected a TrainerCallback, found {type(made).__name__}", 64)
        for name in _NEVER_CALLED:
            if _overrides(made, name):
                warnings.warn(
                    f"{type(made).__name__}.{name} is never called: the program tells of a step once it is over "
                    "(on_step_end)",
                    UserWarning,
                    stacklevel=4,
                )
        self.callbacks.append(made)

    def call(self, name: str, **kwargs: Any) -> None:
        for callback in self.callbacks:
            method = getattr(callback, name, None)
            result: Any = method and method(self._args, self._state, self.control, **self._objects, **kwargs)
            if hasattr(result, "should_training_stop"):
                self.control = result

    def take_requests(self, evaluates: bool) -> dict[str, bool]:
        """The pending requests, each of which counts once; an end of the run is never taken back."""
        control = self.control
        if control.should_evaluate and not evaluates:
            warnings.warn("should_evaluate has no effect without eval_strategy and an eval_dataset", stacklevel=2)
        if control.should_epoch_stop:
            warnings.warn("should_epoch_stop has no effect: only should_training_stop ends a run", stacklevel=2)
            control.should_epoch_stop = False
        requests = {
            "log": control.should_log,
            "evaluate": control.should_evaluate,
            "save": control.should_save,
            "stop": control.should_training_stop,
        }
        control.should_log = control.should_evaluate = control.should_save = False
        return requests


def _overrides(callback: Any, name: str) -> bool:
    method = getattr(type(callback), name, None)
    return method is not None and getattr(method, "__module__", "") not in ("transformers.trainer_callback", __name__)
