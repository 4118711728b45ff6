"""The same hostile trace through fleets, gathered folders, audits, watch, tables and Python;
and every command without the network."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import wstrace
from tests.unit.report.test_hostile import (  # noqa: F401
    FORMULA,
    SECRETS,
    answer,
    is_inert,
    planted,
)
from wstrace.cli.app import COMMANDS
from wstrace.vllm import arena

Answer = Callable[..., str]


def no_secret(text: str) -> None:
    for secret in SECRETS:
        assert secret not in text


def all_files(folder: Path) -> dict[Path, str]:
    return {
        path.relative_to(folder): path.read_text("utf-8", "replace")
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_fleet_is_inert(form: str, planted: Path, answer: Answer) -> None:  # noqa: F811
    is_inert(answer("fleet", planted, "--no-cache", "--jobs", 1, "--format", form))


def test_a_fleets_site_stays_in_its_folder_and_runs_nothing_of_the_trace(
    planted: Path,  # noqa: F811
    answer: Answer,  # noqa: F811
    tmp_path: Path,
) -> None:
    answer(
        "fleet", planted, "--no-cache", "--jobs", 1, "--reports", "none", "-o", tmp_path / "s"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    pages = all_files(tmp_path / "s")
    assert any("PLANTED" in text for text in pages.values())
    for text in pages.values():
        no_secret(text)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert 'href="javascript:' not in text


def test_a_fleets_parquet_keeps_no_secret_and_no_formula(
    planted: Path,  # noqa: F811
    answer: Answer,  # noqa: F811
    tmp_path: Path,
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    answer("fleet", planted, "--no-cache", "--jobs", 1, "-o", tmp_path / "f.parquet")
    table = parquet.read_table(tmp_path / "f.parquet").to_pydict()
    cells = [v for column in table.values() for v in column if isinstance(v, str)]
    assert cells
    for cell in cells:
        no_secret(cell)
        assert not cell.startswith(FORMULA)


def test_what_is_gathered_says_no_secret_of_its_own(
    planted: Path,  # noqa: F811
    answer: Answer,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The files of a trace are copied as they are; the manifest and the words are ours."""
    is_inert(answer("gather", planted, "-o", tmp_path / "all"))
    assert [path.name for path in tmp_path.iterdir()] == ["all"]
    written = [
        text
        for path, text in all_files(tmp_path / "all").items()
        if path.name == "gathered.json"
    ]
    assert written
    for text in written:
        json.loads(text)
        no_secret(text)


def test_watch_diff_and_sites_are_inert(planted: Path, answer: Answer) -> None:  # noqa: F811
    is_inert(answer("watch", planted, "--once"))
    is_inert(answer("diff", planted))
    is_inert(answer("diff", planted, planted, "--format", "json"))


def test_python_shows_no_secret(planted: Path) -> None:  # noqa: F811
    run = wstrace.load(planted)
    for shown in (repr(run), str(run), repr(run.findings), run.sites().to_csv()):
        no_secret(shown)
        assert "\x1b" not in shown


OWN_SERVER = {"fix", "demo"}
GIVEN_A_URL = {"exercise"}
WITHOUT: dict[str, list[str]] = {
    "audit": ["audit", "--vllm", "tree"],
    "bound": ["bound", "2 * max_num_seqs", "--set", "max_num_seqs=3"],
    "completion": ["completion", "bash"],
    "diff": ["diff", "TRACE"],
    "doctor": ["doctor", "-o", "out"],
    "explain": ["explain", "WS101"],
    "export": ["export", "TRACE", "--format", "prometheus"],
    "fleet": ["fleet", "TRACE", "--no-cache", "--jobs", "1"],
    "gate": ["gate", "TRACE"],
    "gather": ["gather", "TRACE", "-o", "gathered"],
    "report": ["report", "TRACE"],
    "reserve": ["reserve", "TRACE"],
    "run": ["run", "-q", "-o", "new", "--", "true"],
    "sites": ["sites"],
    "triage": ["triage", "log.txt"],
    "watch": ["watch", "TRACE", "--once"],
}


def test_every_command_is_here() -> None:
    assert WITHOUT.keys() | OWN_SERVER | GIVEN_A_URL == set(COMMANDS)


@pytest.mark.parametrize(
    "name",
    # doctor imports the whole of vLLM
    [pytest.param(n, marks=[pytest.mark.slow] if n == "doctor" else []) for n in WITHOUT],
)
def test_a_command_uses_no_network(
    name: str,
    planted: Path,  # noqa: F811
    answer: Answer,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`answer` makes any use of it an error; what listens is one too."""
    manager = tmp_path / "tree/vllm" / arena.FILE
    manager.parent.mkdir(parents=True)
    manager.write_text("class WorkspaceManager: pass\n")
    (tmp_path / "log.txt").write_text("ERROR nothing\n")
    monkeypatch.chdir(tmp_path)

    def away(*_: object) -> None:
        raise AssertionError("it listens")

    monkeypatch.setattr(socket.socket, "listen", away)
    answer(*(str(planted) if word == "TRACE" else word for word in WITHOUT[name]))


def test_a_use_of_the_network_would_be_seen(answer: Answer) -> None:  # noqa: F811
    with pytest.raises(AssertionError, match="the network was used"):
        answer("exercise", "--url", "http://127.0.0.1:9", "--wait", "1")
