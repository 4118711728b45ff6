"""An output's extension means one format in every command, and `-` is standard output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from wstrace.cli.commands import audit, fleet
from wstrace.errors import WstraceError
from wstrace.report import choose
from wstrace.report.ci import gate_formats

EXTENSIONS = {
    "a.json": "json",
    "a.JSON": "json",
    "a.md": "markdown",
    "a.txt": "text",
    "a.html": "html",
    "a.htm": "html",
    "A.SARIF": "sarif",
    "a.xml": "junit",
    "a.parquet": "parquet",
    "-": "text",
}


def gates(target: Path) -> str:
    """The gate's format; it has `-` as no path."""
    ((name, path),) = gate_formats.pair([], [target])
    assert (path is None) is (str(target) == "-")
    return name


COMMANDS: dict[str, tuple[Callable[[Path], str], tuple[str, ...]]] = {
    "report": (lambda target: choose.format_of(target, None), choose.FORMATS),
    "gate": (gates, gate_formats.FORMATS),
    "fleet": (lambda target: fleet._format(None, target), ("text", "json", "parquet")),
    "audit": (lambda target: audit._format(None, target), get_args(audit.AuditFormat)),
}


@pytest.mark.parametrize("name", EXTENSIONS)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_extension_means_one_format(command: str, name: str) -> None:
    format_of, known = COMMANDS[command]
    wanted = EXTENSIONS[name]
    if wanted in known:
        assert format_of(Path(name)) == wanted
    elif command == "audit":  # what it was before it looked: text
        assert format_of(Path(name)) == "text"
    else:
        with pytest.raises(WstraceError, match="Cannot tell"):
            format_of(Path(name))


def test_markdown_of_an_audit_has_its_other_name_still() -> None:
    assert audit._format("md", Path("a.json")) == audit._format("markdown", None) == "markdown"


def test_a_fleets_folder_is_a_site(tmp_path: Path) -> None:
    assert fleet._format(None, tmp_path) == fleet._format(None, Path("site")) == "html"
