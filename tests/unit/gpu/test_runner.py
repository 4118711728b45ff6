"""Servers in turn: what one of them does never costs the others their results."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tools.gpu.clock import Clock
from tools.gpu.host import Host
from tools.gpu.runner import Runner
from tools.gpu.session import Session
from wstrace.errors import WstraceError


class FakeServer:
    """Notes what is done to it; `fails` is the method that raises."""

    def __init__(self, name: str, story: list[str], fails: str = "") -> None:
        self.name, self.story, self.fails = name, story, fails

    def _do(self, what: str) -> None:
        self.story.append(f"{what} {self.name}")
        if what == self.fails:
            raise WstraceError(f"{self.name}: cannot {what}", "ValueError: no such backend")

    def launch(self) -> None:
        self._do("launch")

    def admit(self) -> None:
        self._do("admit")

    def kill(self) -> None:
        self._do("kill")

    def job(self) -> Any:
        return self, lambda: self._do("job")


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    folder = tmp_path / "a"
    folder.mkdir()
    return Runner(Host(tmp_path, None, tmp_path), Clock(1000.0), folder)


@pytest.mark.parametrize("fails", ["launch", "admit", "job"])
def test_a_failing_server_costs_only_its_own_job(run: Runner, fails: str) -> None:
    story: list[str] = []
    bad, good = FakeServer("bad", story, fails), FakeServer("good", story)
    run.together(bad.job(), good.job())
    assert "job good" in story
    assert ("job bad" in story) is (fails == "job")
    problems = json.loads((run.folder / "problems.json").read_text())
    assert [(p["who"], p["hint"]) for p in problems] == [("bad", "ValueError: no such backend")]


def test_all_are_launched_before_the_first_is_admitted(run: Runner) -> None:
    story: list[str] = []
    run.together(*(FakeServer(name, story).job() for name in "xyz"), quiet=True)
    assert story[:6] == ["launch x", "launch y", "launch z", "admit x", "admit y", "admit z"]
    assert sorted(story[6:]) == ["job x", "job y", "job z"]


def test_a_job_starts_as_soon_as_its_server_is_admitted(run: Runner) -> None:
    started = threading.Event()

    class Second(FakeServer):
        def admit(self) -> None:
            started.wait()

    first = FakeServer("first", [])
    second = Second("second", [])
    run.together((first, started.set), (second, lambda: None))  # type: ignore[arg-type]
    assert run.problems == []


def test_past_the_deadline_nothing_is_launched(tmp_path: Path) -> None:
    clock = Clock(10.0, margin=45.0)
    session = Session(Host(tmp_path, None, tmp_path), clock, tmp_path, tmp_path, 0.2)
    session.run("a", lambda run: pytest.fail("it ran"))
    assert session.not_run == ["a: the deadline came before it was started"]


def test_a_scenario_that_raises_still_gets_its_table(tmp_path: Path) -> None:
    session = session_in(tmp_path)

    def scenario(run: Runner) -> None:
        run.setting(scenario="c")
        raise RuntimeError("no kernel image")

    session.run("c", scenario)
    assert {c.ok for c in session.claims} == {None}
    assert session.not_run == ["c: scenario c: RuntimeError: no kernel image"]
    assert (tmp_path / "out" / "c.tar.gz").exists()
    assert "no kernel image" in (tmp_path / "out" / "table.md").read_text()


def session_in(tmp_path: Path) -> Session:
    """A session with a fresh output folder."""
    out = tmp_path / "out"
    out.mkdir()
    host = Host(tmp_path, None, tmp_path)
    return Session(host, Clock(1000.0), tmp_path / "work", out, 0.2)
