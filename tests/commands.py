"""A wstrace command in this process: what a subprocess would give, without its start."""

from __future__ import annotations

import io
import os
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from wstrace.cli.app import main


def wstrace(*words: str, cwd: Path | None = None, **env: str) -> CompletedProcess[str]:
    """Exit code, stdout and stderr of `wstrace WORDS`; `env` is added."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        patch.object(sys, "argv", ["wstrace", *words]),
        patch.dict(os.environ, {"COLUMNS": "100", **env}),
        chdir(cwd or Path.cwd()),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    number = code if isinstance(code, int) else int(code is not None)
    return CompletedProcess(words, number, out.getvalue(), err.getvalue())
