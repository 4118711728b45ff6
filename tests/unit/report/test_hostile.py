"""A trace and a log that try to speak for themselves: no output lets them, none tells a secret.

Every string of a real trace that is no name of the format gets a payload, and every output is
made from it, with the network away.
"""

from __future__ import annotations

import csv
import io
import json
import re
import socket
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from wstrace.cli.app import main
from wstrace.cli.watch.metrics import MetricsServer
from wstrace.reserve.config import load_reserve

DEMO: Final = Path(__file__).parents[3] / "sample_traces" / "demo-crash"
SECRETS: Final = ("hf_PLANTEDplanted12345", "sk-PLANTEDplanted12345", "hunter2PLANTED")
PAYLOAD: Final = (
    " <script>alert('PLANTED')</script><img src=x onerror=PLANTED> "
    "[PLANTED](javascript:PLANTED)"
    "\n::error::PLANTED\r\n::set-output name=x::PLANTED\n# PLANTED\n| a | b |"
    '\x1b[31m\x1b]0;PLANTED\x07\x9b5m\u202e"} planted_metric 1\nplanted_metric 2\n'
    f" --api-key {SECRETS[1]} token={SECRETS[0]} https://me:{SECRETS[2]}@host/ "
    f"password={SECRETS[2]}"
)
FORMULA: Final = "=cmd|' /C calc'!A0"
# Words that the format itself knows: another one makes no trace, or another trace.
KEPT: Final = frozenset(
    (
        "t",
        "phase",
        "kind",
        "event",
        "window",
        "formula",
        "arms",
        "name",
        "role",
        "dtype",
        "run",
        "counts",
        "kind",
    )
)


def hostile(value: Any, key: str = "") -> Any:
    if key in KEPT or key == "limits":
        return value
    if isinstance(value, dict):
        return {name: hostile(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [hostile(part, key) for part in value]
    if not isinstance(value, str) or not value:
        return value
    return f"{FORMULA}{PAYLOAD}" if key in ("layer", "host") else f"{value}{PAYLOAD}"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """demo-crash with payloads; the version stays one, with its payload behind it."""
    folder = tmp_path_factory.mktemp("planted") / "trace"
    folder.mkdir()
    for file in DEMO.glob("*.wst.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        text = "".join(json.dumps(hostile(line)) + "\n" for line in lines)
        (folder / file.name).write_text(text)
    meta = json.loads((DEMO / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(hostile(meta)))
    return folder


@pytest.fixture
def answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What a command prints on both streams; any use of the network is an error."""

    def away(*_: object, **__: object) -> Any:
        raise AssertionError("the network was used")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, away)
    monkeypatch.setattr(socket, "getaddrinfo", away)

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["wstrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (None, 0, 1, 3), capsys.readouterr()
        told = capsys.readouterr()
        return told.out + told.err

    return run


def is_inert(text: str) -> None:
    """No control or direction mark, no workflow command, no secret."""
    odd = {c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160}
    assert odd == set()
    assert "\u202e" not in text
    assert not re.search(r"^\s*::(?:error::|set-output)", text, re.MULTILINE)
    for secret in SECRETS:
        assert secret not in text


def outside_code(markdown: str) -> str:
    """Markdown without its code: what may become HTML."""
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", markdown, flags=re.DOTALL)


COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "report": ("report",),
    "report json": ("report", "--format", "json"),
    "gate": ("gate",),
    "gate json": ("gate", "--format", "json"),
    "gate junit": ("gate", "--format", "junit"),
    "gate sarif": ("gate", "--format", "sarif"),
    "gate github": ("gate", "--format", "github"),
    "perfetto": ("export", "--format", "perfetto"),
    "reserve": ("reserve",),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_printed_is_inert(name: str, planted: Path, answer: Callable[..., str]) -> None:
    command, *options = COMMANDS[name]
    told = answer(command, planted, *options)
    assert "PLANTED" in told or name == "reserve"
    is_inert(told)


@pytest.mark.parametrize("command", ["report", "gate"])
def test_markdown_has_no_markup_of_the_trace(
    command: str, planted: Path, answer: Callable[..., str]
) -> None:
    told = answer(command, planted, "--format", "markdown")
    is_inert(told)
    bare = outside_code(told)
    assert not re.search(r"(?<!\\)(?:<script|<img|\]\(javascript:)", bare)
    assert not re.search(r"^# PLANTED", told, re.MULTILINE)
    rows = [line for line in told.splitlines() if line.startswith("| ")]
    assert rows
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_the_page_has_no_markup_of_the_trace(
    planted: Path, answer: Callable[..., str], tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    answer("report", planted, "-o", page)
    text = page.read_text()
    assert "PLANTED" in text
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert 'href="javascript:' not in text
    for secret in SECRETS:
        assert secret not in text


def test_no_cell_of_a_table_is_a_formula(planted: Path, answer: Callable[..., str]) -> None:
    text = answer("export", planted, "--format", "csv")
    is_inert(text.replace("\r\n", "\n"))
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    assert any("cmd|" in cell for cell in cells)
    for cell in cells:
        assert not re.match(r"[=+@\t\r]|-(?!\d)", cell), cell


def test_no_label_becomes_a_metric(
    planted: Path, answer: Callable[..., str], tmp_path: Path
) -> None:
    is_inert(answer("export", planted, "--format", "prometheus", "-o", tmp_path / "metrics"))
    text = (tmp_path / "metrics").read_text()
    is_inert(text)
    names = {family.name for family in text_string_to_metric_families(text)}
    assert names
    assert all(name.startswith("wstrace_") for name in names), names


def test_no_label_becomes_a_metric_where_they_are_served(planted: Path) -> None:
    server = MetricsServer(planted, None, None, "127.0.0.1:0")
    try:
        server.refresh()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as reply:
            text = reply.read().decode()
    finally:
        server.close()
    is_inert(text)
    assert "PLANTED" in text
    names = {family.name for family in text_string_to_metric_families(text)}
    # those of prometheus_client's own process are not served
    assert names
    assert all(name.startswith("wstrace_") for name in names), names


def test_a_reserve_of_it_is_one(
    planted: Path, answer: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "reserve.yaml"
    answer("reserve", planted, "-o", out)
    assert load_reserve(out).sites
    assert list(tmp_path.iterdir()) == [out]


def test_a_log_is_inert_too(tmp_path: Path, answer: Callable[..., str]) -> None:
    log = tmp_path / "log.txt"
    message = (
        "Workspace is locked but allocation from 'a.py:7:_f' requires 9.94 MB, current size is "
        "2.05 MB. Workspace growth is not allowed after locking."
    )
    log.write_text(f"vLLM version 0.32.0{PAYLOAD}\nAssertionError: {message}{PAYLOAD}\n")
    for form in ("text", "json", "markdown"):
        is_inert(answer("triage", log, "--format", form))
