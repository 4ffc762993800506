"""The progress bar of a run: tqdm's, which suits terminals and notebooks, where tqdm is installed."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from tessera.process import Event


class Progress:
    """Shows nothing: the program's own lines say how the run does."""

    is_shown = False

    def take(self, event: Event) -> None:
        pass

    def close(self) -> None:
        pass


class _Bar(Progress):
    is_shown = True

    def __init__(self, tqdm: Any) -> None:
        self._tqdm = tqdm
        self._bar: Any = None

    def take(self, event: Event) -> None:
        if event["event"] == "start":
            self.close()
            self._bar = self._tqdm(total=event["max_steps"], unit="step")
        elif event["event"] == "resume" and self._bar is not None:
            self._bar.update(event["step"] - self._bar.n)
        elif event["event"] == "step" and self._bar is not None:
            self._bar.set_postfix(
                loss=f"{event['loss']:.4f}", tokens_per_s=f"{event['tokens_per_second']:,.0f}", refresh=False
            )
            self._bar.update(event["step"] - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules


def make_progress(args: Any) -> Progress:
    """A bar in a terminal or a notebook, unless ``args.disable_tqdm`` says no."""
    if getattr(args, "disable_tqdm", None) or not (sys.stderr.isatty() or _in_notebook()):
        return Progress()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a notebook without ipywidgets has the terminal's bar
            from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return Progress()
    return _Bar(tqdm)
