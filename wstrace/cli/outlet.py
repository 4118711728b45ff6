"""Standard output as it is found: closed, full, or read by somebody who has seen enough."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Final, Literal

from wstrace.errors import WstraceError, ended_by, one_line
from wstrace.files import write_output

Format = Literal["text", "json"]
"""What the commands that show one thing write."""
BROKEN: Final = ended_by(13)
DEBUG: Final = "WSTRACE_DEBUG"
"""Set by `wstrace --debug`."""


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


def write(text: str | bytes | Iterator[str], target: Path | None) -> None:
    """Write a command's output; where it went to a file, say so on stderr."""
    write_output(text, target)
    if target is not None and str(target) != "-":
        say(f"Wrote {target}.")


def say(text: str) -> None:
    """Lines to stderr, which may be closed or full by now; what a name or a trace put into
    them cannot steer a terminal."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(_shown(text), file=sys.stderr, flush=True)


def say_in_a_handler(text: str) -> None:
    """What `say` does, from a signal handler: past the stream's buffer, which refuses
    (RuntimeError: reentrant call) where the signal came while it was being written."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            os.write(sys.stderr.fileno(), f"{_shown(text)}\n".encode(errors="replace"))


def _shown(text: str) -> str:
    return "\n".join(one_line(line) for line in text.split("\n"))


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what other programs' code prints, from C too; `wstrace --debug` lets it through."""
    if os.environ.get(DEBUG):
        yield
        return
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        try:
            for stream in kept:
                os.dup2(nowhere.fileno(), stream)
            yield
        finally:
            for stream, copy in kept.items():
                os.dup2(copy, stream)
                os.close(copy)


def discard() -> None:
    """Drop what waits: the interpreter would fail on it once more at its end."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def two_lines(error: WstraceError) -> str:
    """What a person sees of an error. What a trace or a file put into it is made safe."""
    from wstrace.trace.cleaning import clean_text

    return f"wstrace: {clean_text(error.message)}\n{clean_text(error.hint)}"


def failure(error: OSError) -> WstraceError:
    """An OSError that no command foresaw."""
    what = f" {error.filename!r}" if error.filename else " standard output"
    return WstraceError(
        f"Cannot use{what}: {error.strerror or error}.",
        "Check permissions and free space; `wstrace --debug COMMAND` shows where it failed.",
    )
