"""Datasets of Python as what ``tessera train`` reads: files, folders and names on the Hub."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

from tessera.errors import TesseraError

Formatting = Callable[[Any], Any]
_ROWS_PER_FILE = 256  # of a stream
_FILES_AHEAD = 8


def dataset_sources(name: str, data: Any, folder: Path, formatting: Formatting | None = None) -> list[str]:
    """The values for --dataset. A path or a name on the Hub stays as it is; rows of a ``datasets.Dataset``, a sequence
    of dicts or a map-style dataset of torch are written to `folder`, a few at a time. The files are the same for the
    same rows, so that a run that resumes finds its data unchanged. Errors begin with `name`."""
    sources = [data] if isinstance(data, (str, os.PathLike)) else data
    if isinstance(sources, (list, tuple)) and sources and all(isinstance(one, (str, os.PathLike)) for one in sources):
        if formatting is not None:
            raise TesseraError(
                f"formatting_func: {name} is a path, which the program reads; give its rows as a Dataset"
            )
        return [os.fspath(one) for one in sources]
    if isinstance(data, Mapping):
        raise TesseraError(
            f"{name}: expected one dataset, found {type(data).__name__} with {', '.join(map(str, data))}: "
            "name the split, as in train_dataset=data['train']"
        )
    if is_stream(data) and iter(data) is data:
        raise TesseraError(f"{name}: expected rows that can be read again, found a {type(data).__name__}: give a list")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        table = _as_table(data) if formatting is None else None
        if table is not None:
            path = folder / "rows.parquet"
            with _without_bars():
                table.to_parquet(str(path))
        else:
            path = folder / "rows.jsonl"
            with path.open("wb") as file:
                for row in _rows(name, data, formatting):
                    file.write(_line(name, row))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise TesseraError(
            f"{name}: no room for its rows in {folder.parent.parent}: set TMPDIR to another folder", 74
        ) from None
    return [str(path)]


def evaluation_sources(data: Any, folder: Path, formatting: Formatting | None = None) -> list[str]:
    """The values for --eval_dataset, which takes several sets by name."""
    if not isinstance(data, Mapping):
        return dataset_sources("eval_dataset", data, folder, formatting)
    return [
        f"{name}={source}"
        for index, (name, part) in enumerate(data.items())
        for source in dataset_sources("eval_dataset", part, folder / str(index), formatting)
    ]


def _as_table(data: Any) -> Any:
    """A ``datasets.Dataset`` that is written as it is; None if its rows are made as they are taken."""
    if not hasattr(data, "to_parquet") or not hasattr(data, "num_rows"):
        return None
    form = data.format
    if form["type"] == "custom":  # with_transform()
        return None
    return data.select_columns(form["columns"]) if form["columns"] != data.column_names else data


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Turns off the progress bars of datasets, as the run shows its own."""
    from datasets import utils  # type: ignore[import-not-found, import-untyped, unused-ignore]

    were_off = utils.are_progress_bars_disabled()
    utils.disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            utils.enable_progress_bars()


def is_stream(data: Any) -> bool:
    """Whether rows come one after another, with no number of them, as from an IterableDataset of datasets or PyTorch."""
    is_named_so = any(base.__name__ == "IterableDataset" for base in type(data).__mro__)
    return is_named_so or (
        hasattr(data, "__iter__") and not hasattr(data, "__len__") and not isinstance(data, os.PathLike)
    )


class Spool:
    """Feeds the rows of a stream to ``--dataset_spool``: a few files that the program deletes as it reads them.

    A stream that ends begins again, in its next epoch, as in Transformers' Trainer. The program asks for the first
    row again (by a file `again`) when its ranks are restarted.
    """

    def __init__(self, data: Any, folder: Path, formatting: Formatting | None = None) -> None:
        self.folder = folder
        self.error: BaseException | None = None
        self._data, self._formatting = data, formatting
        self._stop = threading.Event()
        self._has_rows = False
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "feeder").write_text(str(os.getpid()))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(1)  # the user's rows may be on their way for longer

    def _run(self) -> None:
        try:
            while self._feed():
                for file in self.folder.glob("*.jsonl"):
                    file.unlink(missing_ok=True)
                (self.folder / "again").unlink()
        except BaseException as error:  # of the user's rows: the main thread raises it
            self.error = error
        (self.folder / "end").touch()

    def _feed(self) -> bool:
        """Waits until no more rows are wanted, or returns true if all of them are wanted again."""
        again = self.folder / "again"
        for number, rows in enumerate(_groups(self._endless(), _ROWS_PER_FILE)):
            path = self.folder / f"{number}.jsonl"
            part = path.with_suffix(".part")
            part.write_bytes(b"".join(_line("train_dataset", row) for row in rows))
            part.rename(path)
            while (self.folder / f"{number - _FILES_AHEAD}.jsonl").exists() and not again.exists():
                if self._stop.wait(0.02):
                    return False
            if self._stop.is_set():
                return False
            if again.exists():
                return True
        if not self._has_rows:
            raise TesseraError("train_dataset: expected rows, found none", 65)
        return False

    def _endless(self) -> Iterator[Any]:
        """Epoch after epoch, as far as the rows can be taken again."""
        epoch = 0
        while True:
            if hasattr(self._data, "set_epoch"):
                self._data.set_epoch(epoch)
            is_empty = True
            for row in _rows("train_dataset", self._data, self._formatting):
                is_empty = False
                self._has_rows = True
                yield row
            if is_empty:
                return
            epoch += 1


def _rows(name: str, data: Any, formatting: Formatting | None) -> Iterator[Any]:
    if hasattr(data, "__iter__"):
        rows: Iterable[Any] = data
    elif hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        rows = (data[index] for index in range(len(data)))
    else:
        raise TesseraError(
            f"{name}: expected a path, a datasets.Dataset, rows (a list of dicts) or an iterable "
            f"of them, found {type(data).__name__}"
        )
    for row in rows:
        if formatting is not None:
            text = formatting(row)
            if not isinstance(text, str):
                raise TesseraError(f"formatting_func: expected a string for a row, found {type(text).__name__}")
            row = {"text": text}
        if not isinstance(row, Mapping):
            raise TesseraError(f"{name}: expected rows that are dicts, found {type(row).__name__}")
        yield row


def _line(name: str, row: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False, default=lambda value: _values_of(name, value)).encode() + b"\n"
    # A row that contains itself, a key that is a tuple, or half of a surrogate pair.
    except (ValueError, TypeError, RecursionError) as error:
        raise TesseraError(f"{name}: a row cannot be written as JSON: {error}", 65) from None


def _values_of(name: str, value: Any) -> Any:
    """Tensors and arrays, by the method that NumPy and PyTorch share."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TesseraError(
        f"{name}: a row has a value of type {type(value).__name__}, which is neither text, number, list nor dict"
    )


def _groups(rows: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Groups of `size` rows, or fewer once the first row has waited for a second."""
    group: list[Any] = []
    begin = time.monotonic()
    for row in rows:
        if not group:
            begin = time.monotonic()
        group.append(row)
        if len(group) == size or time.monotonic() - begin > 1:
            yield group
            group = []
    if group:
        yield group
