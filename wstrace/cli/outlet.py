"""Standard output as it is found: closed, full, or read by somebody who has seen enough."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Final

from wstrace.errors import WstraceError

BROKEN: Final = 128 + 13


def prepare() -> None:
    """Make stdout writable: closed, it goes nowhere; a character it cannot show is spelt."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def flush() -> None:
    """Write out what waits, so that a failure is told now and not after the exit code.

    Raises BrokenPipeError where nobody reads, and WstraceError where it cannot be written.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard()
        raise failure(error) from error


def discard() -> None:
    """Drop what waits: the interpreter would fail on it once more at its end."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def failure(error: OSError) -> WstraceError:
    """An OSError that no command foresaw."""
    what = f" {error.filename!r}" if error.filename else " standard output"
    return WstraceError(
        f"Cannot use{what}: {error.strerror or error}.",
        "Check permissions and free space; `wstrace --debug COMMAND` shows where it failed.",
    )
