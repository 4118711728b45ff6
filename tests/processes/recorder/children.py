"""A module of the recorder's tests as a process of its own: it imports vLLM and torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.cli.test_run import ENV


def child(module: str, *words: str, seconds: float = 500) -> subprocess.CompletedProcess[str]:
    """`python -m tests.unit.recorder.MODULE WORDS`, which has to end in order."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.unit.recorder.{module}", *words],
        cwd=Path(__file__).parents[3],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done
