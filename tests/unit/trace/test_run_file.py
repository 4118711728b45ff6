"""run.json: broken ones are told and make the run inconclusive; older runs do not stand in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.commands import wstrace
from wstrace.cli import recorded
from wstrace.cli.reading import read_runs
from wstrace.errors import WstraceError
from wstrace.file_names import RUN_FILE, kept_run_file
from wstrace.findings.analysed_run import load_run
from wstrace.trace.reader import load_trace
from wstrace.trace.records import FORMAT, Header
from wstrace.trace.run_file import RunFile, find_run, read_run

WHOLE = RunFile(
    run="run1", command=["vllm", "serve", "m"], started="2026-05-16T10:15:00+00:00", wstrace="1"
)


def _trace(folder: Path, run: str = "run1", wall_ns: int = 1) -> None:
    header = Header(format=FORMAT, run=run, wall_ns=wall_ns, wstrace="0.1.0")
    (folder / f"{run}.wst.jsonl").write_bytes(msgspec.json.encode(header) + b"\n")


def _cut(path: Path) -> None:
    path.write_bytes(msgspec.json.encode(WHOLE)[:-3])


def _binary(path: Path) -> None:
    path.write_bytes(b"\x80\xff\x00" * 9)


def _deep(path: Path) -> None:
    path.write_bytes(b"[" * 100_000)


def _large(path: Path) -> None:
    path.write_bytes(b" " * (1 << 20) + msgspec.json.encode(WHOLE))


BROKEN: list[Callable[[Path], object]] = [
    _cut,
    _binary,
    _deep,
    _large,
    Path.touch,
    Path.mkdir,
    os.mkfifo,
    lambda path: path.write_text('{"run": 1}'),
    lambda path: path.write_text("[]"),
]


@pytest.mark.parametrize("spoil", BROKEN)
def test_a_broken_one_is_a_reason_that_nothing_is_clean(
    spoil: Callable[[Path], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _trace(tmp_path)
    spoil(tmp_path / "run.json")
    (reason,) = [r for r in load_run(tmp_path).inconclusive if "run.json" in r]
    assert reason.startswith("run.json cannot be read (")
    read_runs([tmp_path])
    assert "wstrace: run.json cannot be read (" in capsys.readouterr().err


def test_every_cut_is_told(tmp_path: Path) -> None:
    whole = msgspec.json.encode(WHOLE)
    for length in range(len(whole)):
        (tmp_path / "run.json").write_bytes(whole[:length])
        with pytest.raises(WstraceError, match="cannot be read"):
            read_run(tmp_path / "run.json")
    (tmp_path / "run.json").write_bytes(whole)
    assert read_run(tmp_path / "run.json") == WHOLE


def test_a_folder_without_one_is_no_doubt(tmp_path: Path) -> None:
    _trace(tmp_path)
    assert load_trace(tmp_path).doubts == []


def test_a_folder_with_nothing_but_a_broken_one_says_so(tmp_path: Path) -> None:
    _cut(tmp_path / "run.json")
    with pytest.raises(WstraceError, match=r"holds no trace: run\.json cannot be read"):
        read_runs([tmp_path])


def _started(folder: Path, run: str, second: int) -> None:
    started = f"2026-05-16T10:15:{second:02d}+00:00"
    meta = msgspec.structs.replace(WHOLE, run=run, started=started)
    (folder / "run.json").write_bytes(msgspec.json.encode(meta))


BASE = 1_778_926_500_000_000_000  # 2026-05-16T10:15:00Z in ns


def test_the_newest_run_left_nothing_and_an_older_one_does_not_stand_in(tmp_path: Path) -> None:
    _trace(tmp_path, "older", BASE + 1_000_000_000)
    _started(tmp_path, "newer", 30)
    trace = load_trace(tmp_path)
    assert (trace.run, trace.processes) == ("newer", [])
    assert any("never attached" in why for why in load_run(tmp_path).inconclusive)
    assert load_trace(tmp_path, "older").processes != []
    told = wstrace("report", str(tmp_path)).stdout
    assert "holds no trace:" not in told
    assert "no trace file of this run lies beside those of others" in told
    assert "run newer left no trace file; there are those of older: --run ID picks one" in told


def test_a_run_json_of_another_run_is_told_by_fleet(tmp_path: Path) -> None:
    _trace(tmp_path, "older", BASE + 1_000_000_000)
    _started(tmp_path, "newer", 30)
    told = wstrace("fleet", str(tmp_path), "--no-cache", "--format", "json", "--jobs", "1")
    rows = {row["run"]: row for row in json.loads(told.stdout)["runs"]}
    (word,) = rows["newer"]["words"]
    assert word.startswith("no trace file of this run lies beside those of others")


def test_a_trace_newer_than_run_json_is_the_newest(tmp_path: Path) -> None:
    """Production sets WSTRACE_DIR without `wstrace run`, in a folder that had one."""
    _trace(tmp_path, "older", BASE + 31_000_000_000)
    _started(tmp_path, "first", 30)
    assert load_trace(tmp_path).run == "older"


@pytest.mark.parametrize("run", ["/../../out", "x/../../../out", "/../../../out"])
def test_an_id_leads_to_no_file_outside_the_folder(run: str, tmp_path: Path) -> None:
    """Of a run.json that somebody put there: it is kept under its id, and looked up by it."""
    folder = tmp_path / "one" / "two"
    for made in ("run.", "run.x"):  # a path is only walked where each of its folders is there
        (folder / made).mkdir(parents=True)
    outside = msgspec.structs.replace(WHOLE, run=run)
    for place in (tmp_path, folder.parent):
        (place / "out.json").write_bytes(msgspec.json.encode(outside))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    _trace(folder)
    assert find_run(folder, run) == (None, [])
    (folder / RUN_FILE).write_bytes(msgspec.json.encode(outside))
    recorded._write(folder, WHOLE)
    for path, data in before.items():
        assert path.read_bytes() == data
    assert read_run(folder / kept_run_file(run)) == outside
    assert find_run(folder, run) == (outside, [])
