"""Where the engine's environment is, and a Python process inside it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from wstrace.testbed.engine import engine_env

if TYPE_CHECKING:
    from collections.abc import Mapping

MISSING = "no vLLM in this environment: run scripts/test, or name one in WSTRACE_ENGINE"


def engine_prefix() -> Path | None:
    """The virtual environment with vLLM: this one, or the one that WSTRACE_ENGINE names."""
    if find_spec("vllm"):
        return Path(sys.prefix)
    named = os.environ.get("WSTRACE_ENGINE")
    return Path(named) if named else None


def engine_required() -> bool:
    """Whether a missing engine fails the tests (scripts/test sets it) or skips them."""
    return bool(os.environ.get("WSTRACE_REQUIRE_ENGINE"))


def run_python(
    source: str,
    *arguments: str,
    prefix: Path,
    patterns: str = "",
    seconds: float = 1800.0,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `source` in the engine's Python with `engine_env(patterns)` plus `env`."""
    return subprocess.run(
        [str(prefix / "bin" / "python"), "-c", source, *arguments],
        env=engine_env(patterns, prefix=prefix) | dict(env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
