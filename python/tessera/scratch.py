"""The folder with what a run reads: settings, and rows, model and tokenizer that were objects."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tessera.process import environment_rank

_LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_JOB_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID",
                  "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")  # fmt: skip

_num_runs = 0  # that this process has started


def environment_local_rank() -> int:
    return next((int(os.environ[name]) for name in _LOCAL_RANK_VARIABLES if os.environ.get(name, "").isdigit()), 0)


@contextlib.contextmanager
def run_folder() -> Iterator[tuple[Path, bool]]:
    """The folder, and whether this process is to fill it and then calls `mark_ready()`.

    Where this process is one of several ranks of a machine, the first of them fills it, once for all: the others
    get it as soon as it is ready.
    """
    global _num_runs
    _num_runs += 1
    if environment_rank() is None:
        _remove_orphans()
        with tempfile.TemporaryDirectory(prefix="tessera-") as folder, open(Path(folder, "part"), "w") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            Path(owner.name).rename(Path(folder, "owner"))
            yield Path(folder), True
        return
    job = "\n".join([*(os.environ.get(name, "") for name in _JOB_VARIABLES), str(_num_runs)])
    name = f"tessera-{os.getuid()}_{hashlib.sha256(job.encode()).hexdigest()[:16]}"
    path = Path(tempfile.gettempdir()) / name
    if environment_local_rank() != 0:
        while not _is_ready(path):
            time.sleep(0.05)
        yield path, False
        return
    shutil.rmtree(path, ignore_errors=True)  # left over from a killed job with the same address
    path.mkdir(mode=0o700)
    try:
        yield path, True
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _remove_orphans() -> None:
    """Removes the folders of processes that were killed: nobody holds the locks of their owners."""
    for path in Path(tempfile.gettempdir()).glob("tessera-*/owner"):
        with contextlib.suppress(OSError), path.open() as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent)


def mark_ready(folder: Path) -> None:
    part = folder / "ready.part"
    part.write_text(str(os.getpid()))
    part.rename(folder / "ready")


def _is_ready(folder: Path) -> bool:
    """And not left by a process that is gone."""
    try:
        os.kill(int((folder / "ready").read_text()), 0)
    except (OSError, ValueError):
        return False
    return True
