"""Trainer and SFTTrainer: Transformers' and TRL's constructors and methods, trained by the program."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tessera.arguments import Seq2SeqTrainingArguments, SFTConfig, TrainingArguments, lora_settings, training_settings
from tessera.callbacks import CallbackList, TrainerState
from tessera.data import Formatting, Spool, dataset_sources, evaluation_sources, is_stream
from tessera.errors import TesseraError
from tessera.models import check_model, copy_model, load_back, model_source, tokenizer_source
from tessera.process import (
    Event,
    Run,
    Terminated,
    check_settings,
    environment_rank,
    evaluates,
    flags,
    output_of,
    write_settings,
)
from tessera.progress import make_progress
from tessera.python_code import collator_settings, missing_attribute, refuse_code, refuse_overrides
from tessera.scratch import environment_local_rank, mark_ready, run_folder

# Those of a run that its evaluation takes, too.
_EVALUATION_SETTINGS = """
    max_length packing packing_strategy assistant_only_loss completion_only_loss chat_template chat_template_path
    column_mapping text_column train_on_prompt summary_column source_lang target_lang source_prefix
    max_source_length max_target_length val_max_target_length dataset_text_field per_device_eval_batch_size dtype
    mlm_probability mask_replace_prob random_replace_prob
""".split()


class TrainOutput(NamedTuple):
    """``transformers.trainer_utils.TrainOutput``."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class Trainer:
    """``transformers.Trainer`` by name and position of its arguments; the program trains, not this process.

    `model` is a folder, a name on the Hugging Face Hub, or a ``PreTrainedModel``, which has the trained weights after
    `train()`. `train_dataset` and `eval_dataset` are paths, names on the Hub, a ``datasets.Dataset`` or
    ``IterableDataset`` (with ``max_steps``), or rows as dicts: texts, conversations or token ids; `eval_dataset` may be
    a dict of several. `peft_config` is a ``LoraConfig``. Raises TesseraError for what the program cannot do.
    """

    _default_args: type[TrainingArguments] = TrainingArguments

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Any = None,
        compute_loss_func: Any = None,
        compute_metrics: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: Any = None,
        preprocess_logits_for_metrics: Any = None,
        *,
        tokenizer: Any = None,
        peft_config: Any = None,
        formatting_func: Formatting | None = None,
        nproc_per_node: int | str | None = None,
    ) -> None:
        refuse_code(
            data_collator=data_collator,
            compute_loss_func=compute_loss_func,
            compute_metrics=compute_metrics,
            optimizers=optimizers if any(optimizers or ()) else None,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
        )
        refuse_overrides(type(self))
        if model is None and model_init is not None:
            model = model_init()
        if model is None:
            raise TesseraError("model: expected a folder, a name on the Hub or a PreTrainedModel, found none", 64)
        check_model(model)
        self.model = model
        self.args: Any = args if args is not None else self._default_args()
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.processing_class = processing_class if processing_class is not None else tokenizer
        self.state = TrainerState(
            is_world_process_zero=(environment_rank() or 0) == 0,
            is_local_process_zero=environment_local_rank() == 0,
        )
        self._peft_config = peft_config
        self._collator = collator_settings(data_collator)
        self._early_stopping: dict[str, Any] = {}
        several = isinstance(eval_dataset, Mapping) and evaluates(self._read_settings())
        if peft_config is not None or self._collator or several or not isinstance(self.args, TrainingArguments):
            names = {"eval_dataset": [f"{name}=given to the trainer" for name in eval_dataset]} if several else {}
            for line in check_settings({**self._read_settings(), **names}):
                warnings.warn(line, UserWarning, stacklevel=2)
        self._formatting = formatting_func
        self._nproc_per_node = nproc_per_node if nproc_per_node is not None else getattr(self.args, "nproc_per_node", None)
        self._trained: Path | None = None
        self._interrupted = False
        self.callback_handler = CallbackList([], self.args, self.state, self._objects())
        for callback in callbacks or []:
            self.add_callback(callback)
        self.callback_handler.call("on_init_end")

    def add_callback(self, callback: Any) -> None:
        kind = callback if isinstance(callback, type) else type(callback)
        if kind.__name__ == "EarlyStoppingCallback":  # the program does this itself, and keeps count when it resumes
            values = callback() if isinstance(callback, type) else callback
            self._early_stopping = {
                "early_stopping_patience": values.early_stopping_patience,
                "early_stopping_threshold": values.early_stopping_threshold or 0.0,
            }
        elif kind.__name__ != "DefaultFlowCallback":  # by which Transformers itself logs, evaluates and saves
            self.callback_handler.add(callback)

    def remove_callback(self, callback: Any) -> None:
        self.pop_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Removes a callback, or that of a class, and returns it; None if there is none."""
        callbacks = self.callback_handler.callbacks
        found = next((one for one in callbacks if one is callback or type(one) is callback), None)
        callbacks[:] = [one for one in callbacks if one is not found]
        return found

    def __getattr__(self, name: str) -> Any:
        raise missing_attribute(self, name)

    def is_world_process_zero(self) -> bool:
        return self.state.is_world_process_zero

    def is_local_process_zero(self) -> bool:
        return self.state.is_local_process_zero

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> TrainOutput:
        """Trains; the model is in ``args.output_dir`` then. Ctrl-C and SIGTERM end with a checkpoint."""
        refuse_code(trial=trial)
        if self.train_dataset is None:
            raise TesseraError("train: expected a train_dataset, found none", 64)
        self._interrupted = True  # until it has ended well
        try:
            output = self._train(resume_from_checkpoint)
        except Terminated as end:
            os.kill(os.getpid(), end.number)
            raise
        self._interrupted = False
        return output

    def _train(self, resume_from_checkpoint: str | bool | None) -> TrainOutput:
        with run_folder() as (folder, is_writer):
            spool = self._prepare(folder, resume_from_checkpoint) if is_writer else None
            command = ["train", str(folder / "settings.json")]
            if self._nproc_per_node is not None and environment_rank() is None:
                command = ["launch", "--nproc_per_node", str(self._nproc_per_node), *command]
            try:
                return self._follow(command, folder, spool)
            finally:
                if spool is not None:
                    spool.close()

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Loss and perplexity over `eval_dataset`, of the trained model or, before `train()`, of `model`."""
        data = eval_dataset if eval_dataset is not None else self.eval_dataset
        if data is None:
            raise TesseraError("evaluate: expected an eval_dataset, found none", 64)
        self._check_not_interrupted("evaluate")
        metrics: dict[str, float] = {}
        with tempfile.TemporaryDirectory(prefix="tessera-") as scratch:
            folder = Path(scratch)
            sets = data if isinstance(data, Mapping) else {"": data}
            for index, (name, part) in enumerate(sets.items()):
                found = self._evaluate(part, folder, folder / "eval" / str(index))
                prefix = f"{metric_key_prefix}_{name}" if name else metric_key_prefix
                metrics.update({f"{prefix}_{key}": value for key, value in found.items()})
        self.state.log_history.append({**metrics, "step": self.state.global_step})
        self.callback_handler.call("on_evaluate", metrics=metrics)
        self.callback_handler.call("on_log", logs=metrics)
        return metrics

    def save_model(self, output_dir: str | os.PathLike[str] | None = None, _internal_call: bool = False) -> None:
        """Writes the trained model, or adapter, to another folder; ``args.output_dir`` has it already."""
        self._check_not_interrupted("save_model")
        if self._trained is None:
            raise TesseraError("save_model: nothing has been trained yet", 64)
        if output_dir is None or Path(output_dir).resolve() == self._trained.resolve():
            return
        if self.state.is_world_process_zero:
            copy_model(self._trained, Path(output_dir))

    def save_state(self) -> None:
        """trainer_state.json is in ``args.output_dir`` already."""

    def log_metrics(self, split: str, metrics: Mapping[str, float]) -> None:
        print(f"***** {split} metrics *****")
        for name in sorted(metrics):
            print(f"  {name} = {metrics[name]}")

    def save_metrics(self, split: str, metrics: Mapping[str, float], combined: bool = True) -> None:
        if self.state.is_world_process_zero:
            path = self._output_dir() / f"{split}_results.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(dict(metrics), indent=4, sort_keys=True))

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        raise TesseraError(
            "predict: the program does not return logits; evaluate() measures, tessera.generate() writes "
            "texts, and the model's folder loads in Transformers",
            64,
        )

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        raise TesseraError(
            "push_to_hub: upload args.output_dir with Hugging Face's own tools (huggingface_hub.upload_folder)", 64
        )

    # --- how it is done

    def _prepare(self, folder: Path, resume_from_checkpoint: str | bool | None) -> Spool | None:
        """Writes the settings of the run and the files they name; returns the feeder of its rows, if it needs one."""
        settings = self._read_settings()
        if resume_from_checkpoint is not None:
            settings["resume_from_checkpoint"] = resume_from_checkpoint
        spool = None
        if is_stream(self.train_dataset):
            if settings.get("max_steps", -1) <= 0:
                raise TesseraError("train_dataset: rows without a number of them need max_steps", 78)
            spool = Spool(self.train_dataset, folder / "spool", self._formatting)
            settings.update(dataset_spool=str(spool.folder), train_sampling_strategy="sequential")
            settings.setdefault("streaming_buffer_rows", 128)  # that have to be there before the first step
        else:
            settings["dataset"] = dataset_sources(
                "train_dataset", self.train_dataset, folder / "train", self._formatting
            )
        if self.eval_dataset is not None and evaluates(settings):
            settings["eval_dataset"] = evaluation_sources(self.eval_dataset, folder / "eval", self._formatting)
        before = None
        if self._trained is not None and not resume_from_checkpoint:  # as in Transformers, whose model has been trained
            before = folder / "trained"  # as a run does not write where its base is
            copy_model(self._trained, before)
            if self._peft_config is not None:  # whose adapter the folder has
                decided = {name for name in lora_settings(self._peft_config) if name != "finetuning_type"}
                settings = {name: value for name, value in settings.items() if name not in decided}
        settings.update(self._model_settings(folder, before))
        write_settings(folder / "settings.json", settings)
        mark_ready(folder)
        return spool

    def _follow(self, command: list[str], scratch: Path, spool: Spool | None) -> TrainOutput:
        callbacks = self.callback_handler
        callbacks.reset(self.args, self._objects())
        may_evaluate = self.eval_dataset is not None and evaluates(self._read_settings())
        progress = make_progress(self.args)
        hides_steps = progress.is_shown or getattr(self.args, "disable_tqdm", None)
        said = f"{scratch / 'settings.json'}:"  # in the warnings that the constructor has given already

        def show(line: str) -> bool:
            if said in line or "the program that started this run is gone" in line:
                return False
            return not (hides_steps and line.startswith("info: step "))

        run = Run(command, show)
        summary: Event = {}
        try:
            with contextlib.closing(run.events()) as events:  # whose end puts back the handlers of signals
                for event in events:
                    kind = event["event"]
                    if kind == "ask":
                        run.answer(callbacks.take_requests(may_evaluate))
                    elif kind == "finish":
                        summary = event
                    else:
                        progress.take(event)
                        self._take(event, callbacks)
            try:
                run.finish()
            except TesseraError:
                if spool is not None and spool.error is not None:
                    raise spool.error from None
                raise
        finally:
            run.close()
            progress.close()
        self._trained = self._output_dir()
        self._read_state()
        if self.state.is_world_process_zero:
            callbacks.call("on_train_end")
        if not isinstance(self.model, (str, os.PathLike)):
            load_back(self.model, self._trained)
        metrics = {name: value for name, value in (self.state.log_history or [{}])[-1].items() if name != "step"}
        return TrainOutput(
            self.state.global_step, float(summary.get("train_loss", metrics.get("train_loss", 0.0))), metrics
        )

    def _take(self, event: Event, callbacks: CallbackList) -> None:
        """Applies an event of the program to the state and calls the callbacks that it concerns."""
        state, kind = self.state, event["event"]
        if kind == "start":
            state.max_steps = event["max_steps"]
            state.logging_steps, state.save_steps = self.args.logging_steps, self.args.save_steps
            state.eval_steps = self.args.eval_steps or self.args.logging_steps
            state.num_train_epochs = -(-event["max_steps"] // max(1, event["steps_per_epoch"]))
            callbacks.call("on_train_begin")
            callbacks.call("on_epoch_begin")
        elif kind == "resume":
            state.global_step = event["step"]
        elif kind == "step":
            before, state.epoch, state.global_step = state.epoch or 0.0, event["epoch"], event["step"]
            state.num_input_tokens_seen += event["num_tokens"]
            callbacks.call("on_step_end")
            if int(event["epoch"] + 1e-9) > int(before + 1e-9):
                callbacks.call("on_epoch_end")
                if state.global_step < state.max_steps:
                    callbacks.call("on_epoch_begin")
        elif kind in ("log", "evaluation"):
            entry = {name: value for name, value in event.items() if name not in ("event", "time")}
            logs = {name: value for name, value in entry.items() if name != "step"}
            state.log_history.append(entry)
            if "total_flos" in logs:
                state.total_flos = logs["total_flos"]
            if kind == "evaluation":
                callbacks.call("on_evaluate", metrics=logs)
            callbacks.call("on_log", logs=logs)
        elif kind == "checkpoint":  # complete by now, some steps after the one it is of
            step, state.global_step = state.global_step, event["step"]
            callbacks.call("on_save")
            state.global_step = step

    def _read_state(self) -> None:
        """Reads the state of the finished run: all of it on ranks that receive no events."""
        path = self._output_dir() / "trainer_state.json"
        if not path.exists():
            return
        for name, value in json.loads(path.read_text()).items():
            if hasattr(self.state, name) and not name.startswith("is_"):
                setattr(self.state, name, value)

    def _evaluate(self, data: Any, scratch: Path, folder: Path) -> dict[str, float]:
        own = self._read_settings()
        settings = {name: own[name] for name in _EVALUATION_SETTINGS if own.get(name) is not None}
        settings.update(self._model_settings(scratch, self._trained))
        settings["dataset"] = dataset_sources("eval_dataset", data, folder, self._formatting)
        found = json.loads(output_of(["eval", "--json", *flags(settings)]))
        return {
            {"runtime_s": "runtime"}.get(name, name): value
            for name, value in found.items()
            if isinstance(value, (int, float))
        }

    def _model_settings(self, scratch: Path, trained: Path | None) -> dict[str, Any]:
        """The settings of `model`, or of the model trained from it in `trained`."""
        settings = {}
        if trained is not None:
            is_adapter = (trained / "adapter_config.json").exists()
            settings["adapter_name_or_path" if is_adapter else "model"] = str(trained)
        if "model" not in settings:
            settings["model"] = model_source(self.model, scratch / "model")
        given = self.processing_class if self.processing_class is not None else self._read_settings().get("tokenizer")
        tokenizer = tokenizer_source(given, self.model, scratch / "tokenizer")
        return settings if tokenizer is None else {**settings, "tokenizer": tokenizer}

    def _read_settings(self) -> dict[str, Any]:
        """The current settings: a script may change `args` after the constructor."""
        settings = training_settings(self.args)
        if self._peft_config is not None:
            settings.update(lora_settings(self._peft_config))
        return {**settings, **self._collator, **self._early_stopping}

    def _output_dir(self) -> Path:
        return Path(self._read_settings()["output_dir"])

    def _check_not_interrupted(self, what: str) -> None:
        if self._interrupted:
            raise TesseraError(
                f"{what}: training has not ended, go on with train(resume_from_checkpoint=True); "
                f"its checkpoints are in {self._output_dir()}",
                64,
            )

    def _objects(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "processing_class": self.processing_class,
            "optimizer": None,
            "lr_scheduler": None,
            "train_dataloader": None,
            "eval_dataloader": None,
        }


class Seq2SeqTrainer(Trainer):
    """``transformers.Seq2SeqTrainer``: Trainer for models with an encoder and a decoder; evaluation is by loss."""

    _default_args = Seq2SeqTrainingArguments


class SFTTrainer(Trainer):
    """``trl.SFTTrainer``: Trainer with the defaults of SFTConfig."""

    _default_args = SFTConfig

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_loss_func: Any = None,
        compute_metrics: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: Any = None,
        preprocess_logits_for_metrics: Any = None,
        quantization_config: Any = None,
        peft_config: Any = None,
        formatting_func: Formatting | None = None,
        *,
        tokenizer: Any = None,
        nproc_per_node: int | str | None = None,
    ) -> None:
        refuse_code(quantization_config=quantization_config)
        super().__init__(
            model,
            args,
            data_collator,
            train_dataset,
            eval_dataset,
            processing_class,
            None,
            compute_loss_func,
            compute_metrics,
            callbacks,
            optimizers,
            optimizer_cls_and_kwargs,
            preprocess_logits_for_metrics,
            tokenizer=tokenizer,
            peft_config=peft_config,
            formatting_func=formatting_func,
            nproc_per_node=nproc_per_node,
        )
