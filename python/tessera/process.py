"""The program as a child process, and the connection over which a run is followed and controlled."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from tessera._program import program_path
from tessera.errors import TesseraError

Event = dict[str, Any]

_RESUME = "trainer.train(resume_from_checkpoint=True)"

# Set by torchrun, mpirun, srun and others for each rank that they start.
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_LAUNCHER_PREFIXES = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_")
_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
                       "MASTER_PORT")  # fmt: skip


def environment_rank() -> int | None:
    """This process's rank in a job; None if it was not started as one of several."""
    for name in _RANK_VARIABLES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    if int(os.environ.get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in os.environ:
        return int(os.environ["SLURM_PROCID"])
    return None


def _environment_of_one() -> dict[str, str]:
    """For a command that is no rank, even where this process is one."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _LAUNCHER_VARIABLES and not name.startswith(_LAUNCHER_PREFIXES)
    }


def plain_error(text: str, exit_code: int) -> TesseraError:
    """The exception for what the program wrote: its last line that begins with "error: "."""
    lines = [line for line in _as_fields(text).splitlines() if line.strip()]
    errors = [line[len("error: ") :] for line in lines if line.startswith("error: ")]
    return TesseraError((errors or lines or [_end_without_words(exit_code)])[-1], exit_code)


def _end_without_words(exit_code: int) -> str:
    if exit_code == 128 + signal.SIGKILL:
        return "the program was killed (SIGKILL); if the system was out of memory, `dmesg` says so: tessera.plan() forecasts what a run needs"
    if exit_code > 128:
        with contextlib.suppress(ValueError):
            return f"the program was ended by {signal.Signals(exit_code - 128).name}"
    return f"the program ended with exit code {exit_code}"


def _as_fields(text: str) -> str:
    """Settings by their names, without the words of a command line, and objects by the names that a Python user gave them."""
    text = text.replace("unknown flag", "unknown setting").replace("; --help lists the known ones", "")
    text = re.sub(r"(?<![\w-])--(?=[a-z])", "", text).replace("error: command line: ", "error: ")
    text = re.sub(r"\S*/tessera-\w+/(train|eval)(/\w+)?/rows\.\w+", r"\1_dataset", text)
    text = re.sub(r"\S*/tessera-\w+/spool/[\w/]+\.jsonl: line \d+", "train_dataset: a row", text)
    text = re.sub(r"\S*/tessera-\w+/prompts\.jsonl(:\d+)?", "prompts", text)
    return re.sub(r"\S*/tessera-\w+/(model|tokenizer)\b", r"\1", text)


def flags(settings: Mapping[str, Any]) -> list[str]:
    """The settings as words of a command line."""
    words = []
    for name, value in settings.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        words += [f"--{name}", *(str(item).lower() if isinstance(item, bool) else str(item) for item in values)]
    return words


def _program() -> Path:
    try:
        return program_path()
    except FileNotFoundError as error:
        raise TesseraError(str(error)) from None


def _command(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command of the program, as one process, to its end."""
    return subprocess.run(
        [_program(), *arguments],
        env=_environment_of_one(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def output_of(arguments: Sequence[str]) -> str:
    """The output of a command that ends on its own; raises TesseraError if it fails."""
    result = _command(arguments)
    if result.returncode != 0:
        raise plain_error(result.stderr, _exit_code(result.returncode))
    return result.stdout


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """A configuration file of ``tessera train``; None means not set."""
    given = {
        name: json.dumps(value) if name == "deepspeed" and isinstance(value, dict) else value
        for name, value in settings.items()
        if value is not None
    }
    for name, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise TesseraError(f"{name}: expected a finite number, found {value}")
    try:
        path.write_text(json.dumps(given, indent=2))
    except TypeError as error:
        raise TesseraError(f"settings: expected values as in JSON: {error}", 64) from None


def evaluates(settings: Mapping[str, Any]) -> bool:
    """Whether a run with these settings evaluates, and so needs an eval_dataset."""
    return settings.get("eval_strategy", "no") != "no" or bool(settings.get("eval_on_start"))


def check_settings(settings: Mapping[str, Any], num_ranks: int = 1) -> list[str]:
    """The warnings of ``tessera train`` about these settings on as many ranks; raises TesseraError if it refuses them."""
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        path = Path(folder) / "settings.json"
        write_settings(path, {**({"eval_dataset": "given to the trainer"} if evaluates(settings) else {}), **settings})
        result = _command(["config", "show", str(path), "--world_size", str(num_ranks)])
    said = re.sub(re.escape(str(path)) + r"(:\d+)?: ", "", result.stderr)
    if result.returncode != 0:
        raise plain_error(said, _exit_code(result.returncode))
    said = _as_fields(said)
    return [line[len("warning: ") :] for line in said.splitlines() if line.startswith("warning: ")]


def _exit_code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode


def _pass_on(text: str, stream: Any) -> None:
    """Lets nothing hold up the run, which fills the pipe if nobody reads on: a closed terminal, a reader that is gone."""
    with contextlib.suppress(OSError, ValueError):
        print(text, end="", file=stream)


class Terminated(BaseException):
    """This process received a signal that ends it, once its folders are removed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Run:
    """A run of ``tessera train`` as a child: yields its events, and answers what it asks after every step.

    SIGINT and SIGTERM of this process go to the run, which ends with a checkpoint.
    """

    def __init__(self, arguments: Sequence[str], show: Callable[[str], bool]) -> None:
        """`show` is asked which lines of the program's messages to pass on to sys.stderr."""
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._show = show
        self._errors: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="tessera-")
        path = str(Path(self._folder.name) / "control")
        self._listener = socket.socket(socket.AF_UNIX)
        if len(path) > 100:  # longer ones are no address of a socket
            self._folder.cleanup()
            self._folder = tempfile.TemporaryDirectory(prefix="tessera-", dir="/tmp")
            path = str(Path(self._folder.name) / "control")
        self._listener.bind(path)
        self._listener.listen()
        self._connection: socket.socket | None = None
        self.signal = 0  # the first that this process received
        self._process = subprocess.Popen(
            [_program(), *arguments],
            env={**os.environ, "TESSERA_CONTROL": path, "TESSERA_RESUME_COMMAND": _RESUME},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )  # a terminal's Ctrl-C reaches it through this process alone
        self._readers = [
            threading.Thread(target=target, daemon=True)
            for target in (self._read_output, self._read_messages, self._read_events)
        ]
        for thread in (*self._readers, threading.Thread(target=self._wait, daemon=True)):
            thread.start()

    def events(self) -> Generator[Event, None, None]:
        """Until the program has ended, well or not: then `finish()`."""
        handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            handlers = {
                number: signal.signal(number, self._forward)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
                if signal.getsignal(number) != signal.SIG_IGN  # as under nohup
            }
        try:
            while True:
                try:
                    event = self._events.get(timeout=0.5)  # a wait without an end would hold up signals
                except queue.Empty:
                    continue
                if event is None:
                    return
                yield event
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def answer(self, requests: Mapping[str, bool]) -> None:
        if self._connection is not None:
            try:
                self._connection.sendall((json.dumps(requests) + "\n").encode())
            except OSError:  # the program is gone, and _wait() says so
                pass

    def finish(self) -> None:
        """Raises what the end of the program means: TesseraError, KeyboardInterrupt or Terminated."""
        returncode = self._process.returncode
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal != 0:
            raise Terminated(self.signal)
        if returncode != 0:
            raise plain_error("\n".join(self._errors), _exit_code(returncode))

    def close(self) -> None:
        """Ends the program, with a checkpoint, if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            if self._connection is not None:  # on which it may wait for an answer
                self._connection.shutdown(socket.SHUT_RDWR)
            self._process.wait()
        for thread in self._readers:
            thread.join()
        for end in (self._process.stdout, self._process.stderr, self._connection, self._listener):
            if end is not None:
                end.close()
        self._folder.cleanup()

    def _forward(self, number: int, _frame: Any) -> None:
        self.signal = self.signal or number
        if self._process.poll() is None:
            self._process.send_signal(number)

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            _pass_on(line, sys.stdout)

    def _read_messages(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.startswith("error: "):
                self._errors.append(line.rstrip("\n"))
            elif self._show(line):
                _pass_on(_as_fields(line), sys.stderr)

    def _read_events(self) -> None:
        while True:  # a rank that is started again connects again
            try:
                self._connection, _ = self._listener.accept()
            except OSError:
                return
            with self._connection.makefile("r", encoding="utf-8", errors="replace") as lines:
                with contextlib.suppress(OSError):  # the program was killed before it read an answer
                    for line in lines:
                        if line.endswith("\n"):  # or while it wrote
                            self._events.put(json.loads(line))

    def _wait(self) -> None:
        self._process.wait()
        self._listener.shutdown(socket.SHUT_RDWR)  # nobody connects any more
        for thread in self._readers:
            thread.join()
        self._events.put(None)
