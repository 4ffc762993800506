"""The program `tessera` that this package brings along."""

import os
import sys
from pathlib import Path


def program_path() -> Path:
    """The program named by TESSERA_PROGRAM; otherwise the package's or, in a checkout, that of build/release."""
    named = os.environ.get("TESSERA_PROGRAM")
    package = Path(__file__).resolve().parent
    places = [Path(named)] if named else [package / "bin/tessera", package.parents[1] / "build/release/tessera"]
    for place in places:
        if place.is_file() and os.access(place, os.X_OK):
            return place
    raise FileNotFoundError(
        f"expected the program tessera at {' or '.join(map(str, places))}, found none; install the wheel again, "
        "or name the program in TESSERA_PROGRAM"
    )


def main() -> None:
    """Becomes the program, with this process's arguments: its exit code and its signals are the program's."""
    try:
        program = program_path()
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(78)
    # SIGPIPE and SIGXFSZ, which Python ignores and the program inherits so, are ignored by the program in any case.
    os.execv(program, ["tessera", *sys.argv[1:]])
