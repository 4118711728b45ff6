"""`wstrace export` and `wstrace watch` as commands, on files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.commands import wstrace
from tests.unit.report_html import runs
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.trace.run_file import RunFile

RUN = "20260516T101500Z-0a1b2c3d"


def write_trace(folder: Path, session: AnalysedRun) -> list[Path]:
    """The session's records as trace files."""
    folder.mkdir(exist_ok=True)
    paths = []
    for process in session.trace.processes:
        path = folder / process.path.name
        records = [process.header, *process.records]
        path.write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in records))
        paths.append(path)
    return paths


def write_meta(folder: Path, ended: str | None = None) -> None:
    """run.json, as `wstrace run` writes it."""
    code = 1 if ended else None
    run = RunFile(
        run=RUN, command=["vllm"], started="t", wstrace="0.1.0", ended=ended, exit_code=code
    )
    (folder / "run.json").write_bytes(msgspec.json.encode(run))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_trace(tmp_path / "run", runs.crashed())
    return tmp_path / "run"


@pytest.mark.parametrize("fmt", ["prometheus", "perfetto", "csv", "parquet"])
def test_a_file_appears_whole_with_nothing_beside_it(folder: Path, fmt: str) -> None:
    if fmt == "parquet":
        pytest.importorskip("pyarrow")
    target = folder.parent / f"out.{fmt}"
    done = wstrace("export", str(folder), "--format", fmt, "-o", str(target))
    assert done.returncode == 0, done.stderr
    assert target.stat().st_mode & 0o777 == 0o644
    assert sorted(p.name for p in folder.parent.iterdir()) == [target.name, "run"]


def test_stdout_is_the_document(folder: Path) -> None:
    done = wstrace("export", str(folder), "--format", "perfetto")
    assert json.loads(done.stdout)["traceEvents"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--format", "parquet"], "-o requests.parquet"),
        (["--format", "csv", "--torch-trace", "x"], "--format perfetto"),
        (["--format", "csv", "-o", "/nonexistent/x"], "Cannot write"),
    ],
)
def test_mistakes_exit_2_in_two_lines(folder: Path, args: Sequence[str], said: str) -> None:
    done = wstrace("export", str(folder), *args)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2


def test_watch_once_shows_every_rank(folder: Path) -> None:
    done = wstrace("watch", str(folder), "--once")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("tp")]
    tp0 = next(row for row in rows if row[0] == "tp0")
    assert tp0[1:5] == ["serving", "0,", "0", "41"]
    assert "32.00 MiB" in done.stdout
    assert "\x1b" not in done.stdout


def test_watch_piped_prints_events_and_stops_with_the_run(folder: Path) -> None:
    write_meta(folder, ended="2026-05-16T10:20:00+00:00")
    done = wstrace("watch", str(folder))
    assert done.returncode == 0
    refused = [line for line in done.stdout.splitlines() if line.startswith("tp1: refused")]
    assert refused == ["tp1: refused: turboquant_attn.py:812:_continuation_prefill 32.00 MiB"]
    assert "ended, exit code 1" in done.stdout


def test_watch_of_nothing_is_an_error(tmp_path: Path) -> None:
    done = wstrace("watch", str(tmp_path / "none"), "--once")
    assert done.returncode == 2
    assert "No such trace: " in done.stderr
    (tmp_path / "serve.log").write_text("INFO 05-16 10:15:00 [core.py:1] started\n")
    done = wstrace("watch", str(tmp_path / "serve.log"), "--once")
    assert (done.returncode, "wstrace triage LOG" in done.stderr) == (2, True)
    assert "Waiting for the first worker" in wstrace("watch", str(tmp_path), "--once").stdout
