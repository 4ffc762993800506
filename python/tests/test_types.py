"""The package is typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tessera


def test_passes_mypy_strict() -> None:
    pytest.importorskip("mypy")
    package = Path(tessera.__file__).parent
    assert (package / "py.typed").exists()
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "-p", "tessera"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_import_needs_no_other_package() -> None:
    code = "import sys; before = set(sys.modules); from tessera import Trainer; print(sorted({n.split('.')[0] for n in set(sys.modules) - before}))"
    found = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(Path(tessera.__file__).parents[1])!r}); {code}"],
                           capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert not {"torch", "numpy", "datasets", "transformers", "tqdm"} & set(eval(found))
