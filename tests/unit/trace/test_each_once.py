"""A process's file that lies there several times is one rank, whatever reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.commands import wstrace
from tools.fleet.planted import Plan, write_run
from wstrace.gate.runs import load_runs
from wstrace.trace.reader import load_trace

TWICE = "1 file of this run lay there twice: counted once"
DIFFERS = "a file that differs from a copy of the same process: the longest was read"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A rank's file of a run of two in one folder."""
    return write_run(Plan(run="a", ranks=2), tmp_path / "t").files[1]


def torn(file: Path, target: Path) -> Path:
    """Its first half."""
    data = file.read_bytes()
    target.write_bytes(data[: len(data) // 2])
    return target


def changed(file: Path, target: Path) -> Path:
    """With another word in the middle."""
    target.write_bytes(file.read_bytes().replace(b'"phase":"serving"', b'"phase":"warmups"', 1))
    return target


def test_a_copy_under_another_name(file: Path) -> None:
    shutil.copy(file, file.with_name("0-copy.wst.jsonl"))
    trace = load_trace(file.parent)
    assert (trace.notes, trace.doubts, len(trace.processes)) == ([TWICE], [], 2)
    assert file in [process.path for process in trace.processes]  # run.json calls it so


@pytest.mark.parametrize("name", ["0-old.wst.jsonl", "z-old.wst.jsonl"])
def test_a_shorter_copy_is_not_read(name: str, file: Path) -> None:
    torn(file, file.with_name(name))
    trace = load_trace(file.parent)
    assert (trace.notes, trace.doubts, len(trace.processes)) == ([DIFFERS], [], 2)
    assert file in [process.path for process in trace.processes]


def test_copies_that_differ_in_what_both_have_are_a_doubt(file: Path) -> None:
    changed(file, file.with_name("z-old.wst.jsonl"))
    trace = load_trace(file.parent)
    assert len(trace.processes) == 2
    (doubt,) = trace.doubts
    assert doubt.startswith("copies of one process's file differ in what both have (a.")
    assert "z-old.wst.jsonl): the longest was read, and a refusal may be in another" in doubt


def test_files_without_a_process_are_not_taken_for_copies(tmp_path: Path) -> None:
    header = b'{"t":"header","ns":0,"format":1,"run":"a","wstrace":"0.1.0"}\n'
    for name in "ab":
        (tmp_path / f"{name}.wst.jsonl").write_bytes(header)
    assert len(load_trace(tmp_path).processes) == 2


def test_two_folders_of_one_run(file: Path, tmp_path: Path) -> None:
    """A folder and its copy, of which one file was cut, and a link to a file."""
    folder = file.parent
    again = shutil.copytree(folder, tmp_path / "again")
    torn(file, again / file.name)
    (folder / "link.wst.jsonl").symlink_to(file)
    (run,) = load_runs([again, folder])
    assert len(run.workers) == 2
    assert run.notes.count(DIFFERS) == run.notes.count(TWICE) == 1


def test_every_command_says_two_ranks(file: Path, tmp_path: Path) -> None:
    folder = str(file.parent)
    before = wstrace("reserve", folder).stdout
    shutil.copy(file, file.with_name("copy.wst.jsonl"))
    report = json.loads(wstrace("report", folder, "--format", "json").stdout)
    assert len(report["rests_on"]["processes"]) == 2
    assert TWICE in wstrace("report", folder).stdout
    gate = wstrace("gate", folder, folder)
    assert "2 ranks" in gate.stdout
    assert TWICE in gate.stdout + gate.stderr
    assert wstrace("reserve", folder).stdout == before
    changed(file, file.with_name("copy.wst.jsonl"))
    told = wstrace("fleet", folder, "--no-cache", "--jobs", "1", "--format", "json")
    (row,) = json.loads(told.stdout)["runs"]
    assert (row["ranks"], row["verdict"]) == (2, "inconclusive")
    assert wstrace("gate", folder).returncode == 3
