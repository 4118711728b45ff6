"""Reading files while they grow: every byte once, every record once."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.unit.export.test_command import RUN, write_trace
from tests.unit.report_html import runs
from wstrace.cli.app import app, register_commands
from wstrace.cli.watch.screen import picture, status
from wstrace.cli.watch.state import ProcessState, RunState
from wstrace.cli.watch.tail import FileTail, FolderTail, read_meta
from wstrace.trace.records import Header, Lock, NearLimit, PhaseChange, Slot
from wstrace.trace.run_file import RunFile


def _whole(tmp_path: Path) -> tuple[bytes, int]:
    path = write_trace(tmp_path / "whole", runs.grown())[0]
    data = path.read_bytes()
    return data, data.count(b"\n")


@pytest.mark.parametrize("piece", [1, 7, 997, 1 << 20])
def test_records_arrive_once_however_the_file_grows(tmp_path: Path, piece: int) -> None:
    data, count = _whole(tmp_path)
    path = tmp_path / "x.wst.jsonl"
    path.touch()
    tail, seen = FileTail(path), []
    pieces = [data[i : i + piece] for i in range(0, len(data), piece)]
    for part in pieces if piece > 1 else [data[:500], *(data[500:].splitlines(True))]:
        with path.open("ab") as file:
            file.write(part)
        seen += list(tail.read())
    assert len(seen) == count
    assert tail.offset == len(data)
    assert list(tail.read()) == []


def test_what_was_read_is_never_read_again(tmp_path: Path) -> None:
    data, _ = _whole(tmp_path)
    path = tmp_path / "x.wst.jsonl"
    path.write_bytes(data)
    tail = FileTail(path)
    first = len(list(tail.read()))
    path.write_bytes(b"#" * len(data))
    with path.open("ab") as file:
        file.write(msgspec.json.encode(PhaseChange(phase="shutdown")) + b"\n")
    assert [r.phase for r in tail.read() if isinstance(r, PhaseChange)] == ["shutdown"]
    assert first > 1


def test_a_line_of_another_version_is_counted_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.wst.jsonl"
    path.write_bytes(
        b'{"t":"future"}\n' + msgspec.json.encode(PhaseChange(phase="load")) + b"\n"
    )
    tail = FileTail(path)
    assert len(list(tail.read())) == 1
    assert tail.unread == 1


def test_files_that_appear_later_are_picked_up_and_the_newest_run_followed(
    tmp_path: Path,
) -> None:
    tail = FolderTail(tmp_path)
    assert list(tail.read()) == []
    assert tail.followed() is None
    for number, run in enumerate(("old", "new")):
        header = Header(format=1, run=run, wstrace="0", wall_ns=number + 1)
        (tmp_path / f"{run}.wst.jsonl").write_bytes(msgspec.json.encode(header) + b"\n")
        assert len(list(tail.read())) == 1
        assert tail.followed() == run
    assert FolderTail(tmp_path, "ol").followed() is None


def _state(tmp_path: Path) -> RunState:
    write_trace(tmp_path, runs.grown())
    state = RunState()
    for path, record in FolderTail(tmp_path).read():
        state.apply(path, record)
    return state


def test_numbers_of_a_grown_run(tmp_path: Path) -> None:
    (worker,) = _state(tmp_path).of_run(RUN)
    slot = worker.slots[Slot()]
    assert worker.phase == "serving"
    assert worker.step == 43
    assert (worker.growths, worker.escapes, worker.refused) == (3, 2, 0)
    assert slot.locked_at == 24 * 2**20
    assert slot.arena == slot.asked == runs.attention_bytes(15000)


def test_the_picture_fits_80_columns(tmp_path: Path) -> None:
    console = Console(width=80, record=True, file=StringIO())
    console.print(picture(_state(tmp_path), RUN, read_meta(tmp_path), tmp_path))
    text = console.export_text()
    assert "…" not in text
    assert "58.62 MiB" in text
    assert "running" in text


def test_events_of_another_run_of_the_folder_are_not_mixed_in(tmp_path: Path) -> None:
    state = RunState()
    for run in ("earlier", "followed"):
        path = tmp_path / f"{run}.wst.jsonl"
        for record in runs.grown().workers[0].process.records:
            state.apply(path, record)
        state.processes[path].header = Header(format=1, run=run, wstrace="0.1.0")
        state.apply(path, Lock(event="unlock", slots=[], sizes=[], phase="unlocked"))
    assert state.news(0, "followed") == ["rank 0: unlock"]
    assert state.news(state.told - 1, "earlier") == []


def test_a_site_that_comes_near_its_limit_is_an_event() -> None:
    state = RunState()
    state.apply(Path("x"), NearLimit(site="attn.py:prefill", bytes=1600, arena=1777))
    assert state.news(0, "") == [
        "?: near its limit: attn.py:prefill needs 1.56 KiB of 1.74 KiB"
    ]


def _ended(meta: RunFile | None, *processes: ProcessState) -> str:
    return status(RUN, meta, processes)


def test_the_title_says_how_far_the_run_is(tmp_path: Path) -> None:
    """By run.json where it has an end, else by the workers' own last words."""
    (serving,) = _state(tmp_path).of_run(RUN)
    shut = replace(serving, phase="shutdown")
    over, died = replace(shut, ended=True), replace(serving, refused=1)
    going = RunFile(RUN, ["vllm"], "", "0.1.0")
    done = msgspec.structs.replace(going, ended="later", exit_code=0)
    other = msgspec.structs.replace(done, run="other")
    assert status(None, None, []) == "no process yet"
    for meta in (going, other, None):
        assert _ended(meta, serving, serving) == "running"
        assert _ended(meta, shut, serving) == "shutting down"
        assert _ended(meta, over, shut) == "shutting down"
        assert _ended(meta, over, over) == "ended"
        assert _ended(meta, shut, died) == "engine died"
    assert _ended(done, serving) == "ended, exit code 0"
    assert _ended(msgspec.structs.replace(done, exit_code=None), serving).endswith("unknown")


def test_an_earlier_run_of_the_folder_has_its_own_end(tmp_path: Path) -> None:
    write_trace(tmp_path, runs.grown())
    for name, run, code in (("run.json", "newer", 1), (f"run.{RUN}.json", RUN, 0)):
        ended = RunFile(run, ["vllm"], "", "0.1.0", ended="later", exit_code=code)
        (tmp_path / name).write_bytes(msgspec.json.encode(ended))
    register_commands()
    shown = CliRunner().invoke(app, ["watch", "--once", "--run", RUN, str(tmp_path)]).output
    assert f"{RUN} · ended, exit code 0" in shown
