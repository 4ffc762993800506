"""All errors of the package, as one exception."""

from __future__ import annotations


class TesseraError(RuntimeError):
    """The program refused or failed.

    The message is the program's line: what, where, expected, found, what to do. ``exit_code`` is one of sysexits:
    64 bad arguments, 65 bad data, 66 missing input, 70 a bug, 74 I/O, 75 try again, 78 bad configuration,
    79 numerical failure; 128 + N if signal N ended it.
    """

    def __init__(self, message: str, exit_code: int = 78) -> None:
        super().__init__(message)
        self.exit_code = exit_code
