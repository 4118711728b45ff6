"""The gate's command, run in an empty folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from wstrace.cli.commands.gate import command
from wstrace.errors import WstraceError

Gate = Callable[..., tuple[int, str]]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Run the command in an empty folder; (exit code, stdout)."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(command)

    def run(*arguments: str | Path) -> tuple[int, str]:
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        if isinstance(result.exception, WstraceError):
            return result.exception.exit_code, result.exception.message
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout

    return run


def needs(package: str, why: str) -> None:
    """Skip without a package of the dev extra; under scripts/test it has to be there."""
    if find_spec(package) is None:
        message = f"{package} is missing: {why}"
        if os.environ.get("WSTRACE_REQUIRE_ENGINE"):
            pytest.fail(message)
        pytest.skip(message)
