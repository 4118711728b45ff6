"""The gate's command, run in an empty folder."""

from __future__ import annotations

from collections.abc import Callable
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
