"""A launch of several commands: one run id, a folder each; and `doctor --ray`'s judgement."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.commands import wstrace
from tools.fleet.planted import Plan, write_run
from wstrace.cli.nodes import Facts, judged
from wstrace.gate.runs import load_runs
from wstrace.trace.run_file import read_run


def record(folder: Path, *words: str) -> tuple[int, str]:
    told = wstrace("run", "-q", "-o", str(folder), *words, "--", "true")
    return told.returncode, told.stderr


def test_commands_with_one_id_are_one_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert record(tmp_path / name, "--run-id", "nightly-1")[0] == 0
        meta = read_run(tmp_path / name / "run.json")
        assert meta is not None
        assert (meta.run, meta.exit_code) == ("nightly-1", 0)
    write_run(Plan(run="nightly-1", ranks=2, hosts=2), tmp_path / "w")
    for host in ("node0", "node1"):
        for file in (tmp_path / "w" / host).glob("*.wst.jsonl"):
            file.rename(tmp_path / ("a" if host == "node0" else "b") / file.name)
    (run,) = load_runs([tmp_path / "a", tmp_path / "b"])
    assert [worker.ranks.tp for worker in run.workers] == [0, 1]


def test_another_command_of_the_launch_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    assert record(tmp_path / "a", "--run-id", "n")[0] == 0
    code, err = record(tmp_path / "a", "--run-id", "n")
    assert code == 2
    assert "is the folder of another command of run n" in err
    assert record(tmp_path / "a", "--run-id", "other")[0] == 0  # another run may


@pytest.mark.parametrize("text", ["../x", "a b", "a.b", "x" * 101])
def test_an_id_that_names_no_file_is_refused(text: str, tmp_path: Path) -> None:
    code, err = record(tmp_path / "a", "--run-id", text)
    assert (code, "not a run id" in err) == (2, True)
    assert not (tmp_path / "a").exists()


HERE: Facts = {"host": "a", "wstrace": "1", "vllm": "0.32.0", "wrong": []}


@pytest.mark.parametrize(
    ("changes", "state", "says"),
    [
        ({}, "ok", "wstrace 1, vLLM 0.32.0"),
        ({"wstrace": "2"}, "bad", "wstrace 2, here 1"),
        ({"vllm": ""}, "bad", "vllm none, here 0.32.0"),
        ({"wrong": ["trace folder: x"]}, "bad", "trace folder: x"),
    ],
)
def test_a_node_is_judged_by_this_one(
    changes: dict[str, object], state: str, says: str
) -> None:
    there: Facts = {**HERE, **changes}  # type: ignore[typeddict-item]
    check = judged("node", there, HERE)
    assert (check.state, says in check.detail) == (state, True)


def test_without_ray_doctor_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("wstrace.cli.checkup.run_all", lambda folder: iter(()))
    told = wstrace("doctor", "--ray")
    assert told.returncode == 2
    assert "pip install 'wstrace[ray]'" in told.stderr
