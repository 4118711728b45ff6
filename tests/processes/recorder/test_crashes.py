"""Killed, crowded or kept from writing: no record is lost, and serving goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.processes.recorder.children import child
from wstrace.cli import checkup
from wstrace.findings.analysed_run import load_run
from wstrace.recorder.record import make_trace_folder
from wstrace.trace.reader import load_trace
from wstrace.trace.records import (
    Failure,
    Lock,
    PhaseChange,
    Ranks,
    Record,
    Request,
    Site,
    Slot,
    WorkerInit,
)

from tests.unit.recorder.test_writer import FULL, new_writer  # isort: skip

REPOSITORY = Path(__file__).parents[3]
STOPPED = "recording stops, serving goes on"
# What does not touch a file that is open already.
HARMLESS = {
    "read-only folder, in serving",
    "another user's folder, in serving",
    "no descriptor left, in serving",
}


@pytest.fixture(scope="module")
def measured() -> Any:
    if find_spec("vllm") is None:
        pytest.skip("needs vLLM's own manager")
    done = child("crashes", "ci", "--times", "2")
    return json.loads(done.stdout.splitlines()[-1])


def test_sigkill_loses_no_record_and_invents_none(measured: Any) -> None:
    kills = measured["kills"]
    assert kills["had"] >= kills["rounds"] * 4  # each of four processes, in each round
    # `torn`: the kernel may stop a write at a page for SIGKILL; the server had no answer yet
    assert (kills["lost"], kills["invented"]) == ([], [])


def test_processes_of_one_folder_have_a_whole_file_each(measured: Any) -> None:
    crowd = measured["processes"]
    assert (crowd["codes"], crowd["files"], crowd["had"]) == ([0], 6, 6 * 40)
    assert (crowd["lost"], crowd["invented"]) == ([], [])


def test_threads_that_ask_at_once_are_all_recorded(measured: Any) -> None:
    threads = measured["threads"]
    assert threads == {"done": True, "asked": 400, "recorded": 400, "kinds": 400}


def test_whatever_stops_recording_vllm_answers_and_the_loss_is_told(measured: Any) -> None:
    for name, told in measured["troubles"].items():
        assert told["answers"], name
        stops = sum(STOPPED in line for line in told["said"])
        assert stops == (name not in HARMLESS), name
        assert bool(told["doubts"]) == (name not in HARMLESS), name
    assert len(measured["troubles"]) == 14


def records() -> list[Record]:
    """A worker whose only request in serving is refused."""
    at: Any = {"slot": Slot(), "phase": "serving"}
    return [
        WorkerInit(ranks=Ranks(rank=0), world=Ranks(), limits={}),
        PhaseChange(phase="profile"),
        Lock(event="lock", slots=[Slot()], sizes=[256], phase="capture"),
        PhaseChange(phase="serving", step=1),
        Site(id=1, file="a.py", function="f", line=1, caller="a.py:1:f"),
        Request(site=1, bytes=512, arena=256, locked=True, **at),
        Failure(kind="arena", site=1, required=512, arena=256, **at),
    ]


def test_cut_at_any_byte_of_the_last_two_records_it_is_never_called_clean(
    tmp_path: Path,
) -> None:
    writer = new_writer(tmp_path)
    for record in records():
        writer.write(record)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    # without both lines it is the whole trace of an engine killed before it asked
    for cut in range(len(lines[-1]) + len(lines[-2])):
        file.write_bytes(whole[: len(whole) - cut])
        run = load_run(tmp_path)
        assert run.verdict() != "clean", cut
        kept = whole[: len(whole) - cut].count(b"\n") - 1
        # a whole record that lacks only its newline is one
        assert len(run.trace.processes[0].records) - kept in (0, 1), cut


def test_doctor_says_why_recording_stood_down(tmp_path: Path) -> None:
    folder = make_trace_folder(tmp_path / "trace")
    subprocess.run(
        [sys.executable, "-c", FULL, str(folder), "refused"],
        cwd=REPOSITORY, capture_output=True, check=True,
    )  # fmt: skip
    (told,) = checkup._lost_here(folder)
    assert (told.state, told.name) == ("warn", "earlier run")
    assert "disk full?" in told.detail
    assert "vLLM refused a request after that" in told.detail
    assert load_trace(folder).doubts != []


@pytest.mark.parametrize("name", ["empty", "other"])
def test_doctor_says_nothing_of_a_folder_without_traces(tmp_path: Path, name: str) -> None:
    if name == "other":
        (tmp_path / "x.wst.jsonl").write_text("no trace\n")
    assert list(checkup._lost_here(tmp_path)) == []


def test_doctor_finds_a_full_disk(tmp_path: Path) -> None:
    assert checkup.folder_check(tmp_path).state == "ok"
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from wstrace.cli import checkup\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "found = checkup.folder_check(Path(sys.argv[1])); print(found.state, found.detail)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("bad"), done.stdout
