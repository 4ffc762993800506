"""Tessera's training from Python: the classes of Transformers, TRL and PEFT by name, run by the program `tessera`.

from tessera import Trainer, TrainingArguments
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tessera.arguments import LoraConfig, Seq2SeqTrainingArguments, SFTConfig, TrainingArguments
    from tessera.callbacks import TrainerCallback, TrainerControl, TrainerState
    from tessera.commands import generate, launch, plan
    from tessera.errors import TesseraError
    from tessera.trainer import Seq2SeqTrainer, SFTTrainer, Trainer, TrainOutput

    __version__: str

# Loaded when they are asked for: the console script begins here, too, and is to take no time.
_MODULES = {
    "arguments": ("LoraConfig", "Seq2SeqTrainingArguments", "SFTConfig", "TrainingArguments"),
    "callbacks": ("TrainerCallback", "TrainerControl", "TrainerState"),
    "commands": ("generate", "launch", "plan"),
    "errors": ("TesseraError",),
    "trainer": ("Seq2SeqTrainer", "SFTTrainer", "Trainer", "TrainOutput"),
}

__all__ = [
    "LoraConfig", "SFTConfig", "SFTTrainer", "Seq2SeqTrainer", "Seq2SeqTrainingArguments", "TesseraError",
    "TrainOutput", "Trainer", "TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments",
    "generate", "launch", "plan",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("tessera-train")
        except metadata.PackageNotFoundError:  # a checkout
            return "0+unknown"
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"tessera.{module}"), name)
    raise AttributeError(f"module 'tessera' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
