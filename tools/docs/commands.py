"""wstrace's commands run in this process, as in a terminal of fixed width without colours."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

from wstrace.cli.app import app, register_commands

TERMINAL: Final = {"COLUMNS": "96", "NO_COLOR": "1", "TERM": "dumb"}


def said(words: Sequence[str], folder: Path) -> str:
    """What `wstrace WORDS`, called in `folder`, writes to stdout.

    Raises WstraceError for bad input; `gate`'s exit code 1 is none.
    """
    register_commands()
    out = io.StringIO()
    with _terminal(), chdir(folder), redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = app(list(words), standalone_mode=False)
    assert code in (None, 0, 1), f"wstrace {' '.join(words)}: exit {code}"
    return out.getvalue()


@contextmanager
def _terminal() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in TERMINAL}
    os.environ.update(TERMINAL)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
