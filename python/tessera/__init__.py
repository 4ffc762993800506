"""Tessera's training from Python: the classes of Transformers, TRL and PEFT by name, run by the program `tessera`.

from tessera import Trainer, TrainingArguments
"""

from importlib import metadata

from tessera.arguments import LoraConfig, SFTConfig, TrainingArguments
from tessera.callbacks import TrainerCallback, TrainerControl, TrainerState
from tessera.commands import generate, launch, plan
from tessera.errors import TesseraError
from tessera.trainer import SFTTrainer, Trainer, TrainOutput

try:
    __version__ = metadata.version("tessera-train")
except metadata.PackageNotFoundError:  # a checkout
    __version__ = "0+unknown"

__all__ = [
    "LoraConfig",
    "SFTConfig",
    "SFTTrainer",
    "TesseraError",
    "TrainOutput",
    "Trainer",
    "TrainerCallback",
    "TrainerControl",
    "TrainerState",
    "TrainingArguments",
    "generate",
    "launch",
    "plan",
]
